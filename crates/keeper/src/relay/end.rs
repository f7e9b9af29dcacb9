//! The local end of a stream: a descriptor, and the bytes that wait to be written to it. Every
//! descriptor is non-blocking, and only pipes, terminals and `/dev/null` cross the port.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Gid, OFlags, Uid, fcntl_getfl, fcntl_setfl, fstat, major, minor};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};
use tare_control::port::{Backlog, Passed, Side, StreamId};
use tare_control::{Identity, TerminalPlan};
use tare_kernel::fds;

use crate::make::terminal;

/// The device numbers of `/dev/null` and of the master side of every terminal (null(4), pts(4)).
const NULL_DEVICE: (u32, u32) = (1, 3);
const MASTER_DEVICE: (u32, u32) = (5, 2);

/// The descriptor behind a stream.
#[derive(Debug)]
pub struct LocalEnd {
    pub fd: OwnedFd,
    pub kind: EndKind,
    /// Whether data of the descriptor is sent.
    pub reads: bool,
    /// Whether data that arrives is written to the descriptor.
    pub writes: bool,
    /// Data that has arrived and is not written yet.
    pub backlog: Backlog,
    /// No more data arrives: after the backlog, the stream is over.
    pub is_last: bool,
    /// How much output of the machine has passed through this end.
    pub moved: u64,
}

#[derive(Debug)]
pub enum EndKind {
    Connection(RelayedConnection),
    Pipe,
    /// The inner side has the master of the box's terminal. The outer side has the slave of another
    /// one, whose master the client gets, and the size of the window that was sent last.
    Terminal(TerminalPlan),
}

/// The state of a connection. Messages from the machine wait for the output that was written before
/// them: a client that reads that its command has ended finds the whole output in its pipes.
#[derive(Debug, Default)]
pub struct RelayedConnection {
    /// The streams that carry output of this connection.
    pub outputs: Vec<StreamId>,
    /// How much of each output must have passed before the next message does.
    pub marks: Vec<(StreamId, u64)>,
    /// Descriptors that go with the next bytes.
    pub passed: Vec<OwnedFd>,
    /// The bytes that the connection was opened with.
    pub first: Backlog,
}

impl LocalEnd {
    /// Takes over a descriptor, and makes it non-blocking.
    fn new(fd: OwnedFd, kind: EndKind, (reads, writes): (bool, bool)) -> io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        let backlog = Backlog::default();
        Ok(Self { fd, kind, reads, writes, backlog, is_last: false, moved: 0 })
    }

    pub fn connection(socket: OwnedFd) -> io::Result<Self> {
        Self::new(socket, EndKind::Connection(RelayedConnection::default()), (true, true))
    }

    /// Returns the local end of a descriptor that is to be passed, and how to pass it. `None` is
    /// for `/dev/null`, which needs none. Fails for a descriptor that cannot cross.
    pub fn of_passed(fd: OwnedFd, side: Side) -> io::Result<(Option<Self>, Passed)> {
        let stat = fstat(&fd)?;
        let device = (major(stat.st_rdev), minor(stat.st_rdev));
        let owner = Identity { uid: stat.st_uid, gid: stat.st_gid };
        let access = fcntl_getfl(&fd)? & OFlags::RWMODE;
        match (side, FileType::from_raw_mode(stat.st_mode)) {
            (Side::Outer, FileType::Fifo) if access == OFlags::RDONLY => {
                Ok((Some(Self::new(fd, EndKind::Pipe, (true, false))?), Passed::ReadEnd(owner)))
            }
            (Side::Outer, FileType::Fifo) if access == OFlags::WRONLY => {
                Ok((Some(Self::new(fd, EndKind::Pipe, (false, true))?), Passed::WriteEnd(owner)))
            }
            (Side::Outer, FileType::CharacterDevice) if device == NULL_DEVICE => {
                Ok((None, Passed::Null))
            }
            (Side::Inner, FileType::CharacterDevice) if device == MASTER_DEVICE => {
                let window = window(&fd)?;
                let end = Self::new(fd, EndKind::Terminal(window), (true, true))?;
                Ok((Some(end), Passed::Terminal(window)))
            }
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Makes what the other side has passed: the local end, and the descriptor for the receiver.
    pub fn of_received(what: Passed) -> io::Result<(Option<Self>, OwnedFd)> {
        match what {
            Passed::ReadEnd(owner) => {
                let (read, write) = pipe_for(owner)?;
                Ok((Some(Self::new(write, EndKind::Pipe, (false, true))?), read))
            }
            Passed::WriteEnd(owner) => {
                let (read, write) = pipe_for(owner)?;
                Ok((Some(Self::new(read, EndKind::Pipe, (true, false))?), write))
            }
            Passed::Null => Ok((None, fds::open_null()?)),
            Passed::Terminal(window) => {
                let pair = terminal::open(window, None).map_err(|_| Errno::NXIO)?;
                let mut modes = tcgetattr(&pair.slave)?;
                modes.make_raw();
                tcsetattr(&pair.slave, OptionalActions::Now, &modes)?;
                let end = Self::new(pair.slave, EndKind::Terminal(window), (true, true))?;
                Ok((Some(end), pair.master))
            }
        }
    }

    /// Writes to the descriptor what it takes. Returns how much that is.
    pub fn write(&mut self) -> rustix::io::Result<usize> {
        let rest = self.backlog.rest();
        let result = match &mut self.kind {
            EndKind::Connection(connection) => {
                let passed: Vec<_> = connection.passed.iter().map(AsFd::as_fd).collect();
                let sent = fds::send_with(self.fd.as_fd(), rest, &passed);
                if sent.is_ok() {
                    connection.passed.clear();
                }
                sent.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::PIPE))
            }
            EndKind::Pipe | EndKind::Terminal(_) => rustix::io::write(&self.fd, rest),
        };
        match result {
            Ok(length) => {
                self.backlog.wrote(length);
                Ok(length)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    /// Returns how much output the descriptor has now.
    pub fn readable_bytes(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.fd).unwrap_or(0)
    }

    /// Returns the size of the outer terminal's window, if a client has changed it.
    pub fn new_window(&mut self) -> Option<TerminalPlan> {
        let EndKind::Terminal(sent) = &mut self.kind else { return None };
        let now = window(&self.fd).ok().filter(|now| now != sent)?;
        *sent = now;
        Some(now)
    }

    /// Gives the inner terminal the size of the outer one.
    pub fn set_window(&self, TerminalPlan { rows, columns }: TerminalPlan) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // A terminal whose process has ended needs no size.
        tcsetwinsize(&self.fd, size).ok();
    }
}

fn window(terminal: &OwnedFd) -> rustix::io::Result<TerminalPlan> {
    let size = tcgetwinsize(terminal)?;
    Ok(TerminalPlan { rows: size.ws_row, columns: size.ws_col })
}

/// Makes a pipe with the owner of the passed pipe. If that owner does not exist here, the pipe
/// belongs to the user of this process.
fn pipe_for(Identity { uid, gid }: Identity) -> io::Result<(OwnedFd, OwnedFd)> {
    let owner =
        (uid != u32::MAX && gid != u32::MAX).then(|| (Uid::from_raw(uid), Gid::from_raw(gid)));
    fds::pipe_of(owner).or_else(|_| fds::pipe_of(None)).map_err(Into::into)
}
