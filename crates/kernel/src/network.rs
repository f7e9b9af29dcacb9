//! A network namespace with its loopback up, made beside other work.
//!
//! The kernel takes a third of a millisecond to make one, more than for all the
//! other namespaces together. So a second process makes it while the keeper
//! builds the file system: it shares memory and descriptors with its parent,
//! makes a few system calls, leaves a descriptor of the namespace, and ends.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::Process;
use crate::raw::{clone3, syscall, with_signals_blocked};
use crate::step::{once, step};

/// A namespace in the making. Dropped early, it is left to its maker.
#[derive(Debug)]
pub struct Preparing {
    maker: Process,
    shared: ManuallyDrop<Box<Shared>>,
}

/// What the maker and its parent share.
#[derive(Debug)]
struct Shared {
    /// The namespace's descriptor, or `-errno`.
    result: AtomicI32,
    /// The host's `/proc/sys`, by descriptor: its name may be covered by the
    /// time that the maker needs it.
    settings: Option<OwnedFd>,
    stack: [u128; STACK_BYTES / size_of::<u128>()],
}

const STACK_BYTES: usize = 16 << 10;
/// Making a namespace waits for others that are being made or destroyed.
const MADE_WITHIN: Duration = Duration::from_secs(30);

/// Starts making a network namespace that belongs to this user namespace.
pub fn prepare() -> io::Result<Preparing> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut shared = Box::new(Shared {
        result: AtomicI32::new(-libc::EIO),
        settings: openat(CWD, c"/proc/sys", flags, Mode::empty()).ok(),
        stack: [0; STACK_BYTES / size_of::<u128>()],
    });
    let mut pidfd: i32 = -1;
    let arguments = libc::clone_args {
        flags: (libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_PIDFD) as u64,
        pidfd: &raw mut pidfd as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: shared.stack.as_mut_ptr() as u64,
        stack_size: STACK_BYTES as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    let argument = (&raw mut *shared).cast();
    // SAFETY: stack and result live in `shared`, which is only freed once the
    // maker was seen dead.
    let bear = || with_signals_blocked(|| unsafe { clone3(&arguments, make, argument) });
    let pid = once("maker of a network born", || match bear() {
        pid @ 0.. => Ok(pid),
        errno => Err(io::Error::from_raw_os_error(-errno as i32)),
    })?;
    // SAFETY: clone3 succeeded with CLONE_PIDFD: a new descriptor, ours alone.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Preparing {
        maker: Process::from_child(pidfd, pid as i32),
        shared: ManuallyDrop::new(shared),
    })
}

impl Preparing {
    /// Moves this process into the finished namespace.
    pub fn enter(mut self) -> io::Result<()> {
        while !self.maker.wait_dead(MADE_WITHIN)? {}
        self.maker.reap()?;
        let result = self.shared.result.load(Ordering::Acquire);
        // SAFETY: taken once, here, and the maker that used it is dead.
        drop(unsafe { ManuallyDrop::take(&mut self.shared) });
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        // SAFETY: the maker opened it for us and is gone.
        let namespace = unsafe { OwnedFd::from_raw_fd(result) };
        let network = Some(LinkNameSpaceType::Network);
        let enter = || move_into_link_name_space(namespace.as_fd(), network);
        Ok(step("network entered", enter)?)
    }
}

/// The maker: system calls only, for its memory is its parent's.
extern "C" fn make(shared: *mut libc::c_void) -> ! {
    let shared = shared.cast::<Shared>();
    // SAFETY: `prepare` passed its live `Shared`, of which the parent touches
    // nothing but this atomic until this process is dead.
    let result = unsafe { &(*shared).result };
    // SAFETY: as above.
    let settings = unsafe { &(*shared).settings };
    let made = make_namespace(settings.as_ref());
    result.store(made.unwrap_or_else(|errno| -errno), Ordering::Release);
    loop {
        call(libc::SYS_exit, [0; 5]).ok();
    }
}

fn make_namespace(settings: Option<&OwnedFd>) -> Result<i32, i32> {
    call(libc::SYS_unshare, [libc::CLONE_NEWNET as usize, 0, 0, 0, 0])?;
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as usize;
    let socket = call(libc::SYS_socket, [libc::AF_INET as usize, kind, 0, 0, 0])? as usize;
    let made = bring_loopback_up(socket).and_then(|()| {
        if let Some(settings) = settings {
            set(settings.as_raw_fd());
        }
        // The namespace of a socket; `/proc` may be covered by now.
        call(libc::SYS_ioctl, [socket, SIOCGSKNS, 0, 0, 0])
    });
    call(libc::SYS_close, [socket, 0, 0, 0, 0]).ok();
    made
}

/// Any port without a privilege, and no router's word taken.
const SETTINGS: [(&CStr, &[u8]); 2] = [
    (c"net/ipv4/ip_unprivileged_port_start", b"0"),
    (c"net/ipv6/conf/default/accept_ra", b"0"),
];

/// `/proc/sys/net` is that of whoever looks. Best effort: each is the kernel's
/// default already, or only a convenience.
fn set(settings: RawFd) {
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
    for (name, value) in SETTINGS {
        let path = name.as_ptr() as usize;
        if let Ok(file) = call(libc::SYS_openat, [settings as usize, path, flags, 0, 0]) {
            let (file, value) = (file as usize, (value.as_ptr() as usize, value.len()));
            call(libc::SYS_write, [file, value.0, value.1, 0, 0]).ok();
            call(libc::SYS_close, [file, 0, 0, 0, 0]).ok();
        }
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
    call(
        libc::SYS_ioctl,
        [socket, libc::SIOCSIFFLAGS as usize, argument, 0, 0],
    )
    .map(drop)
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
