//! What the boxes of one test have on the host. It is cheaper than a snapshot and ignores what
//! other programs do on this host, for tests that check thousands of times.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::snapshot::cgroup::hierarchies;
use crate::snapshot::process::{Process, box_processes_of, processes};
use crate::tare::Tare;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    /// Names of the directories in `boxes/`.
    pub records: BTreeSet<String>,
    /// The names of boxes: `NAME` of the command line and `KEY/NAME` of an API key. The directory of
    /// a tenant without names is here as `KEY/`.
    pub names: BTreeSet<String>,
    /// Directories of boxes in all hierarchies, of any state root.
    pub cgroups: BTreeSet<PathBuf>,
    /// Live processes in boxes that the test or its children created.
    pub processes: Vec<Process>,
}

impl Tare {
    pub fn footprint(&self) -> Footprint {
        Footprint {
            records: entries(&self.state_root().join("boxes")),
            names: names_in(&self.state_root()),
            cgroups: cgroups(),
            processes: our_processes(),
        }
    }

    /// How many uid ranges of this state root are taken: each is a lock on one byte of
    /// one of a few files (`/proc/locks`, proc_locks(5)).
    ///
    /// The kernel shows the list in pieces. A lock that moves in the list meanwhile is shown twice or
    /// not at all, so this reads until two readings are equal.
    pub fn uid_claims(&self) -> usize {
        let mut claims = self.listed_uid_claims();
        loop {
            let again = self.listed_uid_claims();
            if again == claims {
                return claims.len();
            }
            claims = again;
        }
    }

    fn listed_uid_claims(&self) -> BTreeSet<String> {
        let claims = fs::read_dir(self.state_root().join("claims"));
        let claims = claims.into_iter().flatten().flatten();
        let files = claims.filter_map(|one| one.metadata().ok()).map(|file| {
            let (major, minor) = (major(file.dev()), minor(file.dev()));
            format!("{major:02x}:{minor:02x}:{} ", file.ino())
        });
        let files: Vec<String> = files.collect();
        let locks = fs::read_to_string("/proc/locks").expect("/proc is mounted");
        // Before the colon is the position in the list.
        let locks = locks.lines().filter_map(|line| Some(line.split_once(':')?.1.to_owned()));
        locks.filter(|lock| files.iter().any(|file| lock.contains(file))).collect()
    }

    /// The link of a name that the command line gives to a box.
    pub fn name(&self, name: &str) -> PathBuf {
        self.state_root().join("names").join(COMMAND_LINE).join(name)
    }

    /// Makes a name of the command line that leads to this id.
    pub fn forge_name(&self, name: &str, id: &str) {
        let link = self.name(name);
        fs::create_dir_all(link.parent().expect("a directory")).expect("the state root is ours");
        symlink(id, link).expect("the name is free");
    }
}

/// The tenant of the command line.
const COMMAND_LINE: &str = "-";

/// The names of all tenants of a state root, as [`Footprint::names`] has them.
pub fn names_in(state_root: &Path) -> BTreeSet<String> {
    let names = state_root.join("names");
    let mut found = BTreeSet::new();
    for tenant in entries(&names) {
        let inside = entries(&names.join(&tenant));
        let prefix = if tenant == COMMAND_LINE { String::new() } else { format!("{tenant}/") };
        found.extend(inside.iter().map(|name| format!("{prefix}{name}")));
        if inside.is_empty() {
            found.insert(format!("{tenant}/"));
        }
    }
    found
}

fn entries(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn cgroups() -> BTreeSet<PathBuf> {
    let roots = hierarchies().into_iter();
    let entries = roots.flat_map(fs::read_dir).flatten().flatten();
    let of_tare = entries.filter(|e| e.file_name().as_encoded_bytes().starts_with(b"tare-"));
    of_tare.map(|entry| entry.path()).collect()
}

/// All orphans become children of the test process, so every process in its boxes descends from it.
fn our_processes() -> Vec<Process> {
    let all = processes();
    let parents: BTreeMap<u32, u32> = all.iter().map(|it| (it.pid, it.parent)).collect();
    let own = std::process::id();
    let is_ours = |process: &Process| {
        let mut next = Some(process.parent);
        // No chain is longer than there are processes.
        for _ in 0..=parents.len() {
            match next {
                Some(pid) if pid == own => return true,
                Some(pid) => next = parents.get(&pid).copied(),
                None => return false,
            }
        }
        false
    };
    let mut inside = box_processes_of(all);
    inside.retain(|process| !process.is_zombie && is_ours(process));
    inside
}
