//! One box as it is found: what its record says, held against the kernel.

pub mod state;
pub mod view;

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use tare_control::life::LifeEvent;
use tare_kernel::clock::boot_ns;
use tare_kernel::process::Process;

use crate::audit::host_objects;
use crate::holdings::cgroup::{self, CgroupReader, WorkloadCgroup};
use crate::host::Host;
use crate::host::tag::Tagged;
use crate::observe::state::{Care, Facts, KeeperIs, Tie};
use crate::observe::view::State;
use crate::record::Record;
use crate::record::damage::Flaw;
use crate::record::lines::EndedEntry;
use crate::record::reason::Reason;

/// What a keeper may need to end its box after a deadline.
const OVERDUE_AFTER: Duration = Duration::from_secs(2);

/// How closely a box is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Whether anything has to be done about it; every command does so.
    Care,
    /// In which state it is, too, as far as tare has brought it there: a list asks
    /// the kernel nothing whose answer is on record.
    List,
    /// In which state it is, whoever has brought it there.
    State,
}

/// When what could not be done is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// When it is time to.
    Due,
    Now,
}

impl When {
    fn applied_to(self, facts: Facts) -> Facts {
        let tried_lately = match self {
            Self::Due => facts.tried_lately,
            Self::Now => false,
        };
        Facts { tried_lately, ..facts }
    }
}

#[derive(Debug)]
pub struct Observed {
    pub record: Record,
    /// The keeper, if it is alive.
    pub keeper: Option<Process>,
    /// How it ended, if it has; also when nobody has written that down yet.
    pub ended: Option<EndedEntry>,
    facts: Facts,
}

impl Observed {
    pub fn of(record: Record, of: Tagged<'_>, host: &Host, depth: Depth) -> Self {
        let mut record = record;
        let life = match (&record.account.ended, record.account.detached()) {
            (None, Some(_)) => record.life(),
            (Some(_), _) | (_, None) => Ok(Vec::new()),
        };
        let life = life.unwrap_or_else(|error| {
            record.flaw.get_or_insert(Flaw::unreadable(&error));
            Vec::new()
        });
        let ended = record.account.ended.is_some() && record.flaw.is_none();
        let (tie, keeper) = match (ended, tie(&record, &life)) {
            (true, tie) => (tie, None),
            (false, tie) => held_against_kernel(tie, &mut record, of, host),
        };
        let alive = keeper.is_some();
        let lives_alone = alive && tie == Tie::Detached;
        let facts = Facts {
            tie,
            keeper: match (&record.account.keeper, alive) {
                (_, true) => KeeperIs::Alive,
                (Some(_), false) => KeeperIs::Dead,
                (None, false) => KeeperIs::Unborn,
            },
            // Of a box that lives by itself it does not matter.
            busy: !(ended || lives_alone) && record.is_busy(),
            stopping: life.contains(&LifeEvent::Stopping),
            frozen: alive
                && may_be_frozen(&record, tie, depth)
                && CgroupReader::new(host, of).is_frozen(workload_cgroup(tie)),
            stuck: record.account.stuck.is_some(),
            tried_lately: record.account.stuck.as_ref().is_some_and(|it| !it.is_due()),
            ending: record.account.ending.is_some(),
            ended,
            expired: is_expired(&record, host),
            overdue: alive && is_overdue(&record),
        };
        let ended = match state::state(&facts) {
            State::Exited => {
                let written = record.account.ended.clone();
                Some(written.unwrap_or_else(|| unwritten_end(&record, &life, of, host)))
            }
            State::Stuck => record.account.ended.clone(),
            State::Starting | State::Running | State::Paused | State::Stopping => None,
        };
        Self { record, keeper, ended, facts }
    }

    pub fn state(&self) -> State {
        state::state(&self.facts)
    }

    pub fn care(&self, when: When) -> Care {
        state::care(&when.applied_to(self.facts))
    }

    /// The same for whoever has the lock of the record.
    pub fn ours(mut self) -> Self {
        self.facts.busy = false;
        self
    }

    /// Why whoever is not its creator does what is to be done about it.
    pub fn reason(&self, host: &Host) -> Reason {
        let account = &self.record.account;
        let intent = account.intent.as_ref();
        if intent.is_some_and(|intent| intent.boot_id != host.boot_id) {
            return Reason::Rebooted;
        }
        match self.facts.tie {
            Tie::Detaching | Tie::Detached if account.ending.is_some() => {
                account.ending.as_ref().map_or(Reason::Asked, |it| it.why)
            }
            Tie::HalfMade | Tie::Attached | Tie::Detaching => Reason::Abandoned,
            Tie::Damaged => Reason::Asked,
            Tie::Detached if account.removing => Reason::Asked,
            Tie::Detached if self.facts.overdue => Reason::Overdue,
            Tie::Detached => match account.detached() {
                Some(options) if options.remove => Reason::NotKept,
                Some(_) | None => Reason::Expired,
            },
        }
    }

    /// What it is stuck on, if it is.
    pub fn stuck_on(&self) -> Option<String> {
        if self.state() != State::Stuck {
            return None;
        }
        let flaw = self.record.flaw.as_ref();
        let known = self.record.account.stuck.as_ref().map(ToString::to_string);
        let known = flaw.map(|flaw| format!("{flaw}; {}", flaw.remedy())).or(known);
        Some(known.unwrap_or_else(|| format!("{}; 'tare rm -f' ends it", Flaw::Incomplete)))
    }

    /// Whether it has anything but its record.
    pub fn is_live(&self) -> bool {
        match self.state() {
            State::Starting | State::Running | State::Paused | State::Stopping | State::Stuck => {
                true
            }
            State::Exited => false,
        }
    }

    /// Whether its processes stand still, whatever else it is doing.
    pub fn is_frozen(&self) -> bool {
        self.facts.frozen
    }

    /// Whether its end is on record, and that is to be believed.
    pub fn is_over(&self) -> bool {
        self.facts.ended
    }

    /// Whether it may hold more names than one.
    pub fn is_half_named(&self) -> bool {
        self.record.account.naming.is_some() && self.record.flaw.is_none()
    }

    /// Whether somebody is making or changing it.
    pub fn is_busy(&self) -> bool {
        self.facts.busy
    }

    /// Whether it should have ended by itself.
    pub fn is_overdue(&self) -> bool {
        self.facts.overdue
    }

    /// Whether somebody left it behind, rather than that its time is over: of one that
    /// is not over on record, and that there is something to be done about.
    pub fn is_leftover(&self, host: &Host) -> bool {
        match self.facts.tie {
            Tie::HalfMade | Tie::Attached | Tie::Detaching => true,
            Tie::Detached | Tie::Damaged => {
                self.keeper.is_some() || self.reason(host) == Reason::Rebooted
            }
        }
    }

    pub fn tie(&self) -> Tie {
        self.facts.tie
    }

    pub fn is_attached(&self) -> bool {
        self.facts.tie == Tie::Attached
    }
}

/// How a box ended that no command has cleaned up yet: its cgroups still count.
fn unwritten_end(record: &Record, life: &[LifeEvent], of: Tagged<'_>, host: &Host) -> EndedEntry {
    let intent = record.account.intent.as_ref();
    let roots = intent.map_or(&[][..], |intent| &intent.cgroup_roots);
    let oom = cgroup::oom_kills(roots, of) > 0;
    let is_of_this_boot = intent.is_some_and(|intent| intent.boot_id == host.boot_id);
    let last_sign = record.last_sign().filter(|_| is_of_this_boot);
    EndedEntry::of(life, last_sign, oom, Duration::ZERO)
}

/// The record of an attached box is its creator's, so whoever pauses that one
/// cannot note it.
fn may_be_frozen(record: &Record, tie: Tie, depth: Depth) -> bool {
    match depth {
        Depth::Care => false,
        Depth::List => tie != Tie::Detached || record.account.pausing.is_some(),
        Depth::State => true,
    }
}

fn workload_cgroup(tie: Tie) -> WorkloadCgroup {
    match tie {
        Tie::HalfMade | Tie::Attached => WorkloadCgroup::Shared,
        Tie::Detaching | Tie::Detached | Tie::Damaged => WorkloadCgroup::Own,
    }
}

fn tie(record: &Record, life: &[LifeEvent]) -> Tie {
    let was_left = life.contains(&LifeEvent::Detached);
    if record.flaw.is_some() {
        return Tie::Damaged;
    }
    match (&record.account.intent, &record.account.keeper) {
        // Only what is to outlive its creator has a life of its own.
        (None, _) if record.has_life() => Tie::Damaged,
        (None, _) => Tie::HalfMade,
        (Some(_), None) if was_left => Tie::Damaged,
        (Some(intent), _) => match &intent.detached {
            None => Tie::Attached,
            Some(_) if was_left => Tie::Detached,
            Some(_) => Tie::Detaching,
        },
    }
}

/// Whoever listens on the box's socket, if it is the keeper of the box: where
/// the record does not say who that is.
fn listening_keeper(record: &Record, of: Tagged<'_>) -> io::Result<Option<Process>> {
    let listener = record.listener()?.map_or(Ok(None), open_process)?;
    Ok(listener.filter(|process| host_objects::is_keeper_of(process, of)))
}

/// `None` where there is no such process. An error means that it cannot be seen.
fn open_process(pid: i32) -> io::Result<Option<Process>> {
    match Process::open(pid) {
        Ok(process) => Ok(Some(process)),
        // What pidfd_open(2) says of a number that no process has.
        Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::SRCH | Errno::INVAL | Errno::NOENT) | None => Ok(None),
            Some(_) => Err(error),
        },
    }
}

/// The keeper of a box, judged by the kernel. A box whose keeper cannot be seen is not
/// taken for dead: tare leaves it alone and reports why.
fn held_against_kernel(
    tie: Tie,
    record: &mut Record,
    of: Tagged<'_>,
    host: &Host,
) -> (Tie, Option<Process>) {
    let seen = try_against_kernel(tie, record, of, host);
    seen.unwrap_or_else(|error| {
        record.flaw.get_or_insert(Flaw::Unseen(error.to_string()));
        (Tie::Damaged, None)
    })
}

/// A box that lives although its record says, or lets assume, that it does not, has a
/// record that is wrong about it: that is no reason to end it.
fn try_against_kernel(
    tie: Tie,
    record: &mut Record,
    of: Tagged<'_>,
    host: &Host,
) -> io::Result<(Tie, Option<Process>)> {
    let recorded = match tie {
        Tie::Attached | Tie::Detaching | Tie::Detached => living_keeper(record, of, host)?,
        Tie::HalfMade | Tie::Damaged => None,
    };
    match tie {
        // It never outlives its creator, who has the lock.
        Tie::Attached => return Ok((tie, recorded)),
        // Just made; or taken over by somebody who ends it.
        Tie::HalfMade if record.is_blank() || record.account.ending.is_some() => {
            return Ok((tie, None));
        }
        Tie::Detaching | Tie::Detached if recorded.is_some() => {
            let stays = |keeper: &Process| !goes_with_creator(tie, record, keeper);
            return Ok((tie, recorded.filter(stays)));
        }
        Tie::HalfMade | Tie::Detaching | Tie::Detached | Tie::Damaged => {}
    }
    let listening = listening_keeper(record, of)?;
    if tie == Tie::Damaged {
        record.flaw.get_or_insert(Flaw::Incomplete);
        return Ok((tie, listening));
    }
    // From another PID namespace its keeper cannot be seen, and its cgroups may not be.
    let lives = listening.is_some() || record.is_kept_out_of_sight()? || is_populated(of, host)?;
    // Whoever has the lock is not finished with it.
    let is_unfinished = || tie != Tie::Detached && record.is_busy();
    if !lives || is_unfinished() {
        return Ok((tie, listening));
    }
    record.flaw = Some(match tie {
        Tie::Detached => Flaw::Wrong,
        Tie::HalfMade | Tie::Detaching | Tie::Attached | Tie::Damaged => Flaw::Incomplete,
    });
    Ok((Tie::Damaged, listening))
}

/// Whether the keeper of a box that is not let go of yet ends, now that its creator is
/// gone: it is told by the kernel, and takes a moment.
fn goes_with_creator(tie: Tie, record: &Record, keeper: &Process) -> bool {
    tie == Tie::Detaching && !record.is_busy() && matches!(keeper.wait_dead(GOES_WITHIN), Ok(true))
}

const GOES_WITHIN: Duration = Duration::from_millis(200);

/// Whether anybody is in the box, by its cgroup. The kernel may be a moment late to
/// say that the last one is gone.
fn is_populated(of: Tagged<'_>, host: &Host) -> io::Result<bool> {
    for look in 0..POPULATED_LOOKS {
        if look > 0 {
            #[expect(clippy::disallowed_methods, reason = "bounded by POPULATED_LOOKS")]
            std::thread::sleep(LOOK_AGAIN);
        }
        if !CgroupReader::new(host, of).is_populated()? {
            return Ok(false);
        }
    }
    Ok(true)
}

const POPULATED_LOOKS: u32 = 10;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

fn living_keeper(record: &Record, of: Tagged<'_>, host: &Host) -> io::Result<Option<Process>> {
    let Some(process) = recorded_keeper(record, of, host)? else {
        return Ok(None);
    };
    let is_dead = process.wait_dead(Duration::ZERO)?;
    Ok((!is_dead).then_some(process))
}

/// The process that the record means, dead or alive; an error if it cannot be seen. A
/// number alone proves nothing. The pidfd's inode is a full proof within a boot, wherever
/// the process was moved to. Before Linux 6.9 there is none, and two processes can have the
/// same number and birth tick, one after the other. Then the process must also be in the
/// box's cgroup or have its keeper's arguments.
fn recorded_keeper(record: &Record, of: Tagged<'_>, host: &Host) -> io::Result<Option<Process>> {
    let Some(identity) = record.account.keeper.as_ref() else {
        return Ok(None);
    };
    if identity.boot_id != host.boot_id {
        return Ok(None);
    }
    let Some(process) = open_process(identity.pid)? else {
        return Ok(None);
    };
    let is_it = match (identity.pidfd_inode, identity.birth_tick) {
        // Every keeper is the first of its namespace. A record that was copied or edited
        // may have the inode of another process.
        (Some(recorded), _) => {
            process.inode()? == Some(recorded) && process.is_first_of_namespace()?
        }
        (None, Some(recorded)) => match process.birth_tick() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            tick => tick? == recorded && is_in_box(&process, of),
        },
        (None, None) => false,
    };
    Ok(is_it.then_some(process))
}

/// The keeper, if it is provably this box's: it may be signalled. If the record names no
/// keeper, or a wrong one, it is the process that listens on the box's socket. An error
/// means that it cannot be seen.
pub fn provable_keeper(
    record: &Record,
    of: Tagged<'_>,
    host: &Host,
) -> io::Result<Option<Process>> {
    if let Some(process) = recorded_keeper(record, of, host)? {
        return Ok(Some(process));
    }
    if let Some(process) = listening_keeper(record, of)? {
        return Ok(Some(process));
    }
    match record.account.keeper {
        Some(_) => Ok(None),
        None => Ok(unrecorded_keeper(of, host)),
    }
}

/// By its name alone: in the box's cgroup, where there are few, or wherever it is.
fn unrecorded_keeper(of: Tagged<'_>, host: &Host) -> Option<Process> {
    let mut members = CgroupReader::new(host, of).tree().members.into_iter();
    let inside = members.find_map(|pid| host_objects::keeper_with(of, pid));
    inside.or_else(|| host_objects::keeper_of(of))
}

/// In the box's own cgroup, or wherever it was moved to under the box's id.
fn is_in_box(process: &Process, of: Tagged<'_>) -> bool {
    let path = process.cgroup().ok().flatten();
    path.is_some_and(|path| cgroup::is_of(Path::new(&path), of))
        || host_objects::is_keeper_of(process, of)
}

/// Nothing is kept of a box of an earlier boot, of which only names are left, nor of one
/// whose removal has begun.
fn is_expired(record: &Record, host: &Host) -> bool {
    let Some(intent) = &record.account.intent else {
        return false;
    };
    let since = |at_ns: u64| Duration::from_nanos(boot_ns().saturating_sub(at_ns));
    let ended = record.account.ended.as_ref();
    let is_over = match &intent.detached {
        None => ended.is_some(),
        Some(options) if options.remove => true,
        Some(options) => ended.is_some_and(|ended| since(ended.at_ns) >= options.retention),
    };
    is_over || record.account.removing || intent.boot_id != host.boot_id
}

fn is_overdue(record: &Record) -> bool {
    let keeper = record.account.keeper.as_ref();
    let lease_ns = keeper.and_then(|keeper| keeper.lease.ends_ns());
    let late_ns = u64::try_from(OVERDUE_AFTER.as_nanos()).unwrap_or(u64::MAX);
    lease_ns.is_some_and(|at| at.saturating_add(late_ns) <= boot_ns())
}
