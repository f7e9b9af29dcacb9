//! What happened to a box: from its record while it has one, later from the history file.
//!
//! This folder reads records, journals and the history file, and writes only the history file. It
//! never changes a box. `steps` has the diagram.

pub mod file;
pub mod steps;
pub mod text;

use std::os::fd::AsFd;
use std::time::Duration;

use tare_control::End;

use crate::error::{Context, Error, ErrorKind};
use crate::history::file::HistoryFile;
use crate::history::steps::{History, Now, Removal, Sources};
use crate::holdings::cgroup;
use crate::host::layout::{BoxAt, StateRoot};
use crate::host::state_root;
use crate::observe::observe;
use crate::observe::view::{State, no_box};
use crate::receipt::Receipt;
use crate::record::Record;
use crate::record::lines::{Line, Reason};
use crate::spec::name::with_key;
use crate::spec::shown::quoted;
use crate::spec::{BoxId, Tenant};

/// How long the history of an attached box is kept.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

const UNKNOWN: &str = "'tare ls -a' lists all; the history of a removed box is kept for its \
                       retention, that of a box without -d only if its tare was killed";

const NO_RECEIPT: &str = "the receipt of a removed box is kept for its retention, that of a run \
                          only if it was asked for";

/// The history of a box, and its state.
#[derive(Debug)]
pub struct Explanation {
    /// `None`: the box is removed.
    pub state: Option<State>,
    pub history: History,
}

/// Explains a box that has a record. If the record goes away meanwhile, this function explains the
/// removed box.
pub fn explain_recorded(at: BoxAt<'_>) -> Result<Explanation, Error> {
    let boxes = state_root::boxes(at.root)?;
    let Ok(Some(record)) = Record::look(boxes.as_fd(), at.id) else {
        return explain_former(at.root, at.id.as_str());
    };
    let observation = observe(at, record);
    let record = &observation.record;
    let mut sources = Sources::read(at.id, record);
    if record.lines.ended.is_none() {
        // No command has recorded the end yet.
        sources.lines.extend(observation.ended(at).map(Line::Ended));
    }
    sources.oom = observation.is_live()
        && cgroup::oom_kills(&cgroup::roots_of(at, record), at.tagged_id()) > 0;
    let history = steps::history(&sources, Now::read());
    Ok(Explanation { state: Some(observation.state()), history })
}

/// Explains a box that no present id or name refers to: by the id of a removed box, by a former name
/// (also as `KEY:NAME`), or by the beginning of a removed box's id. Of several boxes that had the
/// name, this function explains the one that had it last.
pub fn explain_former(root: &StateRoot, reference: &str) -> Result<Explanation, Error> {
    let known = removed(root)?;
    let recorded = recorded(root)?;
    let (tenant, name) = with_key(reference);
    let had_name_until = |it: &Sources| {
        let is_its = tenant.is_none() || it.tenant() == tenant.as_ref();
        it.had_name_until(name).filter(|_| is_its)
    };
    let holders = known.iter().chain(&recorded).filter(|it| had_name_until(it).is_some());
    let exact = known.iter().find(|it| it.id.as_str() == reference);
    let exact = exact.or_else(|| holders.max_by_key(|it| had_name_until(it)));
    let begins = |it: &&Sources| !reference.is_empty() && it.id.as_str().starts_with(reference);
    let found = match (exact, known.iter().filter(begins).count()) {
        (Some(exact), _) => Some(exact),
        (None, 0 | 1) => known.iter().find(begins),
        (None, _) => return Err(ambiguous(reference)),
    };
    let sources = found.ok_or_else(|| no_box(reference).with_hint(UNKNOWN))?;
    if recorded.iter().any(|it| it.id == sources.id) {
        return explain_recorded(root.at(&sources.id));
    }
    Ok(Explanation { state: None, history: steps::history(sources, Now::read()) })
}

/// A removed box whose history is kept.
#[derive(Debug)]
pub struct RemovedBox {
    /// `None`: its end is not known.
    pub end: Option<End>,
    /// The API key that it belonged to.
    pub key: Option<String>,
    /// A user removed or killed it. Otherwise it was removed because it had ended.
    pub is_requested: bool,
}

/// Returns `None` if the box has no history, or the history cannot be read.
pub fn removed_box(root: &StateRoot, id: &BoxId) -> Option<RemovedBox> {
    let removed = removed(root).ok()?;
    let sources = removed.iter().find(|sources| sources.id == *id)?;
    let is_requested = sources.removal.is_some_and(|it| it.why == Reason::Requested);
    let key = sources.tenant().and_then(|tenant| tenant.key().map(str::to_owned));
    Some(RemovedBox { end: sources.end(), key, is_requested })
}

/// Reads the sources of all boxes that have a record.
fn recorded(root: &StateRoot) -> Result<Vec<Sources>, Error> {
    let Some(boxes) = state_root::boxes_if_any(root)? else {
        return Ok(Vec::new());
    };
    let ids = state_root::ids(boxes.as_fd()).context(|| "cannot list the boxes".into())?;
    let sources = |id: &BoxId| {
        let record = Record::look(boxes.as_fd(), id).ok().flatten()?;
        Some(Sources::read(id, &record))
    };
    Ok(ids.iter().filter_map(sources).collect())
}

/// Reads the sources of all removed boxes that are still kept.
pub fn removed(root: &StateRoot) -> Result<Vec<Sources>, Error> {
    let path = root.layout.history();
    file(root, &path).read().map_err(|error| {
        let message = format!("cannot read the history of removed boxes, {}", quoted(&path));
        Error::failed(message).caused_by(error).with_hint("if it is not tare's, remove it")
    })
}

/// Reserves space for the history of one more box.
pub fn reserve(root: &StateRoot) -> Result<(), Error> {
    let path = root.layout.history();
    let boxes = state_root::count(state_root::boxes(root)?.as_fd()).max(1);
    let reserved = file(root, &path).reserve(boxes);
    reserved.context(|| format!("cannot make room for the history in {}", path.display()))
}

/// The history of a box that is being removed.
#[derive(Debug)]
pub struct Kept {
    sources: Sources,
    retention: Duration,
}

/// Keeps the history of a box that is about to be removed, with what its receipt says so far. `oom`:
/// the kernel killed a process for memory, and the record does not say it.
pub fn keep(
    at: BoxAt<'_>,
    record: &Record,
    removal: Removal,
    oom: bool,
    receipt: &Receipt,
) -> Kept {
    // Without even its first line, the box was never announced to a user.
    let is_unknown = record.lines.created.is_none() && record.lines.keeper.is_none();
    let retention = record.lines.detached().map_or(RETENTION, |options| options.retention);
    let kept = Kept {
        sources: Sources { removal: Some(removal), oom, ..Sources::read(at.id, record) },
        retention: if is_unknown { Duration::ZERO } else { retention },
    };
    kept.store(at.root, receipt);
    kept
}

impl Kept {
    /// Keeps the history with this receipt, in place of what was kept before. A lack of space is no
    /// reason to keep the box.
    pub fn store(&self, root: &StateRoot, receipt: &Receipt) {
        let path = root.layout.history();
        let sources = Sources { receipt: Some(receipt.clone()), ..self.sources.clone() };
        file(root, &path).add(sources, self.retention).ok();
    }
}

/// Returns the receipt of a removed box that the caller can see: by its id, by its last name (also as
/// `KEY:NAME`), or by the beginning of its id. Of several boxes that had the name, the one that was
/// removed last.
pub fn receipt(
    root: &StateRoot,
    reference: &str,
    sees: impl Fn(Option<&Tenant>) -> bool,
) -> Result<Receipt, Error> {
    let mut known = removed(root)?;
    known.retain(|it| sees(it.tenant()));
    let (tenant, name) = with_key(reference);
    let had_name = |it: &&Sources| {
        let is_its = tenant.is_none() || it.tenant() == tenant.as_ref();
        is_its && it.names().next_back() == Some(name)
    };
    let begins = |it: &&Sources| !reference.is_empty() && it.id.as_str().starts_with(reference);
    let exact = known.iter().find(|it| it.id.as_str() == reference);
    let found = exact.or_else(|| known.iter().rfind(had_name));
    let found = match (found, known.iter().filter(begins).count()) {
        (Some(found), _) => Some(found),
        (None, 0 | 1) => known.iter().find(begins),
        (None, _) => return Err(ambiguous(reference)),
    };
    let found = found.ok_or_else(|| no_box(reference).with_hint(NO_RECEIPT))?;
    found.receipt.clone().ok_or_else(|| {
        Error::new(ErrorKind::NoSuchBox, format!("box {} has no receipt", found.id))
            .with_hint("a run has one only if it was asked for")
    })
}

fn ambiguous(reference: &str) -> Error {
    let message = format!("{} is the beginning of several removed boxes", quoted(reference));
    Error::bad_request(message).with_hint("give more of the id")
}

fn file<'a>(root: &'a StateRoot, path: &'a std::path::Path) -> HistoryFile<'a> {
    HistoryFile { path, boot_id: &root.host.boot_id }
}
