//! Makes a network namespace with its loopback interface up, beside other work.
//!
//! The kernel takes longer to make one than for all other namespaces together. So a
//! keeper has a process of its own make it while the keeper builds the file system: the
//! builder process shares the keeper's memory, makes a few system calls, sends a
//! descriptor of the namespace over a socket, and exits.
//!
//! The builder keeps all descriptors that the keeper has open. A lock that says that the
//! box is being made therefore stays until the builder is gone too. It waits for nothing,
//! so the rule of `child.rs` for waiting children does not concern it.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg,
    socket,
};
use rustix::process::Pid;
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, move_into_link_name_space, sched_getaffinity, sched_getcpu,
    sched_setaffinity, unshare_unsafe,
};

use crate::child::{Namespaces, SharedChild};
use crate::fds::receive;
use crate::raw::syscall;
use crate::step::{once, step};

/// A network namespace that a builder process is making.
#[derive(Debug)]
pub struct NamespaceBuilder {
    /// The namespace arrives here.
    socket: OwnedFd,
    /// Its order is the number of the other end of the socket.
    builder: SharedChild<RawFd>,
}

impl NamespaceBuilder {
    /// Starts the builder process, in the user namespace of this process. This process must
    /// have one thread, and no other child until it has joined the namespace.
    pub fn start() -> io::Result<Self> {
        let (ours, theirs) = step("make network socket", UnixStream::pair)?;
        let order = theirs.as_raw_fd();
        // SAFETY: `start` needs a main function that only makes system calls: `build` makes
        // them by rustix and `raw`. The order is a number that nothing changes.
        let start = || unsafe { SharedChild::start(Namespaces::NONE, None, order, build) };
        let builder = once("make network builder", start)?;
        move_to_another_processor(builder.process.pid());
        Ok(Self { socket: ours.into(), builder })
    }

    /// Waits for the namespace, moves this process into it, and applies the settings of `links` below
    /// `settings`, the `/proc/sys` of the box.
    pub fn join(self, settings: BorrowedFd<'_>, links: Links) -> io::Result<()> {
        let made = self.receive();
        // Even a dead builder would count as a process of the box until it is reaped.
        once("reap network builder", || self.builder.wait())?;
        let namespace = made?;
        let network = Some(LinkNameSpaceType::Network);
        step("join network", || move_into_link_name_space(namespace.as_fd(), network))?;
        apply_settings(settings, links);
        Ok(())
    }

    /// An end of file without a message means that the builder was killed.
    fn receive(&self) -> io::Result<OwnedFd> {
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ready, None))?;
        let mut errno = [0; size_of::<i32>()];
        let mut received = receive(self.socket.as_fd(), &mut errno)?;
        received.fds.pop().ok_or_else(|| match i32::from_ne_bytes(errno) {
            0 => Errno::IO.into(),
            errno => io::Error::from_raw_os_error(errno),
        })
    }
}

/// Brings up the loopback interface of the network namespace that this process is in, and applies
/// the settings of `links` below `settings`, the `/proc/sys` of the box.
pub fn set_up_own(settings: BorrowedFd<'_>, links: Links) -> io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    step("bring up lo", || bring_loopback_up(&socket))?;
    apply_settings(settings, links);
    Ok(())
}

/// Moves the builder off the processor that its parent is on, and then lets it run on any.
/// A new process is queued behind its parent and would wait there until its parent sleeps
/// for the first time, beside an idle processor: the kernel balances only processes that
/// have waited for longer than that. Best effort: there may be no other processor.
fn move_to_another_processor(builder: i32) {
    let builder = Pid::from_raw(builder);
    if let Ok(all) = sched_getaffinity(builder) {
        let mut others = all;
        others.unset(sched_getcpu());
        sched_setaffinity(builder, &others).ok();
        sched_setaffinity(builder, &all).ok();
    }
}

/// The builder process. If sending fails, the parent sees the end of the socket.
fn build(socket: &RawFd) {
    // SAFETY: borrow_raw needs a descriptor that stays open: this is the builder's own copy,
    // and it closes none.
    let socket = unsafe { BorrowedFd::borrow_raw(*socket) };
    let (errno, namespace) = match make_namespace() {
        Ok(namespace) => (0, Some(namespace)),
        Err(errno) => (errno.raw_os_error(), None),
    };
    let passed = namespace.as_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(passed) = &passed {
        control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(passed)));
    }
    let errno = errno.to_ne_bytes();
    sendmsg(socket, &[IoSlice::new(&errno)], &mut control, SendFlags::NOSIGNAL).ok();
}

fn make_namespace() -> rustix::io::Result<OwnedFd> {
    // SAFETY: unshare_unsafe must not be called with FILES while other threads use
    // descriptors: this is another flag.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    bring_loopback_up(&socket)?;
    // From a socket, because `/proc` may be covered by now.
    let args = [socket.as_raw_fd() as usize, SIOCGSKNS, 0, 0, 0];
    // SAFETY: this ioctl takes no argument and reads no memory.
    let namespace = unsafe { syscall(libc::SYS_ioctl, args) }?;
    // SAFETY: from_raw_fd needs an open descriptor that nothing else owns: the ioctl has
    // just made it in the builder's own table.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace as RawFd) })
}

/// `linux/sockios.h`: returns a descriptor of the network namespace of a socket.
const SIOCGSKNS: usize = 0x894c;

/// The kernel gives the interface its addresses by itself.
fn bring_loopback_up(socket: &OwnedFd) -> rustix::io::Result<()> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short,
        },
    };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    let argument = &raw const request as usize;
    let args = [socket.as_raw_fd() as usize, libc::SIOCSIFFLAGS as usize, argument, 0, 0];
    // SAFETY: this ioctl reads one `ifreq` at its argument, the live `request`.
    unsafe { syscall(libc::SYS_ioctl, args) }.map(drop)
}

/// Whether a process of the box may add interfaces to its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// No: none has the capability for it.
    Fixed,
    Addable,
}

/// Every port may be bound without a privilege.
const PORTS: (&CStr, &[u8]) = (c"net/ipv4/ip_unprivileged_port_start", b"0");
/// New interfaces ignore router advertisements.
const ADVERTISEMENTS: (&CStr, &[u8]) = (c"net/ipv6/conf/default/accept_ra", b"0");

/// `/proc/sys/net` shows the network of the reader, but each mount of `/proc` keeps the
/// names of all networks that were ever looked up in it, in one list. In the host's mount
/// the boxes would slow each other down. Best effort: each setting is the kernel's default
/// already, or only a convenience.
fn apply_settings(settings: BorrowedFd<'_>, links: Links) {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let of_links = (links == Links::Addable).then_some(ADVERTISEMENTS);
    for (name, value) in [PORTS].into_iter().chain(of_links) {
        let opened = openat(settings, name, flags, Mode::empty());
        opened.and_then(|file| rustix::io::write(file, value)).ok();
    }
}
