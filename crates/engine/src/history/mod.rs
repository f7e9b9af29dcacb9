//! What happened to a box, and the sentence about its end: from its record while it has one, later
//! from the stored histories.
//!
//! This folder reads records, journals and stored histories, and writes only the latter. It never
//! changes a box. `steps` has the diagram, `sentence` the table of sentences, `store` and `segments` the files.

pub mod segments;
pub mod sentence;
mod shorten;
pub mod steps;
pub mod store;
pub mod text;

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tare_control::End;
use tare_kernel::clock::boot_ns;

use crate::actor::Actor;
use crate::error::{Context, Error, ErrorKind, Hint};
use crate::history::sentence::{Circumstances, Sentence, Subject};
use crate::history::steps::{History, Removal, Sources};
use crate::history::store::{HistorySettings, HistoryStore, Lookup, Wanted};
use crate::holdings::cgroup;
use crate::host::layout::{BoxAt, StateRoot};
use crate::host::state_root;
use crate::observe::observe;
use crate::observe::view::{State, no_box};
use crate::receipt::{Receipt, SeenRemoval};
use crate::record::Record;
use crate::record::lines::{EndedLine, Evidence, KeeperLine, Line, Reason, asked_for};
use crate::spec::name::with_key;
use crate::spec::shown::{escaped, quoted};
use crate::spec::{BoxId, Tenant};
use crate::time::Moment;

/// How long the history of an attached box is kept.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How much of stderr a history has.
pub const STDERR_BYTES: usize = 2048;

/// Why a box ended, its history, and its state.
#[derive(Debug)]
pub struct Explanation {
    /// `None`: the box is removed.
    pub state: Option<State>,
    /// What the box is stuck on, or waits for while it starts slowly.
    pub stuck_on: Option<String>,
    /// `None`: the box lives.
    pub sentence: Option<Sentence>,
    pub evidence: Option<Evidence>,
    /// The last part of what the command wrote to stderr.
    pub stderr: Option<String>,
    pub history: History,
    sources: Sources,
}

impl Explanation {
    fn of(state: Option<State>, sources: Sources) -> Self {
        let history = steps::history(&sources, Moment::now());
        let sentence = history.end.map(|end| circumstances(&sources, end).sentence());
        let (evidence, stderr) = (sources.evidence().cloned(), sources.stderr.clone());
        Self { state, stuck_on: None, sentence, evidence, stderr, history, sources }
    }

    /// Drops what describes the host: the pids of tare's processes and of the keeper, and paths.
    pub fn without_host(mut self) -> Self {
        self.sources.hide_host();
        // A box that is stuck names processes and paths of the host.
        let stuck_on = self.stuck_on.filter(|_| self.state == Some(State::Starting));
        Self { stuck_on, ..Self::of(self.state, self.sources) }
    }

    /// Returns the explanation as `tare explain --json` prints it. `words` are those of the front
    /// end for advice.
    pub fn to_json(&self, words: fn(&Hint) -> String) -> serde_json::Value {
        let history = &self.history;
        json!({
            "id": history.id,
            "name": history.name(),
            "state": self.state,
            "stuck_on": self.stuck_on,
            "created_at": history.created_at,
            "cause": history.end.map(|end| end.cause),
            "exit_code": history.end.and_then(steps::exit_code),
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
        Line::Claimed(claimed) => claimed.detached.as_ref().and_then(|it| it.lease.ends_at()),
        Line::Created(_)
        | Line::Renamed { .. }
        | Line::Removing { .. }
        | Line::Stuck(_)
        | Line::Ending(_)
        | Line::Ended(_)
        | Line::Warm { .. }
        | Line::Held(_)
        | Line::Requested(_)
        | Line::Machine(_)
        | Line::Booted { .. } => None,
    };
    let options = created.and_then(|created| created.detached.as_ref());
    let is_abandoned = sources.removal.is_some_and(|it| it.why == Reason::Abandoned);
    let is_abandoned = is_abandoned || sources.is_unrecorded;
    let creator = created.and_then(|created| created.creator.as_ref());
    let evidence = sources.evidence();
    let timeout_ms = evidence.and_then(|it| it.timeout_ms);
    let output_limit = evidence.and_then(|it| it.output_limit_bytes);
    let (by, asked_before) = sources.asked_for(end);
    Circumstances {
        evidence,
        by,
        asked_before,
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
    if let Some(ended) = observation.unrecorded_end(at) {
        sources.is_unrecorded = true;
        // Dated just after the last sign of life, which is the same in each look.
        let at_ns = record.last_sign_ns().max(sources.last_ns()).map(|ns| ns.saturating_add(1));
        let at_ns = at_ns.unwrap_or(ended.at_ns);
        sources.lines.push(Line::Ended(Box::new(EndedLine { at_ns, ..ended })));
    }
    if observation.is_live() {
        sources.evidence = Some(cgroup::evidence(at, record));
    }
    if sources.end().is_some_and(|end| !end.is_success()) {
        sources.stderr = stderr_of(at.root, record);
    }
    let stuck_on = observation.stuck_on(at);
    Ok(Explanation { stuck_on, ..Explanation::of(Some(observation.state()), sources) })
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

/// Explains a box that no present id or name refers to.
pub fn explain_former(
    root: &StateRoot,
    reference: &str,
    sees: &dyn Fn(Option<&Tenant>) -> bool,
) -> Result<Explanation, Error> {
    match find_former(root, reference, sees, &recorded(root)?)? {
        Former::Removed(sources) => Ok(Explanation::of(None, *sources)),
        Former::Recorded(id) => explain_recorded(root.at(&id)),
        Former::Unknown { expired } => Err(unknown(root, reference, sees, expired)),
    }
}

/// The box that a reference meant.
enum Former {
    Removed(Box<Sources>),
    /// It exists, and has another name now.
    Recorded(BoxId),
    Unknown {
        /// A history of it is stored, and its retention has passed.
        expired: bool,
    },
}

/// Finds a removed box by its id, by a name that it had (also as `KEY:NAME`), or by the beginning of
/// its id. Of several boxes that had the name, this function returns the one that had it last, which
/// may be one of `recorded`. `sees` says whose boxes exist for the user.
fn find_former(
    root: &StateRoot,
    reference: &str,
    sees: &dyn Fn(Option<&Tenant>) -> bool,
    recorded: &[Sources],
) -> Result<Former, Error> {
    let (tenant, name) = with_key(reference);
    let wanted = [Wanted::Id(reference), Wanted::Name(name)];
    let found = if reference.is_empty() { Vec::new() } else { find(root, &wanted)? };
    let had_name_until = |it: &Sources| {
        let is_its = tenant.is_none() || it.tenant() == tenant.as_ref();
        it.had_name_until(name).filter(|_| is_its)
    };
    let mut removed = Vec::new();
    let mut expired = false;
    for one in found.into_iter().filter(|it| sees(it.sources().tenant())) {
        let is_its =
            one.sources().id.as_str() == reference || had_name_until(one.sources()).is_some();
        expired |= is_its && matches!(one, Lookup::Expired(_));
        removed.extend(one.kept());
    }
    let seen = removed.iter().chain(recorded.iter().filter(|it| sees(it.tenant())));
    let holders = seen.filter(|it| had_name_until(it).is_some());
    let begins = |it: &&Sources| it.id.as_str().starts_with(reference);
    let exact = removed.iter().find(|it| it.id.as_str() == reference);
    let exact = exact.or_else(|| holders.max_by_key(|it| had_name_until(it)));
    let found = match (exact, removed.iter().filter(begins).count()) {
        (Some(exact), _) => Some(exact),
        (None, 0 | 1) => removed.iter().find(begins),
        (None, _) => return Err(ambiguous(reference)),
    };
    let Some(id) = found.map(|sources| sources.id.clone()) else {
        return Ok(Former::Unknown { expired });
    };
    let is_recorded = recorded.iter().any(|it| it.id == id);
    let removed = removed.into_iter().find(|it| it.id == id && !is_recorded);
    Ok(removed.map_or(Former::Recorded(id), |sources| Former::Removed(Box::new(sources))))
}

/// Returns the error for a box without a history, and says what is not kept any more.
fn unknown(
    root: &StateRoot,
    reference: &str,
    sees: &dyn Fn(Option<&Tenant>) -> bool,
    expired: bool,
) -> Error {
    let error = no_box(reference);
    if expired {
        return error
            .caused_by("its history is no longer kept: its retention has passed")
            .with_hint(Hint::Retention);
    }
    let path = root.layout.histories();
    match store(root, &path).dropped_before(sees) {
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

/// Returns whether a box with this id was detached and removed, while its history is kept.
pub fn was_detached(root: &StateRoot, id: &BoxId) -> Result<bool, Error> {
    let path = root.layout.histories();
    let found = store(root, &path).find_detached(id).map_err(|error| cannot_read(&path, error))?;
    Ok(found.is_some_and(|it| matches!(it, Lookup::Kept(_))))
}

/// Returns the sources of a removed box that are still kept.
pub fn removed(root: &StateRoot, id: &BoxId) -> Result<Option<Sources>, Error> {
    let found = find(root, &[Wanted::Id(id.as_str())])?;
    Ok(found.into_iter().filter_map(Lookup::kept).find(|sources| sources.id == *id))
}

/// Returns the actor that asked for the act that ended an exec in this way, and how long ago if it was a
/// signal: in a box without a command, signals and stops go to the execs.
pub fn asked_for_exec(at: BoxAt<'_>, end: End) -> Option<(Actor, Option<Duration>)> {
    let boxes = state_root::boxes(at.root).ok()?;
    let sources = match Record::look(boxes.as_fd(), at.id) {
        Ok(Some(record)) => Sources::read(at.id, &record),
        Ok(None) | Err(_) => removed(at.root, at.id).ok()??,
    };
    let request = asked_for(end, sources.requests())?;
    Some((request.by.clone(), request.before(boot_ns())))
}

/// Reads the sources of all boxes that have a record.
fn recorded(root: &StateRoot) -> Result<Vec<Sources>, Error> {
    let Some(boxes) = state_root::boxes_if_any(root)? else {
        return Ok(Vec::new());
    };
    let ids = state_root::list(root, boxes.as_fd())?;
    let sources = |id: &BoxId| {
        let record = Record::look(boxes.as_fd(), id).ok().flatten()?;
        Some(Sources::read(id, &record))
    };
    Ok(ids.iter().filter_map(sources).collect())
}

fn find(root: &StateRoot, wanted: &[Wanted<'_>]) -> Result<Vec<Lookup>, Error> {
    let path = root.layout.histories();
    store(root, &path).find(wanted).map_err(|error| cannot_read(&path, error))
}

fn cannot_read(path: &Path, error: io::Error) -> Error {
    let message = format!("cannot read the histories of removed boxes, {}", quoted(path));
    Error::failed(message).caused_by(error).with_hint("if it is not tare's, remove it")
}

/// Reserves space for the history of one more box of this tenant.
pub fn reserve(root: &StateRoot, tenant: &Tenant) -> Result<(), Error> {
    let path = root.layout.histories();
    let boxes = state_root::count(state_root::boxes(root)?.as_fd()).max(1);
    let reserved = store(root, &path).reserve(tenant, boxes);
    reserved.context(|| format!("cannot make room for the history in {}", path.display()))
}

/// The history of a box that is being removed.
#[derive(Debug)]
pub struct Kept {
    id: BoxId,
    tenant: Tenant,
    retention: Duration,
    /// The history, if it could not be stored: the disk may have been full.
    unstored: Option<Sources>,
}

impl Kept {
    /// Stores what tare saw gone since, or everything if there was no room before: the removal of the
    /// record makes some. A lack of space is no reason to keep the box.
    pub fn complete(self, root: &StateRoot, receipt: &Receipt, seen: SeenRemoval) {
        let path = root.layout.histories();
        let sources = match self.unstored {
            Some(sources) => Sources { receipt: Some(receipt.clone()), ..sources },
            None => Sources::of_removal(&self.id, seen),
        };
        store(root, &path).add(&self.tenant, sources, self.retention).ok();
    }
}

/// Returns the receipt of a removed box, which [`find_former`] finds.
pub fn receipt(
    root: &StateRoot,
    reference: &str,
    sees: &dyn Fn(Option<&Tenant>) -> bool,
) -> Result<Receipt, Error> {
    let Former::Removed(found) = find_former(root, reference, sees, &[])? else {
        return Err(no_box(reference).with_hint(Hint::AskForReceipt));
    };
    // What was seen gone last is found by the id and the last name, and `reference` may be an earlier name.
    let by_id = removed(root, &found.id)?.and_then(|it| it.receipt);
    by_id.or(found.receipt).ok_or_else(|| {
        Error::new(ErrorKind::NoSuchBox, format!("box {} has no receipt", found.id))
            .with_hint(Hint::AskForReceipt)
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
    let retention = if is_unknown { Duration::ZERO } else { retention };
    let tenant = sources.tenant().cloned().unwrap_or_default();
    let sources = Sources { receipt: receipt.cloned(), ..sources };
    let path = at.root.layout.histories();
    let stored = store(at.root, &path).add(&tenant, sources.clone(), retention);
    Kept { id: at.id.clone(), tenant, retention, unstored: stored.is_err().then_some(sources) }
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

fn store<'a>(root: &'a StateRoot, path: &'a Path) -> HistoryStore<'a> {
    HistoryStore { path, boot_id: &root.host.boot_id, open: &root.open_segment }
}
