//! Starting a program from a keeper: one process, no threads.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::io;

use rustix::process::Pid;

use crate::raw::{clone3, syscall, with_signals_blocked};

/// What the child may use of stack: it formats nothing and recurses nowhere.
const STACK_BYTES: usize = 64 << 10;

/// Runs `child` in a new process that shares this one's memory, and returns
/// when that has executed or ended. No page table is copied, and what the child
/// writes to what it borrows is there afterwards.
pub fn until_exec<F: FnOnce()>(child: F) -> io::Result<Pid> {
    let mut stack = Vec::<u128>::with_capacity(STACK_BYTES / size_of::<u128>());
    let mut child = Some(child);
    let arguments = libc::clone_args {
        flags: (libc::CLONE_VM | libc::CLONE_VFORK) as u64,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.as_mut_ptr() as u64,
        stack_size: STACK_BYTES as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    let argument = (&raw mut child).cast();
    // SAFETY: CLONE_VFORK keeps us here until the child is done with the stack
    // and the closure, and there is no other thread that could use either.
    let pid = with_signals_blocked(|| unsafe { clone3(&arguments, enter::<F>, argument) });
    match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        Some(pid) => Ok(pid),
        None => Err(io::Error::from_raw_os_error(-pid as i32)),
    }
}

/// The child's first function. A panic in it aborts: it may not unwind into
/// what called it.
extern "C" fn enter<F: FnOnce()>(child: *mut libc::c_void) -> ! {
    // SAFETY: `until_exec` passed its own `Option<F>` and waits.
    let child = unsafe { &mut *child.cast::<Option<F>>() };
    if let Some(child) = child.take() {
        child();
    }
    // SAFETY: ends the child at once, running no destructor of its parent's.
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
pub fn child_signal() -> io::Result<std::os::fd::OwnedFd> {
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
    Ok(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) })
}

/// Makes the terminal at `fd` the controlling one of this session.
pub fn control_terminal(fd: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::process::ioctl_tiocsctty(fd)?)
}

/// SIGKILL or any other signal to a child that the keeper has not reaped.
pub fn signal_child(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: the pid is that of an unreaped child, so it is still that child.
    let result = unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets one resource limit by number, capped at the hard limit already there
/// (raising that one needs a privilege over the host).
pub fn limit_resource(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: prlimit writes the current limits into the live `now`.
    let result = unsafe { libc::prlimit(0, resource as _, std::ptr::null(), &raw mut now) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let new = libc::rlimit {
        rlim_cur: soft.min(now.rlim_max),
        rlim_max: hard.min(now.rlim_max),
    };
    // SAFETY: prlimit reads the live `new`.
    let result = unsafe { libc::prlimit(0, resource as _, &raw const new, std::ptr::null_mut()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Moves into a cgroup namespace whose root is where this process is now.
pub fn own_cgroup_namespace() -> io::Result<()> {
    // SAFETY: unsharing a cgroup namespace changes no memory, descriptor or
    // identity of this process.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWCGROUP) }?)
}
