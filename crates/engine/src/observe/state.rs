//! Which state a box is in, which requests it accepts in that state, and what tare must do about it.
//! All three are pure tables.
//!
//! ```text
//!            ┌───────────── attached: ends with its creator ─────────────┐
//! starting ──┴─▶ running ◀──▶ paused                                     │
//!     └─ pool ─▶ warm ─ claimed ─▶ running                               │
//!     │             │ └─ stop asked ─▶ stopping ─┐                       ▼
//!     │             └─ command, lease, kill ─────┴─▶ exited ─ rm ─▶ (no record)
//!     └─ creator gone ──────────────────────────────────────────────────▶
//! A box is stuck while something of it cannot be ended, or cannot be seen.
//! ```

use std::time::Duration;

use crate::error::{Error, Hint};
use crate::host::layout::BoxAt;
use crate::observe::identity::KeeperState;
use crate::observe::view::{State, has_ended, is_waiting};
use crate::observe::{Observation, Ownership};
use crate::record::damage::Damage;
use crate::record::lines::Reason;
use crate::spec::BoxId;

/// How long a keeper may take to end its box after the lease.
const OVERDUE_AFTER: Duration = Duration::from_secs(2);

/// What tare must do about a box, and why. If there are several duties about one box, the greatest
/// counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Duty {
    /// Nothing: the box is in order, or only a user may end it.
    Leave,
    /// Remove the box with its record.
    Remove(Reason),
    /// Release what the box held, and record how it ended.
    Finish(Reason),
    /// Kill the processes of the box, and finish it.
    End(Reason),
}

/// An object on the host that no record explains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unrecorded {
    /// A process or a cgroup of a box that has no record, or has ended.
    OfBox,
    /// A name without a box, or an empty cgroup of tare itself.
    Empty,
    /// A file that tare did not make.
    Foreign,
}

impl Unrecorded {
    /// What a sweep does about it.
    pub fn duty(self) -> Duty {
        match self {
            Self::OfBox => Duty::End(Reason::Requested),
            Self::Empty => Duty::Remove(Reason::Requested),
            Self::Foreign => Duty::Leave,
        }
    }
}

/// A duty is one word in JSON.
impl serde::Serialize for Duty {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Leave => "leave",
            Self::Remove(_) => "remove",
            Self::Finish(_) => "finish",
            Self::End(_) => "end",
        })
    }
}

/// A request that changes a box, or needs its keeper. Every box can be looked at and waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Run a process in it, copy files, attach to it, or send it a signal.
    Use,
    Pause,
    Resume,
    Rename,
    /// Give it other limits, or another lease.
    Update,
    Stop,
    Kill,
    /// Remove it without force. By force, every box is removed.
    Remove,
}

/// Returns whether a box in this state accepts the request.
pub fn allows(request: Request, state: State) -> bool {
    use Request::{Kill, Pause, Remove, Rename, Resume, Stop, Update, Use};
    use State::{Exited, Paused, Running, Starting, Stopping, Stuck, Warm};
    match (state, request) {
        (Starting | Stuck, Rename | Stop | Kill)
        // A box in a pool belongs to its server.
        | (Warm, Stop | Kill)
        | (Running, Use | Pause | Resume | Rename | Update | Stop | Kill)
        | (Paused, Pause | Resume | Rename | Update | Stop | Kill)
        // A stopping box cannot be paused: its grace period would pass while it is frozen.
        | (Stopping, Use | Resume | Rename | Update | Stop | Kill)
        | (Exited, Rename | Stop | Remove) => true,
        (Starting | Stuck, Use | Pause | Resume | Update | Remove)
        | (Warm, Use | Pause | Resume | Rename | Update | Remove)
        | (Running, Remove)
        | (Paused, Use | Remove)
        | (Stopping, Pause | Remove)
        | (Exited, Use | Pause | Resume | Update | Kill) => false,
    }
}

/// Returns an error that says what to do if a box in this state does not accept the request.
fn check(id: &BoxId, request: Request, state: State) -> Result<(), Error> {
    if allows(request, state) {
        return Ok(());
    }
    let hint = match state {
        State::Exited => return Err(has_ended(id)),
        State::Warm => return Err(is_waiting(id)),
        State::Starting | State::Running | State::Paused | State::Stopping | State::Stuck
            if request == Request::Remove =>
        {
            Hint::StopOrForce
        }
        State::Starting => "try again in a moment".into(),
        State::Running | State::Paused => Hint::Resume,
        State::Stopping => "wait for its end, or kill it".into(),
        State::Stuck => Hint::InspectOrForce,
    };
    let message = format!("cannot {} box {id}", request.verb());
    Err(Error::conflict(message).caused_by(format!("it is {state}")).with_hint(hint))
}

impl Request {
    pub fn verb(self) -> &'static str {
        match self {
            Self::Use => "use",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Rename => "rename",
            Self::Update => "update",
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::Remove => "remove",
        }
    }
}

impl Observation {
    pub fn state(&self) -> State {
        if self.record.lines.stuck.is_some() {
            return State::Stuck;
        }
        if self.has_ended() {
            return State::Exited;
        }
        match (self.ownership, &self.keeper) {
            (Ownership::Unwritten | Ownership::NotYetDetached, KeeperState::Unknown { .. })
                if self.locked =>
            {
                State::Starting
            }
            (Ownership::Damaged, _) | (_, KeeperState::Unknown { .. }) => State::Stuck,
            (Ownership::Unwritten, _)
            | (Ownership::Attached | Ownership::NotYetDetached, KeeperState::NotRecorded) => {
                State::Starting
            }
            (Ownership::NotYetDetached, KeeperState::Alive(_)) if self.locked => State::Starting,
            (Ownership::NotYetDetached, KeeperState::Alive(_)) if self.dying => State::Stopping,
            // The creator is gone and the box lives, so the journal must be damaged.
            (Ownership::NotYetDetached, KeeperState::Alive(_)) => State::Stuck,
            (Ownership::Attached | Ownership::Detached, KeeperState::Alive(_)) => {
                if self.record.lines.pool.is_some() {
                    State::Warm
                } else if self.journal.stopping {
                    State::Stopping
                } else if self.paused {
                    State::Paused
                } else {
                    State::Running
                }
            }
            (Ownership::Attached | Ownership::NotYetDetached, KeeperState::Dead) => State::Stopping,
            // No command has recorded its end yet.
            (Ownership::Detached, KeeperState::Dead | KeeperState::NotRecorded) => State::Exited,
        }
    }

    /// Returns an error if the box does not accept the request in its state.
    pub fn check(&self, id: &BoxId, request: Request) -> Result<(), Error> {
        let refused = |error: Error| {
            if self.is_booting() { error.caused_by("its machine boots") } else { error }
        };
        check(id, request, self.state()).map_err(refused)
    }

    /// What tare must do about the box at this time of the boot clock.
    pub fn duty(&self, now_ns: u64) -> Duty {
        if self.has_ended() {
            let reason = self.reason(now_ns);
            return if self.is_expired(now_ns) { Duty::Remove(reason) } else { Duty::Leave };
        }
        // The process that has the lock takes care of the box.
        if self.locked {
            return Duty::Leave;
        }
        let reason = self.reason(now_ns);
        let is_ending = self.record.lines.ending.is_some();
        match (self.ownership, &self.keeper) {
            // The box may live, or hold what is to be kept. Only a user may end it.
            (Ownership::Damaged, _) | (_, KeeperState::Unknown { .. }) => Duty::Leave,
            (
                Ownership::Unwritten | Ownership::Attached,
                KeeperState::NotRecorded | KeeperState::Alive(_) | KeeperState::Dead,
            ) => Duty::Remove(reason),
            // A creator that is gone has taken its box along by now.
            (Ownership::NotYetDetached, KeeperState::Alive(_)) if !is_ending => Duty::Leave,
            (
                Ownership::NotYetDetached,
                KeeperState::Alive(_) | KeeperState::NotRecorded | KeeperState::Dead,
            ) => Duty::Remove(reason),
            (Ownership::Detached, KeeperState::Alive(_)) => {
                // A command that began to end it was killed, or failed.
                if is_ending || self.is_overdue(now_ns) { Duty::End(reason) } else { Duty::Leave }
            }
            (Ownership::Detached, KeeperState::Dead | KeeperState::NotRecorded) => {
                if self.is_expired(now_ns) { Duty::Remove(reason) } else { Duty::Finish(reason) }
            }
        }
    }

    /// What a sweep does about the box at this time of the boot clock: what is due, and what only a
    /// sweep may do. It also removes damaged records, and what is left of a box that has ended.
    /// `has_life` says whether the host shows a process of the box.
    pub fn duty_of_sweep(&self, now_ns: u64, has_life: impl FnOnce() -> bool) -> Duty {
        match (&self.record.damage, self.duty(now_ns)) {
            // Another tare wrote it, it may be in order, or it is not tare's.
            (Some(Damage::Unreadable(_) | Damage::NotOurs { .. }), _) => Duty::Leave,
            (Some(Damage::NotADirectory | Damage::Broken(_)), _) => {
                let lives = self.keeper().is_some() || has_life();
                if lives { Duty::Leave } else { Duty::Remove(Reason::Requested) }
            }
            (None, Duty::Leave) if self.has_ended() => Duty::Finish(Reason::Requested),
            (None, duty) => duty,
        }
    }

    /// Returns whether the box has ended in order. Then a duty about it is no difference between
    /// record and host, unless a command has tried it and failed.
    pub fn has_ended_in_order(&self) -> bool {
        let is_over = self.ownership == Ownership::Detached && self.keeper().is_none();
        self.has_ended() || is_over && self.record.lines.stuck.is_none()
    }

    /// Why a process that is not the creator ends the box.
    fn reason(&self, now_ns: u64) -> Reason {
        if self.is_of_earlier_boot {
            return Reason::Rebooted;
        }
        // The journal of such a box is not read, so nothing else says that it was detached.
        if self.has_ended() && self.record.lines.detached().is_some() {
            return self.reason_after_end();
        }
        let lines = &self.record.lines;
        match (self.ownership, &lines.ending) {
            (Ownership::NotYetDetached | Ownership::Detached, Some(ending)) => ending.why,
            (Ownership::Unwritten | Ownership::Attached | Ownership::NotYetDetached, _) => {
                Reason::Abandoned
            }
            (Ownership::Damaged, _) => Reason::Requested,
            (Ownership::Detached, None) if lines.removing => Reason::Requested,
            (Ownership::Detached, None) if self.is_overdue(now_ns) => Reason::Overdue,
            (Ownership::Detached, None) => self.reason_after_end(),
        }
    }

    /// Why a detached box that has ended is removed.
    fn reason_after_end(&self) -> Reason {
        let lines = &self.record.lines;
        match lines.detached() {
            _ if lines.removing => Reason::Requested,
            Some(options) if options.remove => Reason::RemoveAfterEnd,
            Some(_) | None => Reason::Expired,
        }
    }

    /// Returns whether the box is to be removed after its end: it is not to be kept, its retention
    /// has passed, its removal has begun, or it is of an earlier boot.
    fn is_expired(&self, now_ns: u64) -> bool {
        let lines = &self.record.lines;
        if lines.removing || self.is_of_earlier_boot {
            return true;
        }
        let since = |at_ns: u64| Duration::from_nanos(now_ns.saturating_sub(at_ns));
        let ended = lines.ended.as_ref();
        match (&lines.created, lines.detached()) {
            (None, _) => false,
            (Some(_), None) => ended.is_some(),
            (Some(_), Some(options)) if options.remove => true,
            (Some(_), Some(options)) => {
                ended.is_some_and(|ended| since(ended.at_ns) >= options.retention)
            }
        }
    }

    /// Returns whether the box lives although its lease has passed.
    pub fn is_overdue(&self, now_ns: u64) -> bool {
        let identity = self.record.lines.keeper.as_ref();
        let lease_ns = identity.and_then(|identity| identity.lease.ends_ns());
        let late_ns = u64::try_from(OVERDUE_AFTER.as_nanos()).unwrap_or(u64::MAX);
        self.keeper().is_some() && lease_ns.is_some_and(|at| at.saturating_add(late_ns) <= now_ns)
    }

    /// Returns whether the box may have more than its record.
    pub fn is_live(&self) -> bool {
        match self.state() {
            State::Starting
            | State::Warm
            | State::Running
            | State::Paused
            | State::Stopping
            | State::Stuck => true,
            State::Exited => false,
        }
    }

    /// Returns whether the machine of the box boots: its keeper runs, and the one in the machine has not
    /// answered.
    pub fn is_booting(&self) -> bool {
        let lines = &self.record.lines;
        lines.machine.is_some()
            && !lines.is_booted
            && self.keeper().is_some()
            && !self.journal.detached
            && matches!(self.state(), State::Starting | State::Running)
    }

    /// What the box is stuck on, if it is, and what a box that starts slowly waits for.
    pub fn stuck_on(&self, at: BoxAt<'_>) -> Option<String> {
        match self.state() {
            State::Starting if self.is_booting() => None,
            State::Starting => self.slow_start(at),
            State::Stuck => {
                let stuck = || self.record.lines.stuck.as_ref().map(ToString::to_string);
                let what = self.problem().map(|(what, _)| what).or_else(stuck);
                Some(what.unwrap_or_else(|| Damage::incomplete().to_string()))
            }
            State::Warm | State::Running | State::Paused | State::Stopping | State::Exited => None,
        }
    }

    /// Why the record cannot be trusted, and what the user can do about it.
    pub fn problem(&self) -> Option<(String, Hint)> {
        match (&self.record.damage, &self.keeper) {
            (Some(damage), _) => Some((damage.to_string(), damage.hint())),
            (None, KeeperState::Unknown { why }) => Some((
                format!("tare cannot see whether it lives ({why})"),
                "try again when tare can open files and see processes".into(),
            )),
            (None, KeeperState::NotRecorded | KeeperState::Alive(_) | KeeperState::Dead) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::observe::identity::{Keeper, Proof};
    use crate::record::Record;
    use crate::record::lines::{
        EndedLine, EndingLine, Evidence, KeeperLine, Lease, RecordLines, StuckLine,
    };
    use crate::time::Timestamp;
    use tare_control::journal::Journal;
    use tare_control::{Cause, End};
    use tare_kernel::process::Process;

    const NOW_NS: u64 = 1 << 40;

    /// One combination of what can be observed.
    #[derive(Debug, Clone, Copy)]
    struct Case {
        ownership: Ownership,
        keeper: Keepers,
        locked: bool,
        stopping: bool,
        paused: bool,
        stuck: bool,
        ending: bool,
        ended: bool,
        expired: bool,
        overdue: bool,
        dying: bool,
        warm: bool,
        of_earlier_boot: bool,
    }

    /// What a [`KeeperState`] says, without its contents.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Keepers {
        NotRecorded,
        Alive,
        Dead,
        Unknown,
    }
    use Keepers::{Alive, Dead, NotRecorded, Unknown};

    const LIVE: Case = Case {
        ownership: Ownership::Detached,
        keeper: Alive,
        locked: false,
        stopping: false,
        paused: false,
        stuck: false,
        ending: false,
        ended: false,
        expired: false,
        overdue: false,
        dying: false,
        warm: false,
        of_earlier_boot: false,
    };

    fn all() -> impl Iterator<Item = Case> {
        let owners = [
            Ownership::Unwritten,
            Ownership::Attached,
            Ownership::NotYetDetached,
            Ownership::Detached,
            Ownership::Damaged,
        ];
        (0..20 << 11).map(move |number: usize| {
            let bit = |at: usize| (number / 20) & (1 << at) != 0;
            Case {
                ownership: owners[number % 5],
                keeper: [NotRecorded, Alive, Dead, Unknown][number / 5 % 4],
                locked: bit(0),
                stopping: bit(1),
                paused: bit(2),
                stuck: bit(3),
                ended: bit(4),
                expired: bit(5),
                overdue: bit(6),
                ending: bit(7),
                dying: bit(8),
                warm: bit(9),
                of_earlier_boot: bit(10),
            }
        })
    }

    impl Case {
        fn observation(self) -> Observation {
            let identity = |lease| KeeperLine {
                boot_id: String::new(),
                pid: 1,
                pidfd_inode: None,
                cgroup_inode: None,
                first_uid: None,
                lease,
                at_ns: 0,
            };
            let past = Lease::Ends { at_ns: 0, at: Timestamp::from_ms(0) };
            let lease = if self.overdue { past } else { Lease::Never };
            let stuck = StuckLine::after(None, "a".into(), "b".into());
            let lines = RecordLines {
                keeper: Some(identity(lease)),
                stuck: self.stuck.then_some(stuck),
                ending: self.ending.then(|| EndingLine::now(Reason::Overdue)),
                ended: self.ended.then(|| {
                    EndedLine::seen(End::killed(Cause::KeeperLost), None, Evidence::default())
                }),
                removing: self.expired,
                pool: self.warm.then(|| "box".into()),
                ..RecordLines::default()
            };
            let process = || Process::open(std::process::id() as i32).expect("this test runs");
            Observation {
                record: Record::of(lines),
                ownership: self.ownership,
                dying: self.dying,
                keeper: match self.keeper {
                    NotRecorded => KeeperState::NotRecorded,
                    Alive => {
                        KeeperState::Alive(Keeper { process: process(), proof: Proof::PidfdInode })
                    }
                    Dead => KeeperState::Dead,
                    Unknown => KeeperState::Unknown { why: "no descriptors".into() },
                },
                locked: self.locked,
                journal: Journal { stopping: self.stopping, ..Journal::default() },
                paused: self.paused,
                is_of_earlier_boot: self.of_earlier_boot,
                occupied: false,
            }
        }

        fn state(self) -> State {
            self.observation().state()
        }

        /// Whether nothing of it is to be kept.
        fn is_expired(self) -> bool {
            self.expired || self.of_earlier_boot
        }

        /// Without the reason.
        fn duty(self) -> String {
            let duty = serde_json::to_value(self.observation().duty(NOW_NS)).expect("JSON");
            duty.as_str().expect("a word").to_owned()
        }
    }

    /// The failure that tare was made against: a live box that is judged dead.
    #[test]
    fn a_live_detached_box_is_never_touched_before_it_is_overdue() {
        let is_live = |case: &Case| {
            case.ownership == Ownership::Detached
                && case.keeper == Alive
                && !(case.ended || case.overdue || case.ending)
        };
        for case in all().filter(is_live) {
            assert_eq!(case.duty(), "leave", "{case:?}");
            assert_ne!(case.state(), State::Exited, "{case:?}");
        }
    }

    #[test]
    fn a_box_that_cannot_be_seen_is_never_touched() {
        for case in all().filter(|case| case.keeper == Unknown && !case.ended) {
            assert_eq!(case.duty(), "leave", "{case:?}");
            assert_ne!(case.state(), State::Exited, "{case:?}");
        }
    }

    #[test]
    fn a_locked_box_is_left_alone() {
        for case in all().filter(|case| case.locked && !case.ended) {
            assert_eq!(case.duty(), "leave", "{case:?}");
        }
    }

    #[test]
    fn an_incomplete_box_of_a_dead_creator_is_removed() {
        let is_due = |case: &Case| !case.locked && !case.ended && case.keeper != Unknown;
        for case in all().filter(is_due) {
            let is_alive = case.keeper == Alive;
            let is_removed = match case.ownership {
                Ownership::Unwritten | Ownership::Attached => true,
                Ownership::NotYetDetached => !is_alive || case.ending,
                Ownership::Detached => !is_alive && case.is_expired(),
                Ownership::Damaged => false,
            };
            assert_eq!(case.duty() == "remove", is_removed, "{case:?}");
        }
    }

    #[test]
    fn an_ended_box_stays_until_it_expires() {
        for case in all().filter(|case| case.ended) {
            let expected = if case.is_expired() { "remove" } else { "leave" };
            assert_eq!(case.duty(), expected, "{case:?}");
            let expected = if case.stuck { State::Stuck } else { State::Exited };
            assert_eq!(case.state(), expected, "{case:?}");
        }
    }

    #[test]
    fn a_sweep_does_what_is_due_and_clears_boxes_that_have_ended() {
        for case in all() {
            let expected = match case.duty().as_str() {
                "leave" if case.ended => "finish".to_owned(),
                _ => case.duty(),
            };
            let duty = case.observation().duty_of_sweep(NOW_NS, || false);
            assert_eq!(serde_json::to_value(duty).expect("JSON"), expected, "{case:?}");
        }
    }

    #[test]
    fn a_sweep_removes_a_damaged_record_only_if_it_is_tares_and_nothing_lives() {
        let foreign = Damage::NotOurs { entry: "a".into() };
        for (damage, is_ours) in [
            (Damage::NotADirectory, true),
            (Damage::Broken("b".into()), true),
            (Damage::Unreadable("c".into()), false),
            (foreign, false),
        ] {
            for (keeper, has_life) in [(Dead, false), (Dead, true), (Alive, false)] {
                let case = Case { ownership: Ownership::Damaged, keeper, ..LIVE };
                let mut observation = case.observation();
                observation.record.damage = Some(damage.clone());
                let duty = observation.duty_of_sweep(NOW_NS, || has_life);
                let is_removed = is_ours && keeper == Dead && !has_life;
                assert_eq!(duty != Duty::Leave, is_removed, "{damage:?} {keeper:?} {has_life}");
                assert_eq!(observation.duty(NOW_NS), Duty::Leave);
            }
        }
    }

    #[test]
    fn a_detached_box_without_a_keeper_has_ended_in_order_until_it_is_stuck() {
        for case in all().filter(|case| !case.ended) {
            let is_over = case.ownership == Ownership::Detached && case.keeper != Alive;
            let expected = is_over && !case.stuck;
            assert_eq!(case.observation().has_ended_in_order(), expected, "{case:?}");
        }
    }

    /// One row for each request: which of `State::ALL` accept it.
    #[test]
    fn each_request_is_accepted_in_its_states_and_refused_with_advice_in_all_others() {
        use State::{Exited, Paused, Running, Starting, Stopping, Stuck, Warm};
        let id = BoxId::random();
        for (request, accepted) in [
            (Request::Use, &[Running, Stopping][..]),
            (Request::Pause, &[Running, Paused]),
            (Request::Resume, &[Running, Paused, Stopping]),
            (Request::Rename, &[Starting, Running, Paused, Stopping, Exited, Stuck]),
            (Request::Update, &[Running, Paused, Stopping]),
            (Request::Stop, &State::ALL),
            (Request::Kill, &[Starting, Warm, Running, Paused, Stopping, Stuck]),
            (Request::Remove, &[Exited]),
        ] {
            for state in State::ALL {
                let answer = check(&id, request, state);
                assert_eq!(answer.is_ok(), accepted.contains(&state), "{request:?} {state}");
                let Err(error) = answer else { continue };
                let kind = if state == Warm { ErrorKind::Warm } else { ErrorKind::Conflict };
                assert_eq!(error.kind(), kind, "{request:?} {state}");
                assert!(error.hint().is_some(), "{request:?} {state}");
            }
        }
    }

    #[test]
    fn every_state_is_derived_from_its_observation() {
        assert_eq!(LIVE.state(), State::Running);
        for (case, expected) in [
            (Case { paused: true, ..LIVE }, State::Paused),
            (Case { paused: true, stopping: true, ..LIVE }, State::Stopping),
            (Case { stuck: true, ..LIVE }, State::Stuck),
            (Case { ownership: Ownership::NotYetDetached, locked: true, ..LIVE }, State::Starting),
            (Case { ownership: Ownership::NotYetDetached, ..LIVE }, State::Stuck),
            (Case { ownership: Ownership::NotYetDetached, dying: true, ..LIVE }, State::Stopping),
            (Case { warm: true, paused: true, ..LIVE }, State::Warm),
            (Case { ownership: Ownership::Attached, warm: true, ..LIVE }, State::Warm),
            (Case { warm: true, keeper: Dead, ..LIVE }, State::Exited),
            (Case { ownership: Ownership::Damaged, ..LIVE }, State::Stuck),
            (Case { keeper: Dead, ..LIVE }, State::Exited),
            (Case { keeper: Unknown, ..LIVE }, State::Stuck),
        ] {
            assert_eq!(case.state(), expected, "{case:?}");
        }
    }
}
