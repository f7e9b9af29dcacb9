//! Records and host, held against each other in both directions: what is on the
//! host and in no record, and what is in a record and not on the host.
//!
//! Only reads. The host is looked at first, then the records, then the names:
//! everything of a box is made after its record and gone before it, so that what was
//! on the host and then is in no record is nobody's. Whatever counts was seen so
//! twice: between two looks at different things a box may have come or gone.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use serde::Serialize;
use tare_kernel::process::Process;

use crate::engine::Engine;
use crate::error::{Doing, Error};
use crate::flaw::Flaw;
use crate::holdings::name;
use crate::id::BoxId;
use crate::lifecycle::{Care, Tie};
use crate::observed::{Depth, Observed};
use crate::record::{self, Record};
use crate::traces;

#[derive(Debug)]
pub struct Comparison {
    /// Every box on record.
    pub boxes: Vec<Compared>,
    pub orphans: Vec<Orphan>,
    pub lost: Vec<Lost>,
}

#[derive(Debug)]
pub struct Compared {
    pub id: BoxId,
    pub observed: Observed,
}

/// The two differences between records and host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Differences {
    pub orphans: Vec<Orphan>,
    pub lost: Vec<Lost>,
}

/// On the host, and in no record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Orphan {
    #[serde(flatten)]
    pub what: OrphanKind,
    pub sentence: String,
    pub would: Would,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OrphanKind {
    /// Directories in cgroup hierarchies, and whoever is in them.
    Cgroup { id: BoxId, paths: Vec<PathBuf> },
    /// A keeper that has no cgroup.
    Keeper { id: BoxId, pid: i32 },
    /// A name that no box has.
    Name { id: BoxId, name: String },
}

/// In a record, and not on the host, or not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lost {
    pub id: BoxId,
    #[serde(flatten)]
    pub what: LostKind,
    pub sentence: String,
    pub would: Would,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LostKind {
    /// The keeper is dead, and the end not on record.
    Keeper,
    /// Whoever made it is gone, and it was not to live on.
    Creator,
    /// It should have ended by itself.
    Lease,
    /// It lives, and its cgroup is gone.
    Cgroup,
    /// Its files were to be kept, and are gone.
    Scratch,
    /// The record does not say what it must.
    Record { why: String },
}

/// What a sweep does about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Would {
    /// Kill whoever is in it and remove what is left.
    End,
    /// Remove what is left, and write down how it ended.
    Finish,
    /// Remove what is left.
    Remove,
    /// Nothing: who wants its end says so.
    Leave,
}

impl Orphan {
    fn of(what: OrphanKind) -> Self {
        let (sentence, would) = match &what {
            OrphanKind::Cgroup { id, paths } => {
                let paths = paths.iter().map(|path| path.display().to_string());
                let paths = paths.collect::<Vec<_>>().join(", ");
                (
                    format!("box {id} is in no record, and has {paths}"),
                    Would::End,
                )
            }
            OrphanKind::Keeper { id, pid } => (
                format!("box {id} is in no record, and its keeper lives, process {pid}"),
                Would::End,
            ),
            OrphanKind::Name { id, name } => (
                format!("the name {name} is that of box {id}, which is in no record"),
                Would::Remove,
            ),
        };
        Self {
            what,
            sentence,
            would,
        }
    }

    pub fn id(&self) -> &BoxId {
        match &self.what {
            OrphanKind::Cgroup { id, .. }
            | OrphanKind::Keeper { id, .. }
            | OrphanKind::Name { id, .. } => id,
        }
    }
}

impl Lost {
    fn of(id: &BoxId, what: LostKind, would: Would) -> Self {
        let sentence = match &what {
            LostKind::Keeper => format!("box {id} is over, and its end is not on record"),
            LostKind::Creator => format!("box {id} was to end with its tare, which is gone"),
            LostKind::Lease => format!("box {id} lives past its lease"),
            LostKind::Cgroup => format!("box {id} lives, and its cgroup is gone"),
            LostKind::Scratch => format!("the files of box {id} were to be kept, and are gone"),
            LostKind::Record { why } => format!("box {id}: {why}"),
        };
        Self {
            id: id.clone(),
            what,
            sentence,
            would,
        }
    }
}

impl Would {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::End => "end it",
            Self::Finish => "remove what is left and write its end down",
            Self::Remove => "remove what is left",
            Self::Leave => "leave it alone",
        }
    }
}

/// What bears the tag of this state root on the host, before the records were read.
struct Traces {
    cgroups: BTreeMap<BoxId, Vec<PathBuf>>,
    keepers: Vec<(BoxId, Process)>,
}

impl Engine {
    /// What is on the host and in no record, and the other way round.
    pub fn differences(&self) -> Result<Differences, Error> {
        let compared = self.compare(Depth::Care)?;
        Ok(Differences {
            orphans: compared.orphans,
            lost: compared.lost,
        })
    }

    pub(crate) fn compare(&self, depth: Depth) -> Result<Comparison, Error> {
        let traces = Traces {
            cgroups: traces::cgroups(&self.host.cgroups, self.layout.tag()),
            keepers: traces::keepers(self.layout.tag()),
        };
        let Some(boxes) = self.boxes_if_any()? else {
            return Ok(Comparison {
                boxes: Vec::new(),
                orphans: self.orphans(&traces, &BTreeSet::new()),
                lost: Vec::new(),
            });
        };
        let boxes = boxes.as_fd();
        let ids = record::ids(boxes).doing(|| "cannot list the boxes".into())?;
        let mut compared = Vec::with_capacity(ids.len());
        let mut lost = Vec::new();
        for id in &ids {
            match self.compare_one(boxes, id, &traces, depth) {
                Ok(None) => {}
                Ok(Some((observed, missing))) => {
                    lost.extend(missing);
                    let id = id.clone();
                    compared.push(Compared { id, observed });
                }
                Err(error) => {
                    let why = Flaw::unreadable(&error).to_string();
                    lost.push(Lost::of(id, LostKind::Record { why }, Would::Leave));
                }
            }
        }
        Ok(Comparison {
            boxes: compared,
            orphans: self.orphans(&traces, &ids.into_iter().collect()),
            lost,
        })
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
            let observed = Observed::of(record, self.layout.tagged(id), &self.host, depth);
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
        if observed.is_busy() || self.may_be_new(boxes, observed) {
            return missing;
        }
        let mut note = |what, would| missing.push(Lost::of(id, what, would));
        if let Some(flaw) = &observed.record.flaw {
            let lives = observed.keeper.is_some() || traces.has_life(id, self);
            note(
                LostKind::Record {
                    why: flaw.to_string(),
                },
                would_about(flaw, lives),
            );
            return missing;
        }
        let ended = observed.record.account.ended.is_some();
        let would = match observed.care_now() {
            Care::Nothing => None,
            Care::Finish if observed.keeper.is_some() => Some(Would::End),
            Care::Finish => Some(Would::Finish),
            Care::Remove => Some(Would::Remove),
        };
        match (would, observed.tie()) {
            // Kept for as long as it was to be: nothing of it is missing.
            (Some(_), _) if ended => {}
            (Some(would), Tie::HalfMade | Tie::Attached | Tie::Detaching) => {
                note(LostKind::Creator, would);
            }
            (Some(would), Tie::Detached | Tie::Damaged) if observed.is_overdue() => {
                note(LostKind::Lease, would);
            }
            (Some(would), Tie::Detached | Tie::Damaged) => note(LostKind::Keeper, would),
            (None, _) => {}
        }
        if self.lacks_cgroup(id, observed) {
            note(LostKind::Cgroup, Would::Leave);
        }
        if self.lacks_scratch(id, observed) {
            note(LostKind::Scratch, Would::Leave);
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
        had_one && observed.keeper.is_some() && !self.host.meters().has(self.layout.tagged(id))
    }

    fn lacks_scratch(&self, id: &BoxId, observed: &Observed) -> bool {
        let is_made = observed.record.account.keeper.is_some();
        is_made && observed.record.keeps_scratch() && !self.layout.scratch(id).is_dir()
    }

    fn orphans(&self, traces: &Traces, on_record: &BTreeSet<BoxId>) -> Vec<Orphan> {
        let is_orphan = |id: &BoxId| !on_record.contains(id) && !self.has_record(id);
        let mut orphans = Vec::new();
        for (id, paths) in &traces.cgroups {
            let left: Vec<PathBuf> = match is_orphan(id) {
                true => paths.iter().filter(|path| path.is_dir()).cloned().collect(),
                false => Vec::new(),
            };
            if !left.is_empty() {
                let id = id.clone();
                orphans.push(Orphan::of(OrphanKind::Cgroup { id, paths: left }));
            }
        }
        for (id, process) in &traces.keepers {
            let is_alive = || matches!(process.wait_dead(std::time::Duration::ZERO), Ok(false));
            if !traces.cgroups.contains_key(id) && is_orphan(id) && is_alive() {
                let (id, pid) = (id.clone(), process.pid());
                orphans.push(Orphan::of(OrphanKind::Keeper { id, pid }));
            }
        }
        for (name, id) in name::all(&self.layout) {
            let still_its = || name::holder_of(&self.layout, &name).as_ref() == Some(&id);
            if is_orphan(&id) && still_its() {
                orphans.push(Orphan::of(OrphanKind::Name { id, name }));
            }
        }
        orphans
    }

    /// By its path: a box that was listed is asked for by nobody.
    pub(crate) fn has_record(&self, id: &BoxId) -> bool {
        let path = self.layout.boxes().join(id.as_str());
        !matches!(path.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
    }
}

impl Traces {
    fn has_life(&self, id: &BoxId, engine: &Engine) -> bool {
        self.keepers.iter().any(|(of, _)| of == id)
            || engine.host.meters().is_populated(engine.layout.tagged(id))
    }
}

/// A sweep ends nobody who may live, and touches nothing of a newer tare, or that
/// may be in order.
fn would_about(flaw: &Flaw, lives: bool) -> Would {
    match flaw {
        Flaw::Newer { .. } | Flaw::Unreadable(_) => Would::Leave,
        Flaw::NoDirectory
        | Flaw::Closed
        | Flaw::NotOurs { .. }
        | Flaw::Odd
        | Flaw::Incomplete
        | Flaw::Wrong => match lives {
            true => Would::Leave,
            false => Would::Remove,
        },
    }
}
