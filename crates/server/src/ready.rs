//! Descriptors that the runtime waits for.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that is ours alone, and from now on never waits. Whoever has the other
/// end of a pipe does not notice.
#[allow(
    deprecated,
    reason = "unsound for what may give another descriptor each time it is asked; an \
              OwnedFd is one for as long as it lives"
)]
pub fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
    AsyncFd::with_interest(fd, interest)
}
