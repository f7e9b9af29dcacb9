//! Stopping the workload where it is.
//!
//! The keeper freezes the box between two processes that it starts: it waits
//! for each of them until that has executed (see `launch::until_exec`), and one
//! that is stopped before would stop the keeper, with all deadlines, too.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{pread, pwrite};
use tare_kernel::step::step;

#[derive(Debug)]
pub struct Freezer {
    file: OwnedFd,
}

impl Freezer {
    /// Of the workload's cgroup.
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

    /// Whether the workload is to be frozen: a process that is started now would not
    /// begin.
    pub fn is_frozen(&self) -> bool {
        let mut wanted = [0];
        matches!(pread(&self.file, &mut wanted, 0), Ok(1)) && wanted == *b"1"
    }
}
