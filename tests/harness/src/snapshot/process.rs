//! Processes that belong to a box or to tare, and the descriptors that they hold.
//!
//! A process counts if its PID namespace is not the test's, if it runs a tare program, or if it is
//! in a cgroup of tare. The test itself, its ancestors and the compiler do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Things;
use super::cgroup::is_of_tare;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    /// The contents of `comm`.
    pub name: String,
    pub is_zombie: bool,
    /// `pid:[4026531836]`; absent when we may not look.
    pub pid_namespace: Option<String>,
    /// The file name of the program; absent for zombies, kernel threads and
    /// where we may not look.
    pub program: Option<String>,
    /// Its path in each hierarchy.
    pub cgroups: Vec<String>,
}

pub fn observe(all: &[Process]) -> Things {
    let boxes = box_processes_of(all.to_vec());
    boxes.iter().map(Process::sentence).collect()
}

/// How many descriptors of each kind each living process of tare's holds.
pub fn observe_descriptors(all: &[Process]) -> Things {
    box_processes_of(all.to_vec())
        .iter()
        .filter(|process| process.runs_tare())
        .flat_map(descriptor_sentences)
        .collect()
}

/// Every process on the host that belongs to a box or is tare itself.
pub fn box_processes() -> Vec<Process> {
    box_processes_of(processes())
}

/// Processes of boxes that are alive, not counting `tare` itself.
pub fn in_boxes(tare: u32) -> usize {
    let alive = box_processes().into_iter().filter(|process| !process.is_zombie);
    alive.filter(|process| process.pid != tare).count()
}

/// Filters processes that were read before, like [`box_processes`].
pub fn box_processes_of(all: Vec<Process>) -> Vec<Process> {
    let own_namespace = link("/proc/self/ns/pid");
    let ancestors = ancestors_of(std::process::id(), &all);
    all.into_iter()
        .filter(|process| !ancestors.contains(&process.pid) && !process.is_compiler())
        .filter(|process| {
            process.runs_tare()
                || process.is_in_tare_cgroup()
                || process.pid_namespace.is_some() && process.pid_namespace != own_namespace
        })
        .collect()
}

/// Every process on the host. One that ends while we look is left out.
pub fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(read_process)
        .collect()
}

impl Process {
    /// Sends it a signal; it has to be there.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pidfd = pidfd_open(pid.expect("it has a pid"), PidfdFlags::empty());
        pidfd_send_signal(pidfd.expect("it is there"), signal).expect("it can be signalled");
    }

    fn sentence(&self) -> String {
        format!(
            "process {} ({}){} of {}, in {}",
            self.pid,
            self.name,
            if self.is_zombie { ", a zombie," } else { "" },
            self.pid_namespace.as_deref().unwrap_or("an unknown namespace"),
            self.cgroups.join(" "),
        )
    }

    fn runs_tare(&self) -> bool {
        let is_tare = |name: &str| name == "tare" || name.starts_with("tare-keeper");
        let program = self.program.as_deref().unwrap_or(&self.name);
        is_tare(program.trim_start_matches("memfd:"))
    }

    fn is_in_tare_cgroup(&self) -> bool {
        self.cgroups.iter().any(|path| is_of_tare(Path::new(path)))
    }

    fn is_compiler(&self) -> bool {
        let program = self.program.as_deref();
        matches!(program, Some("cargo" | "rustc" | "rustdoc" | "clippy-driver"))
    }
}

fn read_process(pid: u32) -> Option<Process> {
    let directory = format!("/proc/{pid}");
    let stat = fs::read_to_string(format!("{directory}/stat")).ok()?;
    // `PID (NAME) STATE PARENT ...`: the name may hold anything, the last
    // parenthesis ends it.
    let (head, tail) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    let mut fields = tail.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Process {
        pid,
        parent,
        name: name.to_owned(),
        is_zombie: matches!(state, "Z" | "X"),
        pid_namespace: link(format!("{directory}/ns/pid")),
        program: link(format!("{directory}/exe")).map(|path| program_name(&path)),
        cgroups: cgroups_of(&directory),
    })
}

fn program_name(path: &str) -> String {
    let path = path.trim_end_matches(" (deleted)");
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

fn cgroups_of(directory: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("{directory}/cgroup")).unwrap_or_default();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let distinct: BTreeSet<&str> = paths.collect();
    distinct.into_iter().map(str::to_owned).collect()
}

fn ancestors_of(pid: u32, all: &[Process]) -> BTreeSet<u32> {
    let parents: BTreeMap<u32, u32> = all.iter().map(|p| (p.pid, p.parent)).collect();
    let mut ancestors = BTreeSet::new();
    let mut next = Some(pid);
    // The set also ends the loop, should a pid be reused while we look.
    while let Some(pid) = next.filter(|&pid| ancestors.insert(pid)) {
        next = parents.get(&pid).copied();
    }
    ancestors
}

fn descriptor_sentences(process: &Process) -> Vec<String> {
    let directory = format!("/proc/{}/fd", process.pid);
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if let Some(target) = link(entry.path()) {
            *kinds.entry(descriptor_kind(&target)).or_default() += 1;
        }
    }
    let sentence = |(kind, count)| {
        let (pid, name) = (process.pid, &process.name);
        format!("process {pid} ({name}) holds {count} of {kind}")
    };
    kinds.into_iter().map(sentence).collect()
}

/// `socket:[123]` is a socket, `anon_inode:[pidfd]` a pidfd, a path a file.
fn descriptor_kind(target: &str) -> String {
    match target.split_once(':') {
        Some(("anon_inode", kind)) => kind.trim_matches(['[', ']']).to_owned(),
        Some((kind, _)) if !kind.starts_with('/') => kind.to_owned(),
        Some(_) | None => "file".to_owned(),
    }
}

fn link(path: impl AsRef<Path>) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_named_by_what_it_is() {
        let kinds = ["socket:[1]", "pipe:[2]", "anon_inode:[pidfd]", "anon_inode:inotify", "/a:b"];
        let named: Vec<String> = kinds.into_iter().map(descriptor_kind).collect();
        assert_eq!(named, ["socket", "pipe", "pidfd", "inotify", "file"]);
    }

    #[test]
    fn a_program_is_known_by_its_file_name_alone() {
        assert_eq!(program_name("/home/tare/target/debug/cargo"), "cargo");
        assert_eq!(program_name("/memfd:tare-keeper (deleted)"), "memfd:tare-keeper");
    }
}
