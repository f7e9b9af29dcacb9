//! Opening files without surprises, reading files of the kernel, and passing descriptors.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, fchown, fstat, openat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::path::Arg;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::files::Kind;
use crate::raw;
use crate::step::{once, step};

/// Opens a directory to list it or to lock it. A symlink in the last component is an error.
pub fn open_directory(at: impl AsFd, path: impl Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

/// Opens a file to read it. For files of the kernel: anything else may be a FIFO or a link,
/// see [`open_regular`].
pub fn open_file(at: impl AsFd, path: impl Arg) -> rustix::io::Result<OwnedFd> {
    openat(at, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a path as a place to start from, without the right to read or list what is there
/// (`O_PATH`).
pub fn open_path(at: impl AsFd, path: impl Arg) -> rustix::io::Result<OwnedFd> {
    openat(at, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a regular file, never through a link and without waiting: opening a FIFO would wait
/// for a process at its other end. Anything else is an error of the kind `InvalidInput`.
pub fn open_regular(
    directory: BorrowedFd<'_>,
    name: impl Arg,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let odd = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(directory, name, flags, mode) {
        // A FIFO without a reader, a socket, a directory opened to be written, a link.
        Err(Errno::NXIO | Errno::ISDIR | Errno::LOOP) => return Err(odd()),
        file => file?,
    };
    if Kind::is_file(&fstat(&file)?) { Ok(file) } else { Err(odd()) }
}

/// Opens `/dev/null` to read and write it.
pub fn open_null() -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    step("open /dev/null", || openat(CWD, c"/dev/null", flags, Mode::empty()))
}

/// Makes a pipe, its read end first. Its owner can open it again by name, as programs do with
/// `/dev/stdout`; the kernel would refuse that for a pipe of root.
pub fn pipe_of(owner: Option<(Uid, Gid)>) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = step("make pipe", || pipe_with(PipeFlags::CLOEXEC))?;
    if let Some((uid, gid)) = owner {
        step("give pipe to its user", || fchown(&read, Some(uid), Some(gid)))?;
    }
    Ok((read, write))
}

/// Makes two connected sockets that keep the borders of messages.
pub fn message_pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    step("make socket pair", || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None))
}

/// Takes over a descriptor that this process was started with. Call it once for each number.
/// A number that is not open is an error.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD takes a number and reads no memory. It fails if `number` is not open.
    let result = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: from_raw_fd needs an open descriptor that nothing else owns: it is open, and
    // each number is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Returns the pid of the process at the other end of a socket, or 0 for a process outside of our PID
/// namespaces. rustix's `socket_peercred` cannot be used, because its pid type has no 0.
pub fn peer_pid(socket: BorrowedFd<'_>) -> io::Result<i32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: SO_PEERCRED writes at most `bytes` bytes to `peer`, which is that large and
    // consists of integers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    match result {
        0 => Ok(peer.pid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Replaces the standard streams of this process. They stay open across `execve`.
pub fn set_stdio([stdin, stdout, stderr]: [BorrowedFd<'_>; 3]) -> io::Result<()> {
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    Ok(dup2_stderr(stderr)?)
}

/// Puts copies of descriptors at the numbers from `first` on. They stay open across `execve`. Only for
/// a process that is about to execute and that uses no other descriptor with these numbers.
pub fn place_from(first: RawFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    for (number, fd) in (first..).zip(fds) {
        // SAFETY: dup2(2) takes two numbers. What was open at the second one is closed: the caller
        // promises not to use it again.
        if unsafe { libc::dup2(fd.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes `execve` close every descriptor from `first` on.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: close_range with this flag closes nothing now.
    Ok(unsafe { raw::close_range(first, libc::CLOSE_RANGE_CLOEXEC) }?)
}

/// Closes every descriptor from `first` on. Only for a forked process that uses nothing of
/// what its parent had open: the values that own these descriptors must not be used or
/// dropped again.
pub fn close_from(first: RawFd) -> io::Result<()> {
    // SAFETY: close_range needs descriptors that nothing uses again: the caller is a forked process
    // that promises not to use the values that own them.
    Ok(unsafe { raw::close_range(first, 0) }?)
}

/// Reads a small file of the kernel, or a file on a disk. One read is enough: there, fewer
/// bytes than requested mean the end of the file.
pub fn read_text(file: BorrowedFd<'_>) -> io::Result<String> {
    read_until(file, |length, asked| length < asked)
}

/// Reads a list of the kernel, which may be long. The kernel returns whole lines, at most a
/// page at a time, so any read may return fewer bytes than requested.
pub fn read_list(file: BorrowedFd<'_>) -> io::Result<String> {
    read_until(file, |length, _| length == 0)
}

fn read_until(file: BorrowedFd<'_>, is_last: fn(usize, usize) -> bool) -> io::Result<String> {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while text.len() < TEXT_BYTES_MAX {
        let length = rustix::io::retry_on_intr(|| rustix::io::read(file, &mut buffer))?;
        text.extend_from_slice(&buffer[..length]);
        if is_last(length, buffer.len()) {
            break;
        }
    }
    String::from_utf8(text).map_err(io::Error::other)
}

/// No file that tare reads is longer.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// How many descriptors one message carries: the standard streams of a command.
pub const PASSED_MAX: usize = 3;

/// How many descriptors a template gets with one message: those of a keeper, and some more.
const SENT_MAX: usize = 64;

/// Sends bytes together with at most [`SENT_MAX`] descriptors.
pub fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    step("send message", || send(socket, bytes, fds))
}

/// As [`send_with`], for an order that must not be carried out twice.
pub fn send_order(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    once("send order", || send(socket, bytes, fds))
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Result of one read of a stream socket.
#[derive(Debug)]
pub struct Received {
    /// 0 if the other side has closed the socket.
    pub bytes: usize,
    pub fds: Vec<OwnedFd>,
}

/// Reads without waiting, with at most [`PASSED_MAX`] descriptors. The kernel closes surplus
/// ones.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut buffers, &mut control, flags)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    Ok(Received { bytes: received.bytes, fds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_long_list_of_the_kernel_is_read_to_its_end() {
        let file = File::open("/proc/self/smaps").unwrap();
        let whole = read_list(file.as_fd()).unwrap();
        assert!(whole.len() > 2 * 4096, "{}", whole.len());
        assert!(whole.lines().any(|line| line.ends_with("[stack]")), "{whole}");
    }
}
