//! Files between a box and a client, in constant memory: one file, a listing, a tar archive.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use rustix::io::Errno;
use tare_engine::files::{PIECE_BYTES_MAX, PendingFile, piece_head};
use tare_engine::{BoxId, Copy, Error, ErrorKind, Hint, PathKind};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::admission::{Caller, Turn};
use crate::error::{Kind, ServiceError};
use crate::fd;
use crate::work::Service;

/// A file or a directory of a box.
#[derive(Debug, PartialEq, Eq)]
pub struct BoxFile {
    /// The id, the beginning of an id, or the name of the box.
    pub reference: String,
    /// Absolute.
    pub path: PathBuf,
}

/// Bytes from a box.
#[derive(Debug)]
pub struct BoxStream {
    service: Service,
    caller: Caller,
    id: BoxId,
    from: AsyncFd<OwnedFd>,
    completion: Option<Completion>,
    /// The number of bytes of a file, if it is known.
    pub size: Option<u64>,
    left: Option<u64>,
    /// A box that sends nothing for this long is given up.
    stall_timeout: Duration,
    _permit: Turn,
}

/// Reports at the end whether that was all.
#[derive(Debug)]
enum Completion {
    File(PendingFile),
    Archive(Copy),
}

impl Completion {
    fn finish(self) -> Result<(), Error> {
        match self {
            Self::File(rest) => rest.finish(),
            // The docs say that sockets, fifos, devices and unreadable files are left out.
            Self::Archive(copying) => copying.finish().map(drop),
        }
    }
}

impl Service {
    pub async fn read_file(
        &self,
        caller: &Caller,
        file: BoxFile,
    ) -> Result<BoxStream, ServiceError> {
        let permit = self.processes.permit()?;
        let id = self.find(caller, &file.reference).await?;
        let of = id.clone();
        let opened =
            self.call_in_box(caller, &id, move |engine| Ok(engine.read_file(&of, &file.path)));
        let opened = opened.await?.map_err(file_error)?;
        let size = opened.size;
        let (stream, rest) = opened.split();
        self.box_stream(caller, id, stream, Completion::File(rest), permit, size)
    }

    /// Returns entries in the engine's encoding, each ended by a NUL.
    pub async fn list_files(
        &self,
        caller: &Caller,
        directory: BoxFile,
    ) -> Result<BoxStream, ServiceError> {
        let permit = self.processes.permit()?;
        let id = self.find(caller, &directory.reference).await?;
        let of = id.clone();
        let opened = self
            .call_in_box(caller, &id, move |engine| Ok(engine.list_files(&of, &directory.path)));
        let (stream, rest) = opened.await?.map_err(file_error)?.split();
        self.box_stream(caller, id, stream, Completion::File(rest), permit, None)
    }

    /// Returns a file or a directory as a tar archive.
    pub async fn pack(&self, caller: &Caller, file: BoxFile) -> Result<BoxStream, ServiceError> {
        let permit = self.processes.permit()?;
        let id = self.find(caller, &file.reference).await?;
        let of = id.clone();
        let opened =
            self.call_in_box(caller, &id, move |engine| Ok(engine.copy_out(&of, &file.path)));
        let copying = opened.await?.map_err(file_error)?;
        let stream = copying.stream.try_clone().map_err(ServiceError::internal)?;
        self.box_stream(caller, id, stream, Completion::Archive(copying), permit, None)
    }

    fn box_stream(
        &self,
        caller: &Caller,
        id: BoxId,
        stream: OwnedFd,
        completion: Completion,
        permit: Turn,
        size: Option<u64>,
    ) -> Result<BoxStream, ServiceError> {
        let from = fd::watched(stream, Interest::READABLE).map_err(ServiceError::internal)?;
        Ok(BoxStream {
            service: self.clone(),
            caller: caller.clone(),
            id,
            from,
            completion: Some(completion),
            size,
            left: size,
            stall_timeout: self.config().limits.client.0,
            _permit: permit,
        })
    }

    /// Writes one file. It is there when all of its bytes have come.
    pub async fn write_file<B: AsRef<[u8]> + Send>(
        &self,
        caller: &Caller,
        file: BoxFile,
        mut body: impl Stream<Item = Result<B, ServiceError>> + Send + Unpin + 'static,
    ) -> Result<(), ServiceError> {
        let permit = self.processes.permit()?;
        let id = self.find(caller, &file.reference).await?;
        let of = id.clone();
        let opened =
            self.call_in_box(caller, &id, move |engine| Ok(engine.write_file(&of, &file.path)));
        let (stream, rest) = opened.await?.map_err(file_error)?.split();
        let (service, caller) = (self.clone(), caller.clone());
        // In its own task, which a client that disconnects does not cancel: the program that
        // writes the file in the box removes an incomplete one.
        let writing = tokio::spawn(async move {
            let _permit = permit;
            let sent = service.send_pieces(&mut body, stream).await;
            service.finish_sending(&caller, &id, sent, Completion::File(rest)).await
        });
        writing.await.map_err(ServiceError::internal)?
    }

    async fn send_pieces<B: AsRef<[u8]>>(
        &self,
        body: &mut (impl Stream<Item = Result<B, ServiceError>> + Unpin),
        stream: OwnedFd,
    ) -> Result<(), SendError> {
        let to = self.box_sink(stream)?;
        while let Some(bytes) = body.next().await {
            for piece in bytes?.as_ref().chunks(PIECE_BYTES_MAX) {
                to.write_all(&piece_head(piece.len())).await?;
                to.write_all(piece).await?;
            }
        }
        to.write_all(&piece_head(0)).await
    }

    /// Unpacks a tar archive into a directory.
    pub async fn unpack<B: AsRef<[u8]>>(
        &self,
        caller: &Caller,
        directory: BoxFile,
        mut body: impl Stream<Item = Result<B, ServiceError>> + Unpin,
    ) -> Result<(), ServiceError> {
        let _permit = self.processes.permit()?;
        let id = self.find(caller, &directory.reference).await?;
        let of = id.clone();
        let opened =
            self.call_in_box(caller, &id, move |engine| Ok(engine.copy_in(&of, &directory.path)));
        let copying = opened.await?.map_err(file_error)?;
        if copying.found != PathKind::Directory {
            let message = "there is no directory to unpack into";
            return Err(ServiceError::invalid("not_a_directory", message));
        }
        let stream = copying.stream.try_clone().map_err(ServiceError::internal)?;
        let sent = async {
            let to = self.box_sink(stream)?;
            while let Some(bytes) = body.next().await {
                to.write_all(bytes?.as_ref()).await?;
            }
            Ok(())
        };
        let sent = sent.await;
        self.finish_sending(caller, &id, sent, Completion::Archive(copying)).await
    }

    async fn finish_sending(
        &self,
        caller: &Caller,
        id: &BoxId,
        sent: Result<(), SendError>,
        completion: Completion,
    ) -> Result<(), ServiceError> {
        let finished = self.call_in_box(caller, id, move |_| Ok(completion.finish())).await?;
        match sent {
            Err(SendError::Body(error)) => Err(error),
            // The box's own error says more than a pipe that closed.
            Ok(()) | Err(SendError::NotTaken) => finished.map_err(file_error),
        }
    }

    fn box_sink(&self, stream: OwnedFd) -> Result<BoxSink, ServiceError> {
        let to = fd::watched(stream, Interest::WRITABLE).map_err(ServiceError::internal)?;
        Ok(BoxSink { to, stall_timeout: self.config().limits.client.0 })
    }

    /// Removes a file, or a directory with everything in it.
    pub async fn remove_file(&self, caller: &Caller, file: BoxFile) -> Result<(), ServiceError> {
        let _permit = self.processes.permit()?;
        let removed = self.in_box(caller, file.reference, move |engine, id| {
            Ok(engine.remove_file(id, &file.path))
        });
        removed.await?.map_err(file_error)
    }
}

impl BoxStream {
    /// Returns the next bytes, and `None` after the last. Fails if something is missing, so that
    /// a client cannot take a part for the whole.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.completion.is_none() {
            return Ok(None);
        }
        let mut buffer = vec![0; PIECE_BYTES_MAX];
        let read = |fd: &OwnedFd| Ok(rustix::io::read(fd, &mut buffer[..])?);
        let read = self.from.async_io(Interest::READABLE, read);
        let count = tokio::time::timeout(self.stall_timeout, read).await??;
        if count == 0 {
            self.finish().await?;
            return Ok(None);
        }
        if let Some(left) = &mut self.left {
            let after = left.checked_sub(count as u64);
            *left = after.ok_or(io::ErrorKind::InvalidData)?;
        }
        buffer.truncate(count);
        Ok(Some(buffer))
    }

    async fn finish(&mut self) -> io::Result<()> {
        if let Some(completion) = self.completion.take() {
            let (caller, id) = (&self.caller, &self.id);
            let finished = self.service.call_in_box(caller, id, move |_| completion.finish());
            let finished = finished.await;
            finished.map_err(|error| io::Error::other(error.message))?;
        }
        match self.left {
            None | Some(0) => Ok(()),
            Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Why not all of a body was passed on.
enum SendError {
    Body(ServiceError),
    /// The box took no more.
    NotTaken,
}

impl From<ServiceError> for SendError {
    fn from(error: ServiceError) -> Self {
        Self::Body(error)
    }
}

/// A stream into a box. A box that takes nothing for a while gets no more.
struct BoxSink {
    to: AsyncFd<OwnedFd>,
    stall_timeout: Duration,
}

impl BoxSink {
    async fn write_all(&self, mut bytes: &[u8]) -> Result<(), SendError> {
        while !bytes.is_empty() {
            let write = |fd: &OwnedFd| io::Result::Ok(rustix::io::write(fd, bytes)?);
            let written = self.to.async_io(Interest::WRITABLE, write);
            match tokio::time::timeout(self.stall_timeout, written).await {
                Ok(Ok(count)) => bytes = &bytes[count..],
                Ok(Err(_)) | Err(_) => return Err(SendError::NotTaken),
            }
        }
        Ok(())
    }
}

/// How a box reports that it is full, in the words of a copy.
const FULL: [&str; 2] = ["No space left", "File too large"];
const NO_SPACE: (Kind, &str) = (Kind::NoSpace, "no_space");

/// An error of the box about a path that the client named, with a code for each reason.
fn file_error(error: Error) -> ServiceError {
    let of_box = error.kind() == ErrorKind::BadRequest;
    let source = std::error::Error::source(&error);
    let errno = source.and_then(|why| why.downcast_ref::<io::Error>()?.raw_os_error());
    let errno = errno.map(Errno::from_raw_os_error);
    let error = ServiceError::from(error);
    if !of_box {
        return error;
    }
    let is_full = FULL.iter().any(|words| error.message.contains(words));
    let (kind, code) = match errno {
        Some(Errno::NOENT) => (Kind::NotFound, "no_such_file"),
        Some(Errno::NOTDIR) => (Kind::Invalid, "not_a_directory"),
        Some(Errno::ISDIR) => (Kind::Invalid, "is_a_directory"),
        Some(Errno::OPNOTSUPP) => (Kind::Invalid, "not_a_regular_file"),
        Some(Errno::LOOP) => (Kind::Invalid, "link_loop"),
        Some(Errno::NAMETOOLONG) => (Kind::Invalid, "name_too_long"),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => (Kind::Forbidden, "not_permitted"),
        Some(Errno::BUSY | Errno::NOTEMPTY | Errno::EXIST) => (Kind::Conflict, "in_use"),
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => NO_SPACE,
        Some(_) | None if is_full => NO_SPACE,
        Some(_) | None => (Kind::Invalid, "file_error"),
    };
    let hint = match code {
        "is_a_directory" => Some("?list=true lists it, ?tar=true gets all of it".into()),
        "no_space" => Some(Hint::MoreScratch),
        _ => None,
    };
    ServiceError { kind, code, hint, ..error }
}
