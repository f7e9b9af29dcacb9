//! Ends a box and releases what it holds. Exit, timeout, lease, `stop`, `rm -f`, a failed create,
//! recovery and sweep all end here. The caller has locked the record; the id alone names the box.
//!
//! ```text
//! find keeper ─▶ look ─▶ note the kill ─▶ kill it, see it dead ─▶ release cgroups ─┬▶ note the end (Leave::Record)
//!                                                                                   └▶ keep the history ─▶ note the removal
//!     ─▶ release scratch ─▶ lock the names ─▶ remove the record, its lines last ─▶ release the names
//!     ─▶ complete the receipt, keep it (Leave::Nothing)
//! ```
//!
//! Invariants:
//! - Each step accepts objects that are absent, half-made or already released, so a teardown can
//!   be repeated.
//! - A step succeeds only after it has seen that the object is gone. Otherwise the box stays on
//!   record as `stuck`, with the step and the reason, and the next command tries again.
//! - Teardown signals only processes that are proven to belong to the box.
//! - While the record exists it is complete and its name leads to it.
//! - This file never prints, and waits at most `Order::within` for each object.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use tare_control::End;
use tare_kernel::clock::boot_ns;
use tare_kernel::process::Process;

use crate::error::{Context, Error, ErrorKind, Hint};
use crate::history;
use crate::history::steps::Removal;
use crate::holdings::cgroup::{self, CgroupReader};
use crate::holdings::name::Names;
use crate::holdings::{Ends, HOLDINGS};
use crate::host::layout::BoxAt;
use crate::observe::identity::{self, CONNECT_WITHIN, KeeperState};
use crate::receipt::{self, Receipt, Stage};
use crate::record::damage::Damage;
use crate::record::lines::{
    Act, EndedLine, EndingLine, Evidence, HeldLine, Line, Reason, RecordLines, RequestLine,
    StuckLine, asked_for,
};
use crate::record::{self, LockedRecord, Record};
use crate::spec::BoxId;
use crate::time::Moment;

/// How long the owner of a box waits for each object before the box counts as stuck.
pub const OWN_WITHIN: Duration = Duration::from_secs(10);
/// How long a command waits when it cleans up after another one. It is short, because the command
/// has its own work to do.
pub const OTHERS_WITHIN: Duration = Duration::from_millis(200);

/// How to tear down one box.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    pub reason: Reason,
    pub leave: Leave,
    pub within: Duration,
    pub own: Option<Own<'a>>,
    /// How the box ended, if its creator tears it down and its history is to be kept.
    pub ended: Option<&'a EndedLine>,
}

/// What only the creator has: the keeper as its child, the uid claim, and its own look at what the
/// box held.
#[derive(Debug, Clone, Copy)]
pub struct Own<'a> {
    /// The keeper, a child of this process. A child needs no proof, and must be reaped here.
    pub child: &'a Process,
    /// The claim on the uid range, released when the box has ended: no other box gets its user ids
    /// earlier.
    pub claim: Option<&'a RefCell<Option<OwnedFd>>>,
    /// What the box held when its command began, if the creator wants a receipt.
    pub held: Option<&'a HeldLine>,
}

impl Order<'_> {
    /// Whether tare looks at what the box holds: always, unless its creator ends it and asks for no
    /// receipt.
    fn wants_receipt(&self) -> bool {
        self.reason != Reason::ByCreator || self.own.is_some_and(|own| own.held.is_some())
    }
}

/// What remains of the box after teardown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// The record with its `ended` line, the log, and the files kept by `--keep`.
    Record,
    Nothing,
}

/// Facts that teardown observed.
#[derive(Debug)]
struct TeardownFacts {
    /// What the kernel counted. Empty if the record or the creator has it already.
    evidence: Evidence,
    took: Duration,
}

/// Ends the box and removes what the order says. Success means that tare has seen everything gone.
/// A failure is on record as `stuck`, and the same call can be repeated. Returns the receipt of a
/// box that is removed, unless its creator wants none.
pub fn tear_down(
    at: BoxAt<'_>,
    record: &mut LockedRecord,
    order: Order<'_>,
) -> Result<Option<Receipt>, Error> {
    if let Some(damage @ Damage::NotOurs { .. }) = &record.damage {
        let message = format!("cannot remove {} from boxes/", at.id);
        return Err(Error::conflict(message)
            .caused_by(damage.to_string())
            .with_hint(damage.hint()));
    }
    let keeper = match order.own {
        Some(_) => None,
        None => found_keeper(at, record)?,
    };
    let mut held =
        order.wants_receipt().then(|| look_before_the_kill(at, record, order, keeper.as_ref()));
    let result = end(at, record, order, keeper.as_ref(), held.as_mut());
    let result = result.and_then(|seen| match order.leave {
        Leave::Record => {
            note_ended(record, seen, held);
            Ok(None)
        }
        Leave::Nothing => remove(at, record, order, seen, held),
    });
    result.map_err(|error| note_stuck(record, error, order.leave))
}

/// Looks at what the box holds, before it is killed.
fn look_before_the_kill(
    at: BoxAt<'_>,
    record: &LockedRecord,
    order: Order<'_>,
    found: Option<&Process>,
) -> HeldLine {
    let is_alive = |keeper: &&Process| matches!(keeper.wait_dead(Duration::ZERO), Ok(false));
    let keeper = order.own.map(|own| own.child).or(found).filter(is_alive);
    let earlier = order.own.and_then(|own| own.held).or(record.lines.held.as_ref());
    receipt::look(at, record, keeper.map(Process::pid), earlier)
}

/// Undoes a create that failed, and returns the error for the user.
///
/// The error says why the create failed, and is the history of the box. If another process has killed
/// the box, that is the reason. If the roll-back fails too, that failure is on record as `stuck`, and
/// is added to the error as a note.
pub fn roll_back(at: BoxAt<'_>, record: LockedRecord, own: Option<Own<'_>>, why: Error) -> Error {
    let lines = record.lines_now();
    let Some(ending) = &lines.ending else {
        let ended = EndedLine::failed_start((&why).into());
        return undo(at, record, (own, Some(&ended)), why);
    };
    let end = End::killed(ending.why.cause());
    let asked = asked_for(end, lines.requests.iter());
    let ended = EndedLine::seen(end, asked.map(|asked| asked.by.clone()), Evidence::default());
    let why = ended_early(at.id, asked);
    // The command that killed the box may want its receipt.
    let held = lines.held.unwrap_or_default();
    let own = own.map(|own| Own { held: Some(&held), ..own });
    undo(at, record, (own, Some(&ended)), why)
}

/// The error for a box that another process ended while it was being made. Clients of a server see it, so
/// it has no pid of the host. The history has it.
fn ended_early(id: &BoxId, asked: Option<&RequestLine>) -> Error {
    let shown = |asked: &RequestLine| {
        let mut by = asked.by.clone();
        by.hide_pid();
        (asked.act, by)
    };
    let how = match asked.map(shown) {
        Some((Act::Stop, by)) => format!("stopped by {by}"),
        Some((Act::Remove, by)) => format!("removed by {by}"),
        Some((Act::Kill | Act::Signal(_), by)) => format!("killed by {by}"),
        None => "ended by another process".to_owned(),
    };
    Error::conflict(format!("box {id} was {how} before its command started"))
}

/// Undoes a create before anything was made, without a history: the id may be that of another box.
pub fn forget(at: BoxAt<'_>, record: LockedRecord, why: Error) -> Error {
    undo(at, record, (None, None), why)
}

fn undo(
    at: BoxAt<'_>,
    mut record: LockedRecord,
    (own, ended): (Option<Own<'_>>, Option<&EndedLine>),
    why: Error,
) -> Error {
    let (reason, leave) = (Reason::ByCreator, Leave::Nothing);
    let order = Order { reason, leave, within: OWN_WITHIN, own, ended };
    match tear_down(at, &mut record, order) {
        Ok(_) => why,
        Err(left) => why.with_note(&left, Hint::Force),
    }
}

/// Waits until the keeper is dead, and reaps it if it is our child.
///
/// The keeper is PID 1 of the box's PID namespace. When it dies, the kernel kills every other
/// process of the box, and reports the keeper dead only after all of them are
/// (pid_namespaces(7)). A process that hangs in the kernel therefore shows up here as a keeper
/// that does not die.
pub fn await_death(keeper: &Process, id: &BoxId, within: Duration) -> Result<(), Error> {
    let doing = || format!("cannot wait for the keeper of box {id}");
    let start = Instant::now();
    while !keeper.wait_dead(within).context(doing)? {
        if start.elapsed() >= within {
            let message = format!("cannot end the keeper of box {id}");
            return Err(Error::new(ErrorKind::Stuck, message)
                .caused_by(format!("process {} does not die", keeper.pid()))
                .with_hint(Hint::TriedAgain));
        }
    }
    keeper.reap().context(doing).map(drop)
}

/// The keeper, if it is alive. A keeper that cannot be seen is an error: the box may look empty
/// from here although it is not.
fn found_keeper(at: BoxAt<'_>, record: &Record) -> Result<Option<Process>, Error> {
    match identity::find(at, record, CONNECT_WITHIN) {
        KeeperState::Alive(keeper) => Ok(Some(keeper.process)),
        KeeperState::Dead => Ok(None),
        // Its creator died before it recorded the keeper.
        KeeperState::NotRecorded => {
            let inside = CgroupReader::new(at, record).tree().members;
            let keeper = identity::find_unrecorded(at, inside);
            Ok(keeper.or_else(|| identity::find_anywhere(at)))
        }
        KeeperState::Unknown { why } => Err(Error::conflict(format!("cannot end box {}", at.id))
            .caused_by(format!("tare cannot see whether it lives ({why})"))
            .with_hint("end it from the PID namespace that it was started in")),
    }
}

/// Kills the box and releases the holdings that must not outlive it.
fn end(
    at: BoxAt<'_>,
    record: &mut LockedRecord,
    order: Order<'_>,
    found: Option<&Process>,
    held: Option<&mut HeldLine>,
) -> Result<TeardownFacts, Error> {
    let start = Instant::now();
    // Read this first: the counters are files in the cgroup directories, which are removed below. The
    // creator has read them already.
    let is_counted = order.reason != Reason::ByCreator && record.lines.ended.is_none();
    let evidence = if is_counted { cgroup::evidence(at, record) } else { Evidence::default() };
    let roots = cgroup::roots_of(at, record);
    let created = record.lines.created.as_ref();
    if created.is_none_or(|created| created.spec.limits.cpus.is_some()) {
        cgroup::unthrottle(&roots, at.tagged_id());
    }
    if let Some(keeper) = found {
        note_kill(record, keeper, order.reason, held.as_deref());
    }
    if let Some(keeper) = order.own.map(|own| own.child).or(found) {
        keeper.kill().context(|| format!("cannot kill the keeper of box {}", at.id))?;
        await_death(keeper, at.id, order.within)?;
    }
    release(at, record, Stage::End, order.within)?;
    if let Some(claim) = order.own.and_then(|own| own.claim) {
        claim.take();
    }
    let took = start.elapsed();
    if let Some(held) = held {
        receipt::see_gone(at, record, Stage::End, &mut held.items);
    }
    Ok(TeardownFacts { evidence, took })
}

/// Releases every kind of holding that is due at this point, in the order of the table.
fn release(
    at: BoxAt<'_>,
    record: &LockedRecord,
    stage: Stage,
    within: Duration,
) -> Result<(), Error> {
    for holding in &HOLDINGS {
        match (holding.ends, stage) {
            (Ends::AtEnd(release), Stage::End) | (Ends::AtRemoval(release), Stage::Removal) => {
                release(at, record, within)?;
            }
            (Ends::WithKeeper | Ends::WithRecord | Ends::AtEnd(_) | Ends::AtRemoval(_), _) => {}
        }
    }
    Ok(())
}

/// Removes the box's kept files, record and names. Keeps its history, and its receipt unless its
/// creator wants none. The history is kept before the record is removed, so that a process that is
/// killed in between loses neither.
fn remove(
    at: BoxAt<'_>,
    record: &mut LockedRecord,
    order: Order<'_>,
    seen: TeardownFacts,
    held: Option<HeldLine>,
) -> Result<Option<Receipt>, Error> {
    let receipt = held.map(|held| Receipt::new(at, record, held, order.reason));
    let kept = (receipt.is_some() || order.ended.is_some()).then(|| {
        let took_ms = u64::try_from(seen.took.as_millis()).unwrap_or(u64::MAX);
        let removal = Removal {
            why: order.reason,
            pid: std::process::id(),
            emptied_ms: (record.lines.ended.is_none() && order.ended.is_none()).then_some(took_ms),
            at: Moment::now(),
        };
        history::keep(at, record, removal, (order.ended, seen.evidence), receipt.as_ref())
    });
    if !mark_removal(record) {
        record.forget(at.id)?;
    }
    release(at, record, Stage::Removal, order.within)?;
    let names = lock_names(at, &record.lines, order.within)?;
    record::remove(&at.root.layout, at.id)?;
    if let Some(names) = names {
        release_names(at, &names, &record.lines)?;
    }
    Ok(receipt.map(|mut receipt| {
        let seen = receipt.see_removal(at, record);
        if let Some(history) = kept {
            history.complete(at.root, &receipt, seen);
        }
        receipt
    }))
}

/// Records that the removal has begun, so that the next command finishes it. An attached
/// box needs no mark, because it goes with its creator. Returns false if the record is
/// damaged or cannot be written.
fn mark_removal(record: &mut LockedRecord) -> bool {
    if record.damage.is_some() || record.lines.created.is_none() {
        return false;
    }
    record.lines.detached().is_none()
        || record.lines.removing
        || record.add(Line::Removing { at_ns: boot_ns() }).is_ok()
}

/// The names, locked, if the box may have one.
fn lock_names(
    at: BoxAt<'_>,
    lines: &RecordLines,
    within: Duration,
) -> Result<Option<Names>, Error> {
    if lines.created.is_none() || !lines.names.is_empty() {
        Names::lock(&at.root.layout, within).context(|| cannot_release(at.id))
    } else {
        Ok(None)
    }
}

/// Releases the names that the record lists. If it lists none, or a wrong one, releases every
/// name that leads to the box.
fn release_names(at: BoxAt<'_>, names: &Names, lines: &RecordLines) -> Result<(), Error> {
    let Some(tenant) = lines.tenant() else {
        return names.release_all(at.id).context(|| cannot_release(at.id));
    };
    let mut is_right = true;
    for name in &lines.names {
        let released = names.release(tenant, name.as_str(), at.id);
        let was_held = released.context(|| cannot_release(at.id))?;
        is_right &= was_held || lines.is_renamed || lines.names.last() != Some(name);
    }
    if is_right { Ok(()) } else { names.release_all(at.id).context(|| cannot_release(at.id)) }
}

fn cannot_release(id: &BoxId) -> String {
    format!("cannot release the names of box {id}")
}

/// Records the kill once, before it happens, and what the box holds. A full disk does not stop the
/// kill.
fn note_kill(record: &mut LockedRecord, keeper: &Process, reason: Reason, held: Option<&HeldLine>) {
    let is_alive = matches!(keeper.wait_dead(Duration::ZERO), Ok(false));
    if is_alive && record.lines.ending.is_none() {
        record.add(Line::Ending(EndingLine::now(reason))).ok();
        // Second, because the record of an orphan has no other line: this one alone would look like
        // a record that has lost its first line.
        if let Some(held) = held {
            record.add(Line::Held(held.clone())).ok();
        }
    }
}

/// Records how the box ended: as its keeper wrote it, or "killed" if the keeper wrote nothing. If
/// the disk is full, the next command that observes the box records it.
fn note_ended(record: &mut LockedRecord, seen: TeardownFacts, held: Option<HeldLine>) {
    if record.lines.ended.is_none() {
        if let Some(held) = held {
            record.add(Line::Held(held)).ok();
        }
        let journal = record.journal().unwrap_or_default();
        let killed = (record.lines.ending.as_ref(), &*record.lines.requests);
        let last_sign = record.last_sign();
        let ended = EndedLine::of(&journal, killed, last_sign, seen.evidence, seen.took);
        record.add(Line::Ended(Box::new(ended))).ok();
    }
}

/// Records the failed step and the reason, and whether the record was to go too. The same failure
/// is not recorded again before the next attempt is due, so that frequent commands do not fill
/// the record.
fn note_stuck(record: &mut LockedRecord, error: Error, leave: Leave) -> Error {
    let error = error.stuck();
    let why = std::error::Error::source(&error).map(ToString::to_string);
    let last = record.lines.stuck.as_ref();
    let line = StuckLine {
        remove: leave == Leave::Nothing || record.lines.removing,
        ..StuckLine::after(last, error.to_string(), why.unwrap_or_default())
    };
    if !line.repeats(last) {
        // The error is returned too, so a record that cannot be written loses nothing now.
        record.add(Line::Stuck(line)).ok();
    }
    error
}
