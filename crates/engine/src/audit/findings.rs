//! Records and host, held against each other in both directions: what is on the
//! host and in no record, and what is in a record and not on the host.
//!
//! Only reads. The host is looked at first, then the records, then the names:
//! everything of a box is made after its record and gone before it, so that what was
//! on the host and then is in no record is nobody's. Whatever counts was seen so
//! twice: between two looks at different things a box may have come or gone.
//!
//! A box is done with before the next one is looked at: what is open on account of
//! it is closed again, however many there are.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use tare_kernel::process::Process;

use crate::audit::host_objects;
use crate::engine::Engine;
use crate::error::{Context, Error};
use crate::holdings::cgroup::CgroupReader;
use crate::holdings::name;
use crate::host::parallel::look_at_each;
use crate::host::tag::Tag;
use crate::observe::state::{Care, Tie};
use crate::observe::view::State;
use crate::observe::{Depth, Observed, When};
use crate::record::damage::Flaw;
use crate::record::{self, Record};
use crate::spec::BoxId;

pub use crate::audit::difference::{
    Differences, Lost, LostKind, Orphan, OrphanKind, Would, would_about,
};

#[derive(Debug)]
pub struct Comparison<T> {
    /// What was to be known of every box on record.
    pub boxes: Vec<T>,
    pub orphans: Vec<Orphan>,
    pub lost: Vec<Lost>,
}

/// What bears the tag of this state root on the host, before the records were read.
#[derive(Debug)]
pub struct Traces {
    pub cgroups: BTreeMap<BoxId, Vec<PathBuf>>,
    /// Everyone on the host.
    pub pids: Vec<i32>,
    /// Who of them has the arguments of a keeper, once somebody has to know.
    claims: OnceLock<Claims>,
    /// Keepers that were never started and whose creator is dead.
    strays: OnceLock<Vec<Process>>,
}

/// By box; whether it is its keeper is asked of those that matter.
type Claims = BTreeMap<BoxId, Vec<i32>>;

/// One box on record.
#[derive(Debug)]
struct Looked<T> {
    on_record: OnRecord,
    keeper: Option<i32>,
    lost: Vec<Lost>,
    /// `None` of one that is gone by now, or that cannot be looked at.
    known: Option<T>,
}

/// What the records say of a box that has something on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnRecord {
    Living,
    Over,
}

impl Engine {
    /// What is on the host and in no record, and the other way round.
    pub fn differences(&self) -> Result<Differences, Error> {
        let compared = self.compare(&self.traces(), Depth::Care, |_, _| ())?;
        Ok(Differences { orphans: compared.orphans, lost: compared.lost })
    }

    /// Holds the traces against all records. `know` is asked about every box.
    pub(crate) fn compare<T: Send>(
        &self,
        traces: &Traces,
        depth: Depth,
        know: impl Fn(&BoxId, &Observed) -> T + Sync,
    ) -> Result<Comparison<T>, Error> {
        let mut comparison =
            Comparison { boxes: Vec::new(), orphans: Vec::new(), lost: Vec::new() };
        let mut on_record = BTreeMap::new();
        let mut keepers = HashSet::new();
        if let Some(boxes) = self.boxes_if_any()? {
            let ids = record::ids(boxes.as_fd()).context(|| "cannot list the boxes".into())?;
            let look = |id: &BoxId| self.looked_at(boxes.as_fd(), id, traces, depth, &know);
            let looked = look_at_each(&ids, look);
            for (id, one) in ids.into_iter().zip(looked) {
                on_record.insert(id, one.on_record);
                keepers.extend(one.keeper);
                comparison.lost.extend(one.lost);
                comparison.boxes.extend(one.known);
            }
        }
        comparison.orphans = self.orphans(traces, &on_record, &keepers);
        Ok(comparison)
    }

    pub(crate) fn traces(&self) -> Traces {
        Traces {
            cgroups: host_objects::cgroups(&self.root.host.cgroups, self.root.layout.tag()),
            pids: host_objects::everyone(),
            claims: OnceLock::new(),
            strays: OnceLock::new(),
        }
    }

    fn looked_at<T>(
        &self,
        boxes: BorrowedFd<'_>,
        id: &BoxId,
        traces: &Traces,
        depth: Depth,
        know: impl Fn(&BoxId, &Observed) -> T,
    ) -> Looked<T> {
        match self.compare_one(boxes, id, traces, depth) {
            Ok(None) => Looked::nothing(),
            Ok(Some((observed, lost))) => Looked {
                on_record: if observed.is_over() { OnRecord::Over } else { OnRecord::Living },
                keeper: observed.keeper.as_ref().map(|keeper| keeper.pid()),
                lost,
                known: Some(know(id, &observed)),
            },
            Err(error) => {
                let why = Flaw::unreadable(&error).to_string();
                let lost = Lost::of(id, LostKind::Record { why }, Would::Leave);
                Looked { lost: vec![lost], ..Looked::nothing() }
            }
        }
    }

    /// Whether somebody is in a box, by what is on the host alone.
    pub(crate) fn has_life(&self, id: &BoxId) -> bool {
        self.traces().has_life(id, self)
    }

    /// What seems to be wrong is looked at once more.
    fn compare_one(
        &self,
        boxes: BorrowedFd<'_>,
        id: &BoxId,
        traces: &Traces,
        depth: Depth,
    ) -> std::io::Result<Option<(Observed, Vec<Lost>)>> {
        let mut seen = None;
        for _sighting in 0..2 {
            let Some(record) = Record::look(boxes, id)? else {
                return Ok(None);
            };
            let observed = Observed::of(record, self.at(id).tagged(), &self.root.host, depth);
            let missing = self.missing(boxes, id, &observed, traces);
            let is_well = missing.is_empty();
            seen = Some((observed, missing));
            if is_well {
                break;
            }
        }
        Ok(seen)
    }

    fn missing(
        &self,
        boxes: BorrowedFd<'_>,
        id: &BoxId,
        observed: &Observed,
        traces: &Traces,
    ) -> Vec<Lost> {
        let mut missing = Vec::new();
        if observed.state() == State::Starting && traces.has_stray_with(&observed.record) {
            return vec![Lost::of(id, LostKind::Creator, Would::Remove)];
        }
        if observed.is_busy() || self.may_be_new(boxes, observed) {
            return missing;
        }
        let mut note = |what, would| missing.push(Lost::of(id, what, would));
        if let Some(flaw) = &observed.record.flaw {
            let lives = observed.keeper.is_some() || traces.has_life(id, self);
            let why = flaw.to_string();
            note(LostKind::Record { why }, would_about(flaw, lives));
            return missing;
        }
        let ended = observed.record.account.ended.is_some();
        match left_behind(id, observed) {
            Some(lost) if awaits_cleanup(observed, &lost) => return missing,
            Some(lost) => note(lost.what, lost.would),
            // Whoever made it is gone, and nothing says that it was to live on.
            None if !ended && observed.tie() == Tie::Detaching => {
                let why = Flaw::Incomplete.to_string();
                note(LostKind::Record { why }, Would::Leave);
            }
            None => {}
        }
        if observed.record.account.removing {
            // Its removal goes on with the next command, unless it is stuck.
            return missing;
        }
        if self.lacks_cgroup(id, observed) {
            note(LostKind::Cgroup, Would::Leave);
        }
        if self.lacks_scratch(id, observed) {
            note(LostKind::Scratch, Would::Leave);
        }
        if let Some(name) = observed.record.account.name()
            && name::holder(&self.root.layout, name).as_ref() != Some(id)
        {
            let name = name.to_string();
            note(LostKind::Name { name }, Would::Leave);
        }
        missing
    }

    /// Somebody may be between making it and locking it.
    fn may_be_new(&self, boxes: BorrowedFd<'_>, observed: &Observed) -> bool {
        if observed.record.account.intent.is_some() || observed.record.flaw.is_some() {
            return false;
        }
        let is_still = record::hold_still(boxes);
        if is_still {
            record::let_go(boxes);
        }
        !is_still
    }

    fn lacks_cgroup(&self, id: &BoxId, observed: &Observed) -> bool {
        let identity = observed.record.account.keeper.as_ref();
        let had_one = identity.is_some_and(|identity| identity.cgroup_inode.is_some());
        had_one && observed.keeper.is_some() && !CgroupReader::at(self.at(id)).exists()
    }

    fn lacks_scratch(&self, id: &BoxId, observed: &Observed) -> bool {
        let is_made = observed.record.account.keeper.is_some();
        is_made && observed.record.keeps_scratch() && !self.at(id).scratch().is_dir()
    }

    /// `keepers` are those of boxes on record, who are nobody's orphans.
    fn orphans(
        &self,
        traces: &Traces,
        on_record: &BTreeMap<BoxId, OnRecord>,
        keepers: &HashSet<i32>,
    ) -> Vec<Orphan> {
        let is_orphan = |id: &BoxId| !on_record.contains_key(id) && !self.has_record(id);
        let mut orphans = Vec::new();
        let mut note = |what| orphans.push(Orphan::of(what));
        for (id, paths) in &traces.cgroups {
            let left = || paths.iter().filter(|path| path.is_dir()).cloned().collect();
            let id = id.clone();
            match on_record.get(&id) {
                Some(OnRecord::Living) => {}
                Some(OnRecord::Over) => note(OrphanKind::Remains { id, paths: left() }),
                None if is_orphan(&id) => note(OrphanKind::Cgroup { id, paths: left() }),
                None => {}
            }
        }
        for (id, pids) in traces.claims_beside(keepers, self.root.layout.tag()) {
            let is_nobodys = || on_record.get(&id) == Some(&OnRecord::Over) || is_orphan(&id);
            if traces.cgroups.contains_key(&id) || !is_nobodys() {
                continue;
            }
            if let Some(pid) = self.living_keeper(&id, &pids) {
                note(OrphanKind::Keeper { id, pid });
            }
        }
        for stray in traces.strays() {
            orphans.push(Orphan::of(OrphanKind::Newborn { pid: stray.pid() }));
        }
        orphans.retain(Orphan::is_something);
        for (name, id) in name::all(&self.root.layout) {
            let still_its = || name::holder_of(&self.root.layout, &name).as_ref() == Some(&id);
            if is_orphan(&id) && still_its() {
                orphans.push(Orphan::of(OrphanKind::Name { id, name }));
            }
        }
        orphans
    }

    /// By its path: a box that was listed is asked for by nobody.
    pub(crate) fn has_record(&self, id: &BoxId) -> bool {
        !matches!(self.at(id).record().symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
    }
}

impl<T> Looked<T> {
    fn nothing() -> Self {
        Self { on_record: OnRecord::Living, keeper: None, lost: Vec::new(), known: None }
    }
}

/// Who should have ended it and has not, if there is anything to be done about it. Of
/// a box that was kept for as long as it was to be nothing is missing.
pub(crate) fn left_behind(id: &BoxId, observed: &Observed) -> Option<Lost> {
    if observed.record.account.ended.is_some() {
        return None;
    }
    let would = would_care(observed)?;
    let what = match observed.tie() {
        Tie::HalfMade | Tie::Attached | Tie::Detaching => LostKind::Creator,
        Tie::Detached | Tie::Damaged if observed.is_overdue() => LostKind::Lease,
        Tie::Detached | Tie::Damaged => LostKind::Keeper,
    };
    Some(Lost::of(id, what, would))
}

/// Whether the box has ended in order, and only its cleanup by the next command is left.
/// That is not a difference, unless the cleanup was tried and failed.
pub(crate) fn awaits_cleanup(observed: &Observed, lost: &Lost) -> bool {
    let is_over = lost.what == LostKind::Keeper && observed.keeper.is_none();
    is_over && observed.record.account.stuck.is_none()
}

fn would_care(observed: &Observed) -> Option<Would> {
    match observed.care(When::Now) {
        Care::Nothing => None,
        Care::Finish if observed.keeper.is_some() => Some(Would::End),
        Care::Finish => Some(Would::Finish),
        Care::Remove => Some(Would::Remove),
    }
}

impl Engine {
    /// The living keeper of the box among those who are called so.
    fn living_keeper(&self, id: &BoxId, claims: &[i32]) -> Option<i32> {
        let tagged = self.at(id).tagged();
        let is_it = |pid: &&i32| {
            let keeper = host_objects::keeper_with(tagged, **pid);
            keeper.is_some_and(|it| matches!(it.wait_dead(Duration::ZERO), Ok(false)))
        };
        claims.iter().find(is_it).copied()
    }
}

impl Traces {
    fn has_life(&self, id: &BoxId, engine: &Engine) -> bool {
        let claims = || by_box(host_objects::claims(&self.pids, engine.root.layout.tag()));
        let its = self.claims.get_or_init(claims).get(id);
        // What cannot be seen may live.
        let is_populated = CgroupReader::at(engine.at(id)).is_populated();
        its.is_some_and(|its| engine.living_keeper(id, its).is_some())
            || is_populated.unwrap_or(true)
    }

    fn strays(&self) -> &[Process] {
        self.strays.get_or_init(|| host_objects::strays(&self.pids))
    }

    /// Whether the lock of this record is only held because a stray has a copy of its
    /// creator's descriptors.
    fn has_stray_with(&self, record: &Record) -> bool {
        let has_it = |stray: &Process| stray.has_open(record.as_fd()).unwrap_or(false);
        record.is_busy() && self.strays().iter().any(has_it)
    }

    /// Who is called a keeper, but for those who are known to be one. That they are
    /// asked after the records were read makes no difference: whoever has a box in its
    /// arguments had its record before, and keeps it for as long as it lives.
    fn claims_beside(&self, keepers: &HashSet<i32>, tag: &Tag) -> Claims {
        let pids = self.pids.iter().copied();
        let others: Vec<i32> = pids.filter(|pid| !keepers.contains(pid)).collect();
        by_box(host_objects::claims(&others, tag))
    }
}

fn by_box(claims: Vec<(BoxId, i32)>) -> Claims {
    let mut found = Claims::new();
    for (id, pid) in claims {
        found.entry(id).or_default().push(pid);
    }
    found
}
