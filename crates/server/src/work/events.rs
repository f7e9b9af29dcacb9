//! What a keeper reports, without a thread that waits for it.

use std::io;
use std::os::fd::BorrowedFd;

use tare_engine::{Context as _, Event};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::error::ServiceError;

/// When there may be something to hear. The descriptor is a second one of the same
/// socket: the first stays with whoever hears.
#[derive(Debug)]
pub struct Events {
    socket: UnixStream,
}

impl Events {
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self, ServiceError> {
        let registered = || {
            let socket = std::os::unix::net::UnixStream::from(fd.try_clone_to_owned()?);
            socket.set_nonblocking(true)?;
            UnixStream::from_std(socket)
        };
        let socket = registered().context(|| "cannot hear the box".into())?;
        Ok(Self { socket })
    }

    /// The next event that `hear` has, which never waits.
    pub async fn next(
        &self,
        mut hear: impl FnMut() -> Option<Event>,
    ) -> Result<Event, ServiceError> {
        // Something may have come with the event before.
        if let Some(event) = hear() {
            return Ok(event);
        }
        let heard = || hear().ok_or(io::ErrorKind::WouldBlock.into());
        let heard = self.socket.async_io(Interest::READABLE, heard).await;
        heard.map_err(|error| ServiceError::internal(error.to_string()))
    }
}
