//! The cgroup hierarchies of this host, and the directories in which boxes get theirs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::CWD;
use tare_kernel::cgroup::{Hierarchy, Version, hierarchies, keyed_number, version_at};
use tare_kernel::fds::open_path;

use super::{mount_table, read};

/// The directories in which the cgroups of boxes are made; `None` where this host has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupRoots {
    pub unified: Option<PathBuf>,
    /// The v1 hierarchies.
    pub memory: Option<PathBuf>,
    pub pids: Option<PathBuf>,
    pub cpu: Option<PathBuf>,
}

impl CgroupRoots {
    const NONE: Self = Self { unified: None, memory: None, pids: None, cpu: None };

    /// Looks where most distributions mount them. Otherwise reads the table of mounts, which may
    /// be long.
    pub fn find() -> Self {
        let place = Path::new("/sys/fs/cgroup");
        Self::pure(place)
            .or_else(|| Self::hybrid(place))
            .unwrap_or_else(|| Self::mounted(&hierarchies(&mount_table())))
    }

    /// One v2 hierarchy at `place`.
    fn pure(place: &Path) -> Option<Self> {
        let unified = at(place.to_owned(), Version::V2)?;
        Some(Self { unified: Some(writable_root(&unified)), ..Self::NONE })
    }

    /// One hierarchy for each controller, in a directory of its name.
    fn hybrid(place: &Path) -> Option<Self> {
        let unified = at(place.join("unified"), Version::V2)?;
        Some(Self {
            unified: Some(writable_root(&unified)),
            memory: Some(at(place.join("memory"), Version::V1)?),
            pids: Some(at(place.join("pids"), Version::V1)?),
            cpu: Some(at(place.join("cpu"), Version::V1)?),
        })
    }

    fn mounted(found: &[Hierarchy]) -> Self {
        let v1 = |controller: &str| {
            let bound = |one: &&Hierarchy| one.controllers.iter().any(|name| name == controller);
            found.iter().find(bound).map(|one| one.mount.clone())
        };
        let unified = found.iter().find(|one| one.version == Version::V2);
        Self {
            unified: unified.map(|one| writable_root(&one.mount)),
            memory: v1("memory"),
            pids: v1("pids"),
            cpu: v1("cpu"),
        }
    }

    /// Returns every root that may contain a directory of a box, each once. The unified root is
    /// the last one: it has a directory as long as any other root has.
    pub fn all(&self) -> Vec<&Path> {
        let v1 = [&self.memory, &self.pids, &self.cpu].into_iter().flatten();
        let mut roots: Vec<&Path> = v1.map(PathBuf::as_path).collect();
        roots.sort();
        roots.dedup();
        roots.extend(self.unified.as_deref());
        roots
    }
}

/// The path, if a hierarchy of this version is mounted there.
fn at(path: PathBuf, version: Version) -> Option<PathBuf> {
    (version_at(&path) == Some(version)).then_some(path)
}

/// The root of the hierarchy. If only a part of the hierarchy is delegated to us, the cgroup of
/// this process.
fn writable_root(mount: &Path) -> PathBuf {
    if rustix::fs::access(mount, rustix::fs::Access::WRITE_OK).is_ok() {
        return mount.to_owned();
    }
    let own = read("/proc/self/cgroup");
    match own.lines().find_map(|line| line.strip_prefix("0::/")) {
        Some(path) => mount.join(path),
        None => mount.to_owned(),
    }
}

/// Returns what the kernel can reclaim, by the text of `memory.stat`. In v2 each number includes
/// the cgroups below; v1 has separate keys for that.
pub fn reclaimable(version: Version, stat: &str) -> u64 {
    let keys: &[&str] = match version {
        Version::V1 => &["total_active_file", "total_inactive_file"],
        Version::V2 => &["active_file", "inactive_file", "slab_reclaimable"],
    };
    keys.iter().filter_map(|key| keyed_number(stat, key)).sum()
}

/// The roots that tare reads usage from, each opened once. `ls` reads files of thousands of
/// boxes, and most of that time would go into looking up the path of the root.
#[derive(Debug)]
pub struct OpenRoots {
    pub unified: OpenRoot,
    pub memory: OpenRoot,
    pub pids: OpenRoot,
}

impl OpenRoots {
    pub fn new(roots: &CgroupRoots) -> Self {
        let root =
            |path: &Option<PathBuf>| OpenRoot { path: path.clone(), opened: OnceLock::new() };
        Self { unified: root(&roots.unified), memory: root(&roots.memory), pids: root(&roots.pids) }
    }

    /// Opens the roots now, while there are descriptors.
    pub fn open(&self) {
        for root in [&self.unified, &self.memory, &self.pids] {
            root.open().ok();
        }
    }
}

/// A root that is opened when it is first needed. After a failure, for example because no
/// descriptor was left, the next call tries again.
#[derive(Debug)]
pub struct OpenRoot {
    path: Option<PathBuf>,
    opened: OnceLock<OwnedFd>,
}

impl OpenRoot {
    /// Returns whether this host has the hierarchy.
    pub fn exists(&self) -> bool {
        self.path.is_some()
    }

    pub fn open(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened.as_fd());
        }
        let path = self.path.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let opened = open_path(CWD, path)?;
        Ok(self.opened.get_or_init(|| opened).as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_files_are_reclaimable() {
        let v1 = "inactive_file 1\ntotal_inactive_file 10\ntotal_active_file 20\n";
        assert_eq!(reclaimable(Version::V1, v1), 30);
        let v2 = "file 99\nshmem 50\ninactive_file 10\nactive_file 20\nslab_reclaimable 5\n";
        assert_eq!(reclaimable(Version::V2, v2), 35);
    }
}
