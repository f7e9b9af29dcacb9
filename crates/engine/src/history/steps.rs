//! The history of a box: what its record and its keeper wrote, in the order in which it happened.
//!
//! ```text
//! record + journal ──▶ Sources ──▶ steps ──▶ text
//!                         │   ▲
//!                removal  ▼   │  explain
//!                    stored histories
//! ```
//!
//! A live box and a removed box take the same path: [`history`] is a pure function of the sources.
//! It does not trust the keeper: it cuts texts to one line, escapes control characters, and moves
//! every time between the creation and now.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tare_control::journal::{BoxEvent, Ended, Event};
use tare_control::{Cause, End};
use tare_kernel::clock::boot_ns;

use crate::actor::{Actor, HIDDEN_PID};
use crate::history::text::{self, StepKind};
use crate::receipt::{Receipt, SeenRemoval};
use crate::record::Record;
use crate::record::lines::{
    Act, ClaimedLine, Created, EndedLine, Evidence, Line, Reason, RequestLine, asked_for,
};
use crate::spec::name::RUN_LABEL;
use crate::spec::shown::escaped;
use crate::spec::{BoxId, Name, Spec, Tenant};
use crate::time::{Moment, Timestamp};

/// A longer history loses steps in its middle.
pub const STEPS_MAX: usize = 100;
/// How many of the first steps such a history keeps.
const FIRST_STEPS: usize = 20;
/// A longer text is cut.
pub const TEXT_CHARS_MAX: usize = 160;
/// How much of the command of a successful run is kept.
const RUN_CHARS_MAX: usize = 60;

/// Everything that was written about a box, unchanged. A stored history is this.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sources {
    pub id: BoxId,
    /// The lines of the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<Line>,
    /// The events of the journal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// The box outlived its creator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
    /// What the kernel counted by the end, if the record does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// The last part of what the command wrote to stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<Removal>,
    /// How many lines of the record were dropped, so that the rest fits into the history.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    /// What the box held, and when tare saw it gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// What tare saw gone after it kept the rest, which an earlier line has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_removal: Option<SeenRemoval>,
    /// The last line is what a look has found, and no process has recorded.
    #[serde(skip)]
    pub is_unrecorded: bool,
    /// A run that exited with 0. Nothing else is kept of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunLine>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A successful run in short: its creator saw its end and removed it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunLine {
    #[serde(default, skip_serializing_if = "is_default")]
    pub tenant: Tenant,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// The beginning of the command.
    pub command: String,
    pub created_at: Timestamp,
    pub created_ns: u64,
    pub ended_ns: u64,
}

fn is_default(tenant: &Tenant) -> bool {
    *tenant == Tenant::default()
}

/// The removal of a box.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Removal {
    pub why: Reason,
    pub pid: u32,
    /// How long it took until the box was empty, if the record does not say it.
    pub emptied_ms: Option<u64>,
    #[serde(flatten)]
    pub at: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    pub id: BoxId,
    /// All names that the box had; the last one is its own.
    pub names: Vec<String>,
    pub created_at: Timestamp,
    /// How the box ended, if it has.
    pub end: Option<End>,
    pub steps: Vec<Step>,
    /// How many steps are missing.
    pub forgotten: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    pub at: Timestamp,
    /// Milliseconds since the creation of the box; 0 for what happened while it waited in a pool.
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
            ..Self::none(id)
        }
    }

    /// Returns the sources of a box about which nothing was written.
    fn none(id: &BoxId) -> Self {
        Self {
            id: id.clone(),
            lines: Vec::new(),
            events: Vec::new(),
            ended: None,
            detached: false,
            evidence: None,
            stderr: None,
            removal: None,
            dropped: 0,
            receipt: None,
            seen_removal: None,
            is_unrecorded: false,
            run: None,
        }
    }

    /// Returns what tare saw gone after it kept the history of a box.
    pub fn of_removal(id: &BoxId, seen: SeenRemoval) -> Self {
        Self { seen_removal: Some(seen), ..Self::none(id) }
    }

    /// Returns the sources of a run that exited with 0.
    pub fn of_success(id: &BoxId, created: &Created) -> Self {
        let run = RunLine {
            tenant: created.spec.tenant.clone(),
            name: created.spec.name.clone(),
            command: cut(&program_of(&created.spec), RUN_CHARS_MAX).to_owned(),
            created_at: created.created_at,
            created_ns: created.created_ns,
            ended_ns: boot_ns(),
        };
        Self { run: Some(run), ..Self::none(id) }
    }

    /// Returns the tenant that the box belonged to; `None` if nothing says it.
    pub fn tenant(&self) -> Option<&Tenant> {
        let of_run = self.run.as_ref().map(|run| &run.tenant);
        of_run.or_else(|| Some(&self.spec()?.tenant))
    }

    /// Returns the spec of the box: that of the request that claimed it, or its first one.
    pub fn spec(&self) -> Option<&Spec> {
        let claimed = self.claimed().map(|claimed| &claimed.spec);
        claimed.or_else(|| Some(&self.created()?.spec))
    }

    /// Returns the line of the request that took the box out of a pool.
    fn claimed(&self) -> Option<&ClaimedLine> {
        self.lines
            .iter()
            .rev()
            .find_map(|line| if let Line::Claimed(it) = line { Some(&**it) } else { None })
    }

    /// Returns whether the box was not to be detached. The request that claims a box decides that.
    fn is_attached(&self) -> bool {
        let is_warm = self.lines.iter().any(|line| matches!(line, Line::Warm { .. }));
        match self.claimed() {
            Some(claimed) => claimed.detached.is_none(),
            None => is_warm || self.created().is_none_or(|created| created.detached.is_none()),
        }
    }

    pub fn created(&self) -> Option<&Created> {
        self.lines.iter().find_map(Line::created)
    }

    /// Returns the names that the box had, the last one last.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        let of_run = self.run.iter().filter_map(|run| run.name.as_ref());
        of_run.chain(self.lines.iter().filter_map(Line::name)).map(|name| name.as_str())
    }

    /// Returns when the box was removed; `None` if it was not.
    pub fn removed_at(&self) -> Option<Timestamp> {
        let of_run = self.run.as_ref().map(|run| run.ended().at);
        of_run.or(self.removal.map(|removal| removal.at.at))
    }

    /// Returns the actor that asked for the act that ended the box in this way, and how long before the
    /// end if it was a signal.
    pub fn asked_for(&self, end: End) -> (Option<&Actor>, Option<Duration>) {
        if let Some(line) = self.ended_line().filter(|line| line.by.is_some()) {
            return (line.by.as_ref(), line.asked_before);
        }
        let asked = asked_for(end, self.requests());
        let before = asked.and_then(|asked| asked.before(self.end_ns()?));
        (asked.map(|asked| &asked.by), before)
    }

    /// Returns the line about the end of the box.
    pub fn ended_line(&self) -> Option<&EndedLine> {
        self.lines
            .iter()
            .find_map(|line| if let Line::Ended(it) = line { Some(&**it) } else { None })
    }

    /// Returns what the kernel counted by the end of the box.
    pub fn evidence(&self) -> Option<&Evidence> {
        self.ended_line().map(|line| &line.evidence).or(self.evidence.as_ref())
    }

    /// Returns until when the box had this name. `None`: it never had the name. By the wall clock,
    /// because the boot clock of another boot says nothing about this one.
    pub fn had_name_until(&self, name: &str) -> Option<Timestamp> {
        if let Some(run) = &self.run {
            return run.name.as_ref().filter(|own| own.as_str() == name).map(|_| run.ended().at);
        }
        let created = self.created().map(Created::moment);
        let mut until = self.removal.map_or(Timestamp::MAX, |removal| removal.at.at);
        for line in self.lines.iter().rev() {
            match line.name() {
                Some(own) if own.as_str() == name => return Some(until),
                Some(_) => until = created.map_or(until, |created| created.at_ns(line.at_ns())),
                None => {}
            }
        }
        None
    }

    /// Returns the time of the last line or event, on the boot clock.
    pub fn last_ns(&self) -> Option<u64> {
        self.lines.iter().map(Line::at_ns).chain(self.events.iter().map(event_ns)).max()
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
        let successful = self.run.as_ref().map(|_| End::of_command(0));
        let written = self.ended_line().map(|it| it.end);
        let killed = self.lines.iter().find_map(|line| {
            if let Line::Ending(it) = line { Some(End::killed(it.why.cause())) } else { None }
        });
        let lost = self.removal.map(|removal| {
            End::killed(match removal.why {
                Reason::Abandoned | Reason::Rebooted => removal.why.cause(),
                Reason::ByCreator
                | Reason::Stopped
                | Reason::Requested
                | Reason::Overdue
                | Reason::Expired
                | Reason::RemoveAfterEnd => Cause::KeeperLost,
            })
        });
        let by_keeper = self.ended.map(|it| it.end);
        let end = successful.or(written).or(by_keeper).or(killed).or(lost)?;
        let mut pressure = self.evidence().map(Evidence::pressure).unwrap_or_default();
        let is_full = |event: &Event| event.what == BoxEvent::ScratchFull;
        pressure.scratch_full |= self.events.iter().any(is_full);
        Some(end.under(pressure))
    }
}

impl Sources {
    /// Hides the pids that processes had on the host, and reasons that name its paths.
    pub fn hide_host(&mut self) {
        for line in &mut self.lines {
            match line {
                Line::Created(it) => it.creator.iter_mut().for_each(Actor::hide_pid),
                Line::Keeper(it) => it.pid = HIDDEN_PID.cast_signed(),
                Line::Ending(it) => it.pid = HIDDEN_PID,
                Line::Ended(it) => it.hide_host(),
                Line::Requested(it) => it.by.hide_pid(),
                // The reason may name a process.
                Line::Stuck(it) => it.why.clear(),
                Line::Renamed { .. }
                | Line::Updated(_)
                | Line::Removing { .. }
                | Line::Warm { .. }
                | Line::Claimed(_)
                | Line::Held(_)
                | Line::Machine(_)
                | Line::Booted { .. } => {}
            }
        }
        self.removal.iter_mut().for_each(|removal| removal.pid = HIDDEN_PID);
    }

    pub fn requests(&self) -> impl DoubleEndedIterator<Item = &RequestLine> {
        self.lines.iter().filter_map(|line| {
            if let Line::Requested(request) = line { Some(request) } else { None }
        })
    }

    /// Returns the actor that asked for what the keeper wrote down.
    fn requester(&self, what: &BoxEvent) -> Option<&Actor> {
        let act = act_of(what)?;
        self.requests().rev().find(|request| request.act == act).map(|request| &request.by)
    }

    /// Returns the actor that asked for the removal.
    fn remover(&self) -> Option<&Actor> {
        let removal = self.removal.filter(|removal| removal.why == Reason::Requested)?;
        let mut requests = self.requests().rev();
        let is_removal =
            |it: &&RequestLine| it.act == Act::Remove && it.at_ns <= removal.at.boot_ns;
        requests.find(is_removal).map(|request| &request.by)
    }

    /// Returns whether another step says what was requested: the keeper wrote it down, or the
    /// process that acted did.
    fn shows_otherwise(&self, request: &RequestLine) -> bool {
        match request.act {
            Act::Stop | Act::Signal(_) => {
                self.events.iter().any(|event| act_of(&event.what) == Some(request.act))
            }
            Act::Kill | Act::Remove => {
                self.removal.is_some()
                    || self.lines.iter().any(|line| matches!(line, Line::Ending(_)))
            }
        }
    }
}

/// The act that a keeper wrote down.
fn act_of(what: &BoxEvent) -> Option<Act> {
    if let BoxEvent::Signalled { signal } = what {
        Some(Act::Signal(*signal))
    } else if let BoxEvent::StopRequested { .. } = what {
        Some(Act::Stop)
    } else {
        None
    }
}

impl RunLine {
    fn created(&self) -> Moment {
        Moment { at: self.created_at, boot_ns: self.created_ns }
    }

    fn ended(&self) -> Moment {
        Moment { at: self.created().at_ns(self.ended_ns), boot_ns: self.ended_ns }
    }
}

fn without_held(mut lines: Vec<Line>) -> Vec<Line> {
    lines.retain(|line| !matches!(line, Line::Held(_)));
    lines
}

/// Returns the history that the sources describe, up to `now`.
pub fn history(sources: &Sources, now: Moment) -> History {
    let of_run = sources.run.as_ref().map(RunLine::ended);
    let now = of_run.or(sources.removal.map(|removal| removal.at)).unwrap_or(now);
    let beginning = beginning(sources, now);
    // For its users, a box begins when it is claimed.
    let claimed_at = sources.claimed().map(|claimed| beginning.at_ns(claimed.at_ns));
    let created_at = claimed_at.unwrap_or(beginning.at);
    let mut steps = Steps { beginning, created_at, now, list: Vec::new() };
    // First, because it comes before an end of the same time.
    let evidence = sources.evidence();
    if sources.end().is_some_and(|end| end.oom) || evidence.is_some_and(|it| it.pressure().oom) {
        // They were before the end. Only the kernel's log dates them, by another clock.
        let dated = evidence.and_then(|it| it.oom_killed_ns);
        let at_ns = dated.into_iter().chain(sources.end_ns()).min();
        let text = text::oom(evidence, at_ns.is_some());
        steps.add(at_ns.unwrap_or(now.boot_ns), StepKind::Oom, text);
    }
    if let Some(run) = &sources.run {
        steps.add(run.created_ns, StepKind::Created, text::created(&run.command));
        let (kind, text) = text::box_ended(End::of_command(0));
        steps.add(run.ended_ns, kind, text).ended(End::of_command(0));
    }
    for line in &sources.lines {
        add_line(&mut steps, line, sources);
    }
    for event in &sources.events {
        add_event(&mut steps, event, sources);
    }
    if let Some(Ended { end, at_us, .. }) = sources.ended {
        let (kind, text) = text::box_ended(end);
        steps.add(at_us.saturating_mul(1000), kind, text).ended(end);
    }
    let mut list = steps.in_order();
    if let Some(removal) = &sources.removal {
        list.extend(removal_steps(removal, created_at, sources));
    }
    let excess = list.len().saturating_sub(STEPS_MAX);
    if excess > 0 {
        list.drain(FIRST_STEPS..FIRST_STEPS + excess);
    }
    History {
        id: sources.id.clone(),
        names: sources.names().map(str::to_owned).collect(),
        created_at,
        end: sources.end(),
        steps: list,
        forgotten: overwritten(&sources.events)
            .saturating_add(sources.dropped)
            .saturating_add(excess as u64),
    }
}

impl Step {
    fn ended(&mut self, end: End) {
        (self.exit_code, self.cause) = (exit_code(end), Some(end.cause));
    }
}

/// Returns the exit code of what ended. What never started has none.
pub fn exit_code(end: End) -> Option<u8> {
    (end.cause != Cause::StartFailed).then(|| end.code())
}

impl History {
    pub fn name(&self) -> Option<&str> {
        self.names.last().map(String::as_str)
    }
}

/// Steps with their times on the boot clock. All times of a record are of one boot. They are shown
/// in wall-clock time, computed from the creation time, so setting the clock changes nothing.
struct Steps {
    beginning: Moment,
    /// Later than the beginning if the box waited in a pool.
    created_at: Timestamp,
    now: Moment,
    list: Vec<(u64, Step)>,
}

impl Steps {
    fn add(&mut self, ns: u64, event: StepKind, text: String) -> &mut Step {
        let mut ns = ns.max(self.beginning.boot_ns);
        // In another boot the clock started again.
        if self.now.boot_ns >= self.beginning.boot_ns {
            ns = ns.min(self.now.boot_ns);
        }
        let at = self.beginning.at_ns(ns);
        self.list.push((ns, step(at, self.created_at, event, &text)));
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
fn beginning(sources: &Sources, now: Moment) -> Moment {
    let created = sources.created().map(Created::moment);
    created.or(sources.run.as_ref().map(RunLine::created)).unwrap_or_else(|| {
        let lines = sources.lines.iter().map(Line::at_ns);
        let ns = lines.chain(sources.events.iter().map(event_ns)).min();
        let boot_ns = ns.unwrap_or(now.boot_ns).min(now.boot_ns);
        Moment { at: now.at.before(Duration::from_nanos(now.boot_ns - boot_ns)), boot_ns }
    })
}

fn add_line(steps: &mut Steps, line: &Line, sources: &Sources) {
    let (kind, text) = match line {
        Line::Created(created) => (StepKind::Created, text::created(&program_of(&created.spec))),
        Line::Keeper(keeper) => (StepKind::Go, text::go(keeper.pid.unsigned_abs())),
        Line::Renamed { name, .. } => (StepKind::Renamed, format!("renamed to {name}")),
        Line::Updated(update) => (StepKind::Updated, text::updated(update)),
        Line::Stuck(stuck) => (StepKind::Stuck, format!("could not be ended: {stuck}")),
        Line::Ending(it) => {
            let by = sources.end().and_then(|end| sources.asked_for(end).0);
            let is_early = !sources.is_attached() && !sources.detached;
            (StepKind::Killed, text::killed_by_tare((it.why, is_early), it.pid, by))
        }
        Line::Ended(ended) => return add_end(steps, ended, sources),
        Line::Warm { pool, .. } => (StepKind::Warm, format!("waits in the pool {pool}")),
        Line::Claimed(claimed) => (StepKind::Claimed, text::claimed(&program_of(&claimed.spec))),
        Line::Requested(request) if sources.shows_otherwise(request) => return,
        Line::Requested(request) => (StepKind::Requested, text::requested(request)),
        Line::Machine(machine) => (StepKind::MachineStarted, text::machine_started(machine)),
        Line::Booted { .. } => (StepKind::Booted, "the keeper in the machine answered".to_owned()),
        // A removal has its own steps, and a receipt says what the box held.
        Line::Removing { .. } | Line::Held(_) => return,
    };
    steps.add(line.at_ns(), kind, text);
}

/// Adds what the process saw that found the box ended.
fn add_end(steps: &mut Steps, ended: &EndedLine, sources: &Sources) {
    let is_kill = |line: &Line| matches!(line, Line::Ending(_));
    if sources.ended.is_none() && !sources.lines.iter().any(is_kill) {
        let (kind, text) = match (ended.end.cause, &ended.failure) {
            (Cause::StartFailed, failure) => {
                let why = failure.as_deref().unwrap_or("its command did not start");
                (StepKind::StartFailed, format!("could not be started: {why}"))
            }
            (Cause::KeeperLost, _) => (StepKind::Lost, text::lost(ended.after, ended.at)),
            (Cause::ClientGone, _) if sources.is_unrecorded => {
                let text = text::abandoned_after(sources.is_attached(), ended.after);
                (StepKind::Abandoned, text)
            }
            // The whole box was killed, the keeper too.
            (Cause::Memory, _) if !sources.is_attached() => {
                (StepKind::Lost, text::lost(ended.after, ended.at))
            }
            (_, _) => text::box_ended(ended.end),
        };
        steps.add(ended.at_ns, kind, text).ended(ended.end);
    }
    if ended.failure.is_none() && !sources.is_unrecorded {
        steps.add(ended.at_ns, StepKind::Emptied, text::emptied(ended.emptied_ms));
    }
}

fn add_event(steps: &mut Steps, event: &Event, sources: &Sources) {
    let (kind, text) = text::event(&event.what, sources.requester(&event.what));
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
        | BoxEvent::ScratchFull
        | BoxEvent::Ended { .. } => {}
    }
}

/// The steps of a removal are dated by the wall clock: the host may have been started again.
fn removal_steps(
    removal: &Removal,
    created_at: Timestamp,
    sources: &Sources,
) -> impl Iterator<Item = Step> {
    let abandoned = (removal.why == Reason::Abandoned)
        .then(|| (StepKind::Abandoned, text::abandoned(sources.is_attached()).to_owned()));
    let emptied = removal.emptied_ms.map(|ms| (StepKind::Emptied, text::emptied(ms)));
    let removed = (StepKind::Removed, text::removed(removal.why, removal.pid, sources.remover()));
    let steps = abandoned.into_iter().chain(emptied).chain([removed]);
    steps.map(move |(kind, text)| step(removal.at.at, created_at, kind, &text))
}

fn event_ns(event: &Event) -> u64 {
    event.at_us.saturating_mul(1000)
}

/// Returns how many events are missing: the numbers of the events show it.
fn overwritten(events: &[Event]) -> u64 {
    let last = events.last().map_or(0, |event| u64::from(event.number) + 1);
    last.saturating_sub(events.len() as u64)
}

fn command_of(spec: &Spec) -> String {
    let words = spec.command.iter().map(|word| word.to_string_lossy());
    Vec::from_iter(words).join(" ")
}

/// The command, or the label of a run whose box has none.
fn program_of(spec: &Spec) -> String {
    spec.labels.get(RUN_LABEL).cloned().unwrap_or_else(|| command_of(spec))
}

fn harmless(text: &str) -> String {
    let shown = cut(text, TEXT_CHARS_MAX);
    escaped(shown) + if shown.len() < text.len() { "..." } else { "" }
}

pub fn cut(text: &str, chars_max: usize) -> &str {
    text.char_indices().nth(chars_max).map_or(text, |(at, _)| &text[..at])
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
