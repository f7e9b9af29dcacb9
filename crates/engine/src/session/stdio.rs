//! The standard streams of a process in a box: pipes that tare creates for it, never descriptors of
//! the caller.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Gid, Uid};
use tare_kernel::fds::{message_pair, open_null, pipe_of};

use crate::spec::User;

/// The host's ends of a process's standard streams. With a terminal they are all absent:
/// its master side comes as [`Event::Terminal`](crate::session::Event::Terminal).
#[derive(Debug, Default)]
pub struct Streams {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

/// Descriptor 0 of a process without a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// At end of file from the start.
    Empty,
    /// A pipe whose other end is in [`Streams`].
    Pipe,
    /// A socket whose other end is in [`Streams`]: messages with descriptors.
    Socket,
}

/// The owner of a pipe: the user of the process on the host.
#[derive(Debug, Clone, Copy)]
pub struct Owner(Option<(Uid, Gid)>);

impl Owner {
    /// Returns the owner for a user of the box. `first_uid` is `None` for a box without a uid range,
    /// whose user is the caller.
    pub fn of(first_uid: Option<u32>, user: User) -> Self {
        Self(first_uid.map(|first| {
            let (uid, gid) = (first + user.uid, first + user.gid);
            (Uid::from_raw(uid), Gid::from_raw(gid))
        }))
    }
}

/// Both ends of a process's standard streams.
#[derive(Debug)]
pub struct Stdio {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    pub ours: Streams,
}

impl Stdio {
    pub fn pipes(stdin: Stdin, owner: Owner) -> io::Result<Self> {
        let (input, our_input) = match stdin {
            Stdin::Empty => (open_null()?, None),
            Stdin::Pipe => {
                let (read, write) = pipe_of(owner.0)?;
                (read, Some(write))
            }
            Stdin::Socket => {
                let (theirs, ours) = message_pair()?;
                (theirs, Some(ours))
            }
        };
        let (our_output, output) = pipe_of(owner.0)?;
        let (our_errors, errors) = pipe_of(owner.0)?;
        Ok(Self {
            stdin: input,
            stdout: output,
            stderr: errors,
            ours: Streams { stdin: our_input, stdout: Some(our_output), stderr: Some(our_errors) },
        })
    }

    pub fn nothing() -> io::Result<Self> {
        Ok(Self {
            stdin: open_null()?,
            stdout: open_null()?,
            stderr: open_null()?,
            ours: Streams::default(),
        })
    }

    pub fn theirs(&self) -> [BorrowedFd<'_>; 3] {
        [self.stdin.as_fd(), self.stdout.as_fd(), self.stderr.as_fd()]
    }
}
