//! The story of a box: what its record and its keeper have written down, in the order
//! in which it happened. A pure function of those.
//!
//! What a keeper wrote is not believed: nothing of it can be longer than a line, be
//! before the box or after now, or reach a terminal as anything but visible characters.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tare_control::events::{Event, Happening};
use tare_control::life::LifeEvent;
use tare_kernel::clock::boot_ns;

use crate::history::text;
use crate::record::lines::{EndedEntry, Entry, Intent};
use crate::record::reason::Reason;
use crate::session::exit::{Exit, code_of};
use crate::spec::BoxId;
use crate::spec::shown::escaped;
use crate::time::Timestamp;

/// Of a longer story the middle is left out.
pub const STEPS_MAX: usize = 100;
/// How many of the first are then there.
const FIRST_STEPS: usize = 20;
/// Of a longer sentence the end is left out.
const TEXT_CHARS_MAX: usize = 160;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    pub id: BoxId,
    /// All that it had; the last is its own.
    pub names: Vec<String>,
    pub created_at: Timestamp,
    pub steps: Vec<Step>,
    /// How many are not there any more.
    pub forgotten: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub at: Timestamp,
    /// Since its creation.
    pub after_ms: u64,
    pub event: StepKind,
    /// Of a process that was started for a client: its number in this box.
    pub process: Option<u32>,
    /// Of something that ended.
    pub exit_code: Option<u8>,
    /// A sentence for people.
    pub text: String,
}

/// The names are those of `tare explain --json` and stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    ExecTimedOut,
    ExecHungUp,
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

/// Both clocks, now.
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

/// What a story is made of.
#[derive(Debug)]
pub struct Sources {
    pub entries: Vec<Entry>,
    pub life: Vec<LifeEvent>,
    pub events: Vec<Event>,
}

/// How a box was removed by whoever was not its creator.
#[derive(Debug, Clone, Copy)]
pub struct Removal {
    pub why: Reason,
    pub pid: u32,
    /// How long it took to see it empty, if that was not on record.
    pub emptied: Option<Duration>,
    pub oom: bool,
}

impl Step {
    fn of(at: Timestamp, created_at: Timestamp, event: StepKind, text: String) -> Self {
        Self {
            at,
            after_ms: whole_ms(at.since(created_at)),
            event,
            process: None,
            exit_code: None,
            text,
        }
    }
}

/// A step before it has its place.
#[derive(Debug)]
struct Draft {
    ns: u64,
    event: StepKind,
    process: Option<u32>,
    exit_code: Option<u8>,
    text: String,
}

impl Draft {
    fn of(ns: u64, event: StepKind, text: impl Into<String>) -> Self {
        Self { ns, event, process: None, exit_code: None, text: text.into() }
    }
}

/// The beginning, by both clocks. All times of a record are of one boot, and are
/// shown as a clock would have that was right at the beginning and that nobody set.
#[derive(Debug, Clone, Copy)]
struct Beginning {
    at: Timestamp,
    ns: u64,
}

impl Beginning {
    /// Of a record that does not say when it was made it is the first that is known.
    fn of(sources: &Sources, now: Now) -> Self {
        let intent = sources.entries.iter().find_map(|entry| match entry {
            Entry::Intent(intent) => Some(intent),
            Entry::Keeper(_)
            | Entry::Renamed(_)
            | Entry::Updated(_)
            | Entry::Pausing(_)
            | Entry::Removing(_)
            | Entry::Stuck(_)
            | Entry::Ending(_)
            | Entry::Ended(_) => None,
        });
        if let Some(intent) = intent {
            return Self { at: intent.created_at, ns: intent.created_ns };
        }
        let lines = sources.entries.iter().filter_map(time_of);
        let events = sources.events.iter().map(|event| event.at_us * 1000);
        let ns = lines.chain(events).min().unwrap_or(now.ns).min(now.ns);
        Self { at: now.at.before(Duration::from_nanos(now.ns - ns)), ns }
    }

    fn after(self, ns: u64) -> Duration {
        Duration::from_nanos(ns.saturating_sub(self.ns))
    }

    /// A moment that only the wall clock tells.
    fn ns_of(self, at: Timestamp) -> u64 {
        let after = at.since(self.at).as_nanos();
        self.ns.saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }
}

/// The whole story, as far as it has come.
pub fn tell(id: &BoxId, sources: &Sources, now: Now) -> Story {
    let beginning = Beginning::of(sources, now);
    let mut drafts = Vec::new();
    let mut names = Vec::new();
    for entry in &sources.entries {
        names.extend(name_of(entry));
        drafts.extend(from_entry(entry, drafts.last(), sources, beginning));
    }
    drafts.extend(sources.events.iter().map(|event| from_event(event, sources)));
    drafts.extend(from_life(sources, beginning));
    for draft in &mut drafts {
        draft.ns = draft.ns.max(beginning.ns);
        // In another boot the clock began anew.
        if now.ns >= beginning.ns {
            draft.ns = draft.ns.min(now.ns);
        }
    }
    drafts.sort_by_key(|draft| draft.ns);
    let steps = drafts.into_iter().map(|draft| Step {
        at: beginning.at.after(beginning.after(draft.ns)),
        after_ms: whole_ms(beginning.after(draft.ns)),
        event: draft.event,
        process: draft.process,
        exit_code: draft.exit_code,
        text: harmless(&draft.text),
    });
    let mut story = Story {
        id: id.clone(),
        names,
        created_at: beginning.at,
        steps: steps.collect(),
        forgotten: overwritten(&sources.events),
    };
    // A line that was written twice happened once.
    story.steps.dedup();
    story.shorten(STEPS_MAX);
    story
}

impl Story {
    pub fn name(&self) -> Option<&str> {
        self.names.last().map(String::as_str)
    }

    /// The end of it.
    pub fn removed(&mut self, removal: &Removal, at: Timestamp) {
        if removal.oom {
            self.was_out_of_memory(at);
        }
        let mut add = |event, text: String| {
            self.steps.push(Step::of(at, self.created_at, event, text));
        };
        if removal.why == Reason::Abandoned {
            add(StepKind::Abandoned, text::ABANDONED.to_owned());
        }
        if let Some(emptied) = removal.emptied {
            add(StepKind::Emptied, text::emptied(whole_ms(emptied)));
        }
        add(StepKind::Removed, text::removed(removal.why, removal.pid));
        self.shorten(STEPS_MAX);
    }

    /// Before its end, or now if it is not over.
    pub fn was_out_of_memory(&mut self, now: Timestamp) {
        let is_end = |step: &Step| {
            matches!(step.event, StepKind::CommandEnded | StepKind::Killed | StepKind::Lost)
        };
        let end = self.steps.iter().position(is_end);
        let at = end.map_or(now, |end| self.steps[end].at);
        let text = text::OOM.to_owned();
        let step = Step::of(at, self.created_at, StepKind::Oom, text);
        self.steps.insert(end.unwrap_or(self.steps.len()), step);
    }

    /// Leaves so many steps, the first and the last.
    pub fn shorten(&mut self, steps_max: usize) {
        let excess = self.steps.len().saturating_sub(steps_max);
        let first = FIRST_STEPS.min(steps_max / 2);
        if excess > 0 {
            self.steps.drain(first..first + excess);
            self.forgotten = self.forgotten.saturating_add(excess as u64);
        }
    }

    /// Of a story that was read from a file, nothing that a terminal could obey.
    pub fn made_harmless(mut self) -> Self {
        self.shorten(STEPS_MAX);
        for step in &mut self.steps {
            step.text = harmless(&step.text);
        }
        for name in &mut self.names {
            *name = harmless(name);
        }
        self
    }
}

fn harmless(text: &str) -> String {
    let shown: String = text.chars().take(TEXT_CHARS_MAX).collect();
    let dots = match text.chars().nth(TEXT_CHARS_MAX) {
        Some(_) => "...",
        None => "",
    };
    escaped(&shown) + dots
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Every event has a number: what is missing before the last was overwritten.
fn overwritten(events: &[Event]) -> u64 {
    let last = events.last().map_or(0, |event| u64::from(event.number) + 1);
    last.saturating_sub(events.len() as u64)
}

fn name_of(entry: &Entry) -> Option<String> {
    match entry {
        Entry::Intent(intent) => intent.spec.name.as_ref().map(ToString::to_string),
        Entry::Renamed(renaming) => Some(renaming.name.to_string()),
        Entry::Keeper(_)
        | Entry::Updated(_)
        | Entry::Pausing(_)
        | Entry::Removing(_)
        | Entry::Stuck(_)
        | Entry::Ending(_)
        | Entry::Ended(_) => None,
    }
}

fn time_of(entry: &Entry) -> Option<u64> {
    match entry {
        Entry::Intent(intent) => Some(intent.created_ns),
        Entry::Keeper(keeper) => Some(keeper.at_ns),
        Entry::Renamed(renaming) => Some(renaming.at_ns),
        Entry::Updated(update) => Some(update.at_ns),
        Entry::Pausing(pausing) => Some(pausing.at_ns),
        Entry::Removing(removing) => Some(removing.at_ns),
        Entry::Stuck(stuck) => Some(stuck.at_ns),
        Entry::Ending(ending) => Some(ending.at_ns),
        Entry::Ended(ended) => Some(ended.at_ns),
    }
}

fn from_entry(
    entry: &Entry,
    before: Option<&Draft>,
    sources: &Sources,
    beginning: Beginning,
) -> Vec<Draft> {
    let before_ns = before.map_or(0, |draft| draft.ns);
    let ns = time_of(entry).unwrap_or(before_ns);
    match entry {
        Entry::Intent(intent) => vec![created(intent)],
        Entry::Keeper(keeper) => vec![Draft::of(ns, StepKind::Go, text::go(keeper.pid))],
        Entry::Renamed(renaming) => {
            let text = format!("renamed to {}", renaming.name);
            vec![Draft::of(ns, StepKind::Renamed, text)]
        }
        Entry::Updated(update) => {
            vec![Draft::of(ns, StepKind::Updated, text::updated(update))]
        }
        // Every pause is among the events, and a removal has its own step.
        Entry::Pausing(_) | Entry::Removing(_) => Vec::new(),
        Entry::Stuck(stuck) => {
            let text = format!("could not be ended: {stuck}");
            vec![Draft::of(ns, StepKind::Stuck, text)]
        }
        Entry::Ending(ending) => {
            let text = text::killed_by_tare(ending.why, ending.pid);
            vec![Draft::of(ns, StepKind::Killed, text)]
        }
        Entry::Ended(ended) => ended_steps(ended, sources, beginning),
    }
}

fn created(intent: &Intent) -> Draft {
    let words = intent.spec.command.iter().map(|word| word.to_string_lossy());
    let text = match Vec::from_iter(words).join(" ") {
        none if none.is_empty() => "created, without a command".to_owned(),
        words => format!("created: {words}"),
    };
    Draft::of(intent.created_ns, StepKind::Created, text)
}

/// What whoever found it over has seen.
fn ended_steps(ended: &EndedEntry, sources: &Sources, beginning: Beginning) -> Vec<Draft> {
    let mut drafts = Vec::new();
    if ended.oom {
        // The kernel counts these kills and does not date them: it was before the end.
        let ns = end_ns(sources, beginning).unwrap_or(ended.at_ns);
        drafts.push(Draft::of(ns, StepKind::Oom, text::OOM));
    }
    let was_killed_by_us = || {
        let mut entries = sources.entries.iter();
        entries.any(|entry| matches!(entry, Entry::Ending(_)))
    };
    if !is_end_known(sources) && !was_killed_by_us() {
        let text = text::lost(ended.after, ended.at);
        let mut lost = Draft::of(ended.at_ns, StepKind::Lost, text);
        lost.exit_code = Some(ended.exit_code);
        drafts.push(lost);
    }
    let text = text::emptied(ended.emptied_ms);
    drafts.push(Draft::of(ended.at_ns, StepKind::Emptied, text));
    drafts
}

/// Whether the keeper had the time to say how its box ended.
fn is_end_known(sources: &Sources) -> bool {
    let said = |event: &LifeEvent| matches!(event, LifeEvent::Exited { .. });
    sources.life.iter().any(said) || has_end(&sources.events)
}

/// When the box ended: by its keeper, or when tare began to kill it.
fn end_ns(sources: &Sources, beginning: Beginning) -> Option<u64> {
    let ended = sources.events.iter().find(|event| is_end(event));
    let ended = ended.map(|event| event.at_us.saturating_mul(1000));
    let life = from_life(sources, beginning).map(|draft| draft.ns);
    let killed = sources.entries.iter().find_map(|entry| match entry {
        Entry::Ending(ending) => Some(ending.at_ns),
        Entry::Intent(_)
        | Entry::Keeper(_)
        | Entry::Renamed(_)
        | Entry::Updated(_)
        | Entry::Pausing(_)
        | Entry::Removing(_)
        | Entry::Stuck(_)
        | Entry::Ended(_) => None,
    });
    ended.into_iter().chain(life).chain(killed).min()
}

fn has_end(events: &[Event]) -> bool {
    events.iter().any(is_end)
}

fn is_end(event: &Event) -> bool {
    matches!(event.what, Happening::CommandEnded { .. } | Happening::Killed { .. })
}

/// The end is in the life and behind it; one of them is enough.
fn from_life(sources: &Sources, beginning: Beginning) -> Option<Draft> {
    if has_end(&sources.events) {
        return None;
    }
    sources.life.iter().find_map(|event| match event {
        LifeEvent::Exited { wait_status, by, at_ms } => {
            let ns = beginning.ns_of(Timestamp::from_ms(*at_ms));
            let mut draft =
                Draft::of(ns, StepKind::CommandEnded, text::command_ended(*wait_status));
            draft.exit_code = Some(code_of(*wait_status, *by));
            Some(draft)
        }
        LifeEvent::Detached | LifeEvent::Stopping => None,
    })
}

fn from_event(event: &Event, sources: &Sources) -> Draft {
    let (kind, text) = text::of_event(&event.what, |process| is_copy(process, sources));
    let (process, exit_code) = match &event.what {
        Happening::ExecStarted { process, .. }
        | Happening::ExecFailed { process, .. }
        | Happening::CopyIn { process }
        | Happening::CopyOut { process }
        | Happening::TimedOut { process }
        | Happening::HungUp { process } => (Some(*process), None),
        Happening::Ended { process, wait_status } => {
            (Some(*process), Some(Exit::of(*wait_status).code()))
        }
        Happening::CommandEnded { wait_status } => (None, Some(Exit::of(*wait_status).code())),
        Happening::Killed { by } => (None, Some(code_of(KILLED, *by))),
        Happening::Started
        | Happening::Detached
        | Happening::Abandoned
        | Happening::StopAsked { .. }
        | Happening::Signalled { .. }
        | Happening::Paused
        | Happening::Resumed => (None, None),
    };
    Draft { process, exit_code, ..Draft::of(event.at_us.saturating_mul(1000), kind, text) }
}

/// The `wait` status of a process that SIGKILL ended.
const KILLED: i32 = 9;

fn is_copy(process: u32, sources: &Sources) -> bool {
    sources.events.iter().any(|event| {
        let (Happening::CopyIn { process: one } | Happening::CopyOut { process: one }) = event.what
        else {
            return false;
        };
        one == process
    })
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
