//! `run -d`: a box that is made like any other, and left to its keeper when its command
//! runs.
//!
//! ```text
//! record ─▶ ... ─▶ keeper ─▶ plan ─▶ identity ─▶ go ─▶ Started ─▶ Detach ─▶ Detached
//!     └──────── a creator that dies here takes the box along ───────┘          │
//!                                             unlocked, and its id announced ◀─┘
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tare_control::{REQUEST_BYTES_MAX, Received, Report, Request};
use tare_kernel::clock::timespec;
use tare_kernel::process::Process;

use crate::create::{self, Mode, NewBox};
use crate::error::{Context, Error, Hint, LimitName};
use crate::history;
use crate::host::layout::{BoxAt, StateRoot};
use crate::record::LockedRecord;
use crate::session::{Event, Reserve, Session};
use crate::spec::{BoxId, DetachOptions, Limit, Spec, quantity};

/// How long a box may take to start; a file system of a volume that does not
/// answer must not block its creator forever.
const START_WITHIN: Duration = Duration::from_secs(60);

/// A box that runs by itself.
#[derive(Debug)]
pub struct Started {
    pub id: BoxId,
    /// Defaults that this host cannot enforce, a sentence each.
    pub notes: Vec<String>,
    /// A child of this process, which has to reap it if it lives on.
    pub keeper: Process,
}

/// Makes a detached box, and returns when its command runs. If `given_up` becomes readable first,
/// the box is removed again.
pub fn start(
    root: &StateRoot,
    (spec, options): (&Spec, &DetachOptions),
    given_up: Option<BorrowedFd<'_>>,
    tend: &dyn Fn(),
) -> Result<Started, Error> {
    let options = &with_log_in_memory(options, spec)?;
    let id = BoxId::random();
    let reserve = Reserve::take().context(|| "cannot reserve descriptors".into())?;
    let record = create::record(root.at(&id), spec, Some(options), tend)?;
    start_recorded(root.at(&id), (record, reserve), (spec, options, given_up), tend)
}

/// Makes a detached box with a chosen id. `None` when that box exists or is being made. An error
/// when it existed and was removed, for as long as its history is kept.
pub fn start_as(
    at: BoxAt<'_>,
    spec: &Spec,
    options: &DetachOptions,
    tend: &dyn Fn(),
) -> Result<Option<Started>, Error> {
    let options = &with_log_in_memory(options, spec)?;
    let reserve = Reserve::take().context(|| "cannot reserve descriptors".into())?;
    let record = match create::record(at, spec, Some(options), tend) {
        Err(error) if is_taken(&error) => return Ok(None),
        record => record?,
    };
    // A removal adds the history before it removes the record: with the record in our hands nothing
    // falls between the two.
    if was_detached(at)? {
        drop(reserve);
        return Err(create::abandon(at, record, removed(at.id), tend));
    }
    start_recorded(at, (record, reserve), (spec, options, None), tend).map(Some)
}

/// Returns whether a box of this id was detached, and is removed. The id of a box that was never
/// detached was never announced.
fn was_detached(at: BoxAt<'_>) -> Result<bool, Error> {
    let removed = history::removed(at.root)?;
    Ok(removed.iter().any(|sources| sources.id == *at.id && sources.detached))
}

fn start_recorded(
    at: BoxAt<'_>,
    (record, reserve): (LockedRecord, Reserve),
    (spec, options, given_up): (&Spec, &DetachOptions, Option<BorrowedFd<'_>>),
    tend: &dyn Fn(),
) -> Result<Started, Error> {
    if let Err(error) = history::reserve(at.root) {
        drop(reserve);
        return Err(create::abandon(at, record, error, tend));
    }
    let new = NewBox { spec, mode: Mode::Detached(options) };
    detach(create::make(at, record, reserve, new, tend)?, given_up)
}

/// Leaves a box to its keeper. A failure leaves nothing.
fn detach(mut session: Session, given_up: Option<BorrowedFd<'_>>) -> Result<Started, Error> {
    match await_detached(&mut session, given_up) {
        Ok(keeper) => {
            let (id, notes) = session.release();
            Ok(Started { id, notes, keeper })
        }
        Err(error) => Err(session.abandon(error)),
    }
}

/// The record of a box is a directory of which there is one.
fn is_taken(error: &Error) -> bool {
    let why = std::error::Error::source(error);
    let why = why.and_then(|why| why.downcast_ref::<io::Error>());
    why.is_some_and(|why| why.kind() == io::ErrorKind::AlreadyExists)
}

fn removed(id: &BoxId) -> Error {
    let message = format!("box {id} is removed, and is not made again");
    Error::conflict(message).with_hint(Hint::IdWasUsed)
}

/// The log is memory of the box where the state root is in memory, as it is by
/// default: it may take this part of it.
const LOG_PART_OF_MEMORY: u64 = 4;

fn with_log_in_memory(options: &DetachOptions, spec: &Spec) -> Result<DetachOptions, Error> {
    let most = spec.limits.memory_bytes.value() / LOG_PART_OF_MEMORY;
    let log_bytes_max = match options.log_bytes_max {
        Limit::Asked(asked) if asked > most => {
            let message = "the log of a detached box cannot be so large";
            let why = format!(
                "it counts as memory of the box, of which it gets a quarter: {}",
                quantity::show_bytes(most)
            );
            return Err(Error::bad_request(message)
                .caused_by(why)
                .with_hint(Hint::LessOrMoreMemory(LimitName::Output)));
        }
        Limit::Asked(asked) => Limit::Asked(asked),
        Limit::Default(default) => Limit::Default(default.min(most)),
    };
    Ok(DetachOptions { log_bytes_max, ..options.clone() })
}

/// Waits until the command runs, then detaches the box and returns its keeper. Nothing may
/// fail after that: a start that fails leaves nothing.
fn await_detached(
    session: &mut Session,
    given_up: Option<BorrowedFd<'_>>,
) -> Result<Process, Error> {
    let keeper = session.keeper()?;
    let until = Instant::now() + START_WITHIN;
    loop {
        match await_report(session, until, given_up)? {
            Report::Detached => return Ok(keeper),
            Report::Started => session
                .channel()
                .send(&Request::Detach, REQUEST_BYTES_MAX, &[])
                .context(|| "cannot detach the box".into())?,
            report @ (Report::Terminal
            | Report::SetupFailed { .. }
            | Report::LaunchFailed { .. }
            | Report::Ended(_)
            | Report::Done
            | Report::Usage(_)
            | Report::Input { .. }
            | Report::Refused(_)) => return Err(failed(session.event(report))),
        }
    }
}

fn await_report(
    session: &mut Session,
    until: Instant,
    given_up: Option<BorrowedFd<'_>>,
) -> Result<Report, Error> {
    loop {
        match session.receive() {
            Received::Message(report) => return Ok(report),
            Received::Nothing => {}
            Received::Closed => return Err(session.birth_failure().unwrap_or_else(gone)),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::failed("the box did not start in time")
                .caused_by(format!("it took more than {} s", START_WITHIN.as_secs()))
                .with_hint("does the file system of a volume or of --rootfs answer?"));
        }
        let mut fds = vec![PollFd::new(session.channel(), PollFlags::IN)];
        fds.extend(given_up.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // After an interrupted wait the loop receives again.
        poll(&mut fds, Some(&timespec(left))).ok();
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if !is_ready(&fds[0]) && fds[1..].iter().any(is_ready) {
            return Err(Error::failed("the start of the box was given up"));
        }
    }
}

/// A command that ended before its box was detached ended the box: there is nothing to
/// announce.
fn failed(event: Event) -> Error {
    match event {
        Event::Failed(error) => error,
        Event::Ended(_) | Event::Started | Event::Terminal(_) => gone(),
    }
}

fn gone() -> Error {
    Error::failed("the box ended before it could be detached")
        .caused_by("its keeper was killed")
        .with_hint(Hint::TooSmall(&[LimitName::Memory]))
}
