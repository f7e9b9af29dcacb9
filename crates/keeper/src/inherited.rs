//! The descriptors that a keeper is born with, taken by role.

use std::io;
use std::os::fd::OwnedFd;

use tare_control::{CREATOR_FD, FIRST_ROLE_FD, Role};
use tare_kernel::fds;

/// The socket to the creator, over which the plan comes.
pub fn creator() -> io::Result<OwnedFd> {
    fds::inherited(CREATOR_FD)
}

/// The descriptors that the plan names. What is not taken is closed with this value.
#[derive(Debug)]
pub struct InheritedFds(Vec<(Role, OwnedFd)>);

impl InheritedFds {
    pub fn new(roles: &[Role]) -> io::Result<Self> {
        let numbered = roles.iter().zip(FIRST_ROLE_FD..);
        let fds = numbered.map(|(role, number)| Ok((*role, fds::inherited(number)?)));
        Ok(Self(fds.collect::<io::Result<_>>()?))
    }

    /// `None` when the plan names no such descriptor, or it was taken before.
    pub fn take(&mut self, role: Role) -> Option<OwnedFd> {
        let at = self.0.iter().position(|(one, _)| *one == role)?;
        Some(self.0.swap_remove(at).1)
    }
}
