//! Passes input, output and control between a process in a box and its client. Each stream is
//! in order, and none waits for another.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::termios::{Winsize, tcsetwinsize};
use tare_engine::{Cause, End, Event, Session};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::admission::bodies::Charge;
use crate::error::ServiceError;
use crate::fd;
use crate::work::events::Events;
use crate::work::outcome::Captured;
use crate::work::recent_output::RecentOutput;

/// As much as a pipe holds.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Bounds reading the rest of the output: no process writes any more.
const REST_WITHIN: Duration = Duration::from_secs(3);
/// What a process wrote before its end is in its pipe, which cannot hold more (pipe(7)).
/// Background processes that it left may write for ever.
const LEFT_BYTES_MAX: usize = 1 << 20;
/// What a terminal takes for the end of its input (Ctrl-D).
const END_OF_INPUT: &[u8] = b"\x04";

/// Bytes of one stream, as they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
}

impl Chunk {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Stdout(bytes) | Self::Stderr(bytes) => bytes,
        }
    }

    /// Returns the chunk without its first bytes.
    pub fn from(&self, start: usize) -> Self {
        match self {
            Self::Stdout(bytes) => Self::Stdout(bytes[start..].to_vec()),
            Self::Stderr(bytes) => Self::Stderr(bytes[start..].to_vec()),
        }
    }
}

/// Where the output of a command goes.
#[derive(Debug)]
pub enum OutputSink {
    /// Into [`Captured`].
    Keep,
    /// To a client that reads it as it comes. A client that takes nothing for this long is
    /// given up.
    Pass { to: mpsc::Sender<Chunk>, patience: Duration },
    /// To any number of readers, or none.
    Remember(Arc<RecentOutput>),
}

/// Where the input of a command comes from.
#[derive(Debug, Default)]
pub struct Input {
    /// First.
    pub bytes: Vec<u8>,
    /// Then; its end is the end of the input.
    pub more: Option<mpsc::Receiver<Vec<u8>>>,
    /// The memory of the bytes, if they outlive the request that they came with.
    pub charge: Option<Charge>,
}

/// What a client asks of a running process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessControl {
    Signal(i32),
    Resize { rows: u16, columns: u16 },
}

/// What happens to a command that writes more than is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PastLimit {
    /// The command goes on, and the rest is lost.
    #[default]
    Truncate,
    Kill,
}

/// Waits until the process runs. Returns its terminal, if it has one.
pub async fn started(session: &mut Session) -> Result<Option<OwnedFd>, ServiceError> {
    let events = Events::of(session.events_fd())?;
    let mut terminal = None;
    loop {
        match events.next(|| session.next_event()).await? {
            Event::Terminal(master) => terminal = Some(master),
            Event::Started => return Ok(terminal),
            Event::Failed(error) => return Err(error.into()),
            Event::Ended(_) => {
                let message = "the box ended before the command began";
                return Err(ServiceError::conflict("conflict", message));
            }
        }
    }
}

/// The host's ends of the streams of a process.
#[derive(Debug)]
pub struct Streams {
    stdin: Option<Fd>,
    terminal: Option<Fd>,
    stdout: OutputPipe,
    stderr: OutputPipe,
}

/// Shared by input and output where both are one terminal.
type Fd = Arc<AsyncFd<OwnedFd>>;

#[derive(Debug)]
struct OutputPipe {
    /// `None` at its end.
    from: Option<Fd>,
    captured: Captured,
    left: u64,
    past_limit: PastLimit,
    make: fn(Vec<u8>) -> Chunk,
}

impl Streams {
    /// `bytes_max` is of each stream. A terminal is input and output in one.
    pub fn new(
        streams: tare_engine::Streams,
        terminal: Option<OwnedFd>,
        bytes_max: u64,
        charge: impl Fn() -> Charge,
    ) -> Result<Self, ServiceError> {
        let watched = |fd: Option<OwnedFd>, interest| {
            let fd = fd.map(|fd| fd::watched(fd, interest)).transpose();
            let fd = fd.map_err(|error| ServiceError::internal(error.to_string()))?;
            Ok::<_, ServiceError>(fd.map(Arc::new))
        };
        let pipe = |from, make| OutputPipe {
            from,
            captured: Captured::new(charge()),
            left: bytes_max,
            past_limit: PastLimit::Truncate,
            make,
        };
        let terminal = watched(terminal, Interest::READABLE | Interest::WRITABLE)?;
        let stdout = watched(streams.stdout, Interest::READABLE)?;
        let stderr = watched(streams.stderr, Interest::READABLE)?;
        Ok(Self {
            stdin: watched(streams.stdin, Interest::WRITABLE)?.or_else(|| terminal.clone()),
            stdout: pipe(stdout.or_else(|| terminal.clone()), Chunk::Stdout),
            stderr: pipe(stderr, Chunk::Stderr),
            terminal,
        })
    }

    /// What happens to a command whose stdout passes its limit.
    pub fn set_past_limit(&mut self, past_limit: PastLimit) {
        self.stdout.past_limit = past_limit;
    }

    /// Reads what is left of the output of a box that has ended.
    pub async fn read_to_end(&mut self, output: &OutputSink) {
        let rest = async { tokio::join!(self.stdout.read(output), self.stderr.read(output)) };
        // A client that stalls now gets no more.
        tokio::time::timeout(REST_WITHIN, rest).await.ok();
    }

    /// Reads what a process left in its pipes, in a box that goes on. Background processes may
    /// hold the pipes open, so this does not wait for their end.
    pub async fn read_left(&mut self, output: &OutputSink) {
        let left = async { tokio::join!(self.stdout.left(output), self.stderr.left(output)) };
        tokio::time::timeout(REST_WITHIN, left).await.ok();
    }

    /// Fails if the server had no memory for all of it.
    pub fn into_captured(self) -> Result<[Captured; 2], ServiceError> {
        let mut captured = [self.stdout.captured, self.stderr.captured];
        match captured.iter_mut().find_map(|one| one.refused.take()) {
            Some(error) => Err(error),
            None => Ok(captured),
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        if let Some(terminal) = &self.terminal {
            // A terminal that is gone has no size.
            tcsetwinsize(terminal.get_ref(), size).ok();
        }
    }
}

thread_local! {
    /// Shared by all pipes that a thread of the runtime reads: a process that writes nothing
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

impl OutputPipe {
    /// Reads until the end, or until the command must end for this cause. Nothing is lost if
    /// this future is dropped: the place for the bytes is reserved before they are read.
    async fn read(&mut self, output: &OutputSink) -> Result<(), Cause> {
        while let Some(from) = self.from.clone() {
            let place = output.place().await?;
            // A terminal whose other side is closed returns EIO.
            match from.async_io(Interest::READABLE, read_chunk).await {
                Ok(bytes) if !bytes.is_empty() => self.take(bytes, output, place),
                Ok(_) | Err(_) => self.from = None,
            }
            let is_past_limit = self.captured.truncated && self.past_limit == PastLimit::Kill;
            if is_past_limit || self.captured.refused.is_some() {
                return Err(Cause::OutputLimit);
            }
        }
        Ok(())
    }

    /// Reads what is there.
    async fn left(&mut self, output: &OutputSink) -> Result<(), Cause> {
        let mut total = 0;
        while let Some(from) = self.from.clone() {
            let place = output.place().await?;
            match read_chunk(from.get_ref()) {
                Ok(bytes) if !bytes.is_empty() && total < LEFT_BYTES_MAX => {
                    total += bytes.len();
                    self.take(bytes, output, place);
                }
                Ok(_) | Err(_) => self.from = None,
            }
        }
        Ok(())
    }

    /// Past the limit it is read all the same, so that the command goes on.
    fn take(
        &mut self,
        mut bytes: Vec<u8>,
        output: &OutputSink,
        place: Option<mpsc::Permit<'_, Chunk>>,
    ) {
        if let OutputSink::Remember(recent) = output {
            return recent.add((self.make)(bytes));
        }
        let wanted = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= wanted as u64;
        self.captured.truncated |= wanted < bytes.len();
        bytes.truncate(wanted);
        match place {
            _ if bytes.is_empty() => {}
            Some(place) => place.send((self.make)(bytes)),
            None => self.captured.add(&bytes),
        }
    }
}

impl OutputSink {
    /// A place for a chunk that is still to come, where there are only so many.
    async fn place(&self) -> Result<Option<mpsc::Permit<'_, Chunk>>, Cause> {
        match self {
            Self::Keep | Self::Remember(_) => Ok(None),
            Self::Pass { to, patience } => {
                let place = tokio::time::timeout(*patience, to.reserve()).await;
                let place = place.map_err(|_| Cause::ClientGone)?;
                Ok(Some(place.map_err(|_| Cause::ClientGone)?))
            }
        }
    }
}

/// Passes everything on until the command has ended or was killed, which the session knows: for
/// example because the client does not read the output.
pub async fn relay(
    session: &mut Session,
    streams: &mut Streams,
    input: Input,
    control: &mut Option<mpsc::Receiver<ProcessControl>>,
    output: &OutputSink,
) -> Result<(), ServiceError> {
    let events = Events::of(session.events_fd())?;
    let feeding = feed(streams.stdin.take(), streams.terminal.is_some(), input);
    let (mut stdout, mut stderr) = (streams.stdout.take_over(), streams.stderr.take_over());
    let reading = async { tokio::try_join!(stdout.read(output), stderr.read(output)) };
    let mut feeding = Box::pin(feeding);
    let mut reading = Box::pin(reading);
    let (mut is_fed, mut is_read) = (false, false);
    loop {
        let overdue = overdue(session);
        tokio::select! {
            event = events.next(|| session.next_event()) => match event? {
                Event::Started | Event::Terminal(_) => {}
                Event::Ended(_) => break,
                Event::Failed(error) => return Err(error.into()),
            },
            read = &mut reading, if !is_read => match read {
                Ok(_) => is_read = true,
                Err(cause) => break session.kill(End::killed(cause)),
            },
            () = &mut feeding, if !is_fed => is_fed = true,
            request = next_control(control) => match request {
                // If it does not arrive, the process is about to end.
                ProcessControl::Signal(signal) => drop(session.signal(signal)),
                ProcessControl::Resize { rows, columns } => streams.resize(rows, columns),
            },
            () = overdue => break session.kill(End::killed(Cause::Timeout)),
        }
    }
    drop((feeding, reading));
    (streams.stdout, streams.stderr) = (stdout, stderr);
    Ok(())
}

impl OutputPipe {
    /// Another that goes on where this one is.
    fn take_over(&mut self) -> Self {
        Self {
            from: self.from.take(),
            captured: std::mem::take(&mut self.captured),
            left: self.left,
            past_limit: self.past_limit,
            make: self.make,
        }
    }
}

/// Never returns once the sender is dropped.
async fn next_control(control: &mut Option<mpsc::Receiver<ProcessControl>>) -> ProcessControl {
    if let Some(from) = control {
        match from.recv().await {
            Some(request) => return request,
            None => *control = None,
        }
    }
    std::future::pending().await
}

/// Returns when the keeper is late with the timeout that it enforces.
fn overdue(session: &Session) -> impl Future<Output = ()> + use<> {
    let left = session.overdue_in();
    async move {
        match left {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending().await,
        }
    }
}

/// Writes the input. A command that does not read it may still succeed.
async fn feed(to: Option<Fd>, is_terminal: bool, input: Input) {
    let fed = async {
        let Some(to) = to else {
            return Ok(());
        };
        let Input { bytes, more, charge } = input;
        write_all(&to, &bytes).await?;
        let says_something = !bytes.is_empty() || more.is_some();
        drop((bytes, charge));
        if let Some(mut more) = more {
            while let Some(bytes) = more.recv().await {
                write_all(&to, &bytes).await?;
            }
        }
        if is_terminal && says_something { write_all(&to, END_OF_INPUT).await } else { Ok(()) }
    };
    let fed: io::Result<()> = fed.await;
    fed.ok();
}

async fn write_all(to: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let write = |fd: &OwnedFd| Ok(rustix::io::write(fd.as_fd(), bytes)?);
        let count = to.async_io(Interest::WRITABLE, write).await?;
        bytes = &bytes[count..];
    }
    Ok(())
}
