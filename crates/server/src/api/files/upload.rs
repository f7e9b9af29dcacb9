//! From a client to a box, in constant memory.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use tare_engine::PathKind;
use tare_engine::files::{PIECE_BYTES_MAX, piece_head};
use tare_engine::spec::quantity;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::api::files::failure::of_file;
use crate::api::files::path::Address;
use crate::app::App;
use crate::error::ServiceError;
use crate::fd;

pub async fn file(
    app: &App,
    address: Address,
    headers: &HeaderMap,
    body: Body,
) -> Result<(), ServiceError> {
    let mut incoming = Incoming::new(app, headers, body)?;
    let permit = app.execs.permit()?;
    let Address { reference, path } = address;
    let opened = app.ask_in_box(move |engine| {
        let id = engine.find(&reference)?;
        Ok(engine.write_file(&id, &path))
    });
    let (stream, rest) = opened.await?.map_err(of_file)?.split();
    let app = app.clone();
    // In a task of its own, which nobody cancels: whoever writes the file in the box is
    // to remove what did not come whole, and is killed if nobody listens to it.
    let passing = tokio::spawn(async move {
        let _permit = permit;
        let sent = send(&mut incoming, stream).await;
        let finished = app.ask_in_box(move |_| Ok(rest.finish())).await?;
        match sent {
            Err(Unsent::Refused(error)) => Err(error),
            // What the box says of it is more telling than a pipe that closed.
            Ok(()) | Err(Unsent::NotTaken) => finished.map_err(of_file),
        }
    });
    let lost = |error: tokio::task::JoinError| ServiceError::internal(error.to_string());
    passing.await.map_err(lost)?
}

async fn send(incoming: &mut Incoming, stream: OwnedFd) -> Result<(), Unsent> {
    let to = Outgoing::new(stream, incoming.patience)?;
    while let Some(bytes) = incoming.next().await? {
        for piece in bytes.chunks(PIECE_BYTES_MAX) {
            to.write_all(&piece_head(piece.len())).await?;
            to.write_all(piece).await?;
        }
    }
    to.write_all(&piece_head(0)).await
}

pub async fn archive(
    app: &App,
    address: Address,
    headers: &HeaderMap,
    body: Body,
) -> Result<(), ServiceError> {
    check_type(headers)?;
    let mut incoming = Incoming::new(app, headers, body)?;
    let _permit = app.execs.permit()?;
    let Address { reference, path } = address;
    let opened = app.ask_in_box(move |engine| {
        let id = engine.find(&reference)?;
        Ok(engine.copy_in(&id, &path))
    });
    let copying = opened.await?.map_err(of_file)?;
    if copying.found != PathKind::Directory {
        let message = "there is no directory to unpack into";
        return Err(ServiceError::invalid("not_a_directory", message));
    }
    let stream = copying.stream.try_clone();
    let stream = stream.map_err(|error| ServiceError::internal(error.to_string()))?;
    let sent = async {
        let to = Outgoing::new(stream, incoming.patience)?;
        while let Some(bytes) = incoming.next().await? {
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    let sent: Result<(), Unsent> = sent.await;
    let finished = app.ask_in_box(move |_| Ok(copying.finish())).await?;
    match sent {
        Err(Unsent::Refused(error)) => Err(error),
        Ok(()) | Err(Unsent::NotTaken) => finished.map_err(of_file),
    }
}

fn check_type(headers: &HeaderMap) -> Result<(), ServiceError> {
    let given = headers.get(header::CONTENT_TYPE);
    if given.is_some_and(|given| given == "application/x-tar") {
        Ok(())
    } else {
        Err(ServiceError::wrong_type("unsupported_media_type", "the body has to be a tar archive")
            .with_hint("send 'Content-Type: application/x-tar'"))
    }
}

/// Why not all of a body was passed on.
enum Unsent {
    Refused(ServiceError),
    /// The box took no more.
    NotTaken,
}

impl From<ServiceError> for Unsent {
    fn from(error: ServiceError) -> Self {
        Self::Refused(error)
    }
}

/// A body with a limit in size, and in time between its parts.
struct Incoming {
    body: BodyDataStream,
    left: u64,
    bytes_max: u64,
    patience: Duration,
}

impl Incoming {
    fn new(app: &App, headers: &HeaderMap, body: Body) -> Result<Self, ServiceError> {
        let limits = &app.config().limits;
        let incoming = Self {
            body: body.into_data_stream(),
            left: limits.upload_bytes,
            bytes_max: limits.upload_bytes,
            patience: limits.client,
        };
        let announced = headers.get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > incoming.bytes_max) {
            Err(incoming.too_large())
        } else {
            Ok(incoming)
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ServiceError> {
        let slow = |_| {
            let message = "the body did not come in time";
            ServiceError::too_slow("slow_body", message)
        };
        let next = tokio::time::timeout(self.patience, self.body.next()).await;
        let Some(bytes) = next.map_err(slow)? else {
            return Ok(None);
        };
        let cut = |_| ServiceError::invalid("incomplete", "the body ended too early");
        let bytes = bytes.map_err(cut)?;
        match self.left.checked_sub(bytes.len() as u64) {
            Some(left) => self.left = left,
            None => return Err(self.too_large()),
        }
        Ok(Some(bytes))
    }

    fn too_large(&self) -> ServiceError {
        let message = format!("the body has more than {}", quantity::show_bytes(self.bytes_max));
        ServiceError::too_large("too_large", message)
            .with_hint("the operator's limit is [limits] upload_bytes")
    }
}

/// A stream into a box. One that takes nothing for a while takes no more.
struct Outgoing {
    to: AsyncFd<OwnedFd>,
    patience: Duration,
}

impl Outgoing {
    fn new(stream: OwnedFd, patience: Duration) -> Result<Self, ServiceError> {
        let to = fd::watched(stream, Interest::WRITABLE);
        let to = to.map_err(|error| ServiceError::internal(error.to_string()))?;
        Ok(Self { to, patience })
    }

    async fn write_all(&self, mut bytes: &[u8]) -> Result<(), Unsent> {
        while !bytes.is_empty() {
            let write = |fd: &OwnedFd| io::Result::Ok(rustix::io::write(fd, bytes)?);
            let written = self.to.async_io(Interest::WRITABLE, write);
            match tokio::time::timeout(self.patience, written).await {
                Ok(Ok(count)) => bytes = &bytes[count..],
                Ok(Err(_)) | Err(_) => return Err(Unsent::NotTaken),
            }
        }
        Ok(())
    }
}
