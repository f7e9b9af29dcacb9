//! A cgroup that a test makes, in which tare runs or below which it makes boxes.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use crate::skip::is_root;
use crate::{Running, Tare, hierarchies};

/// A cgroup of a test, under the same name in every hierarchy in which boxes have cgroups.
#[derive(Debug)]
pub struct Scope {
    pub name: String,
    pub directories: Vec<PathBuf>,
}

impl Scope {
    /// `None` if no box could have limits below it while a process is in it.
    pub fn of_caller(name: &str) -> Option<Self> {
        Self::new(name).filter(|it| it.directories.len() > 1)
    }

    /// `None` if this process cannot make cgroups.
    pub fn new(name: &str) -> Option<Self> {
        let name = format!("{name}-{}", std::process::id());
        let is_used = |root: &PathBuf| {
            let used = ["unified", "memory", "pids", "cpu", "cgroup"];
            root.file_name().is_some_and(|it| used.iter().any(|name| it == *name))
        };
        let roots: Vec<PathBuf> = hierarchies().into_iter().filter(is_used).collect();
        let directories = roots.iter().map(|root| root.join(&name)).collect();
        let scope = Self { name, directories };
        for directory in &scope.directories {
            fs::create_dir(directory).ok()?;
        }
        (is_root() && !scope.directories.is_empty()).then_some(scope)
    }

    /// The directory's file of this name, in the hierarchy that has it.
    pub fn with(&self, file: &str) -> PathBuf {
        let mut files = self.directories.iter().map(|it| it.join(file));
        files.rfind(|it| it.exists()).expect("a hierarchy has it")
    }

    /// A shell command that moves the shell into the cgroup.
    pub fn enter(&self) -> String {
        let enter = |it: &PathBuf| format!("echo 0 > {}/cgroup.procs; ", it.display());
        self.directories.iter().map(enter).collect()
    }

    /// Starts `tare run` with these arguments and every limit in this cgroup, with an input that
    /// stays open.
    pub fn run(&self, tare: &Tare, args: &str) -> Running {
        let script = format!("{} exec \"$TARE\" run --cpus 1 {args}", self.enter());
        let mut command = tare.shell_command(&script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        tare.start_command(command)
    }

    /// The cgroups of boxes below it.
    pub fn boxes(&self) -> Vec<PathBuf> {
        let below = |it: &PathBuf| fs::read_dir(it).expect("it is there").flatten();
        let below = self.directories.iter().flat_map(below).map(|entry| entry.path());
        below.filter(|path| path.is_dir()).collect()
    }

    /// Checks that this box has one cgroup in each hierarchy, and no other box has one.
    #[track_caller]
    pub fn has_in_each(&self, id: &str) {
        let boxes = self.boxes();
        assert_eq!(boxes.len(), self.directories.len(), "{boxes:?}");
        assert!(boxes.iter().all(|it| it.to_string_lossy().ends_with(id)), "{boxes:?}");
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // The lane fails the test if a box is left below it.
        self.directories.iter().for_each(|it| drop(fs::remove_dir(it)));
    }
}
