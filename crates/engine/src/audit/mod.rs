//! The proof: every box with all that it holds on the host now, and the differences between
//! records and host.
//!
//! This folder only reads, and asks no keeper: everything comes from the kernel. One pass over
//! `/proc` serves all boxes. Then each box is observed once.

pub(crate) mod compare;
pub mod findings;
pub(crate) mod host_objects;
mod kept_files;

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::audit::compare::compare;
use crate::audit::findings::Finding;
use crate::audit::host_objects::HostObjects;
use crate::error::Error;
use crate::history;
use crate::history::steps::Sources;
use crate::holdings::census::Processes;
use crate::holdings::held_now::{ChosenProcesses, Held, held_now};
use crate::holdings::name;
use crate::host::layout::{BoxAt, StateRoot};
use crate::observe::Observation;
use crate::observe::view::{Cause, State};
use crate::receipt::Receipt;
use crate::record::lines::Reason;
use crate::spec::{BoxId, Tenant};
use crate::time::{Moment, Timestamp};

pub use crate::audit::kept_files::KeptFiles;

/// The version of the fields of an audit. A field that changes its meaning changes it; a new field
/// does not.
const VERSION: u32 = 1;

/// As `tare audit --json` and `GET /v1/audit` show it.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Serialize)]
pub struct Audit {
    /// The version of these fields.
    pub version: u32,
    /// When the audit was made.
    pub made: Moment,
    /// The boot of the host that the times of the boot clock belong to.
    pub boot_id: String,
    /// Whether records and host agree.
    pub clean: bool,
    /// Each box with everything that it holds, the oldest first.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub boxes: Vec<AuditedBox>,
    /// What is on the host and in no record.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub orphans: Vec<Finding>,
    /// What is in a record and not on the host, or differs there.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub lost: Vec<Finding>,
    /// The files of clients of `tare serve` that are kept in the state root. Not a difference.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub kept_files: Option<KeptFiles>,
    /// The boxes that were removed since a time, if that was asked for, in the order of their
    /// removal, with their receipts.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Object>>))]
    pub removed: Option<Vec<RemovedSince>>,
}

/// A box that was removed.
#[derive(Debug, Serialize)]
pub struct RemovedSince {
    pub id: BoxId,
    /// The last name that the box had.
    pub name: Option<String>,
    /// The API key that the box belonged to.
    pub key: Option<String>,
    /// Why the box ended.
    pub cause: Option<Cause>,
    pub removed_at: Timestamp,
    /// `None`: no receipt is kept. Runs without a receipt are not listed at all.
    pub receipt: Option<Receipt>,
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

/// Lists everything that boxes hold, and every difference between records and host.
pub fn audit(root: &StateRoot) -> Result<Audit, Error> {
    let objects = HostObjects::read(root);
    let processes = Processes::read(root, &objects.pids);
    let comparison = compare(root, &objects, Some(&processes))?;
    let audited = comparison.boxes.into_iter().filter_map(|one| one.audited);
    let mut boxes: Vec<AuditedBox> = audited.collect();
    boxes.sort_by(|one, other| (one.created_at, &one.id).cmp(&(other.created_at, &other.id)));
    let clean = comparison.findings.is_empty();
    let (orphans, lost) =
        comparison.findings.into_iter().partition(|finding| finding.kind.is_unrecorded());
    Ok(Audit {
        version: VERSION,
        made: Moment::now(),
        boot_id: root.host.boot_id.clone(),
        clean,
        boxes,
        orphans,
        lost,
        kept_files: KeptFiles::read(&root.layout),
        removed: None,
    })
}

/// Returns the boxes that were removed since this time and whose history is kept.
pub fn removed_since(root: &StateRoot, since: Timestamp) -> Result<Vec<RemovedSince>, Error> {
    // Leaves out runs without a receipt: there are very many.
    let is_audited = |sources: &Sources| {
        let is_run = sources.removal.is_none_or(|removal| removal.why == Reason::ByCreator);
        !is_run || sources.receipt.is_some()
    };
    let removed = history::all_removed(root)?.into_iter().filter(is_audited);
    let removed = removed.filter_map(|sources| {
        let removed_at = sources.removed_at().filter(|at| *at >= since)?;
        let name = sources.names().next_back().map(str::to_owned);
        let key = sources.tenant().and_then(Tenant::key).map(str::to_owned);
        let cause = sources.end().map(|end| end.cause);
        let (id, receipt) = (sources.id, sources.receipt);
        Some(RemovedSince { id, name, key, cause, removed_at, receipt })
    });
    // The histories are stored by key.
    let mut removed: Vec<_> = removed.collect();
    removed.sort_by_key(|removed| removed.removed_at);
    Ok(removed)
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
        if found.clean || Instant::now() >= until {
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
    let keeper = observation.keeper().map(|keeper| keeper.pid());
    let which = ChosenProcesses {
        keeper,
        is_live: observation.is_live(),
        most: usize::MAX,
        with_use: true,
        processes,
    };
    let (mut held, _) = held_now(at, &observation.record, which);
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
        stuck_on: observation.stuck_on(at),
        held,
    }
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
