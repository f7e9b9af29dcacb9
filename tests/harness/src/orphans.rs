//! Makes the test process the parent of processes that outlive their `tare`, instead of the host's
//! PID 1, which may reap them late or never.
//!
//! So a zombie that tare forgot stays visible. A zombie that no other process could have reaped
//! (its tare was killed on purpose, or has detached) is reaped when the test asks for it. A keeper
//! that is alive is never forgotten.

use std::fs;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitpid,
};

use crate::snapshot::process::{Process, box_processes};

/// Makes this process the parent of orphans.
pub fn adopt() {
    set_child_subreaper(Some(getpid())).expect("any process may adopt orphans");
    reap();
}

/// Reaps every orphan of a box that has ended.
pub fn reap() {
    let orphans = box_processes().into_iter().filter(is_ours);
    for orphan in orphans.filter(|process| process.is_zombie) {
        if let Some(pid) = pid_of(&orphan) {
            // Another thread may have been faster.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// Kills every keeper that is an orphan. A failed test calls it, so that its boxes do not disturb
/// later tests.
pub fn kill() {
    for orphan in box_processes().into_iter().filter(is_ours) {
        let Some(pid) = pid_of(&orphan) else { continue };
        // It is our child, so its pid is not reused before we reap it.
        if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
        let _ = waitpid(Some(pid), WaitOptions::empty());
    }
}

/// Whether the process is an orphan that became a child of the test. Children that the test
/// started itself are in its own PID namespace, and the code that started them waits for them.
fn is_ours(process: &Process) -> bool {
    let own = fs::read_link("/proc/self/ns/pid").expect("/proc is mounted");
    Pid::as_raw(Some(getpid())).unsigned_abs() == process.parent
        && process.pid_namespace.as_deref() != own.to_str()
}

fn pid_of(process: &Process) -> Option<Pid> {
    i32::try_from(process.pid).ok().and_then(Pid::from_raw)
}
