//! Processes that outlive their `tare` come to the test process, not to the
//! host's first process, which may reap them late or never (KERNEL.md, fact 8).
//!
//! So a zombie that tare forgot stays visible, and one that nobody else could
//! have reaped (its tare was killed on purpose) goes when the test says so.

use std::fs;

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};

use crate::snapshot::process::{Process, box_processes};

/// Makes this process the one that orphans come to.
pub fn adopt() {
    set_child_subreaper(Some(getpid())).expect("any process may adopt orphans");
    reap();
}

/// Reaps every orphan of a box that has ended.
pub fn reap() {
    for orphan in box_processes().iter().filter(|process| is_ours(process)) {
        if let Some(pid) = i32::try_from(orphan.pid).ok().and_then(Pid::from_raw) {
            // Another thread may have been faster.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// A child that we did not start: those are all of our own PID namespace, and
/// whoever started them waits for them.
fn is_ours(process: &Process) -> bool {
    let own = fs::read_link("/proc/self/ns/pid").expect("/proc is mounted");
    process.is_zombie
        && Pid::as_raw(Some(getpid())).unsigned_abs() == process.parent
        && process.pid_namespace.as_deref() != own.to_str()
}
