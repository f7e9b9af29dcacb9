//! Descriptors: sealed programs, claims, and handing them over.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::path::Arg;

use crate::step::step;

/// Opens a regular file, never through a link and without waiting: opening a FIFO
/// would wait for a process at its other end. Anything else is an error of the kind
/// `InvalidInput`.
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
    if FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() { Ok(file) } else { Err(odd()) }
}

/// Takes over a descriptor that this process was born with. Each number may be
/// taken once; a number that is not open is an error.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD touches no memory; a number that is not open is refused.
    let result = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is open, and by this function's contract nobody else
    // in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The number of whoever is at the other end of a socket; 0 where it is in no PID
/// namespace that we see.
pub fn peer_pid(socket: BorrowedFd<'_>) -> io::Result<i32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: writes at most as many bytes as `peer` has, which any bytes are valid for.
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

/// Makes `fd` the descriptor `number` as well, open across `execve`.
pub fn place(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: dup2 touches no memory; what was at `number` is closed, which is
    // what the caller, who is about to execute or to let go of it, wants.
    match unsafe { libc::dup2(fd.as_raw_fd(), number) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whatever is open from `first` on does not survive `execve`.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    close_range(first, libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes whatever is open from `first` on. For a process that has nothing else
/// to do with what it was given by its parent: whoever owned a number there must
/// not use it again.
pub fn close_from(first: RawFd) -> io::Result<()> {
    close_range(first, 0)
}

fn close_range(first: RawFd, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: touches no memory, and only descriptors that the callers of the
    // two functions above speak for.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The text of a small file of the kernel's, or of a file on a disk: one read is
/// all it takes, because there less than was asked for is the end of it.
pub fn read_text(file: BorrowedFd<'_>) -> io::Result<String> {
    read_until(file, |length, asked| length < asked)
}

/// The text of a list of the kernel's, which may be long. The kernel hands out
/// whole lines, at most a page of them at a time, so that any read may bring less
/// than was asked for.
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

/// Nothing that anyone here asks for is longer.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Claims one byte of a file for as long as any copy of this descriptor is
/// open, in whatever process; `false` when someone else has it.
pub fn claim_byte(file: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: F_OFD_SETLK reads the live `lock` and writes nothing.
    let set = || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    let claimed = step("byte claimed", || match set() {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    });
    match claimed {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        },
    }
}

/// How many descriptors travel together: a command's standard streams.
pub const PASSED_MAX: usize = 3;

/// Writes bytes with descriptors beside them, at most [`PASSED_MAX`].
pub fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = [IoSlice::new(bytes)];
    let send = || sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL);
    Ok(step("message sent", send)?)
}

/// What one read of a stream socket gave.
#[derive(Debug)]
pub struct Received {
    /// 0: the other side is gone.
    pub bytes: usize,
    pub fds: Vec<OwnedFd>,
}

/// Reads what is there, with at most [`PASSED_MAX`] descriptors; the kernel
/// closes surplus ones.
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
    use std::os::fd::AsFd;

    #[test]
    fn a_long_list_of_the_kernels_is_read_to_its_end() {
        let file = File::open("/proc/self/smaps").unwrap();
        let whole = read_list(file.as_fd()).unwrap();
        assert!(whole.len() > 2 * 4096, "{}", whole.len());
        assert!(whole.lines().any(|line| line.ends_with("[stack]")), "{whole}");
    }
}
