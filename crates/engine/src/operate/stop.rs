//! Stops, kills, removes and waits for boxes, and returns after tare has seen that a box is gone. Of
//! a box that depends on its creator this file kills the keeper, and the creator does the teardown.
//! Every other box ends in `care::settle`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use tare_control::{Call, Cause, End};
use tare_kernel::process::Process;

use crate::actor::Actor;
use crate::care::tend::{awake, observe_tended};
use crate::care::{Effort, Goal, settle_with_receipt};
use crate::error::{Context, Error, ErrorKind};
use crate::history;
use crate::holdings::cgroup;
use crate::host::layout::{BoxAt, StateRoot};
use crate::host::state_root;
use crate::observe::Observation;
use crate::observe::identity::{self, CONNECT_WITHIN};
use crate::observe::state::Request;
use crate::observe::view::State;
use crate::receipt::{self, Receipt};
use crate::record::Record;
use crate::record::damage::Damage;
use crate::record::files::read_journal;
use crate::record::lines::{Act, Line, Reason};
use crate::session::link;
use crate::spec::BoxId;
use crate::teardown::{Leave, await_death};

/// How long a command may take to stop if a request does not say it.
pub const STOP_GRACE: Duration = Duration::from_secs(10);
/// How long a keeper may take to end its box after the grace period.
const AFTER_GRACE: Duration = Duration::from_secs(1);
/// How long one wait for a keeper lasts before the box is observed again.
const WAIT: Duration = Duration::from_secs(3600);
/// Pause between two looks at a box that another process is making or ending.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long the process that removes a box may take to complete its receipt.
const COMPLETED_WITHIN: Duration = Duration::from_millis(500);

/// A box that was asked to stop.
#[derive(Debug)]
pub struct Stopping {
    id: BoxId,
    /// The keeper, which ends the box after the grace period.
    keeper: Option<Process>,
    until: Instant,
}

/// Shows how a box ended, even if nothing of it is left by then.
#[derive(Debug)]
pub struct EndWatch {
    id: BoxId,
    /// The journal, which can be read after its removal while it is open.
    journal: Option<OwnedFd>,
}

/// Whether a box has ended.
#[derive(Debug)]
pub enum Looked {
    Ended(End),
    /// Its keeper is alive.
    Lives(Process),
    /// Another process is making or ending it, or it is stuck.
    Between,
}

impl Stopping {
    /// Returns the keeper and the time within which it ends the box.
    pub fn keeper(&self) -> Option<(BorrowedFd<'_>, Duration)> {
        let left = self.until.saturating_duration_since(Instant::now());
        self.keeper.as_ref().map(|keeper| (keeper.as_fd(), left))
    }
}

/// Passes a signal to the command of a box.
pub fn signal(at: BoxAt<'_>, signal: i32, by: &Actor) -> Result<(), Error> {
    let record = awake(at)?;
    // Before the act. A full disk does not prevent it, here and below.
    record.note_request(Act::Signal(signal), by).ok();
    link::call_done(&record, at.id, &Call::Signal(signal))
}

/// Asks the command to stop, and does not wait for it. The box ends after the grace period, even
/// without [`end_stop`].
pub fn begin_stop(at: BoxAt<'_>, grace: Duration, by: &Actor) -> Result<Stopping, Error> {
    let stopping = |keeper| Stopping {
        id: at.id.clone(),
        keeper,
        until: Instant::now() + grace.saturating_add(AFTER_GRACE),
    };
    let observation = match observe_tended(at) {
        // It ended by itself after its id was looked up.
        Err(error) if error.kind() == ErrorKind::NoSuchBox => return Ok(stopping(None)),
        observation => observation?,
    };
    observation.check(at.id, Request::Stop)?;
    match observation.state() {
        // There is no keeper to ask: teardown comes next.
        State::Exited => return Ok(stopping(None)),
        State::Starting | State::Warm | State::Stuck => {
            observation.record.note_request(Act::Stop, by).ok();
            return Ok(stopping(None));
        }
        State::Running | State::Paused | State::Stopping => {}
    }
    note_held(at, &observation);
    observation.record.note_request(Act::Stop, by).ok();
    let grace_ns = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
    // Teardown kills a keeper that cannot be asked.
    let asked = link::call_done(&observation.record, at.id, &Call::Stop { grace_ns });
    thaw(at, &observation)?;
    Ok(stopping(observation.keeper.into_alive().filter(|_| asked.is_ok())))
}

/// Records what a detached box holds, for its receipt: its keeper may end it before teardown can look.
/// If another process changes the record now, the receipt names what the record says.
fn note_held(at: BoxAt<'_>, observation: &Observation) {
    let Some(keeper) = observation.keeper().filter(|_| !observation.is_attached()) else {
        return;
    };
    let held = receipt::look(at, &observation.record, Some(keeper.pid()), None);
    let locked = state_root::boxes(at.root).ok().and_then(|boxes| {
        let record = Record::look(boxes.as_fd(), at.id).ok()??;
        record.lock(boxes.as_fd(), at.id, Duration::ZERO).ok()?
    });
    if let Some(mut record) = locked {
        record.add(Line::Held(held)).ok();
    }
}

/// Ends a box that has not stopped after the grace period, and returns when tare has seen that it is
/// gone. If its record was removed because it is damaged, returns the damage.
pub fn end_stop(
    root: &StateRoot,
    stopping: &Stopping,
    within: Duration,
) -> Result<Option<String>, Error> {
    if let Some(keeper) = &stopping.keeper {
        let left = stopping.until.saturating_duration_since(Instant::now());
        // Teardown comes next, whether or not the keeper has died.
        keeper.wait_dead(left).ok();
    }
    let at = root.at(&stopping.id);
    let record = Record::look(state_root::boxes(at.root)?.as_fd(), at.id).ok().flatten();
    let damage = record.and_then(|record| {
        let says_nothing = record.lines.created.is_none();
        record.damage.or(says_nothing.then(Damage::incomplete))
    });
    end(at, (Leave::Record, Reason::Stopped), within)?;
    Ok(damage.filter(|_| !at.record().exists()).map(|damage| damage.to_string()))
}

fn thaw(at: BoxAt<'_>, observation: &Observation) -> Result<(), Error> {
    if !observation.paused {
        return Ok(());
    }
    match cgroup::freeze(&cgroup::parents_of(at, &observation.record), at.tagged_id(), false) {
        // Its cgroups are gone: another command has ended it.
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
        thawed => thawed,
    }
}

/// Kills the whole box.
pub fn kill(at: BoxAt<'_>, by: &Actor, within: Duration) -> Result<(), Error> {
    let observation = observe_tended(at)?;
    observation.check(at.id, Request::Kill)?;
    observation.record.note_request(Act::Kill, by).ok();
    end(at, (Leave::Record, Reason::Requested), within).map(drop)
}

/// Removes a box. A box that has not ended is removed only with `force`. Returns its receipt. `None`
/// if the history does not have it: another process has removed the box, and could not write.
pub fn remove(
    at: BoxAt<'_>,
    force: bool,
    by: &Actor,
    within: Duration,
) -> Result<Option<Receipt>, Error> {
    if !force {
        let observation = match observe_tended(at) {
            // It ended and was removed after its id was looked up.
            Err(error) if error.kind() == ErrorKind::NoSuchBox => return Ok(kept_receipt(at)),
            observation => observation?,
        };
        observation.check(at.id, Request::Remove)?;
    }
    let boxes = state_root::boxes(at.root)?;
    if let Ok(Some(record)) = Record::look(boxes.as_fd(), at.id) {
        record.note_request(Act::Remove, by).ok();
    }
    let receipt = end(at, (Leave::Nothing, Reason::Requested), within)?;
    Ok(receipt.or_else(|| kept_receipt(at)))
}

/// Returns the receipt of a box that another process has removed. That process completes the receipt
/// a moment after it has removed the record. If it was killed in between, the receipt stays
/// incomplete.
pub fn kept_receipt(at: BoxAt<'_>) -> Option<Receipt> {
    let until = Instant::now() + COMPLETED_WITHIN;
    loop {
        let receipt = history::receipt(at.root, at.id.as_str(), &|_| true).ok();
        let is_settled = receipt.as_ref().is_none_or(|receipt| receipt.complete);
        if is_settled || Instant::now() >= until {
            return receipt;
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by COMPLETED_WITHIN")]
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Prepares to learn how the box ends.
pub fn watch_end(at: BoxAt<'_>) -> Result<EndWatch, Error> {
    let observation = observe_tended(at)?;
    Ok(EndWatch { id: at.id.clone(), journal: observation.record.open_journal() })
}

/// Waits for the end of a box.
pub fn await_end(root: &StateRoot, watch: &EndWatch) -> Result<End, Error> {
    loop {
        match look_for_end(root, watch)? {
            Looked::Ended(ended) => return Ok(ended),
            Looked::Lives(keeper) => drop(keeper.wait_dead(WAIT)),
            #[expect(
                clippy::disallowed_methods,
                reason = "bounded by what making or ending a box may take"
            )]
            Looked::Between => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Returns how the box has ended, or what to wait for. Does not wait.
pub fn look_for_end(root: &StateRoot, watch: &EndWatch) -> Result<Looked, Error> {
    let at = root.at(&watch.id);
    let Ok(observation) = observe_tended(at) else {
        return said(root, watch).map(Looked::Ended).ok_or_else(|| removed(at.id));
    };
    Ok(match (observation.ended(at), observation.keeper.into_alive()) {
        (Some(ended), _) => Looked::Ended(ended.end),
        (None, Some(keeper)) => Looked::Lives(keeper),
        (None, None) => Looked::Between,
    })
}

fn end(
    at: BoxAt<'_>,
    (leave, reason): (Leave, Reason),
    within: Duration,
) -> Result<Option<Receipt>, Error> {
    if !kill_dependent(at, reason, within)? {
        return Ok(None);
    }
    Ok(settle_with_receipt(at, Effort { goal: Goal::End { leave, reason }, within })?.1)
}

/// Kills the keeper of a box that depends on its creator: an attached box, or one that is not detached
/// yet. The creator holds the lock of the record until the box is gone, and does the rest. A record
/// that does not say whether the box is attached may be that of an attached box. Returns `false` if
/// there is no record: the creator or another command has removed it.
fn kill_dependent(at: BoxAt<'_>, reason: Reason, within: Duration) -> Result<bool, Error> {
    let boxes = state_root::boxes(at.root)?;
    let until = Instant::now() + within;
    loop {
        let looked = Record::look(boxes.as_fd(), at.id);
        let looked = looked.context(|| format!("cannot open the record of box {}", at.id))?;
        let Some(record) = looked else { return Ok(false) };
        if record.has_detached() {
            return Ok(true);
        }
        if let Some(keeper) = identity::find(at, &record, CONNECT_WITHIN).into_alive() {
            // The creator reads this. A full disk does not prevent the kill.
            let held = receipt::look(at, &record, Some(keeper.pid()), None);
            record.note_kill(reason, held).ok();
            // If this fails, `await_death` reports that the keeper lives.
            keeper.kill().ok();
            return await_death(&keeper, at.id, within).map(|()| true);
        }
        // The creator may be about to start a keeper, and would hold the lock until its box has booted.
        let is_being_made = record.lines.keeper.is_none() && record.is_busy();
        if !is_being_made || Instant::now() >= until {
            return Ok(true);
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by `until`")]
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Returns how a removed box ended, by its journal or its history.
fn said(root: &StateRoot, watch: &EndWatch) -> Option<End> {
    let journal = read_journal(watch.journal.as_ref()?.as_fd()).ok()?;
    let ended = journal.ended.map(|ended| ended.end);
    let end = ended.or_else(|| history::removed_box(root, &watch.id)?.end);
    journal.detached.then(|| end.unwrap_or(End::killed(Cause::Killed)))
}

fn removed(id: &BoxId) -> Error {
    Error::conflict(format!("box {id} was removed while it was waited for"))
        .caused_by("its exit code was not kept")
        .with_hint(
            "only the creator of an attached box gets its exit code; a detached box keeps it, \
             unless it is removed at its end",
        )
}
