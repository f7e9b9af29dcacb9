//! PID 1's life: reap everyone, pass signals on, keep the deadline.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{WaitOptions, WaitStatus, wait};
use tare_control::{Report, Request};
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::launch;

use crate::link::{Heard, Link};
use crate::workload::{Child, launch_failure};

/// Returns when the box is to end; what there was to say has been said.
pub fn supervise(link: &mut Link, child: &Child, deadline_ns: Option<u64>) {
    let Ok(child_signal) = launch::child_signal() else {
        return;
    };
    let mut launching = true;
    loop {
        let ready = match wait_for(link, child, &child_signal, launching, deadline_ns) {
            Some(ready) => ready,
            None => return link.report(&Report::TimedOut),
        };
        if launching && (ready.launch || ready.child) {
            launching = false;
            if let Some((step, errno)) = launch_failure(&child.launch) {
                return link.report(&Report::LaunchFailed { step, errno });
            }
            link.report(&Report::Started);
        }
        if ready.child {
            drain(&child_signal);
            if let Some(status) = reap_all(child) {
                let wait_status = status.as_raw();
                return link.report(&Report::Exited { wait_status });
            }
        }
        if ready.link && !obey(link, child) {
            return;
        }
    }
}

struct Ready {
    launch: bool,
    child: bool,
    link: bool,
}

/// Waits for whatever comes first; `None` when that is the deadline.
fn wait_for(
    link: &Link,
    child: &Child,
    child_signal: &OwnedFd,
    launching: bool,
    deadline_ns: Option<u64>,
) -> Option<Ready> {
    let mut fds = vec![
        PollFd::new(link, PollFlags::IN),
        PollFd::new(child_signal, PollFlags::IN),
    ];
    if launching {
        fds.push(PollFd::new(&child.launch, PollFlags::IN));
    }
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
    let is_ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
    Some(Ready {
        link: is_ready(0),
        child: is_ready(1),
        launch: is_ready(2),
    })
}

fn drain(child_signal: &OwnedFd) {
    let mut buffer = [0; 512];
    while matches!(rustix::io::read(child_signal.as_fd(), &mut buffer), Ok(1..)) {}
}

/// Reaps every process that has ended, orphans of the workload included; the
/// command's own status when it is among them.
fn reap_all(child: &Child) -> Option<WaitStatus> {
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == child.pid {
            return Some(status);
        }
    }
    None
}

/// `false` when the creator is gone.
fn obey(link: &mut Link, child: &Child) -> bool {
    loop {
        match link.hear() {
            Heard::Request(Request::Signal(signal)) => {
                launch::signal_child(child.pid, signal).ok();
            }
            Heard::Request(Request::Go) | Heard::Nothing => {}
            Heard::Closed => return false,
        }
        if !link.has_pending() {
            return true;
        }
    }
}
