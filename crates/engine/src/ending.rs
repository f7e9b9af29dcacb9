//! Ending boxes that somebody else may have started. Every way leads through the
//! one way out, and returns when emptiness was observed.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tare_control::Call;
use tare_control::life::{self, LifeEvent};
use tare_kernel::fds::read_text;
use tare_kernel::process::Process;

use crate::account::EndedEntry;
use crate::boxes::no_box;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind};
use crate::holdings::cgroup;
use crate::id::BoxId;
use crate::line;
use crate::observed::provable_keeper;
use crate::record::{Locked, Record};
use crate::status::{Ended, State};
use crate::teardown::{OWN_WITHIN, wait_gone};

/// What a keeper may need to end its box after the grace.
const AFTER_GRACE: Duration = Duration::from_secs(1);
/// How long one look at a box that is waited for lasts.
const WAIT: Duration = Duration::from_secs(3600);
/// Between looks at a box that somebody is making or ending.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What is to be left of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    Record,
    Nothing,
}

impl Engine {
    /// Passes a signal to the command of a box.
    pub fn signal(&self, id: &BoxId, signal: i32) -> Result<(), Error> {
        line::tell(&self.awake(id)?, id, &Call::Signal(signal))
    }

    /// Asks the command to stop; what has not after the grace is ended.
    pub fn stop(&self, id: &BoxId, grace: Duration) -> Result<(), Error> {
        let observed = self.observe(id)?;
        match observed.state() {
            State::Exited => return Ok(()),
            State::Starting | State::Stuck => return self.end(id, Leave::Record),
            State::Running | State::Paused | State::Stopping => {}
        }
        let grace_ns = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
        let is_paused = observed.state() == State::Paused;
        if is_paused && observed.is_attached() {
            // Its keeper is frozen too and could not hear anything.
            cgroup::freeze(&self.host.cgroups, id, false)?;
        }
        // A keeper that cannot be asked is ended without.
        let asked = line::tell(&observed.record, id, &Call::Stop { grace_ns });
        if is_paused && !observed.is_attached() {
            cgroup::freeze(&self.host.cgroups, id, false)?;
        }
        if let (Ok(()), Some(keeper)) = (asked, &observed.keeper) {
            // Whatever this says, the one way out comes next.
            keeper.wait_dead(grace.saturating_add(AFTER_GRACE)).ok();
        }
        self.end(id, Leave::Record)
    }

    /// SIGKILL to the whole box.
    pub fn kill(&self, id: &BoxId) -> Result<(), Error> {
        self.end(id, Leave::Record)
    }

    /// Removes a box; one that is not over only by force.
    pub fn remove(&self, id: &BoxId, force: bool) -> Result<(), Error> {
        if self.tended.contains(id) {
            return Ok(());
        }
        if !force {
            let observed = self.observe(id)?;
            if observed.is_live() {
                let message = format!("box {id} is {}", observed.state());
                return Err(Error::new(ErrorKind::Failed, message)
                    .with_hint("stop it first, or use 'tare rm -f'"));
            }
        }
        self.end(id, Leave::Nothing)
    }

    /// Waits for the end of a box.
    pub fn wait(&self, id: &BoxId) -> Result<Ended, Error> {
        let mut observed = self.observe(id)?;
        // Open, it can be read to the end by us whoever removes it.
        let life = observed.record.open_life();
        while observed.ended.is_none() {
            match &observed.keeper {
                Some(keeper) => drop(keeper.wait_dead(WAIT)),
                // It is being made or ended by somebody, and there is nothing to
                // wait on. A look-again, bounded by what those may take.
                None => std::thread::sleep(LOOK_AGAIN),
            }
            observed = match self.observe(id) {
                Ok(observed) => observed,
                Err(_) => return life.and_then(|life| said(&life)).ok_or_else(|| removed(id)),
            };
        }
        let ended = observed.ended.ok_or_else(|| removed(id))?;
        Ok(Ended {
            exit_code: Some(ended.exit_code),
            ended_by: Some(ended.by),
            oom: ended.oom,
        })
    }

    fn end(&self, id: &BoxId, leave: Leave) -> Result<(), Error> {
        let boxes = self.boxes()?;
        let record = Record::look(boxes.as_fd(), id)
            .map_err(|error| cannot_look(id, error))?
            .ok_or_else(|| no_box(id.as_str()))?;
        self.kill_attached(&record, id)?;
        let Some(locked) = record.lock(boxes.as_fd(), id, OWN_WITHIN)? else {
            // Its own tare, or another command, was faster.
            return Ok(());
        };
        let site = self.site(id);
        match (leave, is_kept(&locked)) {
            (Leave::Record, true) => site.finish(locked, OWN_WITHIN),
            (Leave::Record, false) | (Leave::Nothing, _) => site.tear_down(locked, OWN_WITHIN),
        }
    }

    /// The lock of an attached box is its creator's until the box is gone. So it
    /// is the keeper that is killed first; the creator does the rest.
    fn kill_attached(&self, record: &Record, id: &BoxId) -> Result<(), Error> {
        let attached = record.account.intent.is_some() && record.account.detached().is_none();
        match provable_keeper(record, id, &self.host) {
            Some(keeper) if attached => kill(&keeper, id),
            Some(_) | None => Ok(()),
        }
    }
}

fn kill(keeper: &Process, id: &BoxId) -> Result<(), Error> {
    // A keeper that cannot be killed is met again, and reported, by what follows.
    keeper.kill().ok();
    wait_gone(keeper, id, OWN_WITHIN)
}

/// What the keeper of a box that is gone has said about its end.
fn said(life: &OwnedFd) -> Option<Ended> {
    let events = life::parse(&read_text(life.as_fd()).ok()?);
    let ended = EndedEntry::of(&events, false);
    events.contains(&LifeEvent::Detached).then_some(Ended {
        exit_code: Some(ended.exit_code),
        ended_by: Some(ended.by),
        oom: ended.oom,
    })
}

/// Only what was left to itself has a record worth keeping.
fn is_kept(record: &Locked) -> bool {
    let options = record.account.detached();
    options.is_some_and(|options| !options.remove) && record.life().contains(&LifeEvent::Detached)
}

fn cannot_look(id: &BoxId, error: std::io::Error) -> Error {
    Error::new(
        ErrorKind::Failed,
        format!("cannot open the record of box {id}"),
    )
    .because(error)
}

fn removed(id: &BoxId) -> Error {
    Error::new(
        ErrorKind::Failed,
        format!("box {id} was removed while it was waited for"),
    )
    .because("nobody kept its exit code")
    .with_hint("an attached box tells it to its own tare; leave --rm out to have it kept")
}
