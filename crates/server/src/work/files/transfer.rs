//! Files between a box and a client, in constant memory: one file, a listing, a tar archive.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tare_engine::files::{PIECE_BYTES_MAX, PendingFile, piece_head};
use tare_engine::{BoxId, Copy, Engine, Error, PathKind};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::fd;
use crate::permits::Permit;
use crate::work::Service;
use crate::work::files::error::file_error;

/// A file or a directory of a box.
#[derive(Debug, PartialEq, Eq)]
pub struct BoxFile {
    /// The id, the beginning of an id, or the name of the box.
    pub reference: String,
    /// Absolute.
    pub path: PathBuf,
}

/// Reports at the end of a transfer whether it was complete.
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
        let (transfer, opened) = self.begin(caller, file, Engine::read_file).await?;
        let size = opened.size;
        let (stream, rest) = opened.split();
        transfer.receive(stream, Completion::File(rest), size)
    }

    /// Returns entries in the engine's encoding, each ended by a NUL.
    pub async fn list_files(
        &self,
        caller: &Caller,
        directory: BoxFile,
    ) -> Result<BoxStream, ServiceError> {
        let (transfer, opened) = self.begin(caller, directory, Engine::list_files).await?;
        let (stream, rest) = opened.split();
        transfer.receive(stream, Completion::File(rest), None)
    }

    /// Returns a file or a directory as a tar archive.
    pub async fn pack(&self, caller: &Caller, file: BoxFile) -> Result<BoxStream, ServiceError> {
        let (transfer, copying) = self.begin(caller, file, Engine::copy_out).await?;
        let stream = copying.stream.try_clone().map_err(ServiceError::internal)?;
        transfer.receive(stream, Completion::Archive(copying), None)
    }

    /// Writes one file. The file exists when all of its bytes have come.
    pub async fn write_file<B: AsRef<[u8]> + Send>(
        &self,
        caller: &Caller,
        file: BoxFile,
        mut body: impl Stream<Item = Result<B, ServiceError>> + Send + Unpin + 'static,
    ) -> Result<(), ServiceError> {
        let (transfer, opened) = self.begin(caller, file, Engine::write_file).await?;
        let (stream, rest) = opened.split();
        // In its own task, which a client that disconnects does not cancel: the program that
        // writes the file in the box removes an incomplete one.
        let writing = tokio::spawn(async move {
            let sent = transfer.send_pieces(&mut body, stream).await;
            transfer.finish_sending(sent, Completion::File(rest)).await
        });
        writing.await.map_err(ServiceError::internal)?
    }

    /// Unpacks a tar archive into a directory.
    pub async fn unpack<B: AsRef<[u8]>>(
        &self,
        caller: &Caller,
        directory: BoxFile,
        mut body: impl Stream<Item = Result<B, ServiceError>> + Unpin,
    ) -> Result<(), ServiceError> {
        let (transfer, copying) = self.begin(caller, directory, Engine::copy_in).await?;
        if copying.found != PathKind::Directory {
            let message = "there is no directory to unpack into";
            return Err(ServiceError::invalid("not_a_directory", message));
        }
        let stream = copying.stream.try_clone().map_err(ServiceError::internal)?;
        let sent = async {
            let to = transfer.sink(stream)?;
            while let Some(bytes) = body.next().await {
                to.write_all(bytes?.as_ref()).await?;
            }
            Ok(())
        };
        let sent = sent.await;
        transfer.finish_sending(sent, Completion::Archive(copying)).await
    }

    /// Removes a file, or a directory with everything in it.
    pub async fn remove_file(&self, caller: &Caller, file: BoxFile) -> Result<(), ServiceError> {
        self.begin(caller, file, Engine::remove_file).await.map(drop)
    }

    /// Calls the engine for a file of a box.
    async fn begin<T: Send + 'static>(
        &self,
        caller: &Caller,
        file: BoxFile,
        open: impl FnOnce(&Engine, &BoxId, &Path) -> Result<T, Error> + Send + 'static,
    ) -> Result<(Transfer, T), ServiceError> {
        let permit = self.processes.transfer()?;
        let id = self.find(caller, &file.reference).await?;
        let box_id = id.clone();
        let open = move |engine: &Engine| Ok(open(engine, &box_id, &file.path));
        let opened = self.call_in_box(caller, &id, open).await?.map_err(file_error)?;
        let (service, caller) = (self.clone(), caller.clone());
        Ok((Transfer { service, caller, id, _permit: permit }, opened))
    }
}

/// The right to transfer a file between a client, which may be slow, and a box or the file store.
pub type TransferPermit = [Permit; 2];

/// A transfer between a box and a client.
#[derive(Debug)]
struct Transfer {
    service: Service,
    caller: Caller,
    id: BoxId,
    _permit: TransferPermit,
}

impl Transfer {
    /// How long a box may take for the next bytes.
    fn stall_timeout(&self) -> Duration {
        self.service.config().limits.client.0
    }

    fn receive(
        self,
        stream: OwnedFd,
        completion: Completion,
        size: Option<u64>,
    ) -> Result<BoxStream, ServiceError> {
        let from = fd::watched(stream, Interest::READABLE).map_err(ServiceError::internal)?;
        let stall_timeout = self.stall_timeout();
        let completion = Some(completion);
        Ok(BoxStream { transfer: self, from, completion, size, left: size, stall_timeout })
    }

    fn sink(&self, stream: OwnedFd) -> Result<BoxSink, ServiceError> {
        let to = fd::watched(stream, Interest::WRITABLE).map_err(ServiceError::internal)?;
        Ok(BoxSink { to, stall_timeout: self.stall_timeout() })
    }

    async fn send_pieces<B: AsRef<[u8]>>(
        &self,
        body: &mut (impl Stream<Item = Result<B, ServiceError>> + Unpin),
        stream: OwnedFd,
    ) -> Result<(), SendError> {
        let to = self.sink(stream)?;
        while let Some(bytes) = body.next().await {
            for piece in bytes?.as_ref().chunks(PIECE_BYTES_MAX) {
                to.write_all(&piece_head(piece.len())).await?;
                to.write_all(piece).await?;
            }
        }
        to.write_all(&piece_head(0)).await
    }

    async fn finish_sending(
        &self,
        sent: Result<(), SendError>,
        completion: Completion,
    ) -> Result<(), ServiceError> {
        let finished = self.finish(completion).await?;
        match sent {
            Err(SendError::Body(error)) => Err(error),
            // The box's own error says more than a pipe that closed.
            Ok(()) | Err(SendError::NotTaken) => finished.map_err(file_error),
        }
    }

    /// Returns what the box reports at the end of the transfer.
    async fn finish(&self, completion: Completion) -> Result<Result<(), Error>, ServiceError> {
        self.service.call_in_box(&self.caller, &self.id, move |_| Ok(completion.finish())).await
    }
}

/// Bytes from a box.
#[derive(Debug)]
pub struct BoxStream {
    transfer: Transfer,
    from: AsyncFd<OwnedFd>,
    /// `None` after the end.
    completion: Option<Completion>,
    /// The number of bytes of a file, if it is known.
    pub size: Option<u64>,
    left: Option<u64>,
    /// If the box sends nothing for this long, the transfer fails.
    stall_timeout: Duration,
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
            let finished = self.transfer.finish(completion).await;
            let finished = finished.and_then(|finished| Ok(finished?));
            finished.map_err(|error| io::Error::other(error.message))?;
        }
        match self.left {
            None | Some(0) => Ok(()),
            Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Why a body was not sent completely.
enum SendError {
    Body(ServiceError),
    /// The box did not take more.
    NotTaken,
}

impl From<ServiceError> for SendError {
    fn from(error: ServiceError) -> Self {
        Self::Body(error)
    }
}

/// A stream into a box. If the box takes nothing for a while, the transfer fails.
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
