//! Changing a live box.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use tare_control::Call;
use tare_kernel::clock::boot_ns;
use tare_kernel::locks::LOCK_WITHIN;
use tare_kernel::process::Process;

use crate::audit::census::Census;
use crate::engine::Engine;
use crate::error::{Context, Error};
use crate::holdings::cgroup::{self, Which};
use crate::holdings::name;
use crate::observe::Observed;
use crate::observe::view::State;
use crate::operate::find::{has_ended, no_box};
use crate::record::lines::{Entry, Lease, PausingEntry, Renaming, Update};
use crate::record::{Locked, Record};
use crate::session::link;
use crate::spec::{BoxId, Cpus, Isolation, Limit, Name};

/// What is to be different; `None` leaves it as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub memory_bytes: Option<u64>,
    pub pids: Option<u32>,
    pub cpus: Option<Cpus>,
    /// From now on; or never.
    pub lease: Option<Option<Duration>>,
}

impl Engine {
    /// Stops every process of a box where it is; its deadlines go on.
    pub fn pause(&self, id: &BoxId) -> Result<(), Error> {
        self.freeze(id, true)
    }

    pub fn resume(&self, id: &BoxId) -> Result<(), Error> {
        self.freeze(id, false)
    }

    fn freeze(&self, id: &BoxId, frozen: bool) -> Result<(), Error> {
        // An attached box is its creator's to lock, who never does this.
        let mut record = if self.observe(id)?.is_attached() { None } else { Some(self.lock(id)?) };
        let observed = self.observe(id)?;
        match (observed.state(), frozen) {
            (State::Running | State::Paused, true) => {
                if let Some(record) = &mut record {
                    note_pausing(record, id)?;
                    // Never while a process is born: its keeper waits for that.
                    link::call_done(record, id, &Call::Freeze)?;
                }
                cgroup::freeze(&self.root.host.cgroups, self.at(id).tagged(), true)?;
                match self.at_large(id, &observed) {
                    None => Ok(()),
                    Some(pid) => {
                        cgroup::freeze(&self.root.host.cgroups, self.at(id).tagged(), false)?;
                        Err(moved_away(id, pid))
                    }
                }
            }
            (State::Running | State::Paused | State::Stopping, false) => {
                cgroup::freeze(&self.root.host.cgroups, self.at(id).tagged(), false)?;
                if observed.is_frozen() && !observed.is_attached() {
                    // It goes on whether or not that is written down.
                    link::call_done(&observed.record, id, &Call::Resumed).ok();
                }
                Ok(())
            }
            // It has a grace to use.
            (state @ State::Stopping, true) | (state @ (State::Starting | State::Stuck), _) => {
                Err(Error::failed(format!("box {id} is {state}")))
            }
            (State::Exited, _) => Err(has_ended(id)),
        }
    }

    /// A process of a contained box that none of its frozen cgroups holds. Such a box
    /// sees the host's cgroups, and as root may have moved there; others see none.
    fn at_large(&self, id: &BoxId, observed: &Observed) -> Option<i32> {
        let intent = observed.record.account.intent.as_ref();
        if intent.is_none_or(|intent| intent.spec.isolation != Isolation::Contain) {
            return None;
        }
        let keeper = observed.keeper.as_ref()?.pid();
        let census = Census::take(self, &self.traces());
        let lives = |pid: &i32| census.stat(*pid).is_some_and(|it| !it.is_zombie);
        // The keeper of a detached box goes on, in the cgroup above its workload.
        let above = usize::from(!observed.is_attached());
        let of = self.at(id).tagged();
        let is_held = |pid: &i32| {
            let cgroup = Process::open(*pid).and_then(|it| it.cgroup());
            cgroup.ok().flatten().is_none_or(|path| {
                let mut holders = Path::new(&path).ancestors().skip(above);
                holders.any(|it| cgroup::is_of(it, of))
            })
        };
        let others = census.family(keeper).into_iter().filter(|it| *it != keeper);
        others.filter(lives).find(|pid| !is_held(pid))
    }

    /// Gives a box another name.
    pub fn rename(&self, id: &BoxId, wanted: &Name) -> Result<(), Error> {
        let mut record = self.lock_detached(id)?;
        if record.account.name() == Some(wanted) {
            return Ok(());
        }
        self.tend_holder(wanted);
        let doing = || format!("cannot record the name of box {id}");
        let renaming = Renaming { name: wanted.clone(), at_ns: boot_ns() };
        let naming = Entry::Naming(Some(renaming.clone()));
        record.add(naming).context(doing)?;
        let taken = name::acquire(&self.root.layout, wanted, id)
            .and_then(|()| record.add(Entry::Renamed(renaming)).context(doing));
        // What was not written down is not so.
        let settled = self.settle_names(&mut record, id);
        taken.and(settled)
    }

    /// Lets go of every name that is not, or not any more, the box's own.
    pub(crate) fn settle_names(&self, record: &mut Locked, id: &BoxId) -> Result<(), Error> {
        let own = record.account.name().cloned();
        let others = record.account.may_hold().filter(|it| Some(*it) != own.as_ref());
        for other in others {
            name::release(&self.root.layout, other, id)?;
        }
        match record.account.naming {
            Some(_) => record
                .add(Entry::Naming(None))
                .context(|| format!("cannot record the name of box {id}")),
            None => Ok(()),
        }
    }

    /// Gives a live box other limits, or another lease from now on.
    pub fn update(&self, id: &BoxId, changes: &Changes) -> Result<(), Error> {
        let mut record = self.lock_detached(id)?;
        let observed = self.observe(id)?;
        match (observed.is_live(), observed.keeper) {
            (false, _) => return Err(has_ended(id)),
            (true, None) => return Err(damaged(id)),
            (true, Some(_)) => {}
        }
        let mut limits = match &record.account.intent {
            Some(intent) => intent.spec.limits.clone(),
            None => return Err(damaged(id)),
        };
        if let Some(bytes) = changes.memory_bytes {
            limits.memory_bytes = Limit::Asked(bytes);
        }
        if let Some(pids) = changes.pids {
            limits.pids = Limit::Asked(pids);
        }
        limits.cpus = changes.cpus.or(limits.cpus);
        let which = Which {
            memory: changes.memory_bytes.is_some(),
            pids: changes.pids.is_some(),
            cpu: changes.cpus.is_some(),
        };
        cgroup::change(&self.root.host.cgroups, self.at(id).tagged(), &limits, which)?;
        let lease = changes.lease.map(Lease::of);
        if let Some(lease) = lease {
            let ends_ns = lease.ends_ns();
            link::call_done(&record, id, &Call::Lease { ends_ns })?;
        }
        let update = Update {
            at_ns: boot_ns(),
            memory_bytes: changes.memory_bytes,
            pids: changes.pids,
            cpus: changes.cpus,
            lease,
        };
        record
            .add(Entry::Updated(update))
            .context(|| format!("cannot record the limits of box {id}"))
    }

    /// For as long as this is held nobody else changes the box.
    pub(crate) fn lock(&self, id: &BoxId) -> Result<Locked, Error> {
        let boxes = self.boxes()?;
        let doing = || format!("cannot open the record of box {id}");
        let record = Record::look(boxes.as_fd(), id).context(doing)?;
        let record = record.ok_or_else(|| no_box(id.as_str()))?;
        let locked = record.lock(boxes.as_fd(), id, LOCK_WITHIN)?;
        let locked = locked.ok_or_else(|| no_box(id.as_str()))?;
        match &locked.flaw {
            // Whoever does not know what it is cannot say what it is to be.
            Some(flaw) => Err(damaged(id).caused_by(flaw.to_string())),
            None => Ok(locked),
        }
    }

    /// The same of a box that was left to itself. An attached one is locked by
    /// its creator for as long as it lives.
    fn lock_detached(&self, id: &BoxId) -> Result<Locked, Error> {
        if self.observe(id)?.is_attached() {
            let message = format!("box {id} cannot be changed");
            return Err(Error::bad_request(message)
                .caused_by("it is attached to the tare that started it")
                .with_hint("start it with 'tare run -d' to change it later"));
        }
        self.lock(id)
    }
}

fn moved_away(id: &BoxId, pid: i32) -> Error {
    Error::conflict(format!("cannot pause box {id}"))
        .caused_by(format!("its process {pid} has moved to a cgroup that is not the box's"))
        .with_hint("move it back or end it, then pause the box again")
}

/// Before it is, so that no list is wrong about it, whoever is killed when.
fn note_pausing(record: &mut Locked, id: &BoxId) -> Result<(), Error> {
    if record.account.pausing.is_some() {
        return Ok(());
    }
    let pausing = PausingEntry { at_ns: boot_ns() };
    record.add(Entry::Pausing(pausing)).context(|| format!("cannot record that box {id} is paused"))
}

fn damaged(id: &BoxId) -> Error {
    Error::failed(format!("the record of box {id} is damaged"))
        .with_hint("'tare rm -f' ends the box all the same")
}
