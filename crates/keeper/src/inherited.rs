//! The descriptors that a keeper is born with, taken by role.

use std::io;
use std::os::fd::OwnedFd;

use tare_control::{CREATOR_FD, FIRST_ROLE_FD, Role};
use tare_kernel::fds;

/// Takes over the socket to the creator, which sends the plan.
pub fn creator() -> io::Result<OwnedFd> {
    fds::inherited(CREATOR_FD)
}

/// The descriptors that the plan names. Dropping this closes those that were not taken.
#[derive(Debug)]
pub struct InheritedFds(Vec<(Role, OwnedFd)>);

impl InheritedFds {
    pub fn new(roles: &[Role]) -> io::Result<Self> {
        let numbered = roles.iter().zip(FIRST_ROLE_FD..);
        let fds = numbered.map(|(role, number)| Ok((*role, fds::inherited(number)?)));
        Ok(Self(fds.collect::<io::Result<_>>()?))
    }

    /// Returns `None` if the plan names no such descriptor, or if it was taken before.
    pub fn take(&mut self, role: Role) -> Option<OwnedFd> {
        let at = self.0.iter().position(|(one, _)| *one == role)?;
        Some(self.0.swap_remove(at).1)
    }
}
