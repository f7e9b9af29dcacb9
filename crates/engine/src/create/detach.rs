//! `run -d`: makes a box, and detaches it when its command runs.
//!
//! ```text
//! record ─▶ ... ─▶ keeper ─▶ plan ─▶ identity ─▶ go ─▶ Started ─▶ Detach ─▶ Detached
//!     └──────── a creator that dies here takes the box along ───────┘          │
//!                                             unlocked, and its id announced ◀─┘
//! ```

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use tare_control::{REQUEST_BYTES_MAX, Received, Report, Request};
use tare_kernel::clock::timespec;
use tare_kernel::process::Process;

use crate::create::{self, Mode, NewBox};
use crate::error::{Context, Error, Hint, LimitName};
use crate::history;
use crate::host::layout::{BoxAt, StateRoot};
use crate::record::LockedRecord;
use crate::session::failure;
use crate::session::{Event, Session, TeardownFds};
use crate::spec::{BoxId, DetachOptions, Limit, Spec, quantity};

/// A box that was detached.
#[derive(Debug)]
pub struct Started {
    pub id: BoxId,
    /// A sentence for each default that this host cannot enforce.
    pub notes: Vec<String>,
    /// A child of this process. A process that lives on has to reap it.
    pub keeper: Process,
}

/// Makes a detached box, and returns when its command runs. If `given_up` becomes readable first,
/// the box is removed again.
pub fn start(
    root: &StateRoot,
    (spec, options): (&Spec, &DetachOptions),
    given_up: Option<BorrowedFd<'_>>,
    tend: &dyn Fn(&BoxId),
) -> Result<Started, Error> {
    let options = &with_log_in_memory(options, spec)?;
    let id = BoxId::random();
    let reserve = TeardownFds::take().context(|| "cannot reserve descriptors".into())?;
    let record =
        create::record(root.at(&id), NewBox { spec, mode: Mode::Detached(options) }, tend)?;
    start_recorded(root.at(&id), (record, reserve), (spec, options, given_up), tend)
}

/// Makes a detached box with a chosen id. Returns `None` if that box exists or is being made. It is
/// an error if the box existed and was removed, while its history is kept.
pub fn start_as(
    at: BoxAt<'_>,
    spec: &Spec,
    options: &DetachOptions,
    tend: &dyn Fn(&BoxId),
) -> Result<Option<Started>, Error> {
    let options = &with_log_in_memory(options, spec)?;
    let reserve = TeardownFds::take().context(|| "cannot reserve descriptors".into())?;
    let record = match create::record(at, NewBox { spec, mode: Mode::Detached(options) }, tend) {
        Err(error) if is_taken(&error) => return Ok(None),
        record => record?,
    };
    // A removal writes the history before it removes the record. So while this process has the
    // record, a removed box is in the history. The id of a box that was never detached was never
    // returned to a client.
    if history::was_detached(at.root, at.id)? {
        drop(reserve);
        return Err(create::abandon(at, record, removed(at.id), tend));
    }
    start_recorded(at, (record, reserve), (spec, options, None), tend).map(Some)
}

fn start_recorded(
    at: BoxAt<'_>,
    (record, reserve): (LockedRecord, TeardownFds),
    (spec, options, given_up): (&Spec, &DetachOptions, Option<BorrowedFd<'_>>),
    tend: &dyn Fn(&BoxId),
) -> Result<Started, Error> {
    if let Err(error) = history::reserve(at.root, &spec.tenant) {
        drop(reserve);
        return Err(create::abandon(at, record, error, tend));
    }
    let new = NewBox { spec, mode: Mode::Detached(options) };
    detach(create::make(at, record, reserve, new, tend)?, given_up)
}

/// Detaches a box. A failure leaves nothing.
pub fn detach(mut session: Session, given_up: Option<BorrowedFd<'_>>) -> Result<Started, Error> {
    match await_detached(&mut session, given_up) {
        Ok(keeper) => {
            let (id, notes) = session.release();
            Ok(Started { id, notes, keeper })
        }
        Err(error) => Err(session.abandon(error)),
    }
}

/// Returns whether the record could not be made because it exists.
fn is_taken(error: &Error) -> bool {
    let why = std::error::Error::source(error);
    let why = why.and_then(|why| why.downcast_ref::<io::Error>());
    why.is_some_and(|why| why.kind() == io::ErrorKind::AlreadyExists)
}

fn removed(id: &BoxId) -> Error {
    let message = format!("box {id} was removed, and its id is not used again");
    Error::conflict(message).with_hint(Hint::IdWasUsed)
}

/// The log may take a quarter of the memory limit. By default the state root is in memory, and the
/// log counts as memory of the box.
const LOG_PART_OF_MEMORY: u64 = 4;

pub fn with_log_in_memory(options: &DetachOptions, spec: &Spec) -> Result<DetachOptions, Error> {
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

/// Waits until the command runs, detaches the box and returns its keeper. Nothing can fail after
/// that, because a start that fails must leave nothing.
fn await_detached(
    session: &mut Session,
    given_up: Option<BorrowedFd<'_>>,
) -> Result<Process, Error> {
    let keeper = session.keeper()?;
    let until = Instant::now() + session.start_within();
    loop {
        match await_report(session, until, given_up)? {
            Report::Detached => return Ok(keeper),
            Report::Started => {
                session.record_boot();
                session
                    .channel()
                    .send(&Request::Detach, REQUEST_BYTES_MAX, &[])
                    .context(|| "cannot detach the box".into())?;
            }
            report @ (Report::Terminal
            | Report::SetupFailed { .. }
            | Report::LaunchFailed { .. }
            | Report::Ended(_)
            | Report::Done
            | Report::Usage(_)
            | Report::Input { .. }
            | Report::Refused(_)
            | Report::ScratchFull
            | Report::HomeEmpty
            | Report::MachineUsage { .. }) => return Err(failed(session.event(report))),
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
            return Err(failure::started_late(session.start_within()));
        }
        let mut fds = vec![PollFd::new(session.channel(), PollFlags::IN)];
        fds.extend(given_up.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // After an interrupted wait the loop receives again.
        poll(&mut fds, Some(&timespec(left))).ok();
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if !is_ready(&fds[0]) && fds[1..].iter().any(is_ready) {
            return Err(Error::failed("interrupted before the command ran; the box was removed"));
        }
    }
}

/// Returns the error for a box that ended before it was detached.
fn failed(event: Event) -> Error {
    match event {
        Event::Failed(error) => error,
        Event::Ended(_) | Event::Started | Event::Terminal(_) => gone(),
    }
}

fn gone() -> Error {
    Error::conflict("the box ended before it could be detached")
        .caused_by("its keeper was killed")
        .with_hint(Hint::TooSmall(&[LimitName::Memory]))
}
