//! The output of a process: where it goes, and how the server reads it.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tare_engine::logs::Stream;
use tare_engine::{Cause, STDERR_BYTES};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::admission::bodies::Charge;
use crate::error::ServiceError;
use crate::work::streams::chunk::{CHUNK_BYTES, Chunk};
use crate::work::streams::recent_output::RecentOutput;

/// What a process wrote before its end is in its pipe, which cannot hold more (pipe(7)).
/// Background processes that it left may write for ever.
const LEFT_BYTES_MAX: usize = 1 << 20;

/// Where the output of a command goes.
#[derive(Debug)]
pub enum OutputSink {
    /// Into [`Captured`].
    Keep,
    /// To a client that reads it as it comes. If the client takes nothing for this long, the
    /// command is killed.
    Pass { to: mpsc::Sender<Chunk>, client_timeout: Duration },
    /// To any number of readers, or none.
    Remember(Arc<RecentOutput>),
}

impl OutputSink {
    /// Waits for space for the next chunk, if the client reads slowly.
    async fn place(&self) -> Result<Option<mpsc::Permit<'_, Chunk>>, Cause> {
        match self {
            Self::Keep | Self::Remember(_) => Ok(None),
            Self::Pass { to, client_timeout } => {
                let place = tokio::time::timeout(*client_timeout, to.reserve()).await;
                let place = place.map_err(|_| Cause::ClientGone)?;
                Ok(Some(place.map_err(|_| Cause::ClientGone)?))
            }
        }
    }
}

/// What happens to a command that writes more than the server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PastLimit {
    /// The command goes on, and the rest is lost.
    #[default]
    Truncate,
    Kill,
}

/// One output stream, up to its limit.
#[derive(Debug, Default)]
pub struct Captured {
    pub bytes: Vec<u8>,
    pub truncated: bool,
    /// The memory of the bytes.
    charge: Charge,
    /// Why the server had no memory for more.
    pub refused: Option<ServiceError>,
}

impl Captured {
    pub fn new(charge: Charge) -> Self {
        Self { charge, ..Self::default() }
    }

    pub fn add(&mut self, bytes: &[u8]) {
        match self.charge.hold_response(self.bytes.len() + bytes.len()) {
            Ok(()) => self.bytes.extend_from_slice(bytes),
            Err(error) => self.refused = Some(error),
        }
    }
}

/// One output stream of a process.
#[derive(Debug)]
pub struct OutputPipe {
    /// `None` at its end. Shared with the input if both are one terminal.
    from: Option<Arc<AsyncFd<OwnedFd>>>,
    pub captured: Captured,
    /// How many more bytes are kept.
    left: u64,
    pub past_limit: PastLimit,
    stream: Stream,
    /// The last bytes, for the history of the box.
    last: Vec<u8>,
}

impl OutputPipe {
    pub fn new(
        from: Option<Arc<AsyncFd<OwnedFd>>>,
        bytes_max: u64,
        charge: Charge,
        stream: Stream,
    ) -> Self {
        let captured = Captured::new(charge);
        Self {
            from,
            captured,
            left: bytes_max,
            past_limit: PastLimit::Truncate,
            stream,
            last: Vec::new(),
        }
    }

    /// Reads until the end, or until the command must end for this cause. Nothing is lost if
    /// this future is dropped: the place for the bytes is reserved before they are read.
    pub async fn read(&mut self, output: &OutputSink) -> Result<(), Cause> {
        while let Some(from) = self.from.clone() {
            let place = output.place().await?;
            // A terminal whose other side is closed returns EIO.
            match from.async_io(Interest::READABLE, read_chunk).await {
                Ok(bytes) if !bytes.is_empty() => self.take(bytes, output, place),
                Ok(_) | Err(_) => self.from = None,
            }
            if self.captured.refused.is_some() {
                return Err(Cause::Killed);
            }
            if self.captured.truncated && self.past_limit == PastLimit::Kill {
                return Err(Cause::OutputLimit);
            }
        }
        Ok(())
    }

    /// The last bytes that were read.
    pub fn last(&self) -> &[u8] {
        &self.last
    }

    /// Reads what is in the pipe now, and can read more later. Does not wait.
    pub async fn read_now(&mut self, output: &OutputSink) -> Result<(), Cause> {
        let mut total = 0;
        while let Some(from) = self.from.clone().filter(|_| total < LEFT_BYTES_MAX) {
            let place = output.place().await?;
            match read_chunk(from.get_ref()) {
                Ok(bytes) if !bytes.is_empty() => {
                    total += bytes.len();
                    self.take(bytes, output, place);
                }
                Ok(_) => self.from = None,
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Passes bytes on or keeps them. Bytes beyond the limit are dropped, so that the command does
    /// not block.
    fn take(
        &mut self,
        mut bytes: Vec<u8>,
        output: &OutputSink,
        place: Option<mpsc::Permit<'_, Chunk>>,
    ) {
        self.last.extend_from_slice(&bytes[bytes.len().saturating_sub(STDERR_BYTES)..]);
        self.last.drain(..self.last.len().saturating_sub(STDERR_BYTES));
        if let OutputSink::Remember(recent) = output {
            return recent.add(Chunk { stream: self.stream, bytes });
        }
        let wanted = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= wanted as u64;
        self.captured.truncated |= wanted < bytes.len();
        bytes.truncate(wanted);
        match place {
            _ if bytes.is_empty() => {}
            Some(place) => place.send(Chunk { stream: self.stream, bytes }),
            None => self.captured.add(&bytes),
        }
    }
}

thread_local! {
    /// Shared by all pipes that a thread of the runtime reads. So a process that writes nothing
    /// needs no buffer.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK_BYTES]);
}

/// Reads what is there, without waiting. Empty at the end.
fn read_chunk(fd: &OwnedFd) -> io::Result<Vec<u8>> {
    BUFFER.with_borrow_mut(|buffer| {
        let count = rustix::io::read(fd, &mut buffer[..])?;
        Ok(buffer[..count].to_vec())
    })
}
