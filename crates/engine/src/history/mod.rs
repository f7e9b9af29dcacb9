//! What happened to a box, and the sentence about its end: from its record while it has one, later
//! from the stored histories.
//!
//! This folder reads records, journals and stored histories, and writes only the latter. It never
//! changes a box. `steps` has the diagram, `sentence` the table of sentences, `store` the files.

pub mod sentence;
pub mod steps;
pub mod store;
pub mod text;

use std::os::fd::AsFd;
use std::time::Duration;

use serde_json::json;
use tare_control::End;

use crate::error::{Context, Error, ErrorKind, Hint};
use crate::history::sentence::{Circumstances, Sentence, Subject};
use crate::history::steps::{History, Now, Removal, Sources};
use crate::history::store::{HistorySettings, HistoryStore, Lookup, Wanted};
use crate::holdings::cgroup;
use crate::host::layout::{BoxAt, StateRoot};
use crate::host::state_root;
use crate::observe::observe;
use crate::observe::view::{State, no_box};
use crate::receipt::Receipt;
use crate::record::Record;
use crate::record::lines::{EndedLine, Evidence, KeeperLine, Line, Reason};
use crate::spec::name::with_key;
use crate::spec::shown::{escaped, quoted};
use crate::spec::{BoxId, Tenant};

/// How long the history of an attached box is kept.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How much of stderr a history has.
pub const STDERR_BYTES: usize = 2048;

const NO_RECEIPT: &str = "the receipt of a removed box is kept for its retention, that of a run \
                          only if it was asked for";

/// Why a box ended, its history, and its state.
#[derive(Debug)]
pub struct Explanation {
    /// `None`: the box is removed.
    pub state: Option<State>,
    /// `None`: the box lives.
    pub sentence: Option<Sentence>,
    pub evidence: Option<Evidence>,
    /// The last part of what the command wrote to stderr.
    pub stderr: Option<String>,
    pub history: History,
}

impl Explanation {
    fn of(state: Option<State>, sources: Sources) -> Self {
        let history = steps::history(&sources, Now::read());
        let sentence = history.end.map(|end| circumstances(&sources, end).sentence());
        let evidence = sources.evidence().cloned();
        Self { state, sentence, evidence, stderr: sources.stderr, history }
    }

    /// Returns the explanation as `tare explain --json` prints it. `words` are those of the front
    /// end for advice.
    pub fn to_json(&self, words: fn(&Hint) -> String) -> serde_json::Value {
        let history = &self.history;
        json!({
            "id": history.id,
            "name": history.name(),
            "state": self.state,
            "created_at": history.created_at,
            "cause": history.end.map(|end| end.cause),
            "exit_code": history.end.map(End::code),
            "sentence": self.sentence.as_ref().map(|it| it.with_advice(words)),
            "evidence": self.evidence,
            "stderr": self.stderr,
            "steps": history.steps,
            "forgotten": history.forgotten,
        })
    }
}

/// Returns what the sources say about an end.
fn circumstances(sources: &Sources, end: End) -> Circumstances<'_> {
    let created = sources.created();
    let leased = |line: &Line| match line {
        Line::Keeper(KeeperLine { lease, .. }) => lease.ends_at(),
        Line::Updated(update) => update.lease.and_then(|lease| lease.ends_at()),
        Line::Created(_)
        | Line::Renamed { .. }
        | Line::Removing { .. }
        | Line::Stuck(_)
        | Line::Ending(_)
        | Line::Ended(_)
        | Line::Warm { .. }
        | Line::Claimed(_)
        | Line::Held(_)
        | Line::Requested(_) => None,
    };
    let options = created.and_then(|created| created.detached.as_ref());
    let is_abandoned = sources.removal.is_some_and(|it| it.why == Reason::Abandoned);
    let creator = created.and_then(|created| created.creator.as_ref());
    let evidence = sources.evidence();
    let timeout_ms = evidence.and_then(|it| it.timeout_ms);
    let output_limit = evidence.and_then(|it| it.output_limit_bytes);
    Circumstances {
        evidence,
        by: sources.asked_for(end),
        lost_creator: creator.filter(|_| is_abandoned),
        timeout: sources
            .spec()
            .and_then(|spec| spec.timeout)
            .or(timeout_ms.map(Duration::from_millis)),
        lease_ended: sources.lines.iter().rev().find_map(leased),
        output_bytes_max: options.map(|options| options.log_bytes_max.value()).or(output_limit),
        failure: sources.ended_line().and_then(|line| line.failure.as_deref()),
        ..Circumstances::of(end, Subject::Box)
    }
}

/// Explains a box that has a record. If the record goes away meanwhile, this function explains the
/// removed box.
pub fn explain_recorded(at: BoxAt<'_>) -> Result<Explanation, Error> {
    let boxes = state_root::boxes(at.root)?;
    let Ok(Some(record)) = Record::look(boxes.as_fd(), at.id) else {
        return explain_former(at.root, at.id.as_str(), &|_| true);
    };
    let observation = observe(at, record);
    let record = &observation.record;
    let mut sources = Sources::read(at.id, record);
    if record.lines.ended.is_none() {
        // No command has recorded the end yet.
        sources.lines.extend(observation.ended(at).map(|ended| Line::Ended(Box::new(ended))));
    }
    if observation.is_live() {
        sources.evidence = Some(cgroup::evidence(at, record));
    }
    if sources.end().is_some_and(|end| !end.is_success()) {
        sources.stderr = stderr_of(at.root, record);
    }
    Ok(Explanation::of(Some(observation.state()), sources))
}

/// Returns the end of what the command wrote to stderr, unless the user wants none to be kept.
fn stderr_of(root: &StateRoot, record: &Record) -> Option<String> {
    let is_kept = record.lines.detached().is_some_and(|options| !options.remove);
    if !is_kept || !settings(root).stderr {
        return None;
    }
    shown_stderr(&record.last_stderr(STDERR_BYTES)?)
}

/// Returns the end of some output as text without control characters; `None` if there is none.
pub fn shown_stderr(bytes: &[u8]) -> Option<String> {
    let last = &bytes[bytes.len().saturating_sub(STDERR_BYTES)..];
    // The first character may be cut.
    let cut = last.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    let text = String::from_utf8_lossy(&last[cut..]);
    let lines: Vec<String> = text.split('\n').map(escaped).collect();
    (!text.is_empty()).then(|| lines.join("\n"))
}

/// Explains a box that no present id or name refers to: by the id of a removed box, by a former name
/// (also as `KEY:NAME`), or by the beginning of a removed box's id. Of several boxes that had the
/// name, this function explains the one that had it last. `sees` says whose boxes exist for the user.
pub fn explain_former(
    root: &StateRoot,
    reference: &str,
    sees: &dyn Fn(Option<&Tenant>) -> bool,
) -> Result<Explanation, Error> {
    let (tenant, name) = with_key(reference);
    let wanted = [Wanted::Id(reference), Wanted::Name(name)];
    let found = if reference.is_empty() { Vec::new() } else { find(root, &wanted)? };
    let is_seen = |it: &Sources| sees(it.tenant());
    let had_name_until = |it: &Sources| {
        let is_its = tenant.is_none() || it.tenant() == tenant.as_ref();
        it.had_name_until(name).filter(|_| is_its)
    };
    let mut known = Vec::new();
    let mut expired = false;
    for one in found.into_iter().filter(|it| is_seen(it.sources())) {
        let is_its =
            one.sources().id.as_str() == reference || had_name_until(one.sources()).is_some();
        expired |= is_its && matches!(one, Lookup::Expired(_));
        known.extend(one.kept());
    }
    let mut recorded = recorded(root)?;
    recorded.retain(is_seen);
    let holders = known.iter().chain(&recorded).filter(|it| had_name_until(it).is_some());
    let exact = known.iter().find(|it| it.id.as_str() == reference);
    let exact = exact.or_else(|| holders.max_by_key(|it| had_name_until(it)));
    let begins = |it: &&Sources| !reference.is_empty() && it.id.as_str().starts_with(reference);
    let found = match (exact, known.iter().filter(begins).count()) {
        (Some(exact), _) => Some(exact),
        (None, 0 | 1) => known.iter().find(begins),
        (None, _) => return Err(ambiguous(reference)),
    };
    let Some(id) = found.map(|sources| sources.id.clone()) else {
        return Err(unknown(root, reference, expired));
    };
    if recorded.iter().any(|it| it.id == id) {
        return explain_recorded(root.at(&id));
    }
    match known.into_iter().find(|it| it.id == id) {
        Some(sources) => Ok(Explanation::of(None, sources)),
        None => Err(unknown(root, reference, expired)),
    }
}

/// Returns the error for a box without a history, and says what is not kept any more.
fn unknown(root: &StateRoot, reference: &str, expired: bool) -> Error {
    let error = no_box(reference);
    if expired {
        return error
            .caused_by("its history is no longer kept: its retention has passed")
            .with_hint(Hint::Retention);
    }
    let path = root.layout.histories();
    match store(root, &path).dropped_before() {
        Some(at) => error
            .caused_by(format!("histories of boxes removed before {at} are no longer kept"))
            .with_hint(Hint::HistorySize),
        None => error,
    }
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
    let sources = removed(root, id).ok()??;
    let is_requested = sources.removal.is_some_and(|it| it.why == Reason::Requested);
    let key = sources.tenant().and_then(|tenant| tenant.key().map(str::to_owned));
    Some(RemovedBox { end: sources.end(), key, is_requested })
}

/// Returns the sources of all removed boxes that are still kept, the oldest first.
pub fn all_removed(root: &StateRoot) -> Result<Vec<Sources>, Error> {
    let found = find(root, &[Wanted::Id("")])?;
    Ok(found.into_iter().rev().filter_map(Lookup::kept).collect())
}

/// Returns the sources of a removed box that are still kept.
pub fn removed(root: &StateRoot, id: &BoxId) -> Result<Option<Sources>, Error> {
    let found = find(root, &[Wanted::Id(id.as_str())])?;
    Ok(found.into_iter().filter_map(Lookup::kept).find(|sources| sources.id == *id))
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

fn find(root: &StateRoot, wanted: &[Wanted<'_>]) -> Result<Vec<Lookup>, Error> {
    let path = root.layout.histories();
    store(root, &path).find(wanted).map_err(|error| {
        let message = format!("cannot read the histories of removed boxes, {}", quoted(&path));
        Error::failed(message).caused_by(error).with_hint("if it is not tare's, remove it")
    })
}

/// Reserves space for the history of one more box.
pub fn reserve(root: &StateRoot) -> Result<(), Error> {
    let path = root.layout.histories();
    let boxes = state_root::count(state_root::boxes(root)?.as_fd()).max(1);
    let reserved = store(root, &path).reserve(boxes);
    reserved.context(|| format!("cannot make room for the history in {}", path.display()))
}

/// The history of a box that is being removed.
#[derive(Debug)]
pub struct Kept {
    sources: Sources,
    retention: Duration,
}

impl Kept {
    /// Keeps the history with this receipt, in place of what was kept before. A lack of space is no
    /// reason to keep the box.
    pub fn store(&self, root: &StateRoot, receipt: Option<&Receipt>) {
        let path = root.layout.histories();
        let sources = Sources { receipt: receipt.cloned(), ..self.sources.clone() };
        store(root, &path).add(sources, self.retention).ok();
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
    let (tenant, name) = with_key(reference);
    let wanted = [Wanted::Id(reference), Wanted::Name(name)];
    let found = if reference.is_empty() { Vec::new() } else { find(root, &wanted)? };
    // The newest first.
    let mut known: Vec<Sources> = found.into_iter().filter_map(Lookup::kept).collect();
    known.retain(|it| sees(it.tenant()));
    let had_name = |it: &&Sources| {
        let is_its = tenant.is_none() || it.tenant() == tenant.as_ref();
        is_its && it.names().next_back() == Some(name)
    };
    let begins = |it: &&Sources| !reference.is_empty() && it.id.as_str().starts_with(reference);
    let exact = known.iter().find(|it| it.id.as_str() == reference);
    let found = exact.or_else(|| known.iter().find(had_name));
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

/// What a user has set about stored histories.
pub fn settings(root: &StateRoot) -> HistorySettings {
    store(root, &root.layout.histories()).settings()
}

/// Sets how large all histories together may become, and whether they contain stderr.
pub fn set(root: &StateRoot, bytes: Option<u64>, stderr: Option<bool>) -> Result<(), Error> {
    let path = root.layout.histories();
    let set = store(root, &path).set(bytes, stderr);
    set.context(|| format!("cannot set the size of the histories in {}", path.display()))
}

/// Keeps the history of a box that is about to be removed, with what its receipt says so far. If its
/// creator removes it, `ended` says how it ended. Otherwise the record does, and `evidence` what the
/// kernel counted.
pub fn keep(
    at: BoxAt<'_>,
    record: &Record,
    removal: Removal,
    (ended, evidence): (Option<&EndedLine>, Evidence),
    receipt: Option<&Receipt>,
) -> Kept {
    let created = record.lines.created.as_ref();
    // A box without a first line was never announced to a user. A box that is still in a pool never
    // belonged to one.
    let is_unknown =
        (created.is_none() && record.lines.keeper.is_none()) || record.lines.pool.is_some();
    let retention = record.lines.detached().map_or(RETENTION, |options| options.retention);
    let is_success = ended.is_some_and(|ended| ended.end.is_success() && !ended.end.oom);
    let sources = match (created, is_success) {
        (Some(created), true) => {
            let removal = receipt.map(|_| removal);
            Sources { removal, ..Sources::of_success(at.id, created) }
        }
        (_, _) => sources_of(at, record, removal, (ended, evidence)),
    };
    let kept = Kept { sources, retention: if is_unknown { Duration::ZERO } else { retention } };
    kept.store(at.root, receipt);
    kept
}

fn sources_of(
    at: BoxAt<'_>,
    record: &Record,
    removal: Removal,
    (ended, evidence): (Option<&EndedLine>, Evidence),
) -> Sources {
    let mut sources = Sources { removal: Some(removal), ..Sources::read(at.id, record) };
    match ended {
        Some(ended) => {
            let mut ended = ended.clone();
            sources.stderr = ended.evidence.stderr.take();
            sources.lines.push(Line::Ended(Box::new(ended)));
        }
        None => {
            sources.evidence = record.lines.ended.is_none().then_some(evidence);
            let is_success = sources.end().is_some_and(End::is_success);
            sources.stderr = if is_success { None } else { stderr_of(at.root, record) };
        }
    }
    sources
}

fn store<'a>(root: &'a StateRoot, path: &'a std::path::Path) -> HistoryStore<'a> {
    HistoryStore { path, boot_id: &root.host.boot_id }
}
