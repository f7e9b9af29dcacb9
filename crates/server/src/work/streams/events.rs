//! Events of a keeper as futures.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tare_engine::{Context as _, Event};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::ServiceError;
use crate::fd;

/// Waits for events of a keeper. It registers a second descriptor of the session's socket: the
/// session keeps the first.
#[derive(Debug)]
pub struct Events {
    socket: AsyncFd<OwnedFd>,
}

impl Events {
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self, ServiceError> {
        let registered = || fd::watched(fd.try_clone_to_owned()?, Interest::READABLE);
        let socket = registered().context(|| "cannot wait for events of the box".into())?;
        Ok(Self { socket })
    }

    /// Returns the next event of `receive`, which never waits.
    pub async fn next(
        &self,
        mut receive: impl FnMut() -> Option<Event>,
    ) -> Result<Event, ServiceError> {
        // It may have come together with the previous event.
        if let Some(event) = receive() {
            return Ok(event);
        }
        let received = |_: &OwnedFd| receive().ok_or(io::ErrorKind::WouldBlock.into());
        let received = self.socket.async_io(Interest::READABLE, received).await;
        received.map_err(ServiceError::internal)
    }
}
