//! Between a process in a box and its client: input in, output out, each stream in
//! order and none in the way of the other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::termios::{Winsize, tcsetwinsize};
use tare_engine::{Event, Exit, Session, Streams};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::admission::bodies::Charge;
use crate::error::ServiceError;
use crate::fd;
use crate::work::events::Events;
use crate::work::recent_output::Memory;

/// As much as a pipe holds.
pub const CHUNK_BYTES: usize = 64 << 10;
/// For the rest of the output of a box that has ended: nobody writes any more.
const REST_WITHIN: Duration = Duration::from_secs(3);
/// What a process has written before its end is in its pipe, which cannot hold more
/// (pipe(7)). Whoever it left behind may write for ever.
const LEFT_BYTES_MAX: usize = 1 << 20;
const SIGKILL: i32 = 9;
/// What a terminal takes for the end of its input (Ctrl-D).
const END_OF_INPUT: &[u8] = b"\x04";

/// Some of the output, as it came.
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

    /// Without its first bytes.
    pub fn from(&self, start: usize) -> Self {
        match self {
            Self::Stdout(bytes) => Self::Stdout(bytes[start..].to_vec()),
            Self::Stderr(bytes) => Self::Stderr(bytes[start..].to_vec()),
        }
    }
}

/// Where the output goes.
#[derive(Debug)]
pub enum Output {
    /// Into [`Kept`].
    Keep,
    /// To somebody who reads it as it comes. One who takes nothing for this long is cut
    /// off.
    Pass { to: mpsc::Sender<Chunk>, patience: Duration },
    /// Where whoever wants to may read it, or nobody.
    Remember(Arc<Memory>),
}

/// Where the input comes from.
#[derive(Debug, Default)]
pub struct Input {
    /// First.
    pub bytes: Vec<u8>,
    /// Then; its end is the end of the input.
    pub more: Option<mpsc::Receiver<Vec<u8>>>,
    /// For the bytes, where they outlive the request that they came with.
    pub charge: Option<Charge>,
}

impl Input {
    /// Just this.
    pub fn of(bytes: Option<Vec<u8>>) -> Self {
        Self { bytes: bytes.unwrap_or_default(), more: None, charge: None }
    }
}

/// What a client wants of a process that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Signal(i32),
    Resize { rows: u16, columns: u16 },
}

/// One stream, as far as its limit goes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub bytes: Vec<u8>,
    pub truncated: bool,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exited(Exit),
    TimedOut,
    /// It wrote more than it may, where that ends it.
    Flooded,
    /// Its keeper is gone, and everyone with it.
    Gone,
}

impl Ended {
    /// With whether it was for its timeout.
    pub fn verdict(self) -> (Exit, bool) {
        match self {
            Self::Exited(exit) => (exit, false),
            Self::TimedOut => (Exit::Code(TIMED_OUT), true),
            Self::Flooded | Self::Gone => (Exit::Signal(SIGKILL), false),
        }
    }
}

/// What becomes of a command that writes more to its output than is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flood {
    /// It goes on, and the rest is lost.
    #[default]
    Passes,
    Ends,
}

/// As `timeout(1)` says it.
const TIMED_OUT: u8 = 124;

#[derive(Debug)]
pub enum Relayed {
    Ended(Ended),
    /// Whoever was to read the output does not.
    NobodyReads,
}

/// Waits until the process runs; its terminal, if it has one.
pub async fn started(session: &mut Session) -> Result<Option<OwnedFd>, ServiceError> {
    let events = Events::of(session.events_fd())?;
    let mut terminal = None;
    loop {
        match events.next(|| session.next_event()).await? {
            Event::Terminal(master) => terminal = Some(master),
            Event::Started => return Ok(terminal),
            Event::Failed(error) => return Err(error.into()),
            Event::Exited(_) | Event::TimedOut | Event::Gone => {
                let message = "the box ended before the command began";
                return Err(ServiceError::conflict("conflict", message));
            }
        }
    }
}

/// The host's ends of the streams of a process.
#[derive(Debug)]
pub struct Ends {
    stdin: Option<Fd>,
    terminal: Option<Fd>,
    stdout: Pipe,
    stderr: Pipe,
}

/// Shared by input and output where both are one terminal.
type Fd = Arc<AsyncFd<OwnedFd>>;

#[derive(Debug)]
struct Pipe {
    /// `None` at its end.
    from: Option<Fd>,
    kept: Kept,
    left: u64,
    flood: Flood,
    make: fn(Vec<u8>) -> Chunk,
}

impl Ends {
    /// `bytes_max` is of each stream. A terminal is input and output in one.
    pub fn of(
        streams: Streams,
        terminal: Option<OwnedFd>,
        bytes_max: u64,
    ) -> Result<Self, ServiceError> {
        let watched = |fd: Option<OwnedFd>, interest| {
            let fd = fd.map(|fd| fd::watched(fd, interest)).transpose();
            let fd = fd.map_err(|error| ServiceError::internal(error.to_string()))?;
            Ok::<_, ServiceError>(fd.map(Arc::new))
        };
        let pipe = |from, make| Pipe {
            from,
            kept: Kept::default(),
            left: bytes_max,
            flood: Flood::Passes,
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

    /// What becomes of a command whose stdout passes its limit.
    pub fn at_flood(mut self, flood: Flood) -> Self {
        self.stdout.flood = flood;
        self
    }

    /// What is left of the output of a box that has ended.
    pub async fn rest(&mut self, output: &Output) {
        let rest = async { tokio::join!(self.stdout.read(output), self.stderr.read(output)) };
        // A reader who stalls now has all that he will get.
        tokio::time::timeout(REST_WITHIN, rest).await.ok();
    }

    /// What a process has left in its pipes, in a box that goes on. Whoever it left
    /// behind may hold them open: their end is not waited for.
    pub async fn left(&mut self, output: &Output) {
        let left = async { tokio::join!(self.stdout.left(output), self.stderr.left(output)) };
        tokio::time::timeout(REST_WITHIN, left).await.ok();
    }

    pub fn into_kept(self) -> [Kept; 2] {
        [self.stdout.kept, self.stderr.kept]
    }

    fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        if let Some(terminal) = &self.terminal {
            // A terminal that is gone has no size.
            tcsetwinsize(terminal.get_ref(), size).ok();
        }
    }
}

/// Why no more is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// Nobody takes the output any more.
    Unread,
    Flooded,
}

impl Pipe {
    /// Reads until the end. May be given up at any moment without anything being lost:
    /// what was read has its place already.
    async fn read(&mut self, output: &Output) -> Result<(), Stop> {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Some(from) = self.from.clone() {
            let place = output.place().await?;
            let read = |fd: &OwnedFd| Ok(rustix::io::read(fd, &mut buffer[..])?);
            // A terminal whose other side is closed is EIO.
            match from.async_io(Interest::READABLE, read).await {
                Ok(0) | Err(_) => self.from = None,
                Ok(count) => self.take(&buffer[..count], output, place),
            }
            if self.kept.truncated && self.flood == Flood::Ends {
                return Err(Stop::Flooded);
            }
        }
        Ok(())
    }

    /// Reads what is there.
    async fn left(&mut self, output: &Output) -> Result<(), Stop> {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut total = 0;
        while let Some(from) = self.from.clone() {
            let place = output.place().await?;
            match rustix::io::read(from.get_ref(), &mut buffer[..]) {
                Ok(count) if count > 0 && total < LEFT_BYTES_MAX => {
                    total += count;
                    self.take(&buffer[..count], output, place);
                }
                Ok(_) | Err(_) => self.from = None,
            }
        }
        Ok(())
    }

    /// Past the limit it is read all the same, so that the command goes on.
    fn take(&mut self, bytes: &[u8], output: &Output, place: Option<mpsc::Permit<'_, Chunk>>) {
        if let Output::Remember(memory) = output {
            return memory.add((self.make)(bytes.to_vec()));
        }
        let wanted = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= wanted as u64;
        self.kept.truncated |= wanted < bytes.len();
        let bytes = &bytes[..wanted];
        match place {
            _ if bytes.is_empty() => {}
            Some(place) => place.send((self.make)(bytes.to_vec())),
            None => self.kept.bytes.extend_from_slice(bytes),
        }
    }
}

impl Output {
    /// A place for a chunk that is still to come, where there are only so many.
    async fn place(&self) -> Result<Option<mpsc::Permit<'_, Chunk>>, Stop> {
        match self {
            Self::Keep | Self::Remember(_) => Ok(None),
            Self::Pass { to, patience } => {
                let place = tokio::time::timeout(*patience, to.reserve()).await;
                let place = place.map_err(|_| Stop::Unread)?;
                Ok(Some(place.map_err(|_| Stop::Unread)?))
            }
        }
    }
}

/// Until the command has ended.
pub async fn relay(
    session: &mut Session,
    ends: &mut Ends,
    input: Input,
    orders: &mut Option<mpsc::Receiver<Order>>,
    output: &Output,
) -> Result<Relayed, ServiceError> {
    let events = Events::of(session.events_fd())?;
    let feeding = feed(ends.stdin.take(), ends.terminal.is_some(), input);
    let (mut stdout, mut stderr) = (ends.stdout.take_over(), ends.stderr.take_over());
    let reading = async { tokio::try_join!(stdout.read(output), stderr.read(output)) };
    let mut feeding = Box::pin(feeding);
    let mut reading = Box::pin(reading);
    let (mut is_fed, mut is_read) = (false, false);
    let relayed = loop {
        let overdue = overdue(session);
        tokio::select! {
            event = events.next(|| session.next_event()) => match event? {
                Event::Started | Event::Terminal(_) => {}
                Event::Exited(exit) => break Relayed::Ended(Ended::Exited(exit)),
                Event::TimedOut => break Relayed::Ended(Ended::TimedOut),
                Event::Gone => break Relayed::Ended(Ended::Gone),
                Event::Failed(error) => return Err(error.into()),
            },
            read = &mut reading, if !is_read => match read {
                Ok(_) => is_read = true,
                Err(Stop::Unread) => break Relayed::NobodyReads,
                Err(Stop::Flooded) => break Relayed::Ended(Ended::Flooded),
            },
            () = &mut feeding, if !is_fed => is_fed = true,
            order = next_order(orders) => match order {
                // One that does not arrive is of a process that is about to end.
                Order::Signal(signal) => drop(session.signal(signal)),
                Order::Resize { rows, columns } => ends.resize(rows, columns),
            },
            () = overdue => break Relayed::Ended(Ended::TimedOut),
        }
    };
    drop((feeding, reading));
    (ends.stdout, ends.stderr) = (stdout, stderr);
    Ok(relayed)
}

impl Pipe {
    /// Another that goes on where this one is.
    fn take_over(&mut self) -> Self {
        Self {
            from: self.from.take(),
            kept: std::mem::take(&mut self.kept),
            left: self.left,
            flood: self.flood,
            make: self.make,
        }
    }
}

/// For ever, once nobody can give any.
async fn next_order(orders: &mut Option<mpsc::Receiver<Order>>) -> Order {
    if let Some(from) = orders {
        match from.recv().await {
            Some(order) => return order,
            None => *orders = None,
        }
    }
    std::future::pending().await
}

/// When the keeper is late with the timeout that it keeps.
fn overdue(session: &Session) -> impl Future<Output = ()> + use<> {
    let left = session.overdue_in();
    async move {
        match left {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending().await,
        }
    }
}

/// A command that does not read its input is its own affair.
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
