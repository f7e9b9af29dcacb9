//! Passes input, output and control between a process in a box and its client. Each stream is
//! in order, and none waits for another.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::termios::{Winsize, tcsetwinsize};
use tare_engine::logs::Stream;
use tare_engine::{Cause, End, Event, Session};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::admission::bodies::Charge;
use crate::error::ServiceError;
use crate::fd;
use crate::work::streams::events::Events;
use crate::work::streams::output::Captured;
use crate::work::streams::output::{OutputPipe, OutputSink, PastLimit};

/// Bounds reading the rest of the output: no process writes any more.
const REST_WITHIN: Duration = Duration::from_secs(3);
/// What a terminal takes for the end of its input (Ctrl-D).
const END_OF_INPUT: &[u8] = b"\x04";

/// The input of a command.
#[derive(Debug, Default)]
pub struct Input {
    /// The first part.
    pub bytes: Vec<u8>,
    /// The rest, until the sender is dropped.
    pub more: Option<mpsc::Receiver<Vec<u8>>>,
    /// The memory of `bytes`, if they outlive the request that they came with.
    pub charge: Option<Charge>,
}

/// What a client asks of a running process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessControl {
    Signal(i32),
    Resize { rows: u16, columns: u16 },
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
                let message = "the box ended before its command started";
                return Err(ServiceError::unavailable("box_ended", message));
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

/// Shared by input and output if both are one terminal.
type Fd = Arc<AsyncFd<OwnedFd>>;

impl Streams {
    /// `bytes_max` limits each stream. A terminal is input and output in one.
    pub fn new(
        streams: tare_engine::Streams,
        terminal: Option<OwnedFd>,
        bytes_max: u64,
        charge: impl Fn() -> Charge,
    ) -> Result<Self, ServiceError> {
        let watched = |fd: Option<OwnedFd>, interest| {
            let fd = fd.map(|fd| fd::watched(fd, interest)).transpose();
            fd.map(|fd| fd.map(Arc::new)).map_err(ServiceError::internal)
        };
        let terminal = watched(terminal, Interest::READABLE | Interest::WRITABLE)?;
        let stdin = watched(streams.stdin, Interest::WRITABLE)?;
        let stdout = watched(streams.stdout, Interest::READABLE)?;
        let stderr = watched(streams.stderr, Interest::READABLE)?;
        let of_terminal = || terminal.clone();
        Ok(Self {
            stdin: stdin.or_else(of_terminal),
            stdout: OutputPipe::new(
                stdout.or_else(of_terminal),
                bytes_max,
                charge(),
                Stream::Stdout,
            ),
            stderr: OutputPipe::new(stderr, bytes_max, charge(), Stream::Stderr),
            terminal,
        })
    }

    /// Sets what happens to a command whose stdout passes its limit.
    pub fn set_past_limit(&mut self, past_limit: PastLimit) {
        self.stdout.past_limit = past_limit;
    }

    /// Reads what has arrived on stderr, and returns the last part of it.
    pub async fn last_stderr(&mut self, output: &OutputSink) -> Vec<u8> {
        // A client that stalls now loses nothing: the rest is read later.
        tokio::time::timeout(REST_WITHIN, self.stderr.read_now(output)).await.ok();
        self.stderr.last().to_vec()
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
        let left =
            async { tokio::join!(self.stdout.read_now(output), self.stderr.read_now(output)) };
        tokio::time::timeout(REST_WITHIN, left).await.ok();
    }

    /// Returns why the server had no memory for all of the output.
    pub fn refused(&self) -> Option<&ServiceError> {
        let both = [&self.stdout.captured, &self.stderr.captured];
        both.into_iter().find_map(|one| one.refused.as_ref())
    }

    /// Fails if the server had no memory for all of it.
    pub fn into_captured(self) -> Result<[Captured; 2], ServiceError> {
        let mut captured = [self.stdout.captured, self.stderr.captured];
        match captured.iter_mut().find_map(|one| one.refused.take()) {
            Some(error) => Err(error),
            None => Ok(captured),
        }
    }
}

/// Passes everything on until the command has ended, or is killed because its output cannot be
/// passed on. The session knows how it ended.
pub async fn relay(
    session: &mut Session,
    streams: &mut Streams,
    input: Input,
    control: &mut Option<mpsc::Receiver<ProcessControl>>,
    output: &OutputSink,
) -> Result<(), ServiceError> {
    let events = Events::of(session.events_fd())?;
    let Streams { stdin, terminal, stdout, stderr } = streams;
    let feeding = feed(stdin.take(), terminal.is_some(), input);
    let reading = async { tokio::try_join!(stdout.read(output), stderr.read(output)) };
    tokio::pin!(feeding, reading);
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
                ProcessControl::Resize { rows, columns } => {
                    resize(terminal.as_ref(), rows, columns);
                }
            },
            () = overdue => break session.kill(End::killed(Cause::Timeout)),
        }
    }
    Ok(())
}

fn resize(terminal: Option<&Fd>, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    if let Some(terminal) = terminal {
        // A terminal that is gone has no size.
        tcsetwinsize(terminal.get_ref(), size).ok();
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
    if let Some(to) = to {
        write_input(&to, is_terminal, input).await.ok();
    }
}

async fn write_input(to: &Fd, is_terminal: bool, input: Input) -> io::Result<()> {
    let Input { bytes, more, charge } = input;
    write_all(to, &bytes).await?;
    let has_input = !bytes.is_empty() || more.is_some();
    drop((bytes, charge));
    if let Some(mut more) = more {
        while let Some(bytes) = more.recv().await {
            write_all(to, &bytes).await?;
        }
    }
    if is_terminal && has_input { write_all(to, END_OF_INPUT).await } else { Ok(()) }
}

async fn write_all(to: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let write = |fd: &OwnedFd| Ok(rustix::io::write(fd.as_fd(), bytes)?);
        let count = to.async_io(Interest::WRITABLE, write).await?;
        bytes = &bytes[count..];
    }
    Ok(())
}
