//! Freezes the workload.
//!
//! The keeper does this itself, between two processes that it starts. It waits until each new
//! process has executed (`launch::until_exec`). A process that were frozen before that would make
//! the keeper wait too, and the keeper would enforce no deadline meanwhile.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{pread, pwrite};
use tare_kernel::step::step;

/// The file `cgroup.freeze` of the workload's cgroup.
#[derive(Debug)]
pub struct Freezer {
    file: OwnedFd,
}

impl Freezer {
    /// Opens the freezer of the workload's cgroup.
    pub fn open(cgroup: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let open = || openat(cgroup, c"cgroup.freeze", flags, Mode::empty());
        let file = step("open the freezer", open)?;
        Ok(Self { file })
    }

    /// Stops every process of the workload when it next leaves the kernel.
    pub fn freeze(&self) -> rustix::io::Result<()> {
        step("freeze the workload", || pwrite(&self.file, b"1", 0)).map(drop)
    }

    /// Returns whether the workload is frozen or being frozen. A process that is started then
    /// does not run.
    pub fn is_frozen(&self) -> bool {
        let mut wanted = [0];
        matches!(pread(&self.file, &mut wanted, 0), Ok(1)) && wanted == *b"1"
    }
}
