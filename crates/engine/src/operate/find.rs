//! Finds boxes by id, name or the beginning of an id, and lists them.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::care::tend::{observe_tended, tend_names, tended};
use crate::error::Error;
use crate::holdings::name;
use crate::host::layout::StateRoot;
use crate::host::state_root;
use crate::observe::GOES_WITHIN;
use crate::observe::view::Status;
use crate::operate::inspect;
use crate::record::Record;
use crate::record::damage::Damage;
use crate::spec::command;
use crate::spec::name::with_key;
use crate::spec::shown::quoted;
use crate::spec::{BoxId, Name, Tenant};

/// Which boxes a caller can see. For all others it gets the same answers as if they did not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// Boxes of all tenants. A name that several tenants use needs its key, as `KEY:NAME`.
    All,
    Tenant(Tenant),
}

impl Scope {
    /// Returns whether a box of this tenant is in the scope. `None`: nothing says whose it is.
    pub fn sees(&self, tenant: Option<&Tenant>) -> bool {
        match self {
            Self::All => true,
            Self::Tenant(own) => tenant == Some(own),
        }
    }
}

/// Finds the box with this id, this name, or an id that begins like this. Returns `None` if there is
/// no such box in this scope. Also finds, by the beginning of an id, a box that this command has just
/// cleaned up (`removed`), so that `rm` of it succeeds.
pub fn find<'a>(
    root: &StateRoot,
    scope: &Scope,
    reference: &str,
    removed: impl FnOnce() -> &'a [BoxId],
) -> Result<Option<BoxId>, Error> {
    let Some(boxes) = state_root::boxes_if_any(root)? else {
        return by_prefix(reference, &[], removed());
    };
    let is_seen = |id: &BoxId| is_seen(boxes.as_fd(), scope, id);
    if let Some(id) = BoxId::parse(reference).filter(is_seen) {
        return Ok(Some(id));
    }
    if let Some(id) = named(root, scope, reference, is_seen)? {
        return Ok(Some(id));
    }
    // Last, because this reads the names of all records.
    let mut ids = state_root::list(root, boxes.as_fd())?;
    ids.retain(|id| begins(id, reference) && is_seen(id));
    by_prefix(reference, &ids, removed())
}

/// Returns whether a box exists in this scope. A record that does not name its tenant is in no tenant's
/// scope.
fn is_seen(boxes: BorrowedFd<'_>, scope: &Scope, id: &BoxId) -> bool {
    match scope {
        Scope::All => state_root::is_there(boxes, id),
        Scope::Tenant(_) => scope.sees(recorded_tenant(boxes, id).as_ref()),
    }
}

fn recorded_tenant(boxes: BorrowedFd<'_>, id: &BoxId) -> Option<Tenant> {
    Record::look(boxes, id).ok()??.lines.tenant().cloned()
}

/// Returns the tenant that a box belongs to.
pub fn tenant_of(root: &StateRoot, id: &BoxId) -> Option<Tenant> {
    recorded_tenant(state_root::boxes_if_any(root).ok()??.as_fd(), id)
}

/// Finds the box with this name.
fn named(
    root: &StateRoot,
    scope: &Scope,
    reference: &str,
    is_seen: impl Fn(&BoxId) -> bool,
) -> Result<Option<BoxId>, Error> {
    let (tenant, name) = match scope {
        Scope::All => with_key(reference),
        Scope::Tenant(tenant) => (Some(tenant.clone()), reference),
    };
    let Ok(name) = Name::parse(name) else {
        return Ok(None);
    };
    let mut holders = match tenant {
        Some(tenant) => {
            let holder = name::holder(&root.layout, &tenant, &name);
            holder.map(|id| (tenant, id)).into_iter().collect()
        }
        None => name::holders(&root.layout, &name),
    };
    holders.retain(|(_, id)| is_seen(id));
    match holders.as_slice() {
        [] => Ok(None),
        [(_, id)] => Ok(Some(id.clone())),
        several => Err(not_unique(&name, several)),
    }
}

fn not_unique(name: &Name, several: &[(Tenant, BoxId)]) -> Error {
    let candidates = several.iter().map(|(tenant, id)| {
        let shown = tenant.qualify(name.as_str());
        format!("{shown} ({id})")
    });
    Error::bad_request(format!("several keys have a box with the name {name}"))
        .caused_by(in_short(candidates))
        .with_hint("write KEY:NAME, or :NAME for a box of the command line")
}

/// How long a list asks machines for the number of their processes, all together.
const LIST_ASKS_WITHIN: Duration = Duration::from_secs(2);

/// Lists every box, the oldest first, with the beginning of its command.
pub fn list(root: &StateRoot) -> Result<Vec<Status>, Error> {
    let Some(boxes) = state_root::boxes_if_any(root)? else {
        return Ok(Vec::new());
    };
    let ids = state_root::list(root, boxes.as_fd())?;
    let until = Instant::now() + GOES_WITHIN;
    let answered_until = Instant::now() + LIST_ASKS_WITHIN;
    let status = |id: &BoxId| {
        let at = root.at(id);
        match tended(at, boxes.as_fd(), until) {
            Ok(observation) => {
                let mut status = inspect::status_until(at, &observation?, answered_until);
                command::shorten(&mut status.command);
                Some(status)
            }
            // A box whose record cannot be read is listed too.
            Err(error) => Some(Status {
                stuck_on: Some(Damage::unreadable(&error).to_string()),
                ..Status::unknown(id.clone())
            }),
        }
    };
    let mut statuses: Vec<Status> = ids.iter().filter_map(status).collect();
    tend_names(root, boxes.as_fd(), usize::MAX);
    statuses.sort_by(|one, other| (one.created_at, &one.id).cmp(&(other.created_at, &other.id)));
    Ok(statuses)
}

/// Returns a live box whose machine runs this kernel.
pub fn with_kernel(root: &StateRoot, kernel: &str) -> Result<Option<BoxId>, Error> {
    let Some(boxes) = state_root::boxes_if_any(root)? else {
        return Ok(None);
    };
    let runs_it = |id: &&BoxId| {
        observe_tended(root.at(id)).is_ok_and(|observation| {
            let machine = observation.record.lines.machine.as_ref();
            observation.is_live() && machine.is_some_and(|machine| machine.kernel == kernel)
        })
    };
    Ok(state_root::list(root, boxes.as_fd())?.iter().find(runs_it).cloned())
}

fn begins(id: &BoxId, reference: &str) -> bool {
    !reference.is_empty() && id.as_str().starts_with(reference)
}

fn by_prefix(reference: &str, ids: &[BoxId], removed: &[BoxId]) -> Result<Option<BoxId>, Error> {
    let mut found = ids.to_vec();
    found.sort();
    match found.as_slice() {
        [] => Ok(removed.iter().find(|id| begins(id, reference)).cloned()),
        [one] => Ok(Some(one.clone())),
        several => Err(ambiguous(reference, several)),
    }
}

/// How many candidates the error names.
const CANDIDATES_MAX: usize = 4;

fn ambiguous(reference: &str, several: &[BoxId]) -> Error {
    let message = format!("{} is the beginning of several ids", quoted(reference));
    Error::bad_request(message)
        .caused_by(in_short(several.iter().map(ToString::to_string)))
        .with_hint("give more of the id")
}

fn in_short(candidates: impl ExactSizeIterator<Item = String>) -> String {
    let more = candidates.len() > CANDIDATES_MAX;
    let shown = candidates.take(CANDIDATES_MAX).chain(more.then(|| "...".to_owned()));
    shown.collect::<Vec<_>>().join(", ")
}
