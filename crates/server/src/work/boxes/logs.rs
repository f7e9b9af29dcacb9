//! The log of a box, read and followed.
//!
//! The server reads the log from its file, in bounded pieces, and does not ask the keeper. So no
//! reader delays a box, and no output waits in memory for a reader.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tare_engine::logs::Logs;
use tare_engine::{Context as _, Engine, Error, Keeper, Timestamp};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::fd;
use crate::watch::followers::Follower;
use crate::work::streams::chunk::Chunk;
use crate::work::{Service, find};

/// The number of bytes that are read at a time, in whole records.
const PIECE_BYTES: usize = 64 << 10;
/// A follower gets a sign of life this often while nothing is written.
pub const ALIVE_EVERY: Duration = Duration::from_secs(15);

/// The part of a log to read.
#[derive(Debug, Clone, Copy)]
pub struct LogRange {
    pub since: Option<Timestamp>,
    /// Only so many of the last lines.
    pub tail: Option<u32>,
    /// Whether to go on with what the box writes, until it ends.
    pub follow: bool,
}

/// One write of the box.
#[derive(Debug)]
pub struct LogPiece {
    pub time: Timestamp,
    pub chunk: Chunk,
    /// Bytes before this record for which the log had no room.
    pub missed_bytes: u64,
}

/// What a reader gets next.
#[derive(Debug)]
pub enum LogPart {
    Records(Vec<LogPiece>),
    /// Bytes for which the log had no room, at its end.
    Missed(u64),
    /// Nothing was written for a while.
    Alive,
    End,
}

#[derive(Debug)]
pub struct LogReader {
    service: Service,
    /// `None` while a worker thread reads.
    logs: Option<Logs>,
    following: Option<Following>,
}

#[derive(Debug)]
struct Following {
    /// Readable when the keeper is dead. Only the keeper writes the log.
    keeper: AsyncFd<OwnedFd>,
    follower: Follower,
}

impl Service {
    pub async fn logs(
        &self,
        caller: &Caller,
        reference: String,
        range: LogRange,
    ) -> Result<LogReader, ServiceError> {
        let caller = caller.clone();
        let opened = self.call(move |engine| open(engine, &caller, &reference, range));
        let (logs, keeper) = opened.await?;
        // Before the first read, so that no write falls between the two.
        let following = keeper.map(|keeper| self.follow(&logs, &keeper)).transpose()?;
        Ok(LogReader { service: self.clone(), logs: Some(logs), following })
    }

    fn follow(&self, logs: &Logs, keeper: &Keeper) -> Result<Following, ServiceError> {
        let watched = || fd::watched(keeper.as_fd().try_clone_to_owned()?, Interest::READABLE);
        Ok(Following {
            keeper: watched().context(|| "cannot wait for the box".into())?,
            follower: self.followers.follow(logs)?,
        })
    }
}

/// Opens the log, and returns the keeper that writes it if it is to be followed.
fn open(
    engine: &Engine,
    caller: &Caller,
    reference: &str,
    range: LogRange,
) -> Result<(Logs, Option<Keeper>), Error> {
    let (mut logs, keeper) = engine.logs(&find(engine, caller, reference)?)?;
    if let Some(since) = range.since {
        logs.since(since);
    }
    if let Some(lines) = range.tail {
        logs.tail(u64::from(lines))?;
    }
    let keeper = keeper.filter(|_| range.follow);
    if keeper.is_none() {
        logs.stop_here()?;
    }
    Ok((logs, keeper))
}

impl LogReader {
    pub async fn next(&mut self) -> Result<LogPart, ServiceError> {
        loop {
            let (records, missed_bytes) = self.read().await?;
            if !records.is_empty() {
                return Ok(LogPart::Records(records));
            }
            if missed_bytes > 0 {
                return Ok(LogPart::Missed(missed_bytes));
            }
            let Some(following) = &mut self.following else {
                return Ok(LogPart::End);
            };
            tokio::select! {
                () = following.follower.written() => {}
                ended = following.keeper.readable() => {
                    drop(ended.map_err(ServiceError::internal)?);
                    // The log is complete.
                    self.following = None;
                }
                () = tokio::time::sleep(ALIVE_EVERY) => return Ok(LogPart::Alive),
                () = self.service.shutdown.draining() => return Ok(LogPart::End),
            }
        }
    }

    async fn read(&mut self) -> Result<(Vec<LogPiece>, u64), ServiceError> {
        let Some(mut logs) = self.logs.take() else {
            return Ok((Vec::new(), 0));
        };
        let read = self.service.call(move |_| {
            let records = piece(&mut logs)?;
            let missed = if records.is_empty() { logs.missed_at_end()? } else { 0 };
            Ok((logs, records, missed))
        });
        let (logs, records, missed) = read.await?;
        self.logs = Some(logs);
        Ok((records, missed))
    }
}

fn piece(logs: &mut Logs) -> Result<Vec<LogPiece>, Error> {
    let mut records = Vec::new();
    let mut total = 0;
    while total < PIECE_BYTES {
        let Some(record) = logs.next_record()? else {
            break;
        };
        total += record.bytes.len();
        records.push(LogPiece {
            time: record.time,
            missed_bytes: record.missed_bytes,
            chunk: Chunk { stream: record.stream, bytes: record.bytes.to_vec() },
        });
    }
    Ok(records)
}
