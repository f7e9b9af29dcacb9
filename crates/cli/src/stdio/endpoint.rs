//! One end of a stream: a descriptor, and whether it can block.
//!
//! Descriptors that tare made are non-blocking. Descriptors of the caller are borrowed, and tare
//! never changes their flags, because other programs share the open files behind them. So tare
//! writes to a descriptor that can block only after `poll` found it ready.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, major, minor};
use rustix::io::{Errno, Result};
use rustix::net::{RecvFlags, SendFlags};

/// How much tare writes at once to a descriptor that may block. A pipe with `POLLOUT` has room for
/// `PIPE_BUF` bytes (pipe(7)).
const BLOCKING_WRITE_BYTES_MAX: usize = 4096;

/// The device number of `/dev/null` (null(4)).
const NULL_DEVICE: (u32, u32) = (1, 3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pipe,
    File,
    Socket,
    /// `/dev/null`: accepts everything at once.
    Null,
    /// Terminals and other devices.
    Device,
}

#[derive(Debug)]
enum Descriptor<'fd> {
    Ours(OwnedFd),
    Callers(BorrowedFd<'fd>),
}

#[derive(Debug)]
pub struct Endpoint<'fd> {
    descriptor: Descriptor<'fd>,
    kind: Kind,
}

impl<'fd> Endpoint<'fd> {
    /// Takes a descriptor that tare made.
    pub fn ours(fd: OwnedFd) -> Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self { kind: kind(fd.as_fd())?, descriptor: Descriptor::Ours(fd) })
    }

    /// Borrows a descriptor that tare was started with.
    pub fn callers(fd: BorrowedFd<'fd>) -> Result<Self> {
        Ok(Self { kind: kind(fd)?, descriptor: Descriptor::Callers(fd) })
    }

    /// Whether reads and writes return without waiting for another process.
    pub fn never_waits(&self) -> bool {
        match (&self.descriptor, self.kind) {
            (Descriptor::Ours(_), _) | (_, Kind::File | Kind::Socket | Kind::Null) => true,
            (Descriptor::Callers(_), Kind::Pipe | Kind::Device) => false,
        }
    }

    /// Whether splice(2) works: it needs a pipe on one side. Devices and sockets are excluded,
    /// because they may block in splice despite its flags.
    pub fn can_splice_to(&self, sink: &Endpoint<'_>) -> bool {
        matches!(
            (self.kind, sink.kind),
            (Kind::Pipe, Kind::Pipe | Kind::File | Kind::Null) | (Kind::File, Kind::Pipe)
        )
    }

    /// Gives a pipe of tare's own room for `bytes`. If the user's limit is reached
    /// (`pipe-user-pages-soft`, pipe(7)), the pipe stays as it is.
    pub fn widen(&self, bytes: usize) {
        if let (Descriptor::Ours(fd), Kind::Pipe) = (&self.descriptor, self.kind) {
            let _ = rustix::pipe::fcntl_setpipe_size(fd, bytes);
        }
    }

    /// Whether nothing can be read and no writer is left (pipe(7): `POLLHUP` without `POLLIN`).
    pub fn is_at_end(&self) -> bool {
        let found = polled(self.as_fd(), PollFlags::IN);
        found.contains(PollFlags::HUP) && !found.contains(PollFlags::IN)
    }

    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        match self.kind {
            Kind::Socket => rustix::net::recv(self, buffer, RecvFlags::DONTWAIT).map(|(n, _)| n),
            Kind::Pipe | Kind::File | Kind::Null | Kind::Device => rustix::io::read(self, buffer),
        }
    }

    /// Writes as much as possible without waiting. If [`Self::never_waits`] is false, `poll` must have
    /// found the descriptor ready.
    pub fn write(&self, bytes: &[u8]) -> Result<usize> {
        let safe = if self.never_waits() {
            bytes
        } else {
            &bytes[..bytes.len().min(BLOCKING_WRITE_BYTES_MAX)]
        };
        match self.kind {
            Kind::Socket => {
                rustix::net::send(self, safe, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
            }
            Kind::Pipe | Kind::File | Kind::Null | Kind::Device => rustix::io::write(self, safe),
        }
    }
}

impl AsFd for Endpoint<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.descriptor {
            Descriptor::Ours(fd) => fd.as_fd(),
            Descriptor::Callers(fd) => *fd,
        }
    }
}

/// Whether an error means that the other side has closed the connection.
pub fn is_closed(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET)
}

/// Whether a descriptor is a terminal that has hung up.
pub fn is_hung_up(fd: BorrowedFd<'_>) -> bool {
    matches!(kind(fd), Ok(Kind::Device)) && polled(fd, PollFlags::empty()).contains(PollFlags::HUP)
}

fn polled(fd: BorrowedFd<'_>, flags: PollFlags) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
    match poll(&mut fds, Some(&Timespec::default())) {
        Ok(_) => fds[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

fn kind(fd: BorrowedFd<'_>) -> Result<Kind> {
    let found = rustix::fs::fstat(fd)?;
    let device = (major(found.st_rdev), minor(found.st_rdev));
    Ok(match FileType::from_raw_mode(found.st_mode) {
        FileType::Fifo => Kind::Pipe,
        FileType::RegularFile => Kind::File,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice if device == NULL_DEVICE => Kind::Null,
        FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Directory
        | FileType::Symlink
        | FileType::Unknown => Kind::Device,
    })
}
