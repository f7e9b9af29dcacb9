//! The history of a box: what its record and its keeper wrote, in the order in which it happened.
//!
//! ```text
//! record + journal ──▶ Sources ──▶ steps ──▶ text
//!                         │   ▲
//!                removal  ▼   │  explain
//!                      the history file
//! ```
//!
//! A live box and a removed box take the same path: [`tell`] is a pure function of the sources.
//! It believes nothing that a keeper wrote. No step is longer than a line, is before the box or
//! after now, or reaches a terminal as anything but visible characters.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tare_control::journal::{BoxEvent, Ended, Event};
use tare_control::{Cause, End};
use tare_kernel::clock::boot_ns;

use crate::history::text;
use crate::record::Record;
use crate::record::lines::{EndedEntry, Entry, Intent, Reason};
use crate::spec::shown::escaped;
use crate::spec::{BoxId, Spec, Tenant};
use crate::time::Timestamp;

/// A longer history loses steps in its middle.
pub const STEPS_MAX: usize = 100;
/// How many of the first steps such a history keeps.
const FIRST_STEPS: usize = 20;
/// A longer text is cut.
const TEXT_CHARS_MAX: usize = 160;

/// Everything that was written about a box, unchanged. The history file stores this.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sources {
    pub id: BoxId,
    /// The lines of the record.
    pub entries: Vec<Entry>,
    /// The events of the journal.
    pub events: Vec<Event>,
    pub ended: Option<Ended>,
    /// The box outlived its creator.
    pub detached: bool,
    /// The kernel killed a process for memory, and the record does not say so.
    pub oom: bool,
    pub removal: Option<Removal>,
    /// How many lines of the record were dropped, so that the rest fits into the history file.
    pub dropped: u64,
}

/// The removal of a box by another process than its creator.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Removal {
    pub why: Reason,
    pub pid: u32,
    /// How long it took until the box was empty, if the record does not say it.
    pub emptied_ms: Option<u64>,
    pub at: Timestamp,
    pub at_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    pub id: BoxId,
    /// All names that the box had; the last one is its own.
    pub names: Vec<String>,
    pub created_at: Timestamp,
    /// Why the box ended, if it has.
    pub cause: Option<Cause>,
    pub steps: Vec<Step>,
    /// How many steps are missing.
    pub forgotten: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    pub at: Timestamp,
    /// Milliseconds since the creation of the box.
    pub after_ms: u64,
    pub event: StepKind,
    /// The number of the process, if a client started it.
    pub process: Option<u32>,
    /// The exit code, if something ended.
    pub exit_code: Option<u8>,
    /// Why it ended, or could not start.
    pub cause: Option<Cause>,
    /// One sentence for the user.
    pub text: String,
}

/// The names are those of `tare explain --json` and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    Created,
    Go,
    Started,
    Detached,
    Abandoned,
    ExecStarted,
    ExecFailed,
    ExecEnded,
    CopyIn,
    CopyOut,
    CopyEnded,
    StopAsked,
    Signalled,
    Paused,
    Resumed,
    Renamed,
    Updated,
    CommandEnded,
    Killed,
    Lost,
    Oom,
    Emptied,
    Stuck,
    Removed,
}

/// One moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    pub at: Timestamp,
    pub ns: u64,
}

impl Now {
    pub fn read() -> Self {
        Self { at: Timestamp::now(), ns: boot_ns() }
    }
}

impl Sources {
    pub fn read(id: &BoxId, record: &Record) -> Self {
        let journal = record.journal().unwrap_or_default();
        Self {
            id: id.clone(),
            entries: record.entries(),
            events: journal.events,
            ended: journal.ended,
            detached: journal.detached,
            oom: false,
            removal: None,
            dropped: 0,
        }
    }

    /// Returns the tenant that the box belonged to; `None` if nothing says it.
    pub fn tenant(&self) -> Option<&Tenant> {
        self.entries.iter().find_map(|entry| match entry {
            Entry::Intent(intent) => Some(&intent.spec.tenant),
            Entry::Keeper(_)
            | Entry::Renamed(_)
            | Entry::Updated(_)
            | Entry::Removing(_)
            | Entry::Stuck(_)
            | Entry::Ending(_)
            | Entry::Ended(_) => None,
        })
    }

    /// Returns the names that the box had, the last one last.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.entries.iter().filter_map(Entry::name).map(|name| name.as_str())
    }

    /// Returns until when the box had this name, on the boot clock. `None`: it never had the name.
    pub fn had_name_until(&self, name: &str) -> Option<u64> {
        let mut until = self.removal.map_or(u64::MAX, |removal| removal.at_ns);
        for entry in self.entries.iter().rev() {
            match entry.name() {
                Some(own) if own.as_str() == name => return Some(until),
                Some(_) => until = entry.at_ns(),
                None => {}
            }
        }
        None
    }

    /// Drops what a history can do without: first the details of the request, then the middle of
    /// the lines and events. Returns false if nothing is left to drop.
    pub fn shorten(&mut self) -> bool {
        if let Some(Entry::Intent(intent)) = self.entries.first_mut() {
            let command = vec![cut(&command_of(intent), TEXT_CHARS_MAX + 1).into()];
            let short = Spec {
                tenant: intent.spec.tenant.clone(),
                name: intent.spec.name.clone(),
                ..Spec::of(command)
            };
            if intent.spec != short {
                intent.spec = short;
                intent.cgroup_roots.clear();
                return true;
            }
        }
        let entries = drop_middle(&mut self.entries);
        self.dropped = self.dropped.saturating_add(entries);
        entries + drop_middle(&mut self.events) > 0
    }

    /// When the box ended, as far as it is known: by its keeper, by the process that killed it, or
    /// by the process that found it ended.
    fn end_ns(&self) -> Option<u64> {
        let ended = self.ended.map(|ended| ended.at_us.saturating_mul(1000));
        let killed = self.entries.iter().filter(|entry| matches!(entry, Entry::Ending(_)));
        let known = ended.into_iter().chain(killed.map(Entry::at_ns)).min();
        let mut found = self.entries.iter().filter(|entry| matches!(entry, Entry::Ended(_)));
        known.or_else(|| found.next().map(Entry::at_ns))
    }

    /// How the box ended, if it has: as its record, its keeper or the tare process that killed it
    /// wrote. The keeper of a removed box without such a line was lost.
    pub fn end(&self) -> Option<End> {
        let line = |end: fn(&Entry) -> Option<End>| self.entries.iter().find_map(end);
        let written = line(|entry| if let Entry::Ended(it) = entry { Some(it.end) } else { None });
        let killed = line(|entry| {
            if let Entry::Ending(it) = entry { Some(End::killed(it.why.cause())) } else { None }
        });
        let lost = self.removal.map(|removal| {
            let is_abandoned = removal.why == Reason::Abandoned;
            End::killed(if is_abandoned { Cause::ClientGone } else { Cause::KeeperLost })
        });
        let end = written.or(self.ended.map(|it| it.end)).or(killed).or(lost)?;
        Some(end.with_oom(end.oom || self.oom))
    }
}

/// Drops a quarter of a list from its middle, at least one item. The first and the last stay.
fn drop_middle<T>(list: &mut Vec<T>) -> u64 {
    let count = list.len().saturating_sub(2).min(list.len().div_ceil(4));
    let first = (list.len() - count) / 2;
    list.drain(first..first + count).count() as u64
}

/// Tells everything that the sources say, up to `now`.
pub fn tell(sources: &Sources, now: Now) -> History {
    let removed = sources.removal.map(|removal| Now { at: removal.at, ns: removal.at_ns });
    let now = removed.unwrap_or(now);
    let mut steps = Steps { beginning: beginning(sources, now), now, list: Vec::new() };
    // First, because it comes before an end of the same time.
    let is_noted = |entry: &Entry| matches!(entry, Entry::Ended(ended) if ended.end.oom);
    if sources.oom || sources.entries.iter().any(is_noted) {
        // The kernel counts these kills and does not date them: they were before the end.
        steps.add(sources.end_ns().unwrap_or(now.ns), StepKind::Oom, text::OOM.to_owned());
    }
    for entry in &sources.entries {
        add_entry(&mut steps, entry, sources);
    }
    for event in &sources.events {
        add_event(&mut steps, event);
    }
    if let Some(Ended { end, at_us, .. }) = sources.ended {
        let (kind, text) = text::box_ended(end);
        steps.add(at_us.saturating_mul(1000), kind, text).ended(end);
    }
    let created_at = steps.beginning.at;
    let mut list = steps.in_order();
    if let Some(removal) = &sources.removal {
        list.extend(removal_steps(removal, created_at));
    }
    let excess = list.len().saturating_sub(STEPS_MAX);
    if excess > 0 {
        list.drain(FIRST_STEPS..FIRST_STEPS + excess);
    }
    History {
        id: sources.id.clone(),
        names: sources.names().map(str::to_owned).collect(),
        created_at,
        cause: sources.end().map(|end| end.cause),
        steps: list,
        forgotten: overwritten(&sources.events)
            .saturating_add(sources.dropped)
            .saturating_add(excess as u64),
    }
}

impl Step {
    fn ended(&mut self, end: End) {
        (self.exit_code, self.cause) = (Some(end.code()), Some(end.cause));
    }
}

impl History {
    pub fn name(&self) -> Option<&str> {
        self.names.last().map(String::as_str)
    }
}

/// Steps with their times on the boot clock. All times of a record are of one boot. They are shown
/// in wall-clock time, computed from the creation time, so setting the clock changes nothing.
struct Steps {
    beginning: Now,
    now: Now,
    list: Vec<(u64, Step)>,
}

impl Steps {
    fn add(&mut self, ns: u64, event: StepKind, text: String) -> &mut Step {
        let mut ns = ns.max(self.beginning.ns);
        // In another boot the clock started again.
        if self.now.ns >= self.beginning.ns {
            ns = ns.min(self.now.ns);
        }
        let after = Duration::from_nanos(ns - self.beginning.ns);
        let at = self.beginning.at.after(after);
        self.list.push((ns, step(at, self.beginning.at, event, &text)));
        &mut self.list.last_mut().expect("a step was just added").1
    }

    fn in_order(mut self) -> Vec<Step> {
        self.list.sort_by_key(|(ns, _)| *ns);
        // A line that was written twice happened once.
        self.list.dedup();
        self.list.into_iter().map(|(_, step)| step).collect()
    }
}

fn step(at: Timestamp, created_at: Timestamp, event: StepKind, text: &str) -> Step {
    let after_ms = u64::try_from(at.since(created_at).as_millis()).unwrap_or(u64::MAX);
    let text = harmless(text);
    Step { at, after_ms, event, process: None, exit_code: None, cause: None, text }
}

/// When the box was created. If the record does not say it, this is the first time that is known.
fn beginning(sources: &Sources, now: Now) -> Now {
    let created = sources.entries.iter().find_map(|entry| {
        let Entry::Intent(intent) = entry else { return None };
        Some(Now { at: intent.created_at, ns: intent.created_ns })
    });
    created.unwrap_or_else(|| {
        let lines = sources.entries.iter().map(Entry::at_ns);
        let ns = lines.chain(sources.events.iter().map(event_ns)).min();
        let ns = ns.unwrap_or(now.ns).min(now.ns);
        Now { at: now.at.before(Duration::from_nanos(now.ns - ns)), ns }
    })
}

fn add_entry(steps: &mut Steps, entry: &Entry, sources: &Sources) {
    let (kind, text) = match entry {
        Entry::Intent(intent) => (StepKind::Created, text::created(&command_of(intent))),
        Entry::Keeper(keeper) => (StepKind::Go, text::go(keeper.pid)),
        Entry::Renamed(renaming) => (StepKind::Renamed, format!("renamed to {}", renaming.name)),
        Entry::Updated(update) => (StepKind::Updated, text::updated(update)),
        Entry::Stuck(stuck) => (StepKind::Stuck, format!("could not be ended: {stuck}")),
        Entry::Ending(it) => (StepKind::Killed, text::killed_by_tare(it.why, it.pid)),
        Entry::Ended(ended) => return add_end(steps, ended, sources),
        // A removal has its own steps.
        Entry::Removing(_) => return,
    };
    steps.add(entry.at_ns(), kind, text);
}

/// Adds what the process saw that found the box ended.
fn add_end(steps: &mut Steps, ended: &EndedEntry, sources: &Sources) {
    let is_kill = |entry: &Entry| matches!(entry, Entry::Ending(_));
    if sources.ended.is_none() && !sources.entries.iter().any(is_kill) {
        let text = text::lost(ended.after, ended.at);
        steps.add(ended.at_ns, StepKind::Lost, text).ended(ended.end);
    }
    steps.add(ended.at_ns, StepKind::Emptied, text::emptied(ended.emptied_ms));
}

fn add_event(steps: &mut Steps, event: &Event) {
    let (kind, text) = text::event(&event.what);
    let step = steps.add(event_ns(event), kind, text);
    match &event.what {
        BoxEvent::ExecStarted { process, .. }
        | BoxEvent::CopyIn { process }
        | BoxEvent::CopyOut { process } => step.process = Some(*process),
        BoxEvent::ExecFailed { process, .. } => {
            (step.process, step.cause) = (Some(*process), Some(Cause::StartFailed));
        }
        BoxEvent::ExecEnded { process, wait_status, cause }
        | BoxEvent::CopyEnded { process, wait_status, cause } => {
            step.process = Some(*process);
            step.ended(End { cause: *cause, wait_status: *wait_status, oom: false });
        }
        BoxEvent::Started
        | BoxEvent::Detached
        | BoxEvent::Abandoned
        | BoxEvent::StopRequested { .. }
        | BoxEvent::Signalled { .. }
        | BoxEvent::Paused
        | BoxEvent::Resumed
        | BoxEvent::Ended { .. } => {}
    }
}

/// The steps of a removal are dated by the wall clock: the host may have been started again.
fn removal_steps(removal: &Removal, created_at: Timestamp) -> impl Iterator<Item = Step> {
    let abandoned = (removal.why == Reason::Abandoned)
        .then(|| (StepKind::Abandoned, text::ABANDONED.to_owned()));
    let emptied = removal.emptied_ms.map(|ms| (StepKind::Emptied, text::emptied(ms)));
    let removed = (StepKind::Removed, text::removed(removal.why, removal.pid));
    let steps = abandoned.into_iter().chain(emptied).chain([removed]);
    steps.map(move |(kind, text)| step(removal.at, created_at, kind, &text))
}

fn event_ns(event: &Event) -> u64 {
    event.at_us.saturating_mul(1000)
}

/// Returns how many events are missing: the numbers of the events show it.
fn overwritten(events: &[Event]) -> u64 {
    let last = events.last().map_or(0, |event| u64::from(event.number) + 1);
    last.saturating_sub(events.len() as u64)
}

fn command_of(intent: &Intent) -> String {
    let words = intent.spec.command.iter().map(|word| word.to_string_lossy());
    Vec::from_iter(words).join(" ")
}

fn harmless(text: &str) -> String {
    let shown = cut(text, TEXT_CHARS_MAX);
    escaped(shown) + if shown.len() < text.len() { "..." } else { "" }
}

fn cut(text: &str, chars_max: usize) -> &str {
    text.char_indices().nth(chars_max).map_or(text, |(at, _)| &text[..at])
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
