//! The proof: every box with all that it holds on the host now, and the differences between
//! records and host.
//!
//! This folder only reads, and asks no keeper: everything comes from the kernel. One pass over
//! `/proc` serves all boxes. Then each box is observed once.

pub(crate) mod census;
pub(crate) mod compare;
pub mod findings;
mod held;
pub(crate) mod host_objects;
mod kept_files;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::audit::census::Processes;
use crate::audit::compare::compare;
use crate::audit::findings::Finding;
use crate::audit::held::held_by;
use crate::audit::host_objects::HostObjects;
use crate::error::Error;
use crate::holdings::name;
use crate::host::layout::{BoxAt, StateRoot};
use crate::observe::Observation;
use crate::observe::view::State;
use crate::spec::{BoxId, Tenant};
use crate::time::Timestamp;

pub use crate::audit::held::{Held, HeldNamespace, HeldPort, HeldProcess};
pub use crate::audit::kept_files::KeptFiles;

#[derive(Debug)]
pub struct Audit {
    /// The oldest first.
    pub boxes: Vec<AuditedBox>,
    pub findings: Vec<Finding>,
    /// Files of clients of `tare serve`, below the state root. Not a difference.
    pub kept_files: Option<KeptFiles>,
}

/// A box on record, and what it holds.
#[derive(Debug, Serialize)]
pub struct AuditedBox {
    pub id: BoxId,
    pub name: Option<String>,
    /// The API key that the box belongs to.
    pub key: Option<String>,
    pub state: State,
    pub created_at: Timestamp,
    pub kept_by: KeptBy,
    pub stuck_on: Option<String>,
    #[serde(flatten)]
    pub held: Held,
}

/// What keeps a box on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum KeptBy {
    /// Every process of the box dies with this one.
    Keeper { pid: i32 },
    /// The box has no keeper, and these processes live in it.
    Processes { pids: Vec<i32> },
    /// The box has ended, and its record is kept for its retention.
    Retention { until: Timestamp },
    /// Nothing: only names are left.
    Nothing,
}

impl Audit {
    /// Whether records and host agree.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Objects on the host that are in no record.
    pub fn orphans(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.kind.is_unrecorded())
    }

    /// Objects of a record that are not on the host, or differ there.
    pub fn lost(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| !finding.kind.is_unrecorded())
    }
}

/// The findings are two lists in JSON.
impl Serialize for Audit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Audit", 4)?;
        object.serialize_field("boxes", &self.boxes)?;
        object.serialize_field("orphans", &self.orphans().collect::<Vec<_>>())?;
        object.serialize_field("lost", &self.lost().collect::<Vec<_>>())?;
        object.serialize_field("kept_files", &self.kept_files)?;
        object.end()
    }
}

/// Lists everything that boxes hold, and every difference between records and host.
pub fn audit(root: &StateRoot) -> Result<Audit, Error> {
    let objects = HostObjects::read(root);
    let processes = Processes::read(root, &objects.pids);
    let comparison = compare(root, &objects, Some(&processes))?;
    let audited = comparison.boxes.into_iter().filter_map(|one| one.audited);
    let mut boxes: Vec<AuditedBox> = audited.collect();
    boxes.sort_by(|one, other| {
        let key = |it: &AuditedBox| (it.created_at, it.id.to_string());
        key(one).cmp(&key(other))
    });
    let kept_files = KeptFiles::read(&root.layout);
    Ok(Audit { boxes, findings: comparison.findings, kept_files })
}

/// How long [`audit_until_clean`] waits at most.
const CLEAN_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two audits. The kernel does not report when records and host agree.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Audits until records and host agree, for at most ten seconds, and returns the last result.
pub fn audit_until_clean(root: &StateRoot) -> Result<Audit, Error> {
    let until = Instant::now() + CLEAN_WITHIN;
    loop {
        let found = audit(root)?;
        if found.is_clean() || Instant::now() >= until {
            return Ok(found);
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by CLEAN_WITHIN")]
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn audited(
    at: BoxAt<'_>,
    observation: &Observation,
    objects: &HostObjects,
    processes: &Processes,
) -> AuditedBox {
    let lines = &observation.record.lines;
    let mut held = held_by(at, observation, processes);
    // Directories in v1 hierarchies have none below them: a box cannot see them.
    held.add_cgroups(objects.cgroups.get(at.id).into_iter().flatten());
    let created = lines.created.as_ref().map(|created| created.created_at);
    AuditedBox {
        id: at.id.clone(),
        name: name::current(at, lines).map(ToString::to_string),
        key: lines.tenant().and_then(Tenant::key).map(str::to_owned),
        state: observation.state(),
        created_at: created.unwrap_or(Timestamp::from_ms(0)),
        kept_by: kept_by(at, observation, &held),
        stuck_on: observation.stuck_on(),
        held,
    }
}

/// Where the kept scratch space of a box is mounted on the host. `None` if it is a directory, as
/// without privileges.
fn mounted_scratch(at: BoxAt<'_>, observation: &Observation) -> Option<PathBuf> {
    if !observation.record.keeps_scratch() {
        return None;
    }
    let path = at.scratch();
    let device = |path: &Path| Some(path.symlink_metadata().ok()?.dev());
    (device(&path)? != device(path.parent()?)?).then_some(path)
}

fn kept_by(at: BoxAt<'_>, observation: &Observation, held: &Held) -> KeptBy {
    if let Some(keeper) = observation.keeper() {
        return KeptBy::Keeper { pid: keeper.pid() };
    }
    if !held.processes.is_empty() {
        let pids = held.processes.iter().map(|process| process.pid);
        return KeptBy::Processes { pids: pids.collect() };
    }
    let options = observation.record.lines.detached();
    match (observation.ended(at), options) {
        (Some(_), Some(options)) if options.remove => KeptBy::Retention { until: Timestamp::now() },
        (Some(ended), Some(options)) => {
            KeptBy::Retention { until: ended.at.after(options.retention) }
        }
        (None, _) | (_, None) => KeptBy::Nothing,
    }
}
