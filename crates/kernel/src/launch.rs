//! Starts a program from a keeper, which is a process with one thread.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

pub use crate::raw::Strings;

use crate::child::{self, Namespaces, SharedChild};
use crate::clock::{boot_ns, timespec};
use crate::process::Process;
use crate::raw;
use crate::step::{once, step};

/// How long a child may take to execute its program. The disk may be slow, but a keeper
/// that waits does not enforce its deadlines.
const EXECUTES_WITHIN_NS: u64 = 5_000_000_000;
/// A child places descriptors for its program only at numbers below this one.
pub const PLACED_BELOW: i32 = 16;
/// Pause between two checks whether the child was stopped.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Runs `child` in a new process that shares this one's memory, and returns when that
/// process has executed or ended. What the child writes to borrowed memory is there
/// afterwards. The process starts in the cgroup v2 directory `cgroup`, or where its parent
/// is.
///
/// `CLONE_VFORK` would wait without a bound. The child changes its user, and a process of
/// that user may stop it; a frozen cgroup stops it too. So a child that is stopped, or takes
/// too long, is killed, and that is an error.
pub fn until_exec<F: FnOnce()>(cgroup: Option<BorrowedFd<'_>>, child: F) -> io::Result<Pid> {
    let (done, write_end) = step("make exec pipe", || pipe_with(PipeFlags::CLOEXEC))?;
    // Above the numbers that the child places descriptors at.
    let write_end = fcntl_dupfd_cloexec(write_end, PLACED_BELOW)?;
    let order = Cell::new(Some(child));
    let run: fn(&Cell<Option<F>>) = |order| order.take().map_or((), |child| child());
    // SAFETY: `start` needs a main function that only makes system calls, and an order that
    // the parent leaves alone: a keeper prepares everything that its child needs before
    // this call, has no other thread, and waits below until the child is gone.
    let start = || unsafe { SharedChild::start(Namespaces::NONE, cgroup, order, run) };
    let mut started = once("make command process", start)?;
    drop(write_end);
    let executed = has_executed(&started.process, &done);
    // The pipe is closed: the child has left this memory.
    started.has_executed();
    if executed { pid_of(&started.process) } else { Err(Errno::INTR.into()) }
}

/// Waits until the other end of `done` is closed, by `execve` or by the exit of the child:
/// both leave our memory first. Returns `false` if the child had to be killed.
fn has_executed(child: &Process, done: &OwnedFd) -> bool {
    let until_ns = boot_ns().saturating_add(EXECUTES_WITHIN_NS);
    let mut look_again = Some(timespec(LOOK_AGAIN));
    loop {
        let mut fds = [PollFd::new(done, PollFlags::IN)];
        if let Ok(1..) = poll(&mut fds, look_again.as_ref()) {
            return look_again.is_some();
        }
        if look_again.is_some() && (is_stopped(child) || boot_ns() >= until_ns) {
            child.kill().ok();
            look_again = None;
        }
    }
}

fn is_stopped(child: &Process) -> bool {
    use std::os::fd::AsFd;
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::PidFd(child.as_fd()), options), Ok(Some(_)))
}

/// Runs `child` in a new process with a copy of this one's memory. The process exits with
/// what `child` returns.
pub fn forked<F: FnOnce() -> u8>(cgroup: Option<BorrowedFd<'_>>, child: F) -> io::Result<Pid> {
    pid_of(&once("make copy of keeper", || child::fork(cgroup, child))?)
}

fn pid_of(process: &Process) -> io::Result<Pid> {
    Pid::from_raw(process.pid()).ok_or_else(|| Errno::INVAL.into())
}

/// Executes another program; returns only the reason why it could not.
pub fn execute(path: &CStr, argv: &Strings, env: &Strings) -> io::Error {
    raw::execute(path, argv, env).into()
}

/// Sets every signal to its default, and blocks none.
pub fn reset_signals() {
    (1..=64).for_each(raw::reset_signal);
    raw::set_signal_mask(0);
}

/// Makes the terminal at `fd` the controlling one of this session.
pub fn control_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::process::ioctl_tiocsctty(fd)?)
}

/// Sends a signal to a child that the keeper has not reaped, so that the pid is the child's.
pub fn signal_child(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: kill(2) takes two numbers and reads no memory.
    let result = unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the soft and the hard limit. Without CAP_SYS_RESOURCE, a value above the present hard limit
/// becomes that limit.
pub fn limit_resource(resource: Resource, value: u64) -> io::Result<()> {
    let set = |value: u64| {
        // The largest number stands for no limit.
        let value = (value != u64::MAX).then_some(value);
        setrlimit(resource, Rlimit { current: value, maximum: value })
    };
    let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    match set(value) {
        Err(Errno::PERM) if value > most => Ok(set(most)?),
        result => Ok(result?),
    }
}

/// Moves into a new cgroup namespace, whose root is the present cgroup of this process.
pub fn own_cgroup_namespace() -> io::Result<()> {
    unshare(UnshareFlags::NEWCGROUP)
}

/// Moves into a new UTS namespace with the same host name.
pub fn own_hostname_namespace() -> io::Result<()> {
    unshare(UnshareFlags::NEWUTS)
}

/// Moves back into a UTS namespace that this process was in before.
pub fn enter_hostname_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::HostNameAndNISDomainName);
    let enter = || move_into_link_name_space(namespace, kind);
    Ok(step("enter namespace", enter)?)
}

fn unshare(namespace: UnshareFlags) -> io::Result<()> {
    // SAFETY: unshare_unsafe must not be called with FILES while other threads use
    // descriptors: the two callers above pass one kind of namespace each.
    let unshare = || unsafe { rustix::thread::unshare_unsafe(namespace) };
    Ok(step("make namespace", unshare)?)
}
