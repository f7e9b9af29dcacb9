//! Looks after boxes: finishes those that have ended, and removes what no record explains.
//!
//! [`settle`] is the only way from a verdict to an action. It locks the record, observes the box
//! again and tears it down. Tending, sweep, `stop` and `rm` all call it. `observe::state` has the
//! verdicts.

pub mod parents;
pub mod sweep;
pub mod tend;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use serde::Serialize;
use tare_kernel::clock::boot_ns;

use crate::audit::compare::left_behind;
use crate::audit::host_objects::HostObjects;
use crate::error::{Context, Error, Hint};
use crate::holdings::name;
use crate::host;
use crate::host::layout::{self, BoxAt};
use crate::host::state_root;
use crate::observe::identity;
use crate::observe::state::Duty;
use crate::observe::{GOES_WITHIN, Observation, Ownership, observe_locked, observe_settled};
use crate::receipt::Receipt;
use crate::record::damage::Damage;
use crate::record::lines::{Reason, StuckLine};
use crate::record::{LockedRecord, Record};
use crate::spec::BoxId;
use crate::teardown::{Leave, Order, tear_down};

/// What to do about a box, and how long to wait for each object of it.
#[derive(Debug, Clone, Copy)]
pub struct Effort<'a> {
    pub goal: Goal<'a>,
    pub within: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal<'a> {
    /// Do what is due, unless that failed a moment ago.
    Due,
    /// Do what is due, and remove what is left of a box that has ended, that has no record, or whose
    /// record is damaged. `found` says what was there, in sentences.
    Clean { found: &'a [String] },
    /// End the box, as a user requested. Waits for the lock.
    End { leave: Leave, reason: Reason },
}

/// The result of an attempt to settle a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing was done yet.
    Planned,
    /// The box is settled, and tare has seen it.
    Done,
    /// Another process is making, changing or ending the box.
    Busy,
    /// The box may live, or be in order. Only a user may end it.
    Left,
    /// The box could not be settled in time. A later command tries again.
    Stuck { step: String, reason: String },
}

/// A decision about one box.
#[derive(Debug)]
struct Decision {
    leave: Leave,
    reason: Reason,
    /// What the box had left behind, if it is to be reported.
    reclaimed: Vec<String>,
}

/// Does what is to be done about one box, under the lock of its record.
pub fn settle(at: BoxAt<'_>, effort: Effort<'_>) -> Result<Outcome, Error> {
    Ok(settle_with_receipt(at, effort)?.0)
}

/// Settles a box like [`settle`], and also returns the receipt if the box was removed.
pub fn settle_with_receipt(
    at: BoxAt<'_>,
    effort: Effort<'_>,
) -> Result<(Outcome, Option<Receipt>), Error> {
    let boxes = state_root::boxes(at.root)?;
    let boxes = boxes.as_fd();
    let (mut locked, is_claimed) = match lock(at, boxes, effort)? {
        LockAttempt::Locked(locked) => (*locked, false),
        LockAttempt::Claimed(locked) => (*locked, true),
        LockAttempt::Busy => return Ok((Outcome::Busy, None)),
        LockAttempt::Gone => {
            if effort.goal == Goal::Due {
                name::release_dangling(at, boxes, effort.within)?;
            }
            return Ok((Outcome::Done, None));
        }
    };
    let decision = match effort.goal {
        Goal::End { leave, reason } => end_as_requested(at, &locked, leave, reason)?,
        Goal::Due | Goal::Clean { .. } => {
            // The names may be in use now: a later command does it.
            name::release_superseded(at, &locked.lines, Duration::ZERO).ok();
            let until = Instant::now() + GOES_WITHIN;
            let observed = observe_settled(at, boxes, until, observe_locked);
            let doing = || format!("cannot observe box {}", at.id);
            let Some(observation) = observed.context(doing)? else {
                return Ok((Outcome::Done, None));
            };
            match decide(at, &observation, effort.goal, is_claimed) {
                Ok(decision) => decision,
                Err(outcome) => return Ok((outcome, None)),
            }
        }
    };
    let Decision { leave, reason, reclaimed } = decision;
    let order = Order { reason, leave, within: effort.within, own: None, ended: None };
    let receipt = tear_down(at, &mut locked, order)?;
    if let Some(report) = &at.root.on_reclaimed.0
        && !reclaimed.is_empty()
    {
        report(at.id, &reclaimed);
    }
    Ok((Outcome::Done, receipt))
}

/// Returns what to do about a box. `Err` means that there is nothing to do, and carries the outcome
/// to report.
fn decide(
    at: BoxAt<'_>,
    observation: &Observation,
    goal: Goal<'_>,
    is_claimed: bool,
) -> Result<Decision, Outcome> {
    let found = match goal {
        Goal::Clean { found } => Some(found),
        Goal::Due | Goal::End { .. } => None,
    };
    let reported = |is_there: bool| match found {
        Some(found) if is_there => found.to_vec(),
        Some(_) | None => Vec::new(),
    };
    if !may_try(observation.record.lines.stuck.as_ref(), goal) {
        return Err(Outcome::Left);
    }
    let duty = match found {
        Some(_) => {
            let has_life = || HostObjects::read(at.root).has_life(at);
            observation.duty_of_sweep(boot_ns(), has_life)
        }
        None => observation.duty(boot_ns()),
    };
    let is_damaged = observation.record.damage.is_some();
    let (leave, reason) = match duty {
        Duty::Finish(reason) | Duty::End(reason) => (Leave::Record, reason),
        Duty::Remove(reason) => (Leave::Nothing, reason),
        Duty::Leave if is_damaged && found.is_some() => return Err(Outcome::Left),
        Duty::Leave => return Err(Outcome::Done),
    };
    let reclaimed = if is_damaged {
        reported(true)
    } else if is_claimed {
        reported(
            has_remains(at)
                || name::list(&at.root.layout).links.iter().any(|link| link.id == *at.id),
        )
    } else if observation.has_ended() && leave == Leave::Record {
        reported(has_remains(at))
    } else {
        let left = left_behind(at.id, observation).filter(|_| is_leftover(observation, reason));
        left.map(|finding| finding.text).into_iter().collect()
    };
    Ok(Decision { leave, reason, reclaimed })
}

/// Returns whether to try again to end a box. A sweep and a user's command try at once.
fn may_try(stuck: Option<&StuckLine>, goal: Goal<'_>) -> bool {
    match goal {
        Goal::Due => stuck.is_none_or(StuckLine::is_due),
        Goal::Clean { .. } | Goal::End { .. } => true,
    }
}

/// Returns whether the box is a leftover, which is reported: its creator was killed, its keeper
/// outlived the lease, or the host rebooted.
fn is_leftover(observation: &Observation, reason: Reason) -> bool {
    match observation.ownership {
        Ownership::Unwritten | Ownership::Attached | Ownership::NotYetDetached => true,
        Ownership::Detached | Ownership::Damaged => {
            observation.keeper().is_some() || reason == Reason::Rebooted
        }
    }
}

/// Returns what a user's request leaves. The record stays only if the box was detached.
fn end_as_requested(
    at: BoxAt<'_>,
    locked: &LockedRecord,
    leave: Leave,
    reason: Reason,
) -> Result<Decision, Error> {
    if let (Leave::Record, Some(damage @ Damage::Unreadable(_))) = (leave, &locked.damage) {
        // The record may say that the box is to be kept.
        return Err(Error::conflict(format!("cannot end box {}", at.id))
            .caused_by(damage.to_string())
            .with_hint(Hint::Force));
    }
    let leave = if locked.is_kept() { leave } else { Leave::Nothing };
    Ok(Decision { leave, reason, reclaimed: Vec::new() })
}

/// Returns whether anything of a box is on the host, apart from its record and names.
fn has_remains(at: BoxAt<'_>) -> bool {
    let mut parents = host::parents::all(at.root).into_iter();
    parents.any(|parent| layout::cgroup(&parent, at.tagged_id()).is_dir())
        || identity::find_anywhere(at).is_some()
}

/// The result of an attempt to lock a record.
#[derive(Debug)]
enum LockAttempt {
    Locked(Box<LockedRecord>),
    /// The box had no record, and has an empty one now. If this process is killed, the next command
    /// removes the box.
    Claimed(Box<LockedRecord>),
    Busy,
    Gone,
}

fn lock(at: BoxAt<'_>, boxes: BorrowedFd<'_>, effort: Effort<'_>) -> Result<LockAttempt, Error> {
    let looked = Record::look(boxes, at.id);
    let record = looked.context(|| format!("cannot open the record of box {}", at.id))?;
    Ok(match (record, effort.goal) {
        (Some(record), Goal::End { .. }) => match record.lock(boxes, at.id, effort.within)? {
            Some(locked) => LockAttempt::Locked(Box::new(locked)),
            None => LockAttempt::Gone,
        },
        (Some(record), Goal::Due | Goal::Clean { .. }) => try_lock(boxes, at.id, record),
        (None, Goal::Clean { .. }) => match LockedRecord::claim(boxes, at.id) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => LockAttempt::Busy,
            claimed => LockAttempt::Claimed(Box::new(
                claimed.context(|| format!("cannot make a record of box {}", at.id))?,
            )),
        },
        // Its creator, or another command, was faster.
        (None, Goal::Due | Goal::End { .. }) => LockAttempt::Gone,
    })
}

/// Locks a record without waiting.
fn try_lock(boxes: BorrowedFd<'_>, id: &BoxId, record: Record) -> LockAttempt {
    // A process may have made a record without a first line just now, and be about to lock it.
    let may_be_new = !record.has_no_directory() && record.lines.created.is_none();
    if may_be_new && !state_root::pause_creation(boxes) {
        return LockAttempt::Busy;
    }
    let locked = record.lock(boxes, id, Duration::ZERO);
    if may_be_new {
        state_root::resume_creation(boxes);
    }
    match locked {
        Ok(Some(locked)) => LockAttempt::Locked(Box::new(locked)),
        Ok(None) => LockAttempt::Gone,
        Err(_) => LockAttempt::Busy,
    }
}

impl Outcome {
    fn stuck(error: &Error) -> Self {
        let reason = std::error::Error::source(error).map(ToString::to_string);
        Self::Stuck { step: error.to_string(), reason: reason.unwrap_or_default() }
    }

    pub fn is_stuck(&self) -> bool {
        match self {
            Self::Stuck { .. } => true,
            Self::Planned | Self::Done | Self::Busy | Self::Left => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_box_is_left_alone_until_its_next_retry() {
        let failed = |last: Option<StuckLine>, _| {
            Some(StuckLine::after(last.as_ref(), "a".into(), "b".into()))
        };
        let stuck = (0..3).fold(None, failed);
        assert!(!may_try(stuck.as_ref(), Goal::Due));
        assert!(may_try(stuck.as_ref(), Goal::Clean { found: &[] }));
        let end = Goal::End { leave: Leave::Nothing, reason: Reason::Requested };
        assert!(may_try(stuck.as_ref(), end));
        assert!(may_try(None, Goal::Due));
    }
}
