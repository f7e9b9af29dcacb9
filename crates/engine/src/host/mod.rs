//! What this host offers, and the names that tare uses on it. Never changes the host, except
//! for creating a state root and the list of cgroup parents in it.

pub mod cgroups;
pub mod layout;
pub mod obstacle;
pub mod parallel;
pub mod parents;
pub mod processes;
pub mod state_root;
pub mod tag;

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::process::{getegid, geteuid};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::{CapabilitySet, capabilities};
use tare_kernel::fds::{read_list, read_text};
use tare_kernel::idmap;

pub use cgroups::CgroupRoots;

use cgroups::OpenRoots;

/// The file with the random id of this boot.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The capabilities that root needs to make boxes with ids of their own: for mounts and cgroups,
/// for files of those ids, for id maps, and to signal the keeper, which has such an id.
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
    pub cgroups: CgroupRoots,
    /// The same directories, open to read what boxes use.
    pub open_cgroups: Arc<OpenRoots>,
}

impl Host {
    pub fn probe() -> Self {
        let boot_id = read(BOOT_ID);
        let cgroups = CgroupRoots::find();
        let uid = geteuid().as_raw();
        Self {
            is_in_first_user_namespace: idmap::is_in_first_user_namespace(),
            has_privileges: capabilities(None).is_ok_and(|it| it.effective.contains(PRIVILEGES)),
            uid,
            gid: getegid().as_raw(),
            boot_id: boot_id.trim().to_owned(),
            open_cgroups: Arc::new(OpenRoots::new(&cgroups)),
            cgroups,
        }
    }

    /// Returns whether tare may make id maps, mounts and cgroups of the host.
    pub fn is_privileged(&self) -> bool {
        self.uid == 0 && self.is_in_first_user_namespace && self.has_privileges
    }

    pub fn is_in_first_user_namespace(&self) -> bool {
        self.is_in_first_user_namespace
    }
}

/// A random number below `end`, which must not be 0.
pub fn random_below(end: usize) -> usize {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty()).expect("the kernel has random bytes");
    u32::from_ne_bytes(bytes) as usize % end
}

/// Reads a file of the kernel. Empty if the kernel does not show it.
pub fn read(path: &str) -> String {
    let text = File::open(path).and_then(|file| read_text(file.as_fd()));
    text.unwrap_or_default()
}

/// The mounts that this process sees. Empty if the kernel does not show them.
pub fn mount_table() -> String {
    let table = File::open("/proc/self/mountinfo").and_then(|file| read_list(file.as_fd()));
    table.unwrap_or_default()
}
