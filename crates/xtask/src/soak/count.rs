//! Counts what is left, from `/proc` and the cgroup file systems.
//!
//! A process or directory may vanish while it is read. It is then not counted, and that is not
//! an error.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tare_kernel::procfs::{NAMESPACE_KINDS, NamespaceKind, Procfs};

/// The cgroup of the soak's own processes.
pub const OWN_LEAF: &str = "soak";

/// The unit of `st_blocks` in stat(2).
const STAT_BLOCK_BYTES: u64 = 512;

/// A process of the soak.
#[derive(Debug)]
pub struct Process {
    pub threads: u64,
    pub descriptors: u64,
    pub resident_bytes: u64,
    namespaces: Vec<u64>,
    /// The mounts in its mount namespace.
    mounts: u64,
}

/// Reads all processes, including zombies, except for the first one and this one.
pub fn processes() -> Vec<Process> {
    let own = std::process::id().cast_signed();
    let Ok(procfs) = Procfs::open() else {
        return Vec::new();
    };
    let mut pids = procfs.pids().unwrap_or_default();
    pids.retain(|it| *it != 1 && *it != own);
    pids.into_iter().filter_map(|pid| Process::read(&procfs, pid)).collect()
}

impl Process {
    fn read(procfs: &Procfs, pid: i32) -> Option<Self> {
        let directory = procfs.process(pid).ok()?;
        Some(Self {
            threads: directory.threads().ok()?,
            descriptors: directory.descriptor_count().unwrap_or(0),
            resident_bytes: directory.stat().ok()?.resident_bytes,
            namespaces: directory.namespaces(&NAMESPACE_KINDS).unwrap_or_default(),
            mounts: directory.listed_mounts().unwrap_or(0),
        })
    }
}

pub fn count_threads(pid: u32) -> u64 {
    let read = || Process::read(&Procfs::open().ok()?, pid.cast_signed());
    read().map_or(0, |process| process.threads)
}

/// Counts the namespaces that these processes are in and this one is not in, and the mounts in
/// the mount namespaces among them.
pub fn namespaces_and_mounts(processes: &[Process]) -> (usize, u64) {
    let own = Procfs::open().ok();
    let own = own.and_then(|it| Process::read(&it, std::process::id().cast_signed()));
    let own = own.map_or_else(Vec::new, |it| it.namespaces);
    let (mut found, mut mounts) = (BTreeSet::new(), 0);
    for process in processes {
        for (kind, namespace) in NAMESPACE_KINDS.iter().zip(&process.namespaces) {
            let is_new = !own.contains(namespace) && found.insert(*namespace);
            if is_new && *kind == NamespaceKind::Mount {
                mounts += process.mounts;
            }
        }
    }
    (found.len(), mounts)
}

/// Counts the mounts in the mount namespace of this process.
pub fn own_mounts() -> u64 {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().count() as u64
}

/// The cgroup hierarchies, as the lane shows them.
#[derive(Debug)]
pub struct Hierarchies {
    pub roots: Vec<PathBuf>,
}

impl Hierarchies {
    /// Returns every directory, except for our own leaf.
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

    /// Returns how many removed v2 directories the kernel has not freed yet.
    pub fn dying(&self) -> Option<f64> {
        self.first_amount("cgroup.stat", "nr_dying_descendants")
    }

    /// Makes the kernel reclaim memory: cached names and inodes of files are charged, but are not
    /// leaked.
    pub fn reclaim(&self) {
        for root in &self.roots {
            // The first file is of v1, the second of v2. The write to v2 fails, because there is
            // less than this amount, but the kernel has reclaimed what it could.
            for (file, amount) in [("memory.force_empty", "0"), ("memory.reclaim", "1G")] {
                let file = root.join(file);
                if file.exists() {
                    let _ = fs::write(file, amount);
                }
            }
        }
    }

    /// Returns the number of processes and threads.
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

/// Returns the memory that is charged to the soak, and the kernel's part of it. It includes what
/// removed boxes have left: the kernel charges that to the parent.
pub fn cgroup_memory(hierarchies: &Hierarchies) -> (Option<f64>, Option<f64>) {
    let number = |file| hierarchies.first_number(file);
    let charged = number("memory.usage_in_bytes").or_else(|| number("memory.current"));
    let kernel = number("memory.kmem.usage_in_bytes")
        .or_else(|| hierarchies.first_amount("memory.stat", "kernel"));
    (charged, kernel)
}

/// How much a file system or a file uses.
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

    /// Zero if there is no such file.
    pub fn by_file(path: &Path) -> Self {
        fs::symlink_metadata(path)
            .map_or(Self::default(), |it| Self { files: 1, bytes: it.blocks() * STAT_BLOCK_BYTES })
    }

    /// All files in a directory, without the directory itself.
    pub fn by_files_in(directory: &Path) -> Self {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let each = entries.map(|entry| Self::by_file(&entry.path()));
        each.fold(Self::default(), |all, one| Self {
            files: all.files + one.files,
            bytes: all.bytes + one.bytes,
        })
    }

    /// Subtracts a part.
    pub fn without(self, part: &Self) -> Self {
        Self {
            files: self.files.saturating_sub(part.files),
            bytes: self.bytes.saturating_sub(part.bytes),
        }
    }
}

/// Returns the number in this column of the line that begins with `name`.
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
        let own = std::process::id().cast_signed();
        let own = Process::read(&Procfs::open().unwrap(), own).unwrap();
        assert!(own.descriptors > 2 && own.resident_bytes > 0);
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
