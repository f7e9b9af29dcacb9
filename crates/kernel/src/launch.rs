//! Starting a program from a keeper: one process, no threads.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::clock::{boot_ns, timespec};
use crate::raw::{CLONE_INTO_CGROUP, clone3, syscall, with_signals_blocked};
use crate::step::{once, step};

/// What the child may use of stack: it formats nothing and recurses nowhere.
const STACK_BYTES: usize = 64 << 10;
/// How long a child may take to become its program: the disk may be slow, but a
/// keeper that waits keeps no deadline.
const EXECUTES_WITHIN_NS: u64 = 5_000_000_000;
/// How often somebody looks whether it was stopped.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Runs `child` in a new process that shares this one's memory, and returns
/// when that has executed or ended. No page table is copied, and what the child
/// writes to what it borrows is there afterwards. It is born in the cgroup v2
/// directory `into`, or where its parent is.
///
/// The wait is not the kernel's own (`CLONE_VFORK`), which has no end: as soon as
/// the child is somebody else, that one may stop it, and a frozen cgroup does. So
/// a child that is stopped, or takes too long, is killed, and that is an error.
pub fn until_exec<F: FnOnce()>(into: Option<BorrowedFd<'_>>, child: F) -> io::Result<Pid> {
    let mut stack = Vec::<u128>::with_capacity(STACK_BYTES / size_of::<u128>());
    let mut child = Some(child);
    let (done, theirs) = step("pipe of a birth made", || pipe_with(PipeFlags::CLOEXEC))?;
    // Nothing that the child places as its streams may be in its way.
    let theirs = fcntl_dupfd_cloexec(theirs, 3)?;
    let arguments = libc::clone_args {
        stack: stack.as_mut_ptr() as u64,
        stack_size: STACK_BYTES as u64,
        ..birth(into, libc::CLONE_VM)
    };
    // SAFETY: we stay here until the child is done with the stack and the closure,
    // and there is no other thread that could use either. What we do meanwhile
    // leaves alone what the child uses, `errno` included.
    let bear = || unsafe { start(&arguments, &mut child) };
    let pid = once("program born", || child_pid(with_signals_blocked(bear)))?;
    drop(theirs);
    if has_executed(pid, &done) { Ok(pid) } else { Err(Errno::INTR.into()) }
}

/// Waits until `done` is closed at its other end: by `execve` or by the exit of
/// the child, both of which leave our memory first. `false` when it was killed
/// for not coming to either.
fn has_executed(child: Pid, done: &OwnedFd) -> bool {
    let until_ns = boot_ns().saturating_add(EXECUTES_WITHIN_NS);
    let mut look_again = Some(timespec(LOOK_AGAIN));
    loop {
        let mut fds = [PollFd::new(done, PollFlags::IN)];
        if let Ok(1..) = poll(&mut fds, look_again.as_ref()) {
            return look_again.is_some();
        }
        if look_again.is_some() && (is_stopped(child) || boot_ns() >= until_ns) {
            // It is our unreaped child: the number is its own.
            kill_process(child, Signal::KILL).ok();
            look_again = None;
        }
    }
}

fn is_stopped(child: Pid) -> bool {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(child), options), Ok(Some(_)))
}

/// Runs `child` in a new process with a copy of this one's memory; what it
/// returns is that process's exit code.
pub fn forked<F: FnOnce() -> u8>(into: Option<BorrowedFd<'_>>, child: F) -> io::Result<Pid> {
    let mut child = Some(move || exit_with(child()));
    let arguments = birth(into, 0);
    // SAFETY: no stack is named, so the child goes on with its own copy of ours,
    // on which it finds its copy of the closure.
    let bear = || unsafe { start(&arguments, &mut child) };
    once("copy born", || child_pid(with_signals_blocked(bear)))
}

/// # Safety
/// As for `clone3`: the stack, if one is named, and `child` must be there for
/// the new process until it has executed or exited.
unsafe fn start<F: FnOnce()>(arguments: &libc::clone_args, child: &mut Option<F>) -> isize {
    // SAFETY: the caller vouches for both; `enter` takes the closure once.
    unsafe { clone3(arguments, enter::<F>, std::ptr::from_mut(child).cast()) }
}

fn exit_with(code: u8) {
    // SAFETY: ends this process at once, running no destructor of its parent's.
    unsafe { libc::_exit(i32::from(code)) }
}

/// A child of ours that tells us of its end.
fn birth(into: Option<BorrowedFd<'_>>, flags: i32) -> libc::clone_args {
    libc::clone_args {
        flags: flags as u64 | into.map_or(0, |_| CLONE_INTO_CGROUP),
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: into.map_or(0, |fd| fd.as_raw_fd() as u64),
    }
}

/// `Pid` takes negative numbers as they come, and to `kill` those are groups.
fn child_pid(result: isize) -> io::Result<Pid> {
    match i32::try_from(result) {
        Ok(pid @ 1..) => Pid::from_raw(pid).ok_or_else(|| Errno::INVAL.into()),
        Ok(_) | Err(_) => Err(io::Error::from_raw_os_error(-result as i32)),
    }
}

/// The child's first function. A panic in it aborts: it may not unwind into
/// what called it.
extern "C" fn enter<F: FnOnce()>(child: *mut libc::c_void) -> ! {
    // SAFETY: the caller passed its own `Option<F>`, which outlives this.
    let child = unsafe { &mut *child.cast::<Option<F>>() };
    if let Some(child) = child.take() {
        child();
    }
    // SAFETY: as in `exit_with`.
    unsafe { libc::_exit(127) }
}

/// Strings as `execve` takes them: pointers into what is borrowed, then null.
#[derive(Debug)]
pub struct Vector<'a> {
    pointers: Vec<*const c_char>,
    _strings: std::marker::PhantomData<&'a CStr>,
}

impl<'a> Vector<'a> {
    pub fn new<S: AsRef<CStr>>(strings: &'a [S]) -> Self {
        let strings = strings.iter().map(|string| string.as_ref().as_ptr());
        Self {
            pointers: strings.chain([std::ptr::null()]).collect(),
            _strings: std::marker::PhantomData,
        }
    }
}

/// Becomes another program; returns only the reason why it could not.
pub fn execute(path: &CStr, argv: &Vector<'_>, env: &Vector<'_>) -> io::Error {
    // SAFETY: both vectors end with a null pointer and point to strings that
    // their lifetime keeps alive.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), env.pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Every signal at its default and none blocked, whatever was inherited.
pub fn reset_signals() {
    // By the system call itself: the C library keeps some numbers to itself.
    // A `struct sigaction` of the kernel's that is all zero is the default.
    let default = [0u64; 4];
    for signal in 1..=64 {
        let action = default.as_ptr() as usize;
        // SAFETY: reads the four live words of `default` and writes nothing;
        // refused for KILL and STOP, which cannot be ignored.
        unsafe { syscall(libc::SYS_rt_sigaction, [signal, action, 0, 8, 0]) };
    }
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: the set was initialised above; the old one is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut()) };
}

/// Blocks SIGCHLD and returns a descriptor that is readable when one is pending.
pub fn child_signal() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set was initialised above.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD) };
    // SAFETY: as above; the old mask is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
    // SAFETY: as above; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above made this descriptor and nobody else has it.
    Ok(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) })
}

/// Makes the terminal at `fd` the controlling one of this session.
pub fn control_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::process::ioctl_tiocsctty(fd)?)
}

/// SIGKILL or any other signal to a child that the keeper has not reaped.
pub fn signal_child(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: the pid is that of an unreaped child, so it is still that child.
    let result = unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets one resource limit by number, capped at the hard limit already there
/// (raising that one needs a privilege over the host).
pub fn limit_resource(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: prlimit writes the current limits into the live `now`.
    let result = unsafe { libc::prlimit(0, resource as _, std::ptr::null(), &raw mut now) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let new = libc::rlimit { rlim_cur: soft.min(now.rlim_max), rlim_max: hard.min(now.rlim_max) };
    // SAFETY: prlimit reads the live `new`.
    let result = unsafe { libc::prlimit(0, resource as _, &raw const new, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves into a cgroup namespace whose root is where this process is now.
pub fn own_cgroup_namespace() -> io::Result<()> {
    unshare(UnshareFlags::NEWCGROUP)
}

/// Moves into a copy of the namespace of the host's name.
pub fn own_hostname_namespace() -> io::Result<()> {
    unshare(UnshareFlags::NEWUTS)
}

/// Moves back into one that this process was in before.
pub fn enter_hostname_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::HostNameAndNISDomainName);
    let enter = || move_into_link_name_space(namespace, kind);
    Ok(step("namespace entered", enter)?)
}

/// One of the namespaces above and no other.
fn unshare(namespace: UnshareFlags) -> io::Result<()> {
    // SAFETY: unsharing one of these changes no memory, descriptor or identity
    // of this process.
    let unshare = || unsafe { rustix::thread::unshare_unsafe(namespace) };
    Ok(step("namespace made", unshare)?)
}
