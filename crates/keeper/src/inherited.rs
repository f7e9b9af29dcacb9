//! What the keeper is born with, beside the command's standard streams.

use std::io;
use std::os::fd::OwnedFd;

use tare_control::KEEPER_FDS;
use tare_kernel::fds;

const LINK_FD: i32 = 3;
const CLAIM_FD: i32 = 4;
const SOCKET_FD: i32 = 5;

/// The descriptors that every keeper has.
#[derive(Debug)]
pub struct Inherited {
    pub link: OwnedFd,
    /// The claim on the uid range: held, never used; it ends with the box.
    pub claim: OwnedFd,
    /// The box's own socket, not listened on yet.
    pub socket: OwnedFd,
}

impl Inherited {
    pub fn take() -> io::Result<Self> {
        Ok(Self {
            link: fds::inherited(LINK_FD)?,
            claim: fds::inherited(CLAIM_FD)?,
            socket: fds::inherited(SOCKET_FD)?,
        })
    }
}

/// Those that depend on the plan, in its order.
#[derive(Debug)]
pub struct Planned {
    next: i32,
}

impl Planned {
    pub fn new() -> Self {
        Self { next: KEEPER_FDS as i32 }
    }

    pub fn take(&mut self) -> io::Result<OwnedFd> {
        let fd = fds::inherited(self.next)?;
        self.next += 1;
        Ok(fd)
    }
}
