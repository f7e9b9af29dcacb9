//! From a box to a client, in constant memory.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use tare_engine::Copy;
use tare_engine::files::{PIECE_BYTES_MAX, PendingFile};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::admission::Turn;
use crate::api::files::failure::of_file;
use crate::api::files::path::Address;
use crate::app::App;
use crate::error::ServiceError;
use crate::fd;
use crate::http::download;

pub async fn file(app: &App, address: Address) -> Result<Response, ServiceError> {
    let Address { reference, path } = address;
    let permit = app.execs.permit()?;
    let of = path.clone();
    let opened = app.ask_in_box(move |engine| {
        let id = engine.find(&reference)?;
        Ok(engine.read_file(&id, &of))
    });
    let opened = opened.await?.map_err(of_file)?;
    let size = opened.size;
    let (stream, rest) = opened.split();
    let source = Source::new(app, stream, Other::File(rest), permit, size)?;
    let mut response = source.into_response("application/octet-stream", &path, "");
    if let Some(size) = size {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    Ok(response)
}

pub async fn archive(app: &App, address: Address) -> Result<Response, ServiceError> {
    let Address { reference, path } = address;
    let permit = app.execs.permit()?;
    let of = path.clone();
    let opened = app.ask_in_box(move |engine| {
        let id = engine.find(&reference)?;
        Ok(engine.copy_out(&id, &of))
    });
    let copying = opened.await?.map_err(of_file)?;
    let stream = copying.stream.try_clone();
    let stream = stream.map_err(|error| ServiceError::internal(error.to_string()))?;
    let source = Source::new(app, stream, Other::Archive(copying), permit, None)?;
    Ok(source.into_response("application/x-tar", &path, ".tar"))
}

/// A stream from a box.
pub struct Source {
    app: App,
    from: AsyncFd<OwnedFd>,
    other: Option<Other>,
    /// What is still to come, if that is known.
    left: Option<u64>,
    /// For the box to send something. Whoever stalls for longer is cut off.
    patience: Duration,
    _permit: Turn,
}

/// Who says at the end whether that was all.
pub enum Other {
    File(PendingFile),
    Archive(Copy),
}

impl Source {
    pub fn new(
        app: &App,
        stream: OwnedFd,
        other: Other,
        permit: Turn,
        size: Option<u64>,
    ) -> Result<Self, ServiceError> {
        let from = fd::watched(stream, Interest::READABLE);
        Ok(Self {
            app: app.clone(),
            from: from.map_err(|error| ServiceError::internal(error.to_string()))?,
            other: Some(other),
            left: size,
            patience: app.config().limits.client,
            _permit: permit,
        })
    }

    /// The next bytes; none after the last. An error where something is missing: the
    /// connection ends with it, so that a client cannot take a part for the whole.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        if self.other.is_none() {
            return Ok(None);
        }
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        let read = |fd: &OwnedFd| Ok(rustix::io::read(fd, &mut buffer[..])?);
        let read = self.from.async_io(Interest::READABLE, read);
        let count = tokio::time::timeout(self.patience, read).await??;
        if count == 0 {
            self.finish().await?;
            return Ok(None);
        }
        if let Some(left) = &mut self.left {
            let after = left.checked_sub(count as u64);
            *left = after.ok_or(io::ErrorKind::InvalidData)?;
        }
        buffer.truncate(count);
        Ok(Some(Bytes::from(buffer)))
    }

    async fn finish(&mut self) -> io::Result<()> {
        let other = self.other.take();
        let finish = move || match other {
            Some(Other::File(rest)) => rest.finish(),
            Some(Other::Archive(copying)) => copying.finish(),
            None => Ok(()),
        };
        let finished = self.app.ask_in_box(move |_| finish()).await;
        finished.map_err(|error| io::Error::other(error.message))?;
        match self.left {
            None | Some(0) => Ok(()),
            Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn into_response(self, media_type: &'static str, path: &Path, suffix: &str) -> Response {
        let bytes = stream::unfold(self, |mut source| async move {
            let next = source.next().await.transpose()?;
            Some((next, source))
        });
        let mut response = Response::new(Body::from_stream(bytes));
        let headers = response.headers_mut();
        let name = path.file_name().unwrap_or(OsStr::new("root")).as_bytes();
        let name = [name, suffix.as_bytes()].concat();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(header::CONTENT_DISPOSITION, download::attachment(&name));
        // What comes is a stream from the box, and nothing tells whether the next time
        // it is the same file: parts that are put together could be of several.
        let none = HeaderValue::from_static("none");
        headers.insert(header::ACCEPT_RANGES, none);
        response
    }
}
