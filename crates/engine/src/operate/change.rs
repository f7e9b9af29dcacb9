//! Changes a live box: pause, resume, rename, limits and lease.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use tare_control::{Call, Report};
use tare_kernel::clock::boot_ns;
use tare_kernel::locks::LOCK_WITHIN;
use tare_kernel::process::Process;

use crate::care::tend::{observe_tended, settle_name_owner};
use crate::create::machine::check_memory;
use crate::error::{Context, Error, Hint};
use crate::holdings::census::Processes;
use crate::holdings::cgroup::{self, Which};
use crate::holdings::name;
use crate::host::layout::BoxAt;
use crate::host::processes::all_pids;
use crate::host::state_root;
use crate::observe::Observation;
use crate::observe::state::Request;
use crate::observe::view::no_box;
use crate::record::lines::{Lease, Line, UpdatedLine};
use crate::record::{LockedRecord, Record};
use crate::session::link;
use crate::spec::{BoxId, Cpus, Isolation, Limit, Limits, Name, quantity};

/// What to change; `None` leaves it as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub memory_bytes: Option<u64>,
    pub pids: Option<u32>,
    pub cpus: Option<Cpus>,
    /// From now on; or never.
    pub lease: Option<Option<Duration>>,
}

/// Stops every process of a detached box where it is; its deadlines go on.
///
/// An attached box cannot be paused: unless it has a processor limit, its keeper is in the cgroup
/// that would be frozen, and its timeout would not be enforced.
pub fn pause(at: BoxAt<'_>) -> Result<(), Error> {
    let hint = Hint::CreateDetached("to pause it");
    let (record, observation) = lock_detached(at, Request::Pause, hint)?;
    // Never while a process is started: the keeper waits for that.
    link::call_done(&record, at.id, &Call::Freeze)?;
    cgroup::freeze(&cgroup::parents_of(at, &observation.record), at.tagged_id(), true)?;
    match at_large(at, &observation) {
        None => Ok(()),
        Some(pid) => {
            cgroup::freeze(&cgroup::parents_of(at, &observation.record), at.tagged_id(), false)?;
            link::call_done(&record, at.id, &Call::Resumed).ok();
            Err(moved_away(at.id, pid))
        }
    }
}

/// Continues the processes of a paused box.
pub fn resume(at: BoxAt<'_>) -> Result<(), Error> {
    let hint = Hint::CreateDetached("to pause and resume it");
    let (_record, observation) = lock_detached(at, Request::Resume, hint)?;
    cgroup::freeze(&cgroup::parents_of(at, &observation.record), at.tagged_id(), false)?;
    if observation.paused {
        // The box continues, even if its keeper cannot record that.
        link::call_done(&observation.record, at.id, &Call::Resumed).ok();
    }
    Ok(())
}

/// Returns a process of a contained box that is in none of its frozen cgroups. A contained box sees the
/// host's cgroups, and its processes can move there as root. Other boxes see no cgroups.
fn at_large(at: BoxAt<'_>, observation: &Observation) -> Option<i32> {
    if observation.spec().is_none_or(|spec| spec.isolation != Isolation::Contain) {
        return None;
    }
    let keeper = observation.keeper()?.pid();
    let processes = Processes::read(at.root, &all_pids());
    let lives = |pid: &i32| processes.stat(*pid).is_some_and(|it| !it.is_zombie);
    let is_held = |pid: &i32| {
        let cgroup = Process::open(*pid).and_then(|it| it.cgroup());
        cgroup.ok().flatten().is_none_or(|path| {
            // The box's own cgroup does not count: it is not frozen, because the keeper is in it.
            let mut holders = Path::new(&path).ancestors().skip(1);
            holders.any(|it| cgroup::is_of(it, at.tagged_id()))
        })
    };
    let others = processes.descendants(keeper).into_iter().filter(|it| *it != keeper);
    others.filter(lives).find(|pid| !is_held(pid))
}

/// Gives a box another name. The record has the new name before the box takes it. A rename that is
/// killed leaves the box with its old name, or with both until the next command.
pub fn rename(at: BoxAt<'_>, wanted: &Name) -> Result<(), Error> {
    let (mut record, _) = lock_detached(at, Request::Rename, CHANGE_LATER)?;
    let old = name::current(at, &record.lines).cloned();
    if old.as_ref() == Some(wanted) {
        return Ok(());
    }
    let tenant = record.lines.tenant().cloned().ok_or_else(|| damaged(at.id))?;
    settle_name_owner(at.root, &tenant, wanted)?;
    name::check_free(&at.root.layout, &tenant, wanted)?;
    let doing = || format!("cannot record the name of box {}", at.id);
    let renamed = |name: &Name| Line::Renamed { name: name.clone(), at_ns: boot_ns() };
    record.add(renamed(wanted)).context(doing)?;
    if let Err(error) = name::acquire(&at.root.layout, &tenant, wanted, at.id) {
        // Another box has taken the name. This box has its old name, even if that cannot be recorded.
        old.map(|old| record.add(renamed(&old)));
        return Err(error);
    }
    name::release_superseded(at, &record.lines, LOCK_WITHIN)?;
    // A client that renames its box without end would fill the state root.
    record.drop_old_names();
    Ok(())
}

/// Gives a live box other limits, or another lease from now on.
pub fn update(at: BoxAt<'_>, changes: &Changes) -> Result<(), Error> {
    let (mut record, observation) = lock_detached(at, Request::Update, CHANGE_LATER)?;
    let in_machine = record.is_machine();
    let Some(created) = &record.lines.created else { return Err(damaged(at.id)) };
    let before = created.spec.limits.clone();
    let mut limits = before.clone();
    if let Some(bytes) = changes.memory_bytes {
        limits.memory_bytes = Limit::Asked(bytes);
    }
    if let Some(pids) = changes.pids {
        limits.pids = Limit::Asked(pids);
    }
    limits.cpus = changes.cpus.or(limits.cpus);
    let which = Which {
        memory: changes.memory_bytes.is_some(),
        // The cgroup of a machine's box limits the threads of its monitor.
        pids: changes.pids.is_some() && !in_machine,
        cpu: changes.cpus.is_some(),
    };
    let parents = cgroup::parents_of(at, &record);
    let set = |limits: &Limits| cgroup::change(&parents, at.tagged_id(), limits, which);
    let memory = MachineMemory {
        most: record.lines.first_memory_bytes.unwrap_or(before.memory_bytes.value()),
        had: before.memory_bytes.value(),
        gets: limits.memory_bytes.value(),
    };
    if in_machine && which.memory {
        memory.check(at.id, observation.paused)?;
    }
    let written = if in_machine && memory.gets < memory.had {
        // The machine gives memory back before its box may use less.
        change_machine(at, &record, changes, &memory).and_then(|()| set(&limits))
    } else if in_machine {
        set(&limits).and_then(|()| change_machine(at, &record, changes, &memory))
    } else {
        set(&limits)
    };
    let written = written.and_then(|()| change_lease_and_record(at, &mut record, changes));
    if written.is_err() {
        // The box keeps no limit that is not on record: quotas count those.
        if in_machine && which.memory {
            link::call_done(&record, at.id, &memory.call(memory.had)).ok();
        }
        set(&before).ok();
        if in_machine && changes.pids.is_some() {
            link::call_done(&record, at.id, &Call::MachinePids(before.pids.value())).ok();
        }
    }
    written
}

/// The memory of a machine, in bytes: what it was started with, what it had before a change, and what it
/// gets.
struct MachineMemory {
    most: u64,
    had: u64,
    gets: u64,
}

impl MachineMemory {
    /// Refuses a change that the machine cannot make, before anything is changed.
    fn check(&self, id: &BoxId, is_paused: bool) -> Result<(), Error> {
        check_memory(self.gets)?;
        if self.gets > self.most {
            let most = quantity::show_bytes(self.most);
            return Err(Error::conflict(format!("cannot give box {id} more than {most}"))
                .caused_by("its machine was started with that much memory")
                .with_hint(Hint::MoreMemoryInNewBox));
        }
        if is_paused && self.gets < self.had {
            return Err(cannot_lower(id)
                .caused_by("it is paused, and its machine can give nothing back")
                .with_hint(Hint::Resume));
        }
        Ok(())
    }

    /// Returns the call that leaves the machine this much.
    fn call(&self, bytes: u64) -> Call {
        Call::MachineMemory { less_bytes: self.most.saturating_sub(bytes) }
    }
}

/// Changes the limits that act in a machine. Returns when the machine has given back the memory that its
/// box may no longer use.
fn change_machine(
    at: BoxAt<'_>,
    record: &Record,
    changes: &Changes,
    memory: &MachineMemory,
) -> Result<(), Error> {
    if let Some(pids) = changes.pids {
        link::call_done(record, at.id, &Call::MachinePids(pids))?;
    }
    if changes.memory_bytes.is_none() {
        return Ok(());
    }
    link::call_done(record, at.id, &memory.call(memory.gets))?;
    if memory.gets >= memory.had {
        return Ok(());
    }
    let enough = (memory.most - memory.gets).saturating_sub(MEMORY_SLACK_BYTES);
    let until = Instant::now() + GIVES_BACK_WITHIN;
    while Instant::now() < until {
        if given_back(at, record).is_some_and(|bytes| bytes >= enough) {
            return Ok(());
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by GIVES_BACK_WITHIN")]
        std::thread::sleep(LOOK_AGAIN);
    }
    Err(cannot_lower(at.id)
        .caused_by("its machine did not give it back in time")
        .with_hint("end processes or remove files in the box, then try again"))
}

fn cannot_lower(id: &BoxId) -> Error {
    Error::conflict(format!("cannot lower the memory of box {id}"))
}

/// Returns how much memory a machine has given back since its start, if it says that.
fn given_back(at: BoxAt<'_>, record: &Record) -> Option<u64> {
    match link::call(record, at.id, &Call::Usage) {
        Ok((Report::MachineUsage { given_back_bytes, .. }, _)) => Some(given_back_bytes),
        Ok(_) | Err(_) => None,
    }
}

/// How long a machine may take to give memory back. Other commands wait for the record meanwhile.
const GIVES_BACK_WITHIN: Duration = Duration::from_secs(8);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// A machine rounds what it gives back.
const MEMORY_SLACK_BYTES: u64 = 2 << 20;

fn change_lease_and_record(
    at: BoxAt<'_>,
    record: &mut LockedRecord,
    changes: &Changes,
) -> Result<(), Error> {
    let lease = changes.lease.map(Lease::of);
    if let Some(lease) = lease {
        let ends_ns = lease.ends_ns();
        link::call_done(record, at.id, &Call::Lease { ends_ns })?;
    }
    let update = UpdatedLine {
        at_ns: boot_ns(),
        memory_bytes: changes.memory_bytes,
        pids: changes.pids,
        cpus: changes.cpus,
        lease,
    };
    let doing = || format!("cannot record the limits of box {}", at.id);
    record.add(Line::Updated(update)).context(doing)
}

const CHANGE_LATER: Hint = Hint::CreateDetached("to change it later");

/// Locks the record of a detached box that accepts the request: while this is held, no other process
/// changes the box. An attached box is locked by its creator for as long as it lives.
fn lock_detached(
    at: BoxAt<'_>,
    request: Request,
    hint: Hint,
) -> Result<(LockedRecord, Observation), Error> {
    let observation = observe_tended(at)?;
    observation.check(at.id, request)?;
    if observation.is_attached() {
        return Err(Error::conflict(format!("cannot {} box {}", request.verb(), at.id))
            .caused_by("it is attached to the process that started it")
            .with_hint(hint));
    }
    let boxes = state_root::boxes(at.root)?;
    let doing = || format!("cannot open the record of box {}", at.id);
    let record = Record::look(boxes.as_fd(), at.id).context(doing)?;
    let record = record.ok_or_else(|| no_box(at.id.as_str()))?;
    let locked = record.lock(boxes.as_fd(), at.id, LOCK_WITHIN)?;
    let locked = locked.ok_or_else(|| no_box(at.id.as_str()))?;
    if let Some(damage) = &locked.damage {
        // It is not known what the box is, so it cannot be changed.
        return Err(damaged(at.id).caused_by(damage.to_string()));
    }
    // The process that had the lock may have changed the box.
    let observation = observe_tended(at)?;
    observation.check(at.id, request)?;
    Ok((locked, observation))
}

fn moved_away(id: &BoxId, pid: i32) -> Error {
    Error::conflict(format!("cannot pause box {id}"))
        .caused_by(format!("its process {pid} has moved to a cgroup that is not the box's"))
        .with_hint("move it back or end it, then pause the box again")
}

fn damaged(id: &BoxId) -> Error {
    Error::conflict(format!("the record of box {id} is damaged")).with_hint(Hint::Force)
}
