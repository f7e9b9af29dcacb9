//! Descriptors as futures.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Makes a descriptor non-blocking, and registers it with the runtime. The other end of a pipe
/// is not affected.
#[allow(
    deprecated,
    reason = "unsound for what may give another descriptor each time it is asked; an \
              OwnedFd is one for as long as it lives"
)]
pub fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
    AsyncFd::with_interest(fd, interest)
}

/// Returns when a descriptor is readable, as a pidfd is when its process is dead.
#[allow(
    deprecated,
    reason = "deprecated because a type may return another descriptor on each call; a \
              BorrowedFd always returns the same one"
)]
pub async fn readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
    fd.readable().await.map(drop)
}
