//! Compares the record of a box with the kernel.
//!
//! [`observe`] reads and never waits, so `ls` and `audit` cost the same for every box. Only a caller
//! that is about to act on what it saw calls [`Observation::await_change`] and observes again. This
//! folder never changes a record and never signals a process.

pub mod identity;
mod slow_start;
pub mod state;
pub mod view;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use tare_control::journal::Journal;
use tare_kernel::process::Process;
use tare_kernel::procfs::Procfs;

use crate::holdings::cgroup::{self, CgroupReader};
use crate::host::layout::BoxAt;
use crate::observe::identity::{KeeperState, Proof};
use crate::record::Record;
use crate::record::damage::{CONTRADICTED, Damage, INCOMPLETE};
use crate::record::lines::{EndedLine, EndingLine, Reason};
use crate::spec::Spec;

/// What record and kernel say about one box.
#[derive(Debug)]
pub struct Observation {
    pub record: Record,
    pub ownership: Ownership,
    pub keeper: KeeperState,
    /// Another process holds the record's lock: it creates, changes or ends the box.
    pub locked: bool,
    /// What the keeper of a detached box has written.
    pub journal: Journal,
    /// The workload is frozen.
    pub paused: bool,
    /// The host was started again since the box was created.
    pub is_of_earlier_boot: bool,
    /// The creator died before it detached the box. The kernel has sent SIGKILL to the box's
    /// processes, and some have not exited yet.
    pub dying: bool,
    /// Processes are in the box's cgroup although no keeper was found.
    occupied: bool,
}

/// Which process is responsible for a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// The creator, or a command that ends the box: the record has no first line, or has lost it.
    Unwritten,
    /// The creator, which holds the record's lock until the box is gone.
    Attached,
    /// The creator, until the keeper writes that the box is detached.
    NotYetDetached,
    /// The box itself.
    Detached,
    /// Unknown: the record is damaged or wrong. tare leaves the box alone until a user asks for its
    /// end.
    Damaged,
}

/// Observes a box.
pub fn observe(at: BoxAt<'_>, record: Record) -> Observation {
    look(at, record, Record::is_busy)
}

/// Observes a box whose record this process has locked.
pub fn observe_locked(at: BoxAt<'_>, record: Record) -> Observation {
    look(at, record, |_| false)
}

/// Observes a box. If it is about to change, waits until `until` at most and observes it again: a
/// record that seems to be wrong may have been read while another process wrote it. `observe` is one
/// of the two functions above. Returns `None` if there is no such box.
pub fn observe_settled(
    at: BoxAt<'_>,
    boxes: BorrowedFd<'_>,
    until: Instant,
    observe: fn(BoxAt<'_>, Record) -> Observation,
) -> io::Result<Option<Observation>> {
    let look = || Ok(Record::look(boxes, at.id)?.map(|record| observe(at, record)));
    match look()? {
        Some(observation) if observation.await_change(at, until) => look(),
        other => Ok(other),
    }
}

fn look(at: BoxAt<'_>, mut record: Record, is_busy: fn(&Record) -> bool) -> Observation {
    let journal = read_journal(&mut record);
    let ownership = ownership(&record, &journal);
    let has_ended = record.lines.ended.is_some() && record.damage.is_none();
    let keeper = match ownership {
        _ if has_ended => KeeperState::Dead,
        Ownership::Attached if record.lines.keeper.is_none() => KeeperState::NotRecorded,
        Ownership::Unwritten if is_nothing_yet(&record) => KeeperState::NotRecorded,
        Ownership::Unwritten
        | Ownership::Attached
        | Ownership::NotYetDetached
        | Ownership::Detached
        | Ownership::Damaged => identity::find(at, &record, Duration::ZERO),
    };
    let lives_alone = ownership == Ownership::Detached && is_recorded(&keeper, &record);
    let created = record.lines.created.as_ref();
    let mut observation = Observation {
        locked: !has_ended && !lives_alone && is_busy(&record),
        paused: lives_alone && journal.paused && CgroupReader::new(at, &record).is_frozen(),
        is_of_earlier_boot: created.is_some_and(|created| created.boot_id != at.root.host.boot_id),
        dying: false,
        occupied: false,
        record,
        ownership,
        keeper,
        journal,
    };
    if !has_ended {
        observation.dying = observation.is_dying(at);
        observation.find_contradiction(at);
    }
    observation
}

impl Observation {
    /// Whether the box's end is on record, and the record can be trusted.
    pub fn has_ended(&self) -> bool {
        self.record.lines.ended.is_some() && self.record.damage.is_none()
    }

    pub fn is_attached(&self) -> bool {
        self.ownership == Ownership::Attached
    }

    /// The spec of the box, if its record has one.
    pub fn spec(&self) -> Option<&Spec> {
        Some(&self.record.lines.created.as_ref()?.spec)
    }

    /// The keeper, if it is alive.
    pub fn keeper(&self) -> Option<&Process> {
        self.keeper.alive()
    }

    /// How the box ended, if it has: as its record or its keeper says, or "killed".
    pub fn ended(&self, at: BoxAt<'_>) -> Option<EndedLine> {
        use view::State;
        match self.state() {
            State::Exited => {
                let written = self.record.lines.ended.clone();
                Some(written.unwrap_or_else(|| self.unwritten_end(at)))
            }
            State::Stuck => self.record.lines.ended.clone(),
            State::Starting | State::Warm | State::Running | State::Paused | State::Stopping => {
                None
            }
        }
    }

    /// How a box ended whose end is not on record: also an attached box whose creator was killed, and
    /// that no command has cleaned up yet.
    pub fn unrecorded_end(&self, at: BoxAt<'_>) -> Option<EndedLine> {
        let is_dead = matches!(self.keeper, KeeperState::Dead);
        match self.ownership {
            _ if self.record.lines.ended.is_some() => None,
            Ownership::Attached | Ownership::NotYetDetached if is_dead && !self.locked => {
                Some(self.unwritten_end(at))
            }
            Ownership::Unwritten
            | Ownership::Attached
            | Ownership::NotYetDetached
            | Ownership::Detached
            | Ownership::Damaged => self.ended(at),
        }
    }

    /// How a box ended that no command has cleaned up yet. Its cgroups still exist and count.
    fn unwritten_end(&self, at: BoxAt<'_>) -> EndedLine {
        let lines = &self.record.lines;
        let is_of_this_boot = lines.created.is_some() && !self.is_of_earlier_boot;
        let last_sign = self.record.last_sign().filter(|_| is_of_this_boot);
        let reason = match self.ownership {
            _ if self.is_of_earlier_boot => Some(Reason::Rebooted),
            Ownership::Attached | Ownership::NotYetDetached => Some(Reason::Abandoned),
            Ownership::Unwritten | Ownership::Detached | Ownership::Damaged => None,
        };
        let unwritten = reason.map(EndingLine::now);
        let killed = (lines.ending.as_ref().or(unwritten.as_ref()), &*lines.requests);
        let evidence = cgroup::evidence(at, &self.record);
        EndedLine::of(&self.journal, killed, last_sign, evidence, Duration::ZERO)
    }

    /// Waits for changes that the kernel is about to finish by itself, until this time at most: a
    /// keeper dies after its creator, and a cgroup is empty a moment after its last process.
    /// Returns whether the caller should observe the box again.
    pub fn await_change(&self, at: BoxAt<'_>, until: Instant) -> bool {
        if self.occupied {
            let until = until.min(Instant::now() + EMPTY_WITHIN);
            while CgroupReader::new(at, &self.record).is_populated().unwrap_or(false) {
                if Instant::now() >= until {
                    break;
                }
                // The kernel's own notice can be late.
                #[expect(clippy::disallowed_methods, reason = "bounded by EMPTY_WITHIN")]
                std::thread::sleep(LOOK_AGAIN);
            }
            return true;
        }
        match (self.ownership, self.keeper()) {
            (Ownership::NotYetDetached, Some(keeper)) if !self.locked => {
                let left = until.saturating_duration_since(Instant::now());
                matches!(keeper.wait_dead(left), Ok(true))
            }
            (_, _) => self.record.damage.is_some(),
        }
    }

    /// Marks the record as damaged if it says that the box has ended while a process of the box is
    /// alive. tare does not end such a box.
    fn find_contradiction(&mut self, at: BoxAt<'_>) {
        let why = match self.ownership {
            Ownership::Damaged => Some(INCOMPLETE),
            // The box never outlives its creator, which has the lock.
            Ownership::Attached => None,
            Ownership::Unwritten if is_nothing_yet(&self.record) => None,
            // The process that has the lock is still at work.
            Ownership::Unwritten | Ownership::NotYetDetached if self.locked || self.dying => None,
            Ownership::Unwritten | Ownership::NotYetDetached => {
                self.lives_unrecorded(at).then_some(INCOMPLETE)
            }
            Ownership::Detached => self.lives_unrecorded(at).then_some(CONTRADICTED),
        };
        if let Some(why) = why {
            self.record.damage.get_or_insert(Damage::Broken(why.to_owned()));
            self.ownership = Ownership::Damaged;
        }
    }

    /// Returns whether the creator of a box that was not detached is gone, and every process of the
    /// box dies. A busy host may take seconds to end them.
    fn is_dying(&self, at: BoxAt<'_>) -> bool {
        let goes_along = matches!(self.ownership, Ownership::Unwritten | Ownership::NotYetDetached);
        if !goes_along || self.locked {
            return false;
        }
        let Ok(procfs) = Procfs::open() else { return false };
        // The kernel tells the keeper to die when its creator is dead, and closes the creator's
        // descriptors a moment earlier.
        let is_dying = |pid: i32| {
            let parent = || procfs.stat(pid).map(|stat| stat.parent);
            procfs.is_dying(pid) || parent().is_ok_and(|it| it > 1 && procfs.is_dying(it))
        };
        match self.keeper() {
            Some(keeper) => is_dying(keeper.pid()),
            None => {
                let members = CgroupReader::new(at, &self.record).tree().members;
                !members.is_empty() && members.into_iter().all(is_dying)
            }
        }
    }

    fn lives_unrecorded(&mut self, at: BoxAt<'_>) -> bool {
        match &self.keeper {
            KeeperState::Alive(_) => !is_recorded(&self.keeper, &self.record),
            KeeperState::Unknown { .. } => false,
            KeeperState::NotRecorded | KeeperState::Dead => {
                match CgroupReader::new(at, &self.record).is_populated() {
                    Ok(is_populated) => self.occupied = is_populated,
                    Err(error) => self.keeper = KeeperState::Unknown { why: error.to_string() },
                }
                self.occupied
            }
        }
    }
}

/// How long a caller that acts waits for keepers of dead creators, for all boxes together.
pub const GOES_WITHIN: Duration = Duration::from_millis(200);
/// How long the kernel may take to say that a cgroup is empty.
const EMPTY_WITHIN: Duration = Duration::from_millis(10);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Reads the journal of a detached box whose end is not on record.
fn read_journal(record: &mut Record) -> Journal {
    let journal: io::Result<_> = match (&record.lines.ended, record.lines.detached()) {
        (None, Some(_)) => record.journal(),
        (Some(_), _) | (_, None) => Ok(Journal::default()),
    };
    journal.unwrap_or_else(|error| {
        record.damage.get_or_insert(Damage::unreadable(&error));
        Journal::default()
    })
}

fn ownership(record: &Record, journal: &Journal) -> Ownership {
    let is_detached = journal.detached;
    if record.damage.is_some() {
        return Ownership::Damaged;
    }
    match (&record.lines.created, &record.lines.keeper) {
        // Only a detached box has a journal.
        (None, _) if record.has_journal() && !record.lines.removing => Ownership::Damaged,
        (None, _) => Ownership::Unwritten,
        (Some(_), None) if is_detached => Ownership::Damaged,
        (Some(created), _) => match &created.detached {
            None => Ownership::Attached,
            Some(_) if is_detached => Ownership::Detached,
            Some(_) => Ownership::NotYetDetached,
        },
    }
}

/// Returns whether a record without its first line was just made, or is being removed.
fn is_nothing_yet(record: &Record) -> bool {
    record.is_blank() || record.lines.ending.is_some() || record.lines.removing
}

/// Returns whether the keeper is the process that the record names.
fn is_recorded(keeper: &KeeperState, record: &Record) -> bool {
    let KeeperState::Alive(keeper) = keeper else {
        return false;
    };
    let identity = record.lines.keeper.as_ref();
    match keeper.proof {
        Proof::PidfdInode | Proof::CgroupInode => true,
        Proof::ControlSocket => {
            identity.is_some_and(|it| it.pidfd_inode.is_none() && it.cgroup_inode.is_none())
        }
    }
}
