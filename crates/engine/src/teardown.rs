//! The one way out. Exit, timeout, lease, stop, `rm -f`, a failed start, a
//! creator that died: every box ends here, by its id alone.
//!
//! Each step accepts what is absent, half-made or already released, returns
//! only after it saw the thing gone, and comes before the one that removes the
//! record: if a step fails, the box stays on record and can be tried again.
//!
//! ```text
//! keeper killed ─▶ keeper reaped ─▶ cgroups seen empty ─▶ cgroups removed    (end)
//!     ─▶ story kept ─▶ removal on record ─▶ scratch unmounted
//!     ─▶ record removed, its account last ─▶ names released                  (remove)
//! ```

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tare_kernel::clock::boot_ns;
use tare_kernel::process::Process;

use crate::error::{Context, Error, ErrorKind};
use crate::history::keep_story;
use crate::history::steps::Removal;
use crate::holdings::name::Names;
use crate::holdings::{cgroup, scratch};
use crate::host::Host;
use crate::host::layout::Layout;
use crate::host::tag::Tagged;
use crate::observe::provable_keeper;
use crate::record::damage::Flaw;
use crate::record::lines::{Account, EndedEntry, EndingEntry, Entry, RemovingEntry, StuckEntry};
use crate::record::reason::Reason;
use crate::record::{self, Locked};
use crate::spec::id::BoxId;

/// How long a box may take to die before it counts as stuck.
pub const OWN_WITHIN: Duration = Duration::from_secs(10);
/// The same for somebody else's: no command waits long for another's mess.
pub const OTHERS_WITHIN: Duration = Duration::from_millis(200);

/// What is to be left of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    Record,
    Nothing,
}

/// A box that is to end.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    pub layout: &'a Layout,
    pub host: &'a Host,
    pub id: &'a BoxId,
}

impl Site<'_> {
    /// Ends a box whose keeper is our child, and removes all of it.
    pub fn tear_down_own(
        &self,
        record: &mut Locked,
        keeper: &Process,
        within: Duration,
    ) -> Result<(), Error> {
        let ended = self.end(record, Some(keeper), within);
        let result = ended.and_then(|()| self.remove(record, None));
        note_stuck(record, result, Leave::Nothing)
    }

    /// Ends any box, and removes all of it.
    pub fn tear_down(
        &self,
        mut record: Locked,
        within: Duration,
        why: Reason,
    ) -> Result<(), Error> {
        if let Some(flaw @ Flaw::Foreign { .. }) = &record.flaw {
            let message = format!("cannot remove {} from boxes/", self.id);
            return Err(Error::conflict(message)
                .caused_by(flaw.to_string())
                .with_hint(flaw.remedy()));
        }
        let is_over = record.account.ended.is_some();
        let oom = !is_over && self.was_out_of_memory(&record, why);
        let start = Instant::now();
        self.end_recorded(&mut record, within, why, Leave::Nothing)?;
        let removal = Removal {
            why,
            pid: std::process::id(),
            emptied: (!is_over).then(|| start.elapsed()),
            oom,
        };
        let result = self.remove(&mut record, Some(&removal));
        note_stuck(&mut record, result, Leave::Nothing)
    }

    /// Ends what is left of a box whose end is on record already.
    pub fn clear(&self, mut record: Locked, within: Duration) -> Result<(), Error> {
        self.end_recorded(&mut record, within, Reason::Asked, Leave::Record)
    }

    /// Ends a detached box and writes down how it ended, if nobody has.
    pub fn finish(&self, mut record: Locked, within: Duration, why: Reason) -> Result<(), Error> {
        if record.account.ended.is_some() {
            return Ok(());
        }
        let oom = self.was_out_of_memory(&record, why);
        let start = Instant::now();
        self.end_recorded(&mut record, within, why, Leave::Record)?;
        let life = record.life().unwrap_or_default();
        let ended = EndedEntry::of(&life, record.last_sign(), oom, start.elapsed());
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
        leave: Leave,
    ) -> Result<(), Error> {
        let doing = || format!("cannot look for the keeper of box {}", self.id);
        let keeper = provable_keeper(record, self.tagged(), self.host).context(doing)?;
        if keeper.is_none() && record.is_kept_out_of_sight().context(doing)? {
            return Err(out_of_sight(self.id));
        }
        note_kill(record, keeper.as_ref(), why);
        let result = self.end(record, keeper.as_ref(), within);
        note_stuck(record, result, leave)
    }

    fn end(
        &self,
        record: &Locked,
        keeper: Option<&Process>,
        within: Duration,
    ) -> Result<(), Error> {
        if let Some(keeper) = keeper {
            keeper.kill().context(|| format!("cannot kill the keeper of box {}", self.id))?;
            wait_gone(keeper, self.id, within)?;
        }
        cgroup::release(&self.roots(record), self.tagged(), within)
    }

    /// While the directories are there: afterwards nobody can tell.
    fn was_out_of_memory(&self, record: &Locked, why: Reason) -> bool {
        why != Reason::Own && cgroup::oom_kills(&self.roots(record), self.tagged()) > 0
    }

    /// Removes the record and the name, and keeps the story unless the creator has it. While the
    /// record exists it is complete and its name leads to it, so a removal that fails can be
    /// tried again.
    fn remove(&self, record: &mut Locked, told: Option<&Removal>) -> Result<(), Error> {
        if let Some(removal) = told {
            keep_story(self.layout, self.host, self.id, record, removal);
        }
        if !self.mark_removal(record) {
            // A removal that is killed leaves half a box, which the next command removes.
            record.forget(self.id)?;
        }
        if may_keep_scratch(record) {
            scratch::release(self.layout, record.as_fd(), self.id)?;
        }
        let names = self.names_of(&record.account)?;
        record::remove(self.layout, self.id)?;
        match names {
            Some(names) => self.release_names(&names, &record.account),
            None => Ok(()),
        }
    }

    /// Records that the removal has begun, so that the next command finishes it. An attached
    /// box needs no mark, because it goes with its creator. Returns false if the record
    /// cannot say it.
    fn mark_removal(&self, record: &mut Locked) -> bool {
        if record.flaw.is_some() || record.account.intent.is_none() {
            return false;
        }
        let at_ns = boot_ns();
        record.account.detached().is_none()
            || record.account.removing
            || record.add(Entry::Removing(RemovingEntry { at_ns })).is_ok()
    }

    /// The names, locked, if the box may have one.
    fn names_of(&self, account: &Account) -> Result<Option<Names>, Error> {
        if account.intent.is_none() || account.may_hold().next().is_some() {
            Names::lock(self.layout).context(|| self.cannot_release())
        } else {
            Ok(None)
        }
    }

    /// Of a record that does not say which they are, or says what is not so, all that
    /// are the box's.
    fn release_names(&self, names: &Names, account: &Account) -> Result<(), Error> {
        let mut is_right = account.intent.is_some();
        for name in account.may_hold() {
            let released = names.release(name.as_str(), self.id);
            let was_held = released.context(|| self.cannot_release())?;
            is_right &= was_held || account.name() != Some(name);
        }
        if is_right { Ok(()) } else { names.release_all(self.id).context(|| self.cannot_release()) }
    }

    fn cannot_release(&self) -> String {
        format!("cannot release the names of box {}", self.id)
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

/// Records why a box cannot be ended, and whether its record was to go too: the next
/// command, or the server's next sweep, tries the same again.
fn note_stuck(record: &mut Locked, result: Result<(), Error>, leave: Leave) -> Result<(), Error> {
    let error = match result {
        Ok(()) => return Ok(()),
        Err(error) => error.stuck(),
    };
    let why = std::error::Error::source(&error).map(ToString::to_string);
    let last = record.account.stuck.as_ref();
    let entry = StuckEntry {
        remove: leave == Leave::Nothing || record.account.removing,
        ..StuckEntry::after(last, error.to_string(), why.unwrap_or_default())
    };
    if !entry.is_said(last) {
        // A record that cannot be written is no reason to say less now.
        record.add(Entry::Stuck(entry)).ok();
    }
    Err(error)
}

/// A record that does not say counts as one that may.
fn may_keep_scratch(record: &Locked) -> bool {
    let intent = record.account.intent.as_ref();
    intent.is_none_or(|intent| intent.detached.as_ref().is_some_and(|options| options.keep))
}

/// Whoever cannot see the keeper sees nothing of the box, and would take it for gone.
fn out_of_sight(id: &BoxId) -> Error {
    let message = format!("cannot end box {id}");
    Error::failed(message)
        .caused_by("its keeper lives where this tare cannot see it")
        .with_hint("end it from the PID namespace that it was started in")
}

/// The first process of a PID namespace is only gone when all others are.
pub fn wait_gone(keeper: &Process, id: &BoxId, within: Duration) -> Result<(), Error> {
    let doing = || format!("cannot wait for the keeper of box {id}");
    let start = Instant::now();
    while !keeper.wait_dead(within).context(doing)? {
        if start.elapsed() >= within {
            let message = format!("cannot end the keeper of box {id}");
            return Err(Error::new(ErrorKind::Stuck, message)
                .caused_by(format!("process {} does not die", keeper.pid()))
                .with_hint(
                    "a process in it may hang in the kernel; it is tried again by the next command",
                ));
        }
    }
    keeper.reap().context(doing).map(drop)
}
