//! A network namespace with its loopback up, made beside other work.
//!
//! The kernel takes longer to make one than for all the other namespaces
//! together. So a keeper has a process of its own make it while it builds the file
//! system: one that shares its memory, makes a few system calls, sends a descriptor
//! of the namespace over a socket, and ends.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{WaitOptions, wait};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::fds::receive;
use crate::raw::{clone3, syscall, with_signals_blocked};
use crate::step::{once, step};

/// A namespace in the making.
pub struct Making {
    /// The end of the socket that it comes over.
    coming: OwnedFd,
    /// Left to a maker that nobody has seen gone: it runs in there.
    maker: ManuallyDrop<Box<Maker>>,
}

/// All that a maker needs.
struct Maker {
    socket: RawFd,
    stack: UnsafeCell<MaybeUninit<Stack>>,
}

/// It calls nothing deep.
const STACK_BYTES: usize = 16 << 10;

#[repr(align(16))]
struct Stack(#[allow(dead_code)] [u8; STACK_BYTES]);

impl std::fmt::Debug for Making {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Making").field(&self.coming).finish()
    }
}

impl Making {
    /// Begins, in the user namespace of this process, which has one thread and,
    /// until it has entered what is made, no other child.
    pub fn begin() -> io::Result<Self> {
        let (ours, makers) = step("network socket made", UnixStream::pair)?;
        let maker = Box::new(Maker {
            socket: makers.as_raw_fd(),
            // Untouched: it costs no page that the maker does not use.
            stack: UnsafeCell::new(MaybeUninit::uninit()),
        });
        let arguments = libc::clone_args {
            flags: libc::CLONE_VM as u64,
            pidfd: 0,
            child_tid: 0,
            parent_tid: 0,
            exit_signal: libc::SIGCHLD as u64,
            stack: maker.stack.get() as u64,
            stack_size: STACK_BYTES as u64,
            tls: 0,
            set_tid: 0,
            set_tid_size: 0,
            cgroup: 0,
        };
        let argument = ptr::from_ref(&*maker).cast_mut().cast();
        // SAFETY: the stack is nobody else's, and is freed after the maker was seen
        // dead, or never.
        let bear = || unsafe { clone3(&arguments, make, argument) };
        let pid = once("maker of a network born", || match with_signals_blocked(bear) {
            pid @ 0.. => Ok(pid as usize),
            errno => Err(io::Error::from_raw_os_error(-errno as i32)),
        })?;
        move_elsewhere(pid);
        Ok(Self { coming: ours.into(), maker: ManuallyDrop::new(maker) })
    }

    /// Moves this process into the namespace, as soon as there is one, and sets
    /// what is to be set there beneath `settings`, a `/proc/sys` of the box's own.
    pub fn enter(self, settings: BorrowedFd<'_>) -> io::Result<()> {
        let made = self.wait();
        // Dead or about to die, it must not count as a process of the box.
        once("maker of a network reaped", || retry_on_intr(|| wait(WaitOptions::empty())))?;
        drop(ManuallyDrop::into_inner(self.maker));
        let namespace = made?;
        let network = Some(LinkNameSpaceType::Network);
        let enter = || move_into_link_name_space(namespace.as_fd(), network);
        step("network entered", enter)?;
        set(settings);
        Ok(())
    }

    /// The end of the socket without a word is a maker that was killed.
    fn wait(&self) -> io::Result<OwnedFd> {
        let mut ready = [PollFd::new(&self.coming, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ready, None))?;
        let mut errno = [0; size_of::<i32>()];
        let mut received = receive(self.coming.as_fd(), &mut errno)?;
        received.fds.pop().ok_or_else(|| match i32::from_ne_bytes(errno) {
            0 => Errno::IO.into(),
            errno => io::Error::from_raw_os_error(errno),
        })
    }
}

/// Processors that a mask has room for, as many as Linux has at most on x86_64.
const PROCESSORS_MAX: usize = 8192;
const PROCESSORS_PER_WORD: usize = u64::BITS as usize;

/// Off the processor that its parent is on. Born behind it in the queue, a maker
/// would wait there until its parent sleeps for the first time, beside an idle
/// processor: the kernel balances only what has waited for longer than that. From
/// there on it may run wherever it likes. Best effort: there may be no other processor.
fn move_elsewhere(maker: usize) {
    let mut here = 0u32;
    if call(libc::SYS_getcpu, [&raw mut here as usize, 0, 0, 0, 0]).is_err() {
        return;
    }
    let all = [u64::MAX; PROCESSORS_MAX / PROCESSORS_PER_WORD];
    let mut others = all;
    let Some(word) = others.get_mut(here as usize / PROCESSORS_PER_WORD) else {
        return;
    };
    *word &= !(1 << (here as usize % PROCESSORS_PER_WORD));
    for allowed in [&others, &all] {
        let mask = [maker, size_of_val(allowed), allowed.as_ptr() as usize, 0, 0];
        call(libc::SYS_sched_setaffinity, mask).ok();
    }
}

/// The maker: system calls only, for its memory is somebody else's. It keeps all
/// that its parent had open, so that whatever says that somebody is still at work
/// here, such as a lock, says so until it is gone too.
extern "C" fn make(maker: *mut libc::c_void) -> ! {
    // SAFETY: `begin` passed a live `Maker`, which nobody changes but for the stack.
    let socket = unsafe { (*maker.cast::<Maker>()).socket };
    send(socket as usize, make_namespace());
    loop {
        call(libc::SYS_exit, [0; 5]).ok();
    }
}

/// A descriptor of the namespace, or why there is none.
fn make_namespace() -> Result<i32, i32> {
    call(libc::SYS_unshare, [libc::CLONE_NEWNET as usize, 0, 0, 0, 0])?;
    let kind = libc::SOCK_DGRAM as usize;
    let socket = call(libc::SYS_socket, [libc::AF_INET as usize, kind, 0, 0, 0])? as usize;
    bring_loopback_up(socket)?;
    // The namespace of a socket; `/proc` may be covered by now.
    call(libc::SYS_ioctl, [socket, SIOCGSKNS, 0, 0, 0])
}

/// `struct cmsghdr` with one descriptor behind it (cmsg(3)).
#[repr(C)]
struct Passed {
    length: usize,
    level: i32,
    kind: i32,
    fd: i32,
}

/// The error's number, 0 for none, and the descriptor beside it.
fn send(socket: usize, made: Result<i32, i32>) {
    let mut errno = made.err().unwrap_or(0);
    let mut passed = Passed {
        length: std::mem::offset_of!(Passed, fd) + size_of::<i32>(),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        fd: made.unwrap_or(-1),
    };
    let mut bytes = libc::iovec { iov_base: (&raw mut errno).cast(), iov_len: size_of::<i32>() };
    // SAFETY: a message of nothing, which all zeroes are.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut bytes;
    message.msg_iovlen = 1;
    if made.is_ok() {
        message.msg_control = (&raw mut passed).cast();
        message.msg_controllen = size_of::<Passed>() as _;
    }
    let flags = libc::MSG_NOSIGNAL as usize;
    let message = &raw const message as usize;
    // Nobody is left to tell when this fails: the socket is at its end then.
    call(libc::SYS_sendmsg, [socket, message, flags, 0, 0]).ok();
}

/// Any port without a privilege, and no router's word taken.
const SETTINGS: [(&CStr, &[u8]); 2] =
    [(c"net/ipv4/ip_unprivileged_port_start", b"0"), (c"net/ipv6/conf/default/accept_ra", b"0")];

/// `/proc/sys/net` is that of whoever looks, but names of all networks that were
/// ever looked at stay in memory, in one list for each mount of `/proc`: in the
/// host's they would be in each other's way. Best effort: each is the kernel's
/// default already, or only a convenience.
fn set(settings: BorrowedFd<'_>) {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    for (name, value) in SETTINGS {
        let opened = openat(settings, name, flags, Mode::empty());
        opened.and_then(|file| rustix::io::write(file, value)).ok();
    }
}

/// `linux/sockios.h`.
const SIOCGSKNS: usize = 0x894c;

/// The kernel gives the interface its addresses by itself.
fn bring_loopback_up(socket: usize) -> Result<(), i32> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short,
        },
    };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    let argument = &raw const request as usize;
    call(libc::SYS_ioctl, [socket, libc::SIOCSIFFLAGS as usize, argument, 0, 0]).map(drop)
}

fn call(number: libc::c_long, args: [usize; 5]) -> Result<i32, i32> {
    // SAFETY: the descriptors are the maker's own, and the pointers are to
    // constants or to its own stack.
    let result = unsafe { syscall(number, args) };
    match result {
        0.. => Ok(result as i32),
        _ => Err(-result as i32),
    }
}
