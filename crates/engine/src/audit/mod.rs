//! The proof: every box with all that it holds on the host now, and the two
//! differences between records and host.
//!
//! Only reads, makes nothing, asks no keeper: what is told comes from the kernel.
//! One pass over `/proc` is for all boxes; then each is looked at once.

pub(crate) mod census;
pub mod difference;
mod fading;
pub mod findings;
mod held;
pub mod host_objects;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::audit::findings::{Comparison, Lost, Orphan};
use crate::engine::Engine;
use crate::error::Error;
use crate::observe::view::State;
use crate::observe::{Depth, Observed};
use crate::spec::BoxId;
use crate::time::Timestamp;

use crate::audit::census::Census;
pub use crate::audit::fading::{Fading, FadingPort};
pub use crate::audit::held::{Held, HeldNamespace, HeldPort, HeldProcess};

#[derive(Debug, Serialize)]
pub struct Audit {
    /// The oldest first.
    pub boxes: Vec<AuditedBox>,
    pub orphans: Vec<Orphan>,
    pub lost: Vec<Lost>,
    pub fading: Fading,
}

/// A box on record, and what it holds.
#[derive(Debug, Serialize)]
pub struct AuditedBox {
    pub id: BoxId,
    pub name: Option<String>,
    pub state: State,
    pub created_at: Timestamp,
    pub kept_by: KeptBy,
    pub stuck_on: Option<String>,
    #[serde(flatten)]
    pub held: Held,
}

/// Without whom nothing of a box would be there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum KeptBy {
    /// Everyone in the box dies with this process.
    Keeper { pid: i32 },
    /// It has no keeper, and these processes live in it.
    Processes { pids: Vec<i32> },
    /// It is over: its record is kept for its retention.
    Retention { until: Timestamp },
    /// Nobody: only names are left.
    Nobody,
}

impl Audit {
    /// Whether records and host agree.
    pub fn is_clean(&self) -> bool {
        self.orphans.is_empty() && self.lost.is_empty()
    }
}

impl Engine {
    /// Everything that boxes hold, and what of it should not be there.
    pub fn audit(&self) -> Result<Audit, Error> {
        let traces = self.traces();
        let census = Census::take(self, &traces);
        let audited = |id: &BoxId, observed: &Observed| {
            let directories = traces.cgroups.get(id).into_iter().flatten();
            self.audited(id, observed, directories, &census)
        };
        let Comparison { mut boxes, orphans, lost } =
            self.compare(&traces, Depth::State, audited)?;
        boxes.sort_by(|one, other| {
            let key = |it: &AuditedBox| (it.created_at, it.id.to_string());
            key(one).cmp(&key(other))
        });
        Ok(Audit {
            boxes,
            orphans,
            lost,
            fading: self.fading_beside(census.procfs.as_ref(), &census.listening),
        })
    }

    fn audited<'a>(
        &self,
        id: &BoxId,
        observed: &Observed,
        directories: impl Iterator<Item = &'a PathBuf>,
        census: &Census,
    ) -> AuditedBox {
        let account = &observed.record.account;
        let mut held = self.held_by(id, observed, census);
        // Those of v1 have none below them: nobody in a box sees them.
        held.add_cgroups(directories);
        let created = account.intent.as_ref().map(|intent| intent.created_at);
        AuditedBox {
            id: id.clone(),
            name: account.name().map(ToString::to_string),
            state: observed.state(),
            created_at: created.unwrap_or(Timestamp::from_ms(0)),
            kept_by: kept_by(observed, &held),
            stuck_on: observed.stuck_on(),
            held,
        }
    }

    /// Where a box has its scratch space mounted on the host. Without privileges it
    /// is a directory there.
    fn mounted_scratch(&self, id: &BoxId, observed: &Observed) -> Option<PathBuf> {
        if !observed.record.keeps_scratch() {
            return None;
        }
        let path = self.root.layout.scratch(id);
        let device = |path: &Path| Some(path.symlink_metadata().ok()?.dev());
        (device(&path)? != device(path.parent()?)?).then_some(path)
    }
}

fn kept_by(observed: &Observed, held: &Held) -> KeptBy {
    if let Some(keeper) = &observed.keeper {
        return KeptBy::Keeper { pid: keeper.pid() };
    }
    if !held.processes.is_empty() {
        let pids = held.processes.iter().map(|process| process.pid);
        return KeptBy::Processes { pids: pids.collect() };
    }
    let options = observed.record.account.detached();
    match (&observed.ended, options) {
        (Some(_), Some(options)) if options.remove => KeptBy::Retention { until: Timestamp::now() },
        (Some(ended), Some(options)) => {
            KeptBy::Retention { until: ended.at.after(options.retention) }
        }
        (None, _) | (_, None) => KeptBy::Nobody,
    }
}
