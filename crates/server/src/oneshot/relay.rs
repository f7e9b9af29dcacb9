//! Between a command and its client: input in, output out, each stream in order and
//! none in the way of the other.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tare_engine::{Event, Executed, Exit, Streams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::events::Events;

/// As much as a pipe holds.
const CHUNK_BYTES: usize = 64 << 10;
/// For the rest of the output of a box that has ended: nobody writes any more.
const REST_WITHIN: Duration = Duration::from_secs(3);
const SIGKILL: i32 = 9;

/// Some of the output, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
}

/// Where the output goes.
#[derive(Debug)]
pub enum Output {
    /// Into [`Kept`].
    Keep,
    /// To somebody who reads it as it comes. One who takes nothing for this long is cut
    /// off.
    Pass {
        to: mpsc::Sender<Chunk>,
        patience: Duration,
    },
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
    /// Its keeper is gone, and everyone with it.
    Gone,
}

impl Ended {
    /// With whether it was for its timeout.
    pub fn verdict(self) -> (Exit, bool) {
        match self {
            Self::Exited(exit) => (exit, false),
            Self::TimedOut => (Exit::Code(TIMED_OUT), true),
            Self::Gone => (Exit::Signal(SIGKILL), false),
        }
    }
}

/// As `timeout(1)` says it.
const TIMED_OUT: u8 = 124;

#[derive(Debug)]
pub enum Relayed {
    Ended(Ended),
    /// Whoever was to read the output does not.
    NobodyReads,
}

/// Both streams of the output.
#[derive(Debug)]
pub struct Reading {
    stdin: Option<OwnedFd>,
    stdout: Pipe,
    stderr: Pipe,
}

#[derive(Debug)]
struct Pipe {
    /// `None` at its end.
    from: Option<Receiver>,
    kept: Kept,
    left: u64,
    make: fn(Vec<u8>) -> Chunk,
}

impl Reading {
    pub fn of(streams: Streams, bytes_max: u64) -> Result<Self, ApiError> {
        let pipe = |fd: Option<OwnedFd>, make| {
            let from = fd.map(Receiver::from_owned_fd).transpose();
            let from = from.map_err(|error| ApiError::internal(error.to_string()))?;
            Ok::<_, ApiError>(Pipe {
                from,
                kept: Kept::default(),
                left: bytes_max,
                make,
            })
        };
        Ok(Self {
            stdin: streams.stdin,
            stdout: pipe(streams.stdout, Chunk::Stdout)?,
            stderr: pipe(streams.stderr, Chunk::Stderr)?,
        })
    }

    /// What is left of the output of a box that has ended.
    pub async fn rest(&mut self, output: &Output) {
        let rest = async { tokio::join!(self.stdout.read(output), self.stderr.read(output)) };
        // A reader who stalls now has all that he will get.
        tokio::time::timeout(REST_WITHIN, rest).await.ok();
    }

    pub fn into_kept(self) -> [Kept; 2] {
        [self.stdout.kept, self.stderr.kept]
    }
}

/// Nobody takes the output any more.
#[derive(Debug)]
struct Unread;

impl Pipe {
    /// Reads until the end.
    async fn read(&mut self, output: &Output) -> Result<(), Unread> {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Some(from) = &mut self.from {
            match from.read(&mut buffer).await {
                Ok(0) | Err(_) => self.from = None,
                Ok(count) => self.take(&buffer[..count], output).await?,
            }
        }
        Ok(())
    }

    /// Past the limit it is read all the same, so that the command goes on.
    async fn take(&mut self, bytes: &[u8], output: &Output) -> Result<(), Unread> {
        let wanted = bytes
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= wanted as u64;
        self.kept.truncated |= wanted < bytes.len();
        let bytes = &bytes[..wanted];
        if bytes.is_empty() {
            return Ok(());
        }
        match output {
            Output::Keep => self.kept.bytes.extend_from_slice(bytes),
            Output::Pass { to, patience } => {
                let sent = to
                    .send_timeout((self.make)(bytes.to_vec()), *patience)
                    .await;
                sent.map_err(|_| Unread)?;
            }
        }
        Ok(())
    }
}

/// Until the command has ended.
pub async fn relay(
    executed: &mut Executed,
    reading: &mut Reading,
    stdin: Option<Vec<u8>>,
    output: &Output,
) -> Result<Relayed, ApiError> {
    let events = Events::of(executed.events_fd())?;
    let feeding = feed(reading.stdin.take(), stdin.unwrap_or_default());
    let Reading { stdout, stderr, .. } = reading;
    let reading = async { tokio::try_join!(stdout.read(output), stderr.read(output)) };
    tokio::pin!(feeding, reading);
    let (mut is_fed, mut is_read) = (false, false);
    loop {
        let overdue = overdue(executed);
        tokio::select! {
            event = events.next(|| executed.next_event()) => match event? {
                Event::Started | Event::Terminal(_) => {}
                Event::Exited(exit) => return Ok(Relayed::Ended(Ended::Exited(exit))),
                Event::TimedOut => return Ok(Relayed::Ended(Ended::TimedOut)),
                Event::Gone => return Ok(Relayed::Ended(Ended::Gone)),
                Event::Failed(error) => return Err(error.into()),
            },
            read = &mut reading, if !is_read => match read {
                Ok(_) => is_read = true,
                Err(Unread) => return Ok(Relayed::NobodyReads),
            },
            () = &mut feeding, if !is_fed => is_fed = true,
            () = overdue => return Ok(Relayed::Ended(Ended::TimedOut)),
        }
    }
}

/// When the keeper is late with the timeout that it keeps.
fn overdue(executed: &Executed) -> impl Future<Output = ()> + use<> {
    let left = executed.overdue_in();
    async move {
        match left {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending().await,
        }
    }
}

/// A command that does not read its input is its own affair.
async fn feed(to: Option<OwnedFd>, bytes: Vec<u8>) {
    let fed = async {
        if let Some(to) = to {
            let mut to = Sender::from_owned_fd(to)?;
            to.write_all(&bytes).await?;
        }
        io::Result::Ok(())
    };
    fed.await.ok();
}
