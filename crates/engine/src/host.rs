//! What this host offers to this process, found out once per engine.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::process::{getegid, geteuid};
use tare_kernel::cgroup::{Hierarchy, Version, hierarchies};
use tare_kernel::fds::read_text;

/// The facts that decide how boxes are made here.
#[derive(Debug, Clone)]
pub struct Host {
    pub uid: u32,
    pub gid: u32,
    pub boot_id: String,
    /// Where cgroup directories can be tried, best first; see [`CgroupRoots`].
    pub cgroups: CgroupRoots,
}

impl Host {
    pub fn probe() -> Self {
        let mountinfo = read("/proc/self/mountinfo");
        let boot_id = read("/proc/sys/kernel/random/boot_id");
        Self {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            boot_id: boot_id.trim().to_owned(),
            cgroups: CgroupRoots::find(&hierarchies(&mountinfo)),
        }
    }

    /// Whether id maps, mounts and cgroups of the host are ours to make.
    pub fn is_privileged(&self) -> bool {
        self.uid == 0
    }
}

/// What the kernel does not tell reads as nothing.
fn read(path: &str) -> String {
    let text = File::open(path).and_then(|file| read_text(file.as_fd()));
    text.unwrap_or_default()
}

/// A directory under which a box's cgroup directory is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupRoots {
    pub unified: Option<PathBuf>,
    pub memory: Option<PathBuf>,
    pub pids: Option<PathBuf>,
    pub cpu: Option<PathBuf>,
}

impl CgroupRoots {
    fn find(found: &[Hierarchy]) -> Self {
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

    /// Every root that may hold a directory of a box, each once.
    pub fn all(&self) -> Vec<&Path> {
        let mut roots: Vec<&Path> = [&self.unified, &self.memory, &self.pids, &self.cpu]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
            .collect();
        roots.sort();
        roots.dedup();
        roots
    }
}

/// The hierarchy's own root, or, where only a part of it is delegated to us,
/// the cgroup that this process is in.
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
