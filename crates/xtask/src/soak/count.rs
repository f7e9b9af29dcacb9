//! Counting, from `/proc` and the cgroup file systems: one function per source.
//!
//! Everything may go while it is looked at; then it is not there, and is not an
//! error.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tare_kernel::cgroup::Version;

/// Where the soak's own processes are in its part of a hierarchy.
pub const OWN_LEAF: &str = "soak";

/// The kinds of namespaces, as `/proc/PID/ns` names them.
const KINDS: [&str; 8] = ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"];

/// What `st_blocks` of stat(2) counts in.
const STAT_BLOCK_BYTES: u64 = 512;

/// A process of the ground.
#[derive(Debug)]
pub struct Process {
    directory: PathBuf,
}

/// All of them but the first and ourselves. Zombies are among them.
pub fn processes() -> Vec<Process> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok());
    let others = numbers.filter(|it| *it != 1 && *it != own);
    others.map(Process::of).collect()
}

impl Process {
    pub fn of(pid: u32) -> Self {
        Self { directory: PathBuf::from(format!("/proc/{pid}")) }
    }

    pub fn threads(&self) -> usize {
        fs::read_dir(self.directory.join("task")).map_or(0, Iterator::count)
    }

    pub fn descriptors(&self) -> usize {
        fs::read_dir(self.directory.join("fd")).map_or(0, Iterator::count)
    }

    pub fn resident_bytes(&self) -> f64 {
        let kilobytes = amount_in(self.directory.join("status"), "VmRSS:", 1);
        kilobytes.unwrap_or_default() * 1024.0
    }

    fn namespaces(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        KINDS.into_iter().filter_map(|kind| {
            let link = fs::read_link(self.directory.join("ns").join(kind)).ok()?;
            Some((kind, link.into_os_string()))
        })
    }
}

/// How many namespaces these processes are in that we are not in, and how many
/// mounts are in those.
pub fn namespaces_and_mounts(processes: &[Process]) -> (usize, usize) {
    let own = Process { directory: PathBuf::from("/proc/self") };
    let own: BTreeSet<OsString> = own.namespaces().map(|(_, it)| it).collect();
    let mut found: BTreeMap<OsString, usize> = BTreeMap::new();
    for process in processes {
        for (kind, namespace) in process.namespaces() {
            if own.contains(&namespace) || found.contains_key(&namespace) {
                continue;
            }
            let mounts = match kind {
                "mnt" => lines(&process.directory.join("mountinfo")),
                _ => 0,
            };
            found.insert(namespace, mounts);
        }
    }
    (found.len(), found.values().sum())
}

/// How many mounts there are in our own mount namespace.
pub fn own_mounts() -> usize {
    lines(Path::new("/proc/self/mountinfo"))
}

fn lines(path: &Path) -> usize {
    fs::read(path).map_or(0, |it| it.iter().filter(|byte| **byte == b'\n').count())
}

/// The parts of the cgroup hierarchies that are the soak's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hierarchies {
    pub roots: Vec<PathBuf>,
}

impl Hierarchies {
    /// Every directory but our own leaf.
    pub fn directories(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut pending = self.roots.clone();
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let is_directory = entry.file_type().is_ok_and(|it| it.is_dir());
                if is_directory && entry.file_name() != OWN_LEAF {
                    pending.push(entry.path());
                    found.push(entry.path());
                }
            }
        }
        found
    }

    /// How many v2 directories were removed that the kernel still has.
    pub fn dying(&self) -> Option<f64> {
        self.first_amount("cgroup.stat", "nr_dying_descendants")
    }

    /// Has the kernel take back what it can of the memory here: the names and
    /// nodes of files that it remembers are charged, and are no leak.
    pub fn reclaim(&self) {
        for root in &self.roots {
            // v1; then v2, which is told how much. It reports that it could not
            // take as much as that, and has taken what there was.
            for (file, amount) in [("memory.force_empty", "0"), ("memory.reclaim", "1G")] {
                let file = root.join(file);
                if file.exists() {
                    let _ = fs::write(file, amount);
                }
            }
        }
    }

    /// How many processes and threads are here.
    pub fn pids(&self) -> Option<f64> {
        self.first_number("pids.current")
    }

    fn first_amount(&self, file: &str, name: &str) -> Option<f64> {
        let mut roots = self.roots.iter();
        roots.find_map(|root| amount_in(root.join(file), name, 1))
    }

    fn first_number(&self, file: &str) -> Option<f64> {
        let mut roots = self.roots.iter();
        roots.find_map(|root| fs::read_to_string(root.join(file)).ok()?.trim().parse().ok())
    }
}

/// What is charged to the soak in all, and the kernel's part of it. What dead
/// boxes left is in it: the kernel hands that on to the parent.
pub fn cgroup_memory(hierarchies: &Hierarchies) -> (Option<f64>, Option<f64>) {
    let number = |file| hierarchies.first_number(file);
    let charged = number("memory.usage_in_bytes").or_else(|| number("memory.current"));
    let kernel = number("memory.kmem.usage_in_bytes")
        .or_else(|| hierarchies.first_amount("memory.stat", "kernel"));
    (charged, kernel)
}

/// The hierarchies in which a box may have a directory.
pub fn used_by_tare() -> Vec<PathBuf> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = tare_kernel::cgroup::hierarchies(&mountinfo);
    let is_used = |controllers: &[String]| {
        ["memory", "pids", "cpu"].iter().any(|name| controllers.iter().any(|it| it == name))
    };
    let used = found.into_iter().filter(|it| it.version == Version::V2 || is_used(&it.controllers));
    let mut mounts: Vec<PathBuf> = used.map(|it| it.mount).collect();
    mounts.sort();
    mounts.dedup();
    mounts
}

/// What a file system holds, or one file of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub files: u64,
    pub bytes: u64,
}

impl Used {
    pub fn by_file_system(path: &Path) -> Self {
        rustix::fs::statvfs(path).map_or(Self::default(), |it| Self {
            files: it.f_files - it.f_ffree,
            bytes: (it.f_blocks - it.f_bfree) * it.f_frsize,
        })
    }

    /// Nothing, if there is none.
    pub fn by_file(path: &Path) -> Self {
        fs::symlink_metadata(path)
            .map_or(Self::default(), |it| Self { files: 1, bytes: it.blocks() * STAT_BLOCK_BYTES })
    }

    /// All of a directory, and not the directory.
    pub fn by_files_in(directory: &Path) -> Self {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let each = entries.map(|entry| Self::by_file(&entry.path()));
        each.fold(Self::default(), |all, one| Self {
            files: all.files + one.files,
            bytes: all.bytes + one.bytes,
        })
    }

    /// All of it but a part.
    pub fn without(self, part: &Self) -> Self {
        Self {
            files: self.files.saturating_sub(part.files),
            bytes: self.bytes.saturating_sub(part.bytes),
        }
    }
}

/// The number in this column of the line that begins with `name`.
pub fn amount_in(path: impl AsRef<Path>, name: &str, column: usize) -> Option<f64> {
    amount(&fs::read_to_string(path).ok()?, name, column)
}

fn amount(text: &str, name: &str, column: usize) -> Option<f64> {
    let mut lines = text.lines().map(str::split_whitespace);
    let line = lines.find(|words| words.clone().next() == Some(name));
    line?.nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_found_by_the_first_word_of_its_line() {
        let meminfo = "MemTotal:       24682416 kB\nSlab:   12 kB\n";
        assert_eq!(amount(meminfo, "Slab:", 1), Some(12.0));
        assert_eq!(amount("memory\t4\t23\t1\n", "memory", 2), Some(23.0));
        assert_eq!(amount(meminfo, "Percpu:", 1), None);
    }

    #[test]
    fn a_part_of_what_is_used_can_be_left_out() {
        let own = Used::by_file(&std::env::current_exe().unwrap());
        assert!(own.files == 1 && own.bytes > 0);
        assert_eq!(Used::by_file(Path::new("/nonexistent")), Used::default());
        let all = Used { files: own.files + 4, bytes: own.bytes + 9 };
        assert_eq!(all.without(&own), Used { files: 4, bytes: 9 });
    }

    #[test]
    fn we_are_in_no_namespace_but_our_own() {
        let own = Process { directory: PathBuf::from("/proc/self") };
        assert!(own.descriptors() > 2 && own.resident_bytes() > 0.0);
        assert_eq!(namespaces_and_mounts(&[own]), (0, 0));
        assert!(own_mounts() > 0);
    }

    #[test]
    fn directories_are_counted_at_any_depth_but_for_our_own() {
        let root = std::env::temp_dir().join(format!("xtask-count-{}", std::process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(root.join(OWN_LEAF)).unwrap();
        fs::write(root.join("pids.current"), "7\n").unwrap();
        let hierarchies = Hierarchies { roots: vec![PathBuf::from("/nonexistent"), root.clone()] };
        assert_eq!(hierarchies.directories().len(), 2);
        assert_eq!(hierarchies.pids(), Some(7.0));
        fs::remove_dir_all(root).unwrap();
    }
}
