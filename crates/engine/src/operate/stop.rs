//! Ending boxes that somebody else may have started. Every way leads through the
//! one way out, and returns when emptiness was observed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use tare_control::Call;
use tare_control::life::{self, LifeEvent};
use tare_kernel::process::Process;

use crate::engine::Engine;
use crate::error::{Context, Error, ErrorKind};
use crate::holdings::cgroup;
use crate::observe::view::{Ended, State};
use crate::observe::{Observed, provable_keeper};
use crate::operate::find::has_ended;
use crate::record::damage::Flaw;
use crate::record::lines::EndedEntry;
use crate::record::reason::Reason;
use crate::record::{Locked, Record, life_of};
use crate::session::link;
use crate::spec::BoxId;
use crate::teardown::{Leave, Order, await_death, tear_down};

/// What a keeper may need to end its box after the grace.
const AFTER_GRACE: Duration = Duration::from_secs(1);
/// How long one look at a box that is waited for lasts.
const WAIT: Duration = Duration::from_secs(3600);
/// Between looks at a box that somebody is making or ending.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A box that was asked to stop.
#[derive(Debug)]
pub struct Stopping {
    id: BoxId,
    /// Who has been asked, and ends the box after the grace.
    keeper: Option<Process>,
    until: Instant,
}

/// What tells the end of a box.
#[derive(Debug)]
pub struct EndWatch {
    id: BoxId,
    /// Open, it can be read to the end whoever removes it.
    life: Option<OwnedFd>,
}

/// What a look for the end of a box has found.
#[derive(Debug)]
pub enum Looked {
    Ended(Ended),
    /// Its keeper lives.
    Lives(Process),
    /// Another process is making or ending it, or it is stuck.
    Between,
}

impl Stopping {
    /// The process that has been asked, and ends the box within this time.
    pub fn keeper(&self) -> Option<(BorrowedFd<'_>, Duration)> {
        let left = self.until.saturating_duration_since(Instant::now());
        self.keeper.as_ref().map(|keeper| (keeper.as_fd(), left))
    }
}

impl Engine {
    /// Passes a signal to the command of a box.
    pub fn signal(&self, id: &BoxId, signal: i32) -> Result<(), Error> {
        link::call_done(&self.awake(id)?, id, &Call::Signal(signal))
    }

    /// Asks the command to stop, and does not wait for it. Whether or not
    /// [`Self::end_stop`] follows, the box ends after the grace.
    pub fn begin_stop(&self, id: &BoxId, grace: Duration) -> Result<Stopping, Error> {
        let stopping = |keeper| Stopping {
            id: id.clone(),
            keeper,
            until: Instant::now() + grace.saturating_add(AFTER_GRACE),
        };
        let observed = match self.observe(id) {
            // It was there when its id was looked up, and ended by itself since.
            Err(error) if error.kind() == ErrorKind::NoSuchBox => return Ok(stopping(None)),
            observed => observed?,
        };
        match observed.state() {
            // Nobody can be asked: the one way out comes next.
            State::Exited | State::Starting | State::Stuck => return Ok(stopping(None)),
            State::Running | State::Paused | State::Stopping => {}
        }
        if observed.is_attached() {
            // If it is paused, its keeper is too and could not hear anything.
            self.thaw(id, &observed)?;
        }
        let grace_ns = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
        // A keeper that cannot be asked is ended without.
        let asked = link::call_done(&observed.record, id, &Call::Stop { grace_ns });
        self.thaw(id, &observed)?;
        Ok(stopping(observed.keeper.filter(|_| asked.is_ok())))
    }

    /// Ends what has not stopped after the grace. Returns when emptiness was observed.
    pub fn end_stop(&self, stopping: &Stopping) -> Result<(), Error> {
        self.tended();
        if let Some(keeper) = &stopping.keeper {
            let left = stopping.until.saturating_duration_since(Instant::now());
            // Whatever this says, the one way out comes next.
            keeper.wait_dead(left).ok();
        }
        self.end(&stopping.id, Leave::Record)
    }

    fn thaw(&self, id: &BoxId, observed: &Observed) -> Result<(), Error> {
        if !observed.is_frozen() {
            return Ok(());
        }
        match cgroup::freeze(&self.root.host.cgroups, self.at(id).tagged(), false) {
            // It was frozen in cgroups that are gone by now: another command ended it.
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
            thawed => thawed,
        }
    }

    /// SIGKILL to the whole box.
    pub fn kill(&self, id: &BoxId) -> Result<(), Error> {
        if self.observe(id)?.is_live() { self.end(id, Leave::Record) } else { Err(has_ended(id)) }
    }

    /// Removes a box; one that is not over only by force.
    pub fn remove(&self, id: &BoxId, force: bool) -> Result<(), Error> {
        if self.tended().contains(id) {
            return Ok(());
        }
        if !force {
            let observed = match self.observe(id) {
                // It was there when its id was looked up, and was not to be kept.
                Err(error) if error.kind() == ErrorKind::NoSuchBox => return Ok(()),
                observed => observed?,
            };
            if observed.is_live() {
                let message = format!("box {id} is {}", observed.state());
                return Err(
                    Error::conflict(message).with_hint("stop it first, or use 'tare rm -f'")
                );
            }
        }
        self.end(id, Leave::Nothing)
    }

    /// The first process of a box, which lives as long as the box.
    pub fn keeper(&self, id: &BoxId) -> Result<Option<Process>, Error> {
        Ok(self.observe(id)?.keeper)
    }

    /// Waits for the end of a box.
    pub fn wait(&self, id: &BoxId) -> Result<Ended, Error> {
        self.await_end(&self.watch_end(id)?)
    }

    /// Whoever has this learns how the box ended, also when nothing of it is left
    /// by then.
    pub fn watch_end(&self, id: &BoxId) -> Result<EndWatch, Error> {
        let observed = self.observe(id)?;
        Ok(EndWatch { id: id.clone(), life: observed.record.open_life() })
    }

    pub fn await_end(&self, watch: &EndWatch) -> Result<Ended, Error> {
        loop {
            match self.look_for_end(watch)? {
                Looked::Ended(ended) => return Ok(ended),
                Looked::Lives(keeper) => drop(keeper.wait_dead(WAIT)),
                #[expect(
                    clippy::disallowed_methods,
                    reason = "bounded by the time to create or end a box"
                )]
                Looked::Between => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// How the box has ended, or what there is to wait for. Does not wait.
    pub fn look_for_end(&self, watch: &EndWatch) -> Result<Looked, Error> {
        let id = &watch.id;
        let Ok(observed) = self.observe(id) else {
            let said = watch.life.as_ref().and_then(said);
            return said.map(Looked::Ended).ok_or_else(|| removed(id));
        };
        Ok(match (&observed.ended, observed.keeper) {
            (Some(ended), _) => Looked::Ended(Ended::from(ended)),
            (None, Some(keeper)) => Looked::Lives(keeper),
            (None, None) => Looked::Between,
        })
    }

    fn end(&self, id: &BoxId, leave: Leave) -> Result<(), Error> {
        let boxes = self.boxes()?;
        let record = Record::look(boxes.as_fd(), id).map_err(|error| cannot_look(id, error))?;
        // Its own tare, or another command, was faster.
        let Some(record) = record else {
            return Ok(());
        };
        self.kill_attached(&record, id)?;
        let Some(mut locked) = record.lock(boxes.as_fd(), id, self.end_within)? else {
            return Ok(());
        };
        if let (Leave::Record, Some(flaw @ Flaw::Unreadable(_))) = (leave, &locked.flaw) {
            // It may say that it is to be kept.
            let message = format!("cannot end box {id}");
            return Err(Error::failed(message)
                .caused_by(flaw.to_string())
                .with_hint("'tare rm -f' ends it all the same, and keeps nothing of it"));
        }
        let leave = if is_kept(&locked) { leave } else { Leave::Nothing };
        let (reason, within) = (Reason::Asked, self.end_within);
        tear_down(self.at(id), &mut locked, Order { reason, leave, within, child: None })
    }

    /// The lock of an attached box is its creator's until the box is gone. So it
    /// is the keeper that is killed first; the creator does the rest. A record that
    /// does not say whose box it is may be that of one.
    fn kill_attached(&self, record: &Record, id: &BoxId) -> Result<(), Error> {
        let attached = record.account.detached().is_none();
        let keeper = provable_keeper(record, self.at(id).tagged(), &self.root.host);
        match keeper.context(|| format!("cannot look for the keeper of box {id}"))? {
            Some(keeper) if attached => kill(&keeper, id, self.end_within),
            Some(_) | None => Ok(()),
        }
    }
}

fn kill(keeper: &Process, id: &BoxId, within: Duration) -> Result<(), Error> {
    // A keeper that cannot be killed is met again, and reported, by what follows.
    keeper.kill().ok();
    await_death(keeper, id, within)
}

/// What the keeper of a box that is gone has said about its end.
fn said(life: &OwnedFd) -> Option<Ended> {
    let events = life::parse(&life_of(life.as_fd()).ok()?);
    let was_left = events.contains(&LifeEvent::Detached);
    was_left.then(|| Ended::from(&EndedEntry::of(&events, None, false, Duration::ZERO)))
}

impl From<&EndedEntry> for Ended {
    fn from(entry: &EndedEntry) -> Self {
        Self { exit_code: Some(entry.exit_code), ended_by: Some(entry.by), oom: entry.oom }
    }
}

/// Only what was left to itself has a record worth keeping.
fn is_kept(record: &Locked) -> bool {
    let options = record.account.detached();
    let was_left = || {
        // What cannot be read is no reason to lose the rest.
        let life = record.life();
        life.map_or(true, |life| life.contains(&LifeEvent::Detached))
    };
    options.is_some_and(|options| !options.remove) && was_left()
}

fn cannot_look(id: &BoxId, error: std::io::Error) -> Error {
    Error::failed(format!("cannot open the record of box {id}")).caused_by(error)
}

fn removed(id: &BoxId) -> Error {
    Error::failed(format!("box {id} was removed while it was waited for"))
        .caused_by("nobody kept its exit code")
        .with_hint("an attached box tells it to its own tare; leave --rm out to have it kept")
}
