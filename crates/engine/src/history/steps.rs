//! The history of a box: what its record and its keeper wrote, in the order in which it happened.
//!
//! ```text
//! record + journal ──▶ Sources ──▶ steps ──▶ text
//!                         │   ▲
//!                removal  ▼   │  explain
//!                      the history file
//! ```
//!
//! A live box and a removed box take the same path: [`history`] is a pure function of the sources.
//! It believes nothing that a keeper wrote. No step is longer than a line, is before the box or
//! after now, or reaches a terminal as anything but visible characters.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tare_control::journal::{BoxEvent, Ended, Event};
use tare_control::{Cause, End};
use tare_kernel::clock::boot_ns;

use crate::history::text;
use crate::receipt::Receipt;
use crate::record::Record;
use crate::record::lines::{Created, EndedLine, Line, Reason};
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
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sources {
    pub id: BoxId,
    /// The lines of the record.
    pub lines: Vec<Line>,
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
    /// What the box held, and when tare saw it gone.
    #[serde(default)]
    pub receipt: Option<Receipt>,
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
    Warm,
    Claimed,
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
            // The receipt says what the box held.
            lines: without_held(record.read_each_line()),
            events: journal.events,
            ended: journal.ended,
            detached: journal.detached,
            oom: false,
            removal: None,
            dropped: 0,
            receipt: None,
        }
    }

    /// Returns the tenant that the box belonged to; `None` if nothing says it.
    pub fn tenant(&self) -> Option<&Tenant> {
        self.lines.iter().find_map(Line::created).map(|created| &created.spec.tenant)
    }

    /// Returns the names that the box had, the last one last.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.lines.iter().filter_map(Line::name).map(|name| name.as_str())
    }

    /// Returns until when the box had this name, on the boot clock. `None`: it never had the name.
    pub fn had_name_until(&self, name: &str) -> Option<u64> {
        let mut until = self.removal.map_or(u64::MAX, |removal| removal.at_ns);
        for line in self.lines.iter().rev() {
            match line.name() {
                Some(own) if own.as_str() == name => return Some(until),
                Some(_) => until = line.at_ns(),
                None => {}
            }
        }
        None
    }

    /// Drops what a history can do without: first the details of the request, then the middle of
    /// the lines and events. Returns false if nothing is left to drop.
    pub fn shorten(&mut self) -> bool {
        if let Some(Line::Created(created)) = self.lines.first_mut() {
            let command = vec![cut(&command_of(created), TEXT_CHARS_MAX + 1).into()];
            let short = Spec {
                tenant: created.spec.tenant.clone(),
                name: created.spec.name.clone(),
                ..Spec::of(command)
            };
            if created.spec != short {
                created.spec = short;
                created.cgroup_roots.clear();
                return true;
            }
        }
        let lines = drop_middle(&mut self.lines);
        self.dropped = self.dropped.saturating_add(lines);
        lines + drop_middle(&mut self.events) > 0
    }

    /// When the box ended, as far as it is known: by its keeper, by the process that killed it, or
    /// by the process that found it ended.
    fn end_ns(&self) -> Option<u64> {
        let ended = self.ended.map(|ended| ended.at_us.saturating_mul(1000));
        let killed = self.lines.iter().filter(|line| matches!(line, Line::Ending(_)));
        let known = ended.into_iter().chain(killed.map(Line::at_ns)).min();
        let mut found = self.lines.iter().filter(|line| matches!(line, Line::Ended(_)));
        known.or_else(|| found.next().map(Line::at_ns))
    }

    /// How the box ended, if it has: as its record, its keeper or the tare process that killed it
    /// wrote. The keeper of a removed box without such a line was lost.
    pub fn end(&self) -> Option<End> {
        let find = |end: fn(&Line) -> Option<End>| self.lines.iter().find_map(end);
        let written = find(|line| if let Line::Ended(it) = line { Some(it.end) } else { None });
        let killed = find(|line| {
            if let Line::Ending(it) = line { Some(End::killed(it.why.cause())) } else { None }
        });
        let lost = self.removal.map(|removal| {
            let is_abandoned = removal.why == Reason::Abandoned;
            End::killed(if is_abandoned { Cause::ClientGone } else { Cause::KeeperLost })
        });
        let end = written.or(self.ended.map(|it| it.end)).or(killed).or(lost)?;
        Some(end.with_oom(end.oom || self.oom))
    }
}

fn without_held(mut lines: Vec<Line>) -> Vec<Line> {
    lines.retain(|line| !matches!(line, Line::Held(_)));
    lines
}

/// Drops a quarter of a list from its middle, at least one item. The first and the last stay.
fn drop_middle<T>(list: &mut Vec<T>) -> u64 {
    let count = list.len().saturating_sub(2).min(list.len().div_ceil(4));
    let first = (list.len() - count) / 2;
    list.drain(first..first + count).count() as u64
}

/// Returns the history that the sources describe, up to `now`.
pub fn history(sources: &Sources, now: Now) -> History {
    let removed = sources.removal.map(|removal| Now { at: removal.at, ns: removal.at_ns });
    let now = removed.unwrap_or(now);
    let mut steps = Steps { beginning: beginning(sources, now), now, list: Vec::new() };
    // First, because it comes before an end of the same time.
    let is_noted = |line: &Line| matches!(line, Line::Ended(ended) if ended.end.oom);
    if sources.oom || sources.lines.iter().any(is_noted) {
        // The kernel counts these kills and does not date them: they were before the end.
        steps.add(sources.end_ns().unwrap_or(now.ns), StepKind::Oom, text::OOM.to_owned());
    }
    for line in &sources.lines {
        add_line(&mut steps, line, sources);
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
    let created = sources.lines.iter().find_map(Line::created);
    let created = created.map(|it| Now { at: it.created_at, ns: it.created_ns });
    created.unwrap_or_else(|| {
        let lines = sources.lines.iter().map(Line::at_ns);
        let ns = lines.chain(sources.events.iter().map(event_ns)).min();
        let ns = ns.unwrap_or(now.ns).min(now.ns);
        Now { at: now.at.before(Duration::from_nanos(now.ns - ns)), ns }
    })
}

fn add_line(steps: &mut Steps, line: &Line, sources: &Sources) {
    let (kind, text) = match line {
        Line::Created(created) => (StepKind::Created, text::created(&command_of(created))),
        Line::Keeper(keeper) => (StepKind::Go, text::go(keeper.pid)),
        Line::Renamed { name, .. } => (StepKind::Renamed, format!("renamed to {name}")),
        Line::Updated(update) => (StepKind::Updated, text::updated(update)),
        Line::Stuck(stuck) => (StepKind::Stuck, format!("could not be ended: {stuck}")),
        Line::Ending(it) => (StepKind::Killed, text::killed_by_tare(it.why, it.pid)),
        Line::Ended(ended) => return add_end(steps, ended, sources),
        Line::Warm { pool, .. } => (StepKind::Warm, format!("waits in the pool {pool}")),
        Line::Claimed(_) => (StepKind::Claimed, "claimed by a request".to_owned()),
        // A removal has its own steps, and a receipt says what the box held.
        Line::Removing { .. } | Line::Held(_) => return,
    };
    steps.add(line.at_ns(), kind, text);
}

/// Adds what the process saw that found the box ended.
fn add_end(steps: &mut Steps, ended: &EndedLine, sources: &Sources) {
    let is_kill = |line: &Line| matches!(line, Line::Ending(_));
    if sources.ended.is_none() && !sources.lines.iter().any(is_kill) {
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

fn command_of(created: &Created) -> String {
    let words = created.spec.command.iter().map(|word| word.to_string_lossy());
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
