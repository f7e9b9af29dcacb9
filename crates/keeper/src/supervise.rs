//! PID 1's life: reap everyone, pass signals on, keep the deadline.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use tare_control::{Report, Request};
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::launch;

use crate::link::{Heard, Link};

/// Returns when the box is to end; what there was to say has been said.
pub fn supervise(link: &mut Link, child_signal: &OwnedFd, command: Pid, deadline_ns: Option<u64>) {
    loop {
        let Some(ready) = wait_for(link, child_signal, deadline_ns) else {
            return link.report(&Report::TimedOut);
        };
        if ready.child {
            drain(child_signal);
            if let Some(status) = reap_all(command) {
                let wait_status = status.as_raw();
                return link.report(&Report::Exited { wait_status });
            }
        }
        if ready.link && !obey(link, command) {
            return;
        }
    }
}

struct Ready {
    child: bool,
    link: bool,
}

/// Waits for whatever comes first; `None` when that is the deadline.
fn wait_for(link: &Link, child_signal: &OwnedFd, deadline_ns: Option<u64>) -> Option<Ready> {
    let mut fds = [
        PollFd::new(link, PollFlags::IN),
        PollFd::new(child_signal, PollFlags::IN),
    ];
    loop {
        let left = deadline_ns.map(|at| Duration::from_nanos(at.saturating_sub(boot_ns())));
        if left == Some(Duration::ZERO) {
            return None;
        }
        let timeout = left.map(timespec);
        if let Ok(1..) = poll(&mut fds, timeout.as_ref()) {
            break;
        }
    }
    let [link, child] = fds.map(|fd| !fd.revents().is_empty());
    Some(Ready { child, link })
}

fn drain(child_signal: &OwnedFd) {
    let mut buffer = [0; 512];
    while matches!(rustix::io::read(child_signal.as_fd(), &mut buffer), Ok(1..)) {}
}

/// Reaps every process that has ended, orphans of the workload included; the
/// command's own status when it is among them.
fn reap_all(command: Pid) -> Option<WaitStatus> {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == command {
            return Some(status);
        }
    }
    None
}

/// `false` when the creator is gone.
fn obey(link: &mut Link, command: Pid) -> bool {
    loop {
        match link.hear() {
            Heard::Request(Request::Signal(signal)) => {
                launch::signal_child(command, signal).ok();
            }
            Heard::Request(Request::Go) | Heard::Nothing => {}
            Heard::Closed => return false,
        }
        if !link.has_pending() {
            return true;
        }
    }
}
