//! The kind and the text of each step of a history: one sentence for the user.

use std::time::Duration;

use serde::Serialize;
use tare_control::journal::BoxEvent;
use tare_control::{Cause, End};

use crate::actor::{Actor, HIDDEN_PID};
use crate::record::lines::{Act, Evidence, Lease, MachineLine, Reason, RequestLine, UpdatedLine};
use crate::spec::name::signal_name;
use crate::spec::quantity;
use crate::time::Timestamp;

/// What happened in a step. The names are those of `tare explain --json` and never change.
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
    Requested,
    ScratchFull,
    StartFailed,
    MachineStarted,
    Booted,
}

const LOST: &str =
    "its keeper ended without a report: killed by another process, or by the kernel for memory";
const ABANDONED: &str = "its creator had ended before it detached the box";
const CREATOR_GONE: &str = "its creator was gone";
const MACHINE_LOST: &str = "its machine ended before its command";

/// A box that is attached is never detached.
pub fn abandoned(is_attached: bool) -> &'static str {
    if is_attached { CREATOR_GONE } else { ABANDONED }
}

/// A step is dated by the last sign of life of the box. The kernel does not record when a process ended.
pub fn abandoned_after(is_attached: bool, after: Option<Timestamp>) -> String {
    let text = abandoned(is_attached);
    match after {
        Some(after) => format!("{text}; tare did not see when, after {after}"),
        None => text.to_owned(),
    }
}

/// The kernel counts the processes that it killed for memory. Its log may name and date them.
pub fn oom(evidence: Option<&Evidence>, is_dated: bool) -> String {
    let kills = evidence.and_then(|it| it.oom_kills).unwrap_or(1);
    let which = match evidence.map(|it| it.oom_killed.join(", ")) {
        Some(names) if !names.is_empty() => format!(" ({names})"),
        Some(_) | None => String::new(),
    };
    let when = if is_dated { "" } else { " before this look" };
    match kills {
        1 => format!("the kernel killed a process of the box for memory{when}{which}"),
        kills => format!("the kernel killed {kills} processes of the box for memory{when}{which}"),
    }
}

/// The kernel does not record when a process ended.
pub fn lost(after: Option<Timestamp>, before: Timestamp) -> String {
    match after {
        Some(after) => format!("{LOST}; between {after} and {before}"),
        None => LOST.to_owned(),
    }
}

pub fn created(command: &str) -> String {
    if command.is_empty() {
        "created, without a command".to_owned()
    } else {
        format!("created: {command}")
    }
}

pub fn claimed(command: &str) -> String {
    if command.is_empty() {
        "claimed by a request, without a command".to_owned()
    } else {
        format!("claimed by a request: {command}")
    }
}

pub fn go(keeper: u32) -> String {
    format!("keeper started{}", pid_of(keeper))
}

pub fn machine_started(machine: &MachineLine) -> String {
    let memory = quantity::show_bytes(machine.memory_bytes);
    format!("machine started with {memory} of memory and the kernel {}", machine.kernel)
}

fn pid_of(pid: u32) -> String {
    if pid == HIDDEN_PID { String::new() } else { format!(" (pid {pid})") }
}

pub fn emptied(ms: u64) -> String {
    format!("all processes gone after {ms} ms")
}

pub fn removed(why: Reason, pid: u32, by: Option<&Actor>) -> String {
    if let Some(by) = by {
        return format!("removed by {by}");
    }
    let why = match why {
        // The grace is why tare kills a box. A box that obeyed was not killed.
        Reason::Stopped => "it had been stopped, and was not to be kept",
        Reason::ByCreator
        | Reason::Requested
        | Reason::Abandoned
        | Reason::Overdue
        | Reason::Expired
        | Reason::RemoveAfterEnd
        | Reason::Rebooted => reason(why),
    };
    format!("removed by tare{}: {why}", pid_of(pid))
}

/// `is_early`: the box was to be detached, and had not been.
pub fn killed_by_tare((why, is_early): (Reason, bool), pid: u32, by: Option<&Actor>) -> String {
    let pid = pid_of(pid);
    match (why, by) {
        (Reason::Requested, Some(by)) => format!("killed by {by}"),
        (Reason::Stopped, Some(by)) if is_early => {
            format!("stopped by {by} before its command started")
        }
        (Reason::Stopped, Some(by)) => {
            format!("killed by tare{pid}: {}; stopped by {by}", reason(why))
        }
        (_, _) => format!("killed by tare{pid}: {}", reason(why)),
    }
}

/// A request that no other step shows.
pub fn requested(request: &RequestLine) -> String {
    let what = match request.act {
        Act::Stop => "stop".to_owned(),
        Act::Kill => "kill".to_owned(),
        Act::Remove => "removal".to_owned(),
        Act::Signal(signal) => named(signal),
    };
    format!("{what} requested by {}", request.by)
}

fn reason(why: Reason) -> &'static str {
    match why {
        Reason::ByCreator => "by its creator",
        Reason::Stopped => "it had not stopped within its grace",
        Reason::Requested => "as a user requested",
        Reason::Abandoned => "its creator had ended",
        Reason::Overdue => "its lease had passed, and its keeper was late",
        Reason::Expired => "it had ended, and its retention had passed",
        Reason::RemoveAfterEnd => "it had ended, and was to be removed then",
        Reason::Rebooted => "the host had been restarted",
    }
}

pub fn updated(update: &UpdatedLine) -> String {
    let memory = update.memory_bytes.map(|it| format!("memory {}", quantity::show_bytes(it)));
    let pids = update.pids.map(|pids| format!("processes {pids}"));
    let cpus = update.cpus.map(|cpus| format!("cpus {}", f64::from(cpus.milli) / 1000.0));
    let lease = update.lease.map(|lease| match lease {
        Lease::Never => "lease never".to_owned(),
        Lease::Ends { at, .. } => format!("lease until {at}"),
    });
    let changes = [memory, pids, cpus, lease].into_iter().flatten();
    format!("updated: {}", Vec::from_iter(changes).join(", "))
}

/// Returns the kind and the text of the end of a box, as its keeper wrote it.
pub fn box_ended(end: End) -> (StepKind, String) {
    match why_killed(end) {
        Some(why) => (StepKind::Killed, format!("killed by tare: {why}")),
        None if end.cause == Cause::MachineLost => (StepKind::Lost, MACHINE_LOST.to_owned()),
        None => (StepKind::CommandEnded, format!("its command {}", result(end))),
    }
}

/// How an exec or a copy ended.
fn exec_ended(end: End) -> String {
    match why_killed(end) {
        Some(why) => format!("was killed, with all that it started: {why}"),
        None if end.cause == Cause::Memory => format!("{}, because memory ran out", result(end)),
        None if end.cause == Cause::MachineLost => "ended with the machine".to_owned(),
        None => result(end),
    }
}

/// Why the keeper killed it, if it did.
fn why_killed(end: End) -> Option<&'static str> {
    match end.cause {
        Cause::Timeout => Some("its timeout passed"),
        Cause::Lease => Some("its lease passed"),
        Cause::OutputLimit => Some("its output passed the limit"),
        Cause::ClientGone => Some("its client was gone"),
        Cause::ServerStopping => Some("the server shut down"),
        Cause::Stopped if end.signal() == Some(SIGKILL) => {
            Some("it had not stopped within its grace")
        }
        // A process of tare counts such signals. The end has the number of the last one.
        Cause::Killed if end.signal() != Some(SIGKILL) => Some("a second signal came"),
        Cause::Exited
        | Cause::Signalled
        | Cause::Memory
        | Cause::Stopped
        | Cause::Killed
        | Cause::KeeperLost
        | Cause::StartFailed
        | Cause::Pids
        | Cause::ScratchFull
        | Cause::HostRebooted
        | Cause::MachineLost => None,
    }
}

const SIGKILL: i32 = 9;

/// The exit code or the signal of a command.
pub fn result(end: End) -> String {
    match (end.signal(), shells_signal(end.code())) {
        (Some(signal), _) => format!("was killed by {}", named(signal)),
        (None, Some(signal)) => {
            let (code, name) = (end.code(), signal_name(signal));
            format!("exited with {code}, as a shell does after {name} ended its command")
        }
        (None, None) => format!("exited with {}", end.code()),
    }
}

/// Returns the signal that a shell reports in its own exit code. Real-time signals are excluded:
/// programs agree on them, and they end none by chance.
fn shells_signal(code: u8) -> Option<i32> {
    let signal = i32::from(code) - 128;
    (1..=SIGNAL_NAMED_MAX).contains(&signal).then_some(signal)
}

const SIGNAL_NAMED_MAX: i32 = 31;

pub fn named(signal: i32) -> String {
    format!("signal {signal} ({})", signal_name(signal))
}

/// Returns the kind and the text of an event.
pub fn event(what: &BoxEvent, by: Option<&Actor>) -> (StepKind, String) {
    let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
    match what {
        BoxEvent::Started => (StepKind::Started, "its command runs".into()),
        BoxEvent::Detached => (StepKind::Detached, "detached".into()),
        BoxEvent::Abandoned => (StepKind::Abandoned, ABANDONED.into()),
        BoxEvent::ExecStarted { process: n, name } => {
            (StepKind::ExecStarted, format!("exec {n} started: {name}"))
        }
        BoxEvent::ExecFailed { process: n, name } => {
            (StepKind::ExecFailed, format!("exec {n} could not be started: {name}"))
        }
        BoxEvent::ExecEnded { process: n, wait_status, cause } => {
            (StepKind::ExecEnded, format!("exec {n} {}", exec_ended(end(*wait_status, *cause))))
        }
        BoxEvent::CopyIn { process: n } => (StepKind::CopyIn, format!("copy {n} into it started")),
        BoxEvent::CopyOut { process: n } => {
            (StepKind::CopyOut, format!("copy {n} out of it started"))
        }
        BoxEvent::CopyEnded { process: n, wait_status, cause } => {
            (StepKind::CopyEnded, format!("copy {n} {}", exec_ended(end(*wait_status, *cause))))
        }
        BoxEvent::StopRequested { grace_ms } => {
            let grace = quantity::show_duration(Duration::from_millis(u64::from(*grace_ms)));
            (StepKind::StopAsked, format!("asked to stop{by}, with a grace of {grace}"))
        }
        BoxEvent::Signalled { signal } => {
            (StepKind::Signalled, format!("{} sent to its command{by}", named(*signal)))
        }
        BoxEvent::Paused => (StepKind::Paused, "paused".into()),
        BoxEvent::Resumed => (StepKind::Resumed, "resumed".into()),
        BoxEvent::ScratchFull => {
            (StepKind::ScratchFull, "its scratch space was full when its command had ended".into())
        }
        BoxEvent::Ended { wait_status, cause, .. } => box_ended(end(*wait_status, *cause)),
    }
}

fn end(wait_status: i32, cause: Cause) -> End {
    End { cause, wait_status, oom: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_named_also_if_a_shell_reported_it() {
        for (wait_status, expected) in [
            (9, "its command was killed by signal 9 (SIGKILL)"),
            (64, "its command was killed by signal 64 (SIG64)"),
            (
                137 << 8,
                "its command exited with 137, as a shell does after SIGKILL ended its command",
            ),
            (128 << 8, "its command exited with 128"),
            (255 << 8, "its command exited with 255"),
            (0, "its command exited with 0"),
        ] {
            assert_eq!(box_ended(End::of_command(wait_status)).1, expected);
        }
    }

    #[test]
    fn no_step_names_a_signal_that_ended_nothing() {
        let second = End { cause: Cause::Killed, ..End::of_command(15) };
        let text = "killed by tare: a second signal came".to_owned();
        assert_eq!(box_ended(second), (StepKind::Killed, text));
        let lost = End::killed(Cause::MachineLost);
        let text = "its machine ended before its command".to_owned();
        assert_eq!(box_ended(lost), (StepKind::Lost, text));
        assert_eq!(exec_ended(lost), "ended with the machine");
    }

    #[test]
    fn the_text_of_an_exec_names_the_cause_that_its_step_has() {
        let ended = |wait_status, cause| {
            event(&BoxEvent::ExecEnded { process: 3, wait_status, cause }, None).1
        };
        let killed = "exec 3 was killed by signal 9 (SIGKILL)";
        assert_eq!(ended(9, Cause::Signalled), killed);
        assert_eq!(ended(9, Cause::Memory), format!("{killed}, because memory ran out"));
        let exited = "exec 3 exited with 1, because memory ran out";
        assert_eq!(ended(1 << 8, Cause::Memory), exited);
    }
}
