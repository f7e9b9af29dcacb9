//! The one way out. Exit, timeout, lease, stop, `rm -f`, a failed start, a
//! creator that died: every box ends here, by its id alone.
//!
//! Each step accepts what is absent, half-made or already released, returns
//! only after it saw the thing gone, and comes before the one that removes the
//! record: if a step fails, the box stays on record and can be tried again.
//!
//! ```text
//! keeper killed ─▶ cgroups seen empty ─▶ keeper reaped ─▶ cgroups removed    (end)
//!     ─▶ story kept ─▶ account removed ─▶ scratch unmounted
//!     ─▶ names released ─▶ record removed                                    (remove)
//! ```

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tare_kernel::process::Process;

use crate::account::{Account, EndedEntry, EndingEntry, Entry, StuckEntry};
use crate::error::{Doing, Error, ErrorKind};
use crate::explaining::keep_story;
use crate::holdings::{cgroup, name, scratch};
use crate::host::Host;
use crate::id::BoxId;
use crate::layout::Layout;
use crate::observed::provable_keeper;
use crate::reason::Reason;
use crate::record::{self, Locked};
use crate::story::Removal;
use crate::tag::Tagged;

/// How long a box may take to die before it counts as stuck.
pub const OWN_WITHIN: Duration = Duration::from_secs(10);
/// The same for somebody else's: no command waits long for another's mess.
pub const OTHERS_WITHIN: Duration = Duration::from_millis(200);

/// A box that is to end.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    pub layout: &'a Layout,
    pub host: &'a Host,
    pub id: &'a BoxId,
}

impl Site<'_> {
    /// Ends a box whose keeper is our child, and removes all of it.
    pub fn tear_down_own(&self, record: Locked, keeper: &Process) -> Result<(), Error> {
        self.end(&record, Some(keeper), OWN_WITHIN)?;
        self.remove(&record, None)
    }

    /// Ends any box, and removes all of it.
    pub fn tear_down(
        &self,
        mut record: Locked,
        within: Duration,
        why: Reason,
    ) -> Result<(), Error> {
        let is_over = record.account.ended.is_some();
        let oom = !is_over && self.was_out_of_memory(&record, why);
        let start = Instant::now();
        self.end_recorded(&mut record, within, why)?;
        let removal = Removal {
            why,
            pid: std::process::id(),
            emptied: (!is_over).then(|| start.elapsed()),
            oom,
        };
        let result = self.remove(&record, Some(&removal));
        note_stuck(&mut record, &result);
        result
    }

    /// Ends what is left of a box whose end is on record already.
    pub fn clear(&self, mut record: Locked, within: Duration) -> Result<(), Error> {
        self.end_recorded(&mut record, within, Reason::Asked)
    }

    /// Ends a detached box and writes down how it ended, if nobody has.
    pub fn finish(&self, mut record: Locked, within: Duration, why: Reason) -> Result<(), Error> {
        if record.account.ended.is_some() {
            return Ok(());
        }
        let oom = self.was_out_of_memory(&record, why);
        let start = Instant::now();
        self.end_recorded(&mut record, within, why)?;
        let ended = EndedEntry::of(&record.life().unwrap_or_default(), oom, start.elapsed());
        // The box is over, and what its keeper wrote says how. What finds no room on a
        // full disk is written down by whoever looks next.
        record.add(Entry::Ended(ended)).ok();
        Ok(())
    }

    fn end_recorded(
        &self,
        record: &mut Locked,
        within: Duration,
        why: Reason,
    ) -> Result<(), Error> {
        let keeper = provable_keeper(record, self.tagged(), self.host);
        if keeper.is_none() && record.is_kept_out_of_sight() {
            return Err(out_of_sight(self.id));
        }
        note_kill(record, keeper.as_ref(), why);
        let result = self.end(record, keeper.as_ref(), within);
        note_stuck(record, &result);
        result
    }

    fn end(
        &self,
        record: &Locked,
        keeper: Option<&Process>,
        within: Duration,
    ) -> Result<(), Error> {
        if let Some(keeper) = keeper {
            keeper
                .kill()
                .doing(|| format!("cannot kill the keeper of box {}", self.id))?;
            wait_gone(keeper, self.id, within)?;
        }
        cgroup::release(&self.roots(record), self.tagged(), within)
    }

    /// While the directories are there: afterwards nobody can tell.
    fn was_out_of_memory(&self, record: &Locked, why: Reason) -> bool {
        why != Reason::Own && cgroup::oom_kills(&self.roots(record), self.tagged()) > 0
    }

    /// With the story of it, unless it is its creator who has it.
    fn remove(&self, record: &Locked, told: Option<&Removal>) -> Result<(), Error> {
        if let Some(removal) = told {
            keep_story(self.layout, self.host, self.id, record, removal);
        }
        // From here on it is nobody's: whoever is killed on the way leaves half a box,
        // and not one that is listed without its name or what it keeps.
        record.forget(self.id)?;
        if may_keep_scratch(record) {
            scratch::release(self.layout, record.as_fd(), self.id)?;
        }
        self.release_names(&record.account)?;
        record::remove(self.layout, self.id)
    }

    /// Of a record that does not say which they are, or says what is not so, all that
    /// are the box's.
    fn release_names(&self, account: &Account) -> Result<(), Error> {
        let mut is_right = account.intent.is_some();
        for name in account.may_hold() {
            let was_held = name::release(self.layout, name, self.id)?;
            is_right &= was_held || account.name() != Some(name);
        }
        match is_right {
            true => Ok(()),
            false => name::release_all(self.layout, self.id),
        }
    }

    fn tagged(&self) -> Tagged<'_> {
        self.layout.tagged(self.id)
    }

    fn roots(&self, record: &Locked) -> Vec<PathBuf> {
        let intent = record.account.intent.as_ref();
        let recorded = intent.map(|intent| intent.cgroup_roots.clone());
        recorded.unwrap_or_else(|| {
            let roots = self.host.cgroups.all().into_iter();
            roots.map(Path::to_owned).collect()
        })
    }
}

/// A kill is told before it is done, once however often it is tried. That it cannot
/// be told, for want of room, is no reason to leave it.
fn note_kill(record: &mut Locked, keeper: Option<&Process>, why: Reason) {
    let is_alive = |keeper: &Process| matches!(keeper.wait_dead(Duration::ZERO), Ok(false));
    if record.account.ending.is_none() && keeper.is_some_and(is_alive) {
        record.add(Entry::Ending(EndingEntry::now(why))).ok();
    }
}

/// What cannot be ended says so on record, for whoever looks next.
fn note_stuck(record: &mut Locked, result: &Result<(), Error>) {
    let Err(error) = result else { return };
    let why = std::error::Error::source(error).map(ToString::to_string);
    let last = record.account.stuck.as_ref();
    let entry = StuckEntry::after(last, error.to_string(), why.unwrap_or_default());
    if !entry.is_said(last) {
        // A record that cannot be written is no reason to say less now.
        record.add(Entry::Stuck(entry)).ok();
    }
}

/// A record that does not say counts as one that may.
fn may_keep_scratch(record: &Locked) -> bool {
    let intent = record.account.intent.as_ref();
    intent.is_none_or(|intent| intent.detached.as_ref().is_some_and(|options| options.keep))
}

/// Whoever cannot see the keeper sees nothing of the box, and would take it for gone.
fn out_of_sight(id: &BoxId) -> Error {
    let message = format!("cannot end box {id}");
    Error::new(ErrorKind::Failed, message)
        .because("its keeper lives where this tare cannot see it")
        .with_hint("end it from the PID namespace that it was started in")
}

/// The first process of a PID namespace is only gone when all others are.
pub fn wait_gone(keeper: &Process, id: &BoxId, within: Duration) -> Result<(), Error> {
    let doing = || format!("cannot wait for the keeper of box {id}");
    let start = Instant::now();
    while !keeper.wait_dead(within).doing(doing)? {
        if start.elapsed() >= within {
            let message = format!("cannot end the keeper of box {id}");
            return Err(Error::new(ErrorKind::Failed, message)
                .because(format!("process {} does not die", keeper.pid()))
                .with_hint(
                    "a process in it may hang in the kernel; it is tried again by the next command",
                ));
        }
    }
    keeper.reap().doing(doing).map(drop)
}
