//! The cgroup hierarchies of this host, and the directories in which boxes get theirs.

use std::cell::OnceCell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::CWD;
use rustix::io::Errno;
use tare_kernel::cgroup::{Hierarchy, Version, hierarchies, keyed_number, version_at};
use tare_kernel::fds::open_path;

use super::{mount_table, read};
use crate::error::Error;

/// Where tare itself is, below a cgroup that was delegated to it. A service manager can start it
/// there: `DelegateSubgroup=` of systemd.
pub const CALLER_CGROUP: &str = "tare";

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

    /// Returns the directories of a cgroup that has the same path in every hierarchy.
    pub fn below(&self, parent: &CgroupParent) -> Self {
        let below = |root: &PathBuf| root.join(&parent.0);
        Self {
            unified: self.unified.as_ref().map(below),
            memory: self.memory.as_ref().map(below),
            pids: self.pids.as_ref().map(below),
            cpu: self.cpu.as_ref().map(below),
        }
    }

    /// Returns the cgroups of this process where boxes below them can have limits, and those of
    /// `otherwise` elsewhere. `own_text` is the text of `/proc/self/cgroup`.
    ///
    /// A v2 cgroup with processes cannot give its children controllers (cgroup-v2.rst, "No
    /// Internal Process"), and this process is in its own. So the unified hierarchy is used there
    /// only if the limits of boxes come from v1. The root of a hierarchy limits and counts nothing:
    /// a process in it has no cgroup of its own.
    pub fn of_caller(&self, own_text: &str, otherwise: Self) -> Self {
        let table = OnceCell::new();
        let mounted = || table.get_or_init(|| hierarchies(&mount_table())).as_slice();
        let own = |root: &Option<PathBuf>, controller: &str, otherwise: Option<PathBuf>| {
            let path = own_cgroup(own_text, controller).map(|(_, path)| path);
            let own = root.as_deref().zip(path);
            own.and_then(|(root, path)| visible_own(root, path, mounted)).or(otherwise)
        };
        let is_v1 = |name: &str| matches!(own_cgroup(own_text, name), Some((Version::V1, _)));
        let unified = if ["memory", "pids", "cpu"].into_iter().all(is_v1) {
            own(&self.unified, "", otherwise.unified)
        } else {
            otherwise.unified
        };
        Self {
            unified,
            memory: own(&self.memory, "memory", otherwise.memory),
            pids: own(&self.pids, "pids", otherwise.pids),
            cpu: own(&self.cpu, "cpu", otherwise.cpu),
        }
    }

    /// Returns the directories in which a box has its cgroups, by the list in its record. A v1
    /// directory is below the root of its hierarchy; the others are v2.
    pub fn recorded(&self, directories: &[PathBuf]) -> Self {
        let below = |root: &Option<PathBuf>| {
            let root = root.as_deref()?;
            directories.iter().find(|it| it.starts_with(root)).cloned()
        };
        let v1 = [&self.memory, &self.pids, &self.cpu];
        let is_v1 =
            |it: &Path| v1.iter().any(|root| root.as_ref().is_some_and(|v1| it.starts_with(v1)));
        Self {
            unified: directories.iter().find(|it| !is_v1(it)).cloned(),
            memory: below(&self.memory),
            pids: below(&self.pids),
            cpu: below(&self.cpu),
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

/// The path of a cgroup, the same in every hierarchy and relative to its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupParent(PathBuf);

impl CgroupParent {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let path = Path::new(text.trim_start_matches('/'));
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if path.as_os_str().is_empty() || !path.components().all(is_plain) {
            let message = format!("cannot use {text:?} as the cgroup of boxes");
            return Err(Error::bad_request(message)
                .with_hint("write its path below the root of the hierarchy, such as tare.slice"));
        }
        Ok(Self(path.to_owned()))
    }
}

impl fmt::Display for CgroupParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// Returns the path of the process in the hierarchy that has this controller, by the text of
/// `/proc/self/cgroup` (cgroups(7)). A controller that is in no v1 hierarchy is in v2.
pub fn own_cgroup<'a>(own_text: &'a str, controller: &str) -> Option<(Version, &'a str)> {
    let lines = || own_text.lines().filter_map(|line| line.split_once(':'));
    let v1 = lines().find_map(|(number, rest)| {
        let (controllers, path) = rest.split_once(':')?;
        let is_bound = number != "0" && controllers.split(',').any(|it| it == controller);
        is_bound.then_some((Version::V1, path))
    });
    let v2 = || {
        let of_v2 =
            lines().find_map(|(number, rest)| rest.strip_prefix(':').filter(|_| number == "0"));
        of_v2.map(|path| (Version::V2, path))
    };
    v1.or_else(v2)
}

/// Returns the directory of a cgroup, as a mount of the hierarchy shows it. `None` if the mount does
/// not show it.
pub fn shown_at(hierarchy: &Hierarchy, path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    // A cgroup outside of our cgroup namespace has a path with `..`, and is not visible.
    let is_outside = |path: &Path| path.components().any(|it| it.as_os_str() == "..");
    if is_outside(path) || is_outside(&hierarchy.root) {
        return None;
    }
    let below = path.strip_prefix(&hierarchy.root).ok()?;
    Some(hierarchy.mount.join(below))
}

/// Returns the directory of the cgroup of this process, if it is not the root and we may make
/// directories in it. Most mounts show the whole hierarchy, so the table of mounts, which may be
/// long, is read only if the directory is not where it is in such a mount.
fn visible_own<'a>(
    root: &Path,
    path: &str,
    mounted: impl FnOnce() -> &'a [Hierarchy],
) -> Option<PathBuf> {
    let relative = path.trim_start_matches('/');
    if relative.is_empty() || relative.split('/').any(|part| part == "..") {
        return None;
    }
    let may_write = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK);
    // The part that is delegated to us may be the root.
    if root.ends_with(relative) {
        return Some(root.to_owned());
    }
    let whole = root.join(relative);
    match may_write(&whole) {
        Ok(()) => Some(whole),
        Err(Errno::NOENT) => {
            let part = mounted().iter().rfind(|one| one.mount == root)?;
            let own = shown_at(part, path)?;
            (own != root && may_write(&own).is_ok()).then_some(own)
        }
        Err(_) => None,
    }
}

/// The path, if a hierarchy of this version is mounted there.
fn at(path: PathBuf, version: Version) -> Option<PathBuf> {
    (version_at(&path) == Some(version)).then_some(path)
}

/// The root of the hierarchy. If only a part of the hierarchy is delegated to us, the cgroup of
/// this process, or the one above if this process was moved out of the way of boxes.
fn writable_root(mount: &Path) -> PathBuf {
    if rustix::fs::access(mount, rustix::fs::Access::WRITE_OK).is_ok() {
        return mount.to_owned();
    }
    let own = read("/proc/self/cgroup");
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return mount.to_owned();
    };
    delegated(mount.join(path))
}

/// Returns the delegated cgroup of a process in `own`.
fn delegated(own: PathBuf) -> PathBuf {
    let above = own.parent().filter(|_| own.ends_with(CALLER_CGROUP));
    let is_ours = |it: &&Path| rustix::fs::access(*it, rustix::fs::Access::WRITE_OK).is_ok();
    above.filter(is_ours).map_or_else(|| own.clone(), Path::to_owned)
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
    /// Calls `read` with this directory, open, if it is the root, or opens it for that.
    pub fn with<T>(
        &self,
        directory: &Path,
        read: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.path.as_deref() == Some(directory) {
            read(self.open()?)
        } else {
            read(open_path(CWD, directory)?.as_fd())
        }
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

    const HYBRID: &str = "8:pids:/a/b\n5:cpu,memory:/m\n0::/u/v\n";

    #[test]
    fn a_controller_of_v1_is_where_it_is_bound_and_any_other_is_in_v2() {
        assert_eq!(own_cgroup(HYBRID, "pids"), Some((Version::V1, "/a/b")));
        assert_eq!(own_cgroup(HYBRID, "memory"), Some((Version::V1, "/m")));
        assert_eq!(own_cgroup(HYBRID, "io"), Some((Version::V2, "/u/v")));
        assert_eq!(own_cgroup("0::/with:colon\n", "pids"), Some((Version::V2, "/with:colon")));
        assert_eq!(own_cgroup("3:cpu:/\n", "pids"), None);
    }

    #[test]
    fn pages_of_files_are_reclaimable() {
        let v1 = "inactive_file 1\ntotal_inactive_file 10\ntotal_active_file 20\n";
        assert_eq!(reclaimable(Version::V1, v1), 30);
        let v2 = "file 99\nshmem 50\ninactive_file 10\nactive_file 20\nslab_reclaimable 5\n";
        assert_eq!(reclaimable(Version::V2, v2), 35);
    }
}
