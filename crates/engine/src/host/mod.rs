//! What this host offers to this process, found out once per engine.

pub mod layout;
pub mod obstacle;
pub mod parallel;
pub mod state_root;
pub mod tag;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, capabilities};
use tare_kernel::cgroup::{Hierarchy, Version, hierarchies, version_at};
use tare_kernel::fds::{read_list, read_text};
use tare_kernel::idmap;

use crate::holdings::cgroup::Meters;

/// A name that the host has until it is started again.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What root needs to make boxes with ids of their own: mounts and cgroups, pipes and
/// files that belong to those ids, id maps, and signals to the keeper, which is one of them.
const PRIVILEGES: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// The facts that decide how boxes are made here.
#[derive(Debug, Clone)]
pub struct Host {
    pub uid: u32,
    pub gid: u32,
    /// In any other user namespace tare cannot give away ids and mounts of the host.
    is_in_first_user_namespace: bool,
    /// Whether the process has [`PRIVILEGES`]. A container may have dropped some of them.
    has_privileges: bool,
    pub boot_id: String,
    /// Where cgroup directories can be tried, best first; see [`CgroupRoots`].
    pub cgroups: CgroupRoots,
    /// Opened by the first who reads what boxes use.
    meters: Arc<OnceLock<Meters>>,
}

impl Host {
    pub fn probe() -> Self {
        let boot_id = read(BOOT_ID);
        let uid = geteuid().as_raw();
        Self {
            is_in_first_user_namespace: idmap::is_in_first_user_namespace(),
            has_privileges: capabilities(None).is_ok_and(|it| it.effective.contains(PRIVILEGES)),
            uid,
            gid: getegid().as_raw(),
            boot_id: boot_id.trim().to_owned(),
            cgroups: CgroupRoots::find(),
            meters: Arc::default(),
        }
    }

    pub fn meters(&self) -> &Meters {
        self.meters.get_or_init(|| Meters::new(&self.cgroups))
    }

    /// Whether id maps, mounts and cgroups of the host are ours to make.
    pub fn is_privileged(&self) -> bool {
        self.uid == 0 && self.is_in_first_user_namespace && self.has_privileges
    }

    pub fn is_in_first_user_namespace(&self) -> bool {
        self.is_in_first_user_namespace
    }
}

/// What the kernel does not tell reads as nothing.
pub fn read(path: &str) -> String {
    let text = File::open(path).and_then(|file| read_text(file.as_fd()));
    text.unwrap_or_default()
}

pub fn mount_table() -> String {
    let table = File::open("/proc/self/mountinfo").and_then(|file| read_list(file.as_fd()));
    table.unwrap_or_default()
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
    /// Where most distributions mount them, else wherever the table of mounts
    /// says, which is long to read.
    fn find() -> Self {
        let place = Path::new("/sys/fs/cgroup");
        Self::pure(place)
            .or_else(|| Self::hybrid(place))
            .unwrap_or_else(|| Self::mounted(&hierarchies(&mount_table())))
    }

    /// One hierarchy at the place itself.
    fn pure(place: &Path) -> Option<Self> {
        let unified = at(place.to_owned(), Version::V2)?;
        Some(Self { unified: Some(writable_root(&unified)), ..Self::NONE })
    }

    /// A hierarchy for each controller in a directory of its name, all of them.
    fn hybrid(place: &Path) -> Option<Self> {
        let unified = at(place.join("unified"), Version::V2)?;
        Some(Self {
            unified: Some(writable_root(&unified)),
            memory: Some(at(place.join("memory"), Version::V1)?),
            pids: Some(at(place.join("pids"), Version::V1)?),
            cpu: Some(at(place.join("cpu"), Version::V1)?),
        })
    }

    const NONE: Self = Self { unified: None, memory: None, pids: None, cpu: None };

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

    /// Every root that may hold a directory of a box, each once. The unified one is
    /// last: as long as anything of a box is left in any, it is there.
    pub fn all(&self) -> Vec<&Path> {
        let v1 = [&self.memory, &self.pids, &self.cpu].into_iter().flatten();
        let mut roots: Vec<&Path> = v1.map(PathBuf::as_path).collect();
        roots.sort();
        roots.dedup();
        roots.extend(self.unified.as_deref());
        roots
    }
}

/// The path, if a hierarchy of this kind is there.
fn at(path: PathBuf, version: Version) -> Option<PathBuf> {
    (version_at(&path) == Some(version)).then_some(path)
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
