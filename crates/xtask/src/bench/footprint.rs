//! Everything that a bench creates on the host, and how it is removed.
//!
//! A bench owns one name, `tare-bench-<pid>`: a directory of that name in memory
//! (as `/run` is, where tare and its peers keep their state), and cgroups of that
//! name where a peer makes some. Boxes that live on have their records in that
//! directory. All of it belongs to a janitor, a child that makes the directory,
//! waits for its stdin to close and then removes everything, boxes first. The
//! pipe closes when the bench is done and also when it was interrupted or
//! killed: there is one way out.

use crate::failure::{Context, Failure};
use clap::Args;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A bench that was killed may leave a command behind that is still ending, and
/// that command holds its cgroup or writes to the directory until it is gone.
const REMOVAL_ATTEMPTS: u32 = 50;
const REMOVAL_PAUSE: Duration = Duration::from_millis(40);

/// How deep a peer nests its cgroups at most (crun: two).
const CGROUP_DEPTH_MAX: u32 = 8;

/// The janitor prints this when the directory exists.
const READY: &str = "ready";

/// Where a bench may create files while it runs.
#[derive(Debug, Clone, Args)]
pub struct FootprintPlace {
    parent: PathBuf,
    name: String,
    /// The tare that removes boxes, for a bench that creates detached ones.
    #[arg(long)]
    tare: Option<PathBuf>,
}

impl FootprintPlace {
    fn directory(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// The state root of this bench.
    fn state_root(&self) -> PathBuf {
        self.directory().join("state")
    }
}

/// A directory in memory, or the temporary directory if there is none.
fn in_memory() -> PathBuf {
    let shared_memory = PathBuf::from("/dev/shm");
    if shared_memory.is_dir() { shared_memory } else { std::env::temp_dir() }
}

/// The directory and name of a bench. They exist until [`Footprint::release`] or the end of this
/// process.
#[derive(Debug)]
pub struct Footprint {
    place: FootprintPlace,
    janitor: Child,
}

impl Footprint {
    /// `tare` is the binary that removes boxes, if the bench creates any.
    pub fn acquire(tare: Option<&Path>) -> Result<Self, Failure> {
        Self::acquire_as("tare-bench", tare)
    }

    /// Like [`Self::acquire`], with another prefix of the name.
    pub fn acquire_as(purpose: &str, tare: Option<&Path>) -> Result<Self, Failure> {
        let own = std::env::current_exe().context(|| "cannot find this program".into())?;
        let name = format!("{purpose}-{}", std::process::id());
        Self::acquire_by(
            FootprintPlace { parent: in_memory(), name, tare: tare.map(Path::to_owned) },
            Command::new(own),
        )
    }

    fn acquire_by(place: FootprintPlace, mut program: Command) -> Result<Self, Failure> {
        let mut janitor = program
            .args(["bench", "janitor"])
            .arg(&place.parent)
            .arg(&place.name)
            .args(place.tare.iter().flat_map(|it| [OsStr::new("--tare"), it.as_os_str()]))
            // Ctrl-C goes to the whole group; the janitor is needed after it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context(|| "cannot start the janitor".into())?;
        let mut line = String::new();
        let answers = janitor.stdout.as_mut().expect("its stdout was asked to be a pipe");
        BufReader::new(answers)
            .read_line(&mut line)
            .context(|| "cannot hear the janitor".into())?;
        match line.trim() {
            READY => Ok(Self { place, janitor }),
            _ => {
                let status = janitor.wait().context(|| "cannot wait for the janitor".into())?;
                let path = place.directory();
                Err(Failure::new(format!("no directory {} to work in: {status}", path.display())))
            }
        }
    }

    pub fn directory(&self) -> PathBuf {
        self.place.directory()
    }

    pub fn state_root(&self) -> PathBuf {
        self.place.state_root()
    }

    /// The name for other objects, such as cgroups. The janitor removes them too.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// Returns when the janitor has seen that nothing is left.
    pub fn release(mut self) -> Result<(), Failure> {
        drop(self.janitor.stdin.take());
        let status = self.janitor.wait().context(|| "cannot wait for the janitor".into())?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::new(format!("the janitor left something behind: {status}")))
        }
    }
}

/// The other end of [`Footprint`].
pub fn serve_as_janitor(place: &FootprintPlace) -> Result<(), Failure> {
    let directory = place.directory();
    // Not recursive: a directory that exists already belongs to another program. Every user may
    // enter it, because a peer with other uids must reach its root there.
    fs::DirBuilder::new()
        .mode(0o755)
        .create(&directory)
        .context(|| format!("cannot make {}", directory.display()))?;
    let told = writeln!(std::io::stdout(), "{READY}");
    // When the read ends, the bench is gone.
    let _ = std::io::copy(&mut std::io::stdin().lock().by_ref(), &mut std::io::sink());
    if let Some(tare) = &place.tare {
        end_boxes(tare, &place.state_root())?;
    }
    let cgroups = cgroup_roots().iter().map(|root| root.join(&place.name)).collect();
    remove_all(&directory, cgroups)?;
    told.context(|| "cannot answer the bench".into())
}

/// Ends every box on a state root and takes the directory of their records. A
/// `tare run` that outlived the bench either has its record in there by then, so
/// that the directory is not empty and all is repeated, or finds it gone.
fn end_boxes(tare: &Path, state_root: &Path) -> Result<(), Failure> {
    let records = state_root.join("boxes");
    let ids = RefCell::new(BTreeSet::new());
    until_gone(&records, || {
        for entry in fs::read_dir(&records)? {
            ids.borrow_mut().insert(entry?.file_name().to_string_lossy().into_owned());
        }
        // Only the absence of the records counts, not the exit code.
        let _ = Command::new(tare)
            .args(["rm", "-f", "--all"])
            .env("TARE_STATE_ROOT", state_root)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        fs::remove_dir(&records)
    })?;
    let left = cgroups_of(ids.borrow().iter().map(String::as_str));
    match left.first() {
        None => Ok(()),
        Some(first) => Err(Failure::new(format!(
            "{} cgroups of boxes are left, the first is {}",
            left.len(),
            first.display()
        ))),
    }
}

/// The directories that these boxes have in any cgroup hierarchy.
pub fn cgroups_of<'a>(ids: impl IntoIterator<Item = &'a str>) -> Vec<PathBuf> {
    let ids: HashSet<&str> = ids.into_iter().collect();
    let entries = cgroup_roots().into_iter().filter_map(|root| fs::read_dir(root).ok());
    let directories = entries.flat_map(|entries| entries.flatten().map(|entry| entry.path()));
    // `tare-<tag>-<id>`.
    let is_theirs = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let tagged = name.and_then(|name| name.strip_prefix("tare-")?.split_once('-'));
        tagged.is_some_and(|(_, id)| ids.contains(id))
    };
    directories.filter(is_theirs).collect()
}

fn remove_all(directory: &Path, cgroups: Vec<PathBuf>) -> Result<(), Failure> {
    for cgroup in cgroups {
        until_gone(&cgroup, || {
            // Absent on cgroup v1 and on a second attempt; the removal decides.
            let _ = fs::write(cgroup.join("cgroup.kill"), "1");
            remove_cgroup(&cgroup, CGROUP_DEPTH_MAX)
        })?;
    }
    until_gone(directory, || fs::remove_dir_all(directory))
}

/// Repeats a removal until the path was seen to be absent.
fn until_gone(path: &Path, remove: impl Fn() -> std::io::Result<()>) -> Result<(), Failure> {
    let mut last = Ok(());
    for _ in 0..REMOVAL_ATTEMPTS {
        if !path.symlink_metadata().is_ok_and(|it| it.is_dir()) {
            return Ok(());
        }
        last = remove();
        if last.is_err() {
            #[expect(
                clippy::disallowed_methods,
                reason = "bounded by REMOVAL_ATTEMPTS; no event says that it is unused"
            )]
            std::thread::sleep(REMOVAL_PAUSE);
        }
    }
    last.context(|| format!("cannot remove {}", path.display()))
}

/// Children first: the kernel removes only leaves.
fn remove_cgroup(cgroup: &Path, depth_left: u32) -> std::io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if depth_left > 0 && entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path(), depth_left - 1)?;
        }
    }
    fs::remove_dir(cgroup)
}

/// Where cgroup hierarchies of either version are mounted.
fn cgroup_roots() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A parent directory of its own for one test.
    fn parent(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("xtask-{test}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn removal_takes_the_directory_with_everything_in_it() {
        let parent = parent("removal");
        let directory = parent.join("bench");
        fs::create_dir_all(directory.join("a/b")).unwrap();
        fs::write(directory.join("a/b/c"), "x").unwrap();
        remove_all(&directory, vec![parent.join("no-such-cgroup")]).unwrap();
        assert!(!directory.exists());
        fs::remove_dir(parent).unwrap();
    }

    #[test]
    fn a_directory_that_was_there_before_is_refused_and_kept() {
        let parent = parent("refusal");
        fs::create_dir(parent.join("taken")).unwrap();
        let place = FootprintPlace { parent: parent.clone(), name: "taken".into(), tare: None };
        assert!(serve_as_janitor(&place).is_err());
        assert!(parent.join("taken").exists());
        fs::remove_dir_all(parent).unwrap();
    }

    /// A state root with one record, and a `tare` that does this to it.
    fn state_root_with_a_box(parent: &Path, script: &str) -> PathBuf {
        let tare = parent.join("tare");
        fs::write(&tare, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&tare, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(parent.join("state/boxes/no-such-box-7")).unwrap();
        tare
    }

    #[test]
    fn boxes_are_ended_by_tare_on_the_state_root_of_the_bench() {
        let parent = parent("boxes");
        let script = "echo \"$@\" > $TARE_STATE_ROOT/asked; rmdir $TARE_STATE_ROOT/boxes/*";
        let tare = state_root_with_a_box(&parent, script);
        end_boxes(&tare, &parent.join("state")).unwrap();
        let asked = fs::read_to_string(parent.join("state/asked")).unwrap();
        assert_eq!(asked, "rm -f --all\n");
        assert!(!parent.join("state/boxes").exists());
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_box_that_does_not_end_keeps_its_record_and_is_reported() {
        let parent = parent("stuck");
        let tare = state_root_with_a_box(&parent, "exit 1");
        let failure = end_boxes(&tare, &parent.join("state")).unwrap_err();
        assert!(failure.to_string().contains("state/boxes"), "{failure}");
        assert!(parent.join("state/boxes/no-such-box-7").exists());
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn without_a_state_root_there_is_nothing_to_end() {
        end_boxes(Path::new("/nonexistent/tare"), Path::new("/nonexistent")).unwrap();
    }

    #[test]
    fn a_removal_that_never_works_ends_with_the_reason() {
        let parent = parent("never");
        let refused = || Err(std::io::Error::from(std::io::ErrorKind::ResourceBusy));
        let failure = until_gone(&parent, refused).unwrap_err().to_string();
        assert!(failure.contains("cannot remove") && failure.contains("busy"), "{failure}");
        fs::remove_dir(parent).unwrap();
    }

    #[test]
    fn nested_cgroups_are_removed_leaves_first() {
        let parent = parent("nested");
        fs::create_dir_all(parent.join("x/y/z")).unwrap();
        remove_cgroup(&parent.join("x"), CGROUP_DEPTH_MAX).unwrap();
        assert!(!parent.join("x").exists());
        fs::remove_dir(parent).unwrap();
    }
}
