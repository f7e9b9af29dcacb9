//! Exit codes, and the sentence for each way that a command or a box can end.
//!
//! `run`, `exec` and `attach` exit with the code of the command, so tare's own failures have codes of
//! their own there: 124 to 127 and 137. The other commands exit with 0, 1 or 2.

use std::time::Duration;

use rustix::process::Signal;
use tare_engine::spec::{Spec, quantity};
use tare_engine::{Cause, End, Error, ErrorKind};

use crate::error::{print_error, print_note};

pub const DONE: u8 = 0;
pub const FAILED: u8 = 1;
pub const WRONG_USAGE: u8 = 2;

/// A failure of tare in `run`, `exec` and `attach`.
pub const RUN_FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The subject of the sentences: the command of `exec`, or the box of `run` with its limits.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    Command { timeout: Option<Duration> },
    Box { spec: &'a Spec, output_bytes_max: u64 },
}

/// An exit code, and what tare prints about it.
#[derive(Debug)]
pub struct ExitReport {
    pub code: u8,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// What tare did. `--quiet` suppresses it.
    note: Option<String>,
    /// Printed even with `--quiet`.
    pub error: Option<Error>,
}

impl ExitReport {
    pub fn of(end: End, subject: Subject<'_>) -> Self {
        Self { code: end.code(), signal: end.signal(), note: subject.note(end), error: None }
    }

    /// A failure of tare replaces the command's own code: if output is missing, or if a part of the
    /// box may be left, the call is never a success.
    pub fn failed(error: Error) -> Self {
        Self { code: run_code(&error), signal: None, note: None, error: Some(error) }
    }

    pub fn print(&self, quiet: bool) {
        if let Some(error) = &self.error {
            print_error(error);
        }
        if let (Some(note), false) = (&self.note, quiet) {
            print_note(note);
        }
    }
}

impl Subject<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Command { .. } => "the command",
            Self::Box { .. } => "the box",
        }
    }

    /// Returns what tare did, or what the user should know.
    fn note(&self, end: End) -> Option<String> {
        let name = self.name();
        match end.cause {
            Cause::Exited | Cause::Signalled | Cause::StartFailed => {
                end.oom.then(|| self.oom_note())
            }
            Cause::Memory if end.signal() == Some(Signal::KILL.as_raw()) => {
                Some(format!("{name} was killed for memory: {}", self.memory()))
            }
            Cause::Memory => Some(self.oom_note()),
            Cause::Timeout => Some(self.timed_out()),
            Cause::OutputLimit => Some(self.output_killed()),
            Cause::Stopped => Some(format!("{name} was stopped by another command of tare")),
            Cause::Killed if end.signal() == Some(Signal::KILL.as_raw()) => {
                Some(format!("{name} was killed by another command of tare"))
            }
            Cause::Killed => Some(format!("{name} was killed at the second signal")),
            Cause::Lease | Cause::ClientGone | Cause::ServerStopping | Cause::KeeperLost => {
                Some(self.gone())
            }
        }
    }

    fn timed_out(&self) -> String {
        let timeout = match self {
            Self::Command { timeout } => *timeout,
            Self::Box { spec, .. } => spec.timeout,
        };
        let timeout = quantity::show_duration(timeout.unwrap_or_default());
        format!("{} was killed: its timeout of {timeout} passed", self.name())
    }

    fn gone(&self) -> String {
        match self {
            Self::Command { .. } => "the box ended before the command did".to_owned(),
            Self::Box { .. } => {
                "the box was ended from outside before its command ended".to_owned()
            }
        }
    }

    fn memory(&self) -> String {
        match self {
            Self::Command { .. } => "its box reached its limit".to_owned(),
            Self::Box { spec, .. } => {
                let limit = quantity::show_bytes(spec.limits.memory_bytes.value());
                format!("its limit is {limit} (--memory)")
            }
        }
    }

    /// The note if the kernel killed one process of the box, and not the whole box.
    fn oom_note(&self) -> String {
        format!("a process of the box was killed for memory: {}", self.memory())
    }

    fn output_killed(&self) -> String {
        let limit = quantity::show_bytes(self.output_bytes_max());
        format!(
            "the box was killed: its output passed the limit of {limit} (--output-limit, \
             --output-kill)"
        )
    }

    /// The note about output that was dropped.
    pub fn truncated(&self, dropped_bytes: u64) -> String {
        let (limit, dropped) =
            (quantity::show_bytes(self.output_bytes_max()), quantity::show_bytes(dropped_bytes));
        format!(
            "the output was truncated at the limit of {limit} (--output-limit): {dropped} dropped"
        )
    }

    fn output_bytes_max(&self) -> u64 {
        match self {
            Self::Command { .. } => u64::MAX,
            Self::Box { output_bytes_max, .. } => *output_bytes_max,
        }
    }
}

/// Returns the exit code of `run`, `exec` and `attach` for an error.
pub fn run_code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::CommandNotFound => NOT_FOUND,
        ErrorKind::CommandNotExecutable => NOT_EXECUTABLE,
        ErrorKind::BadRequest
        | ErrorKind::NoSuchBox
        | ErrorKind::Conflict
        | ErrorKind::Warm
        | ErrorKind::NoAnswer
        | ErrorKind::Unsupported
        | ErrorKind::Busy
        | ErrorKind::Stuck
        | ErrorKind::Failed => RUN_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_engine::spec::Limit;

    /// The report on a box with `--memory 64m --timeout 30s --output-limit 64m`.
    fn of_box(end: End) -> (u8, Option<i32>, Option<String>) {
        let mut spec = Spec::of(vec!["true".into()]);
        spec.limits.memory_bytes = Limit::Asked(64 << 20);
        spec.timeout = Some(Duration::from_secs(30));
        let subject = Subject::Box { spec: &spec, output_bytes_max: 64 << 20 };
        let report = ExitReport::of(end, subject);
        (report.code, report.signal, report.note)
    }

    fn of_command(end: End) -> (u8, Option<String>) {
        let timeout = Some(Duration::from_secs(2));
        let report = ExitReport::of(end, Subject::Command { timeout });
        (report.code, report.note)
    }

    #[test]
    fn a_command_that_ends_by_itself_gets_no_note() {
        let exited = |wait_status| of_box(End::of_command(wait_status));
        assert_eq!(exited(0), (0, None, None));
        assert_eq!(exited(124 << 8), (124, None, None));
        assert_eq!(exited(15), (143, Some(15), None));
        assert_eq!(exited(9), (137, Some(9), None));
        assert_eq!(of_command(End::of_command(15)), (143, None));
    }

    #[test]
    fn a_box_killed_for_memory_names_its_limit() {
        let note = "the box was killed for memory: its limit is 64 MiB (--memory)".to_owned();
        let killed = (137, Some(9), Some(note));
        assert_eq!(of_box(End::of_command(9).with_oom(true)), killed);
        assert_eq!(of_box(End::killed(Cause::KeeperLost).with_oom(true)), killed);
        let note = "a process of the box was killed for memory: its limit is 64 MiB (--memory)";
        for code in [0, 1] {
            let end = End::of_command(code << 8).with_oom(true);
            assert_eq!(of_box(end), (code as u8, None, Some(note.to_owned())));
        }
    }

    #[test]
    fn other_ends_name_what_ended_the_box_or_the_command() {
        let second_signal = End { wait_status: 2, ..End::killed(Cause::Killed) };
        for (end, code, note) in [
            (End::killed(Cause::Timeout), 124, "the box was killed: its timeout of 30s passed"),
            (
                End::killed(Cause::OutputLimit),
                137,
                "the box was killed: its output passed the limit of 64 MiB (--output-limit, \
                 --output-kill)",
            ),
            (second_signal, 130, "the box was killed at the second signal"),
            (End::killed(Cause::Killed), 137, "the box was killed by another command of tare"),
            (
                End { cause: Cause::Stopped, ..End::of_command(15) },
                143,
                "the box was stopped by another command of tare",
            ),
            (
                End::killed(Cause::KeeperLost),
                137,
                "the box was ended from outside before its command ended",
            ),
        ] {
            assert_eq!((of_box(end).0, of_box(end).2.as_deref()), (code, Some(note)));
        }
        let note = "the command was killed: its timeout of 2s passed".to_owned();
        assert_eq!(of_command(End::killed(Cause::Timeout)), (124, Some(note)));
        assert_eq!(of_command(End::killed(Cause::KeeperLost)).0, 137);
    }

    #[test]
    fn failures_of_tare_have_codes_of_their_own() {
        for (kind, code) in [
            (ErrorKind::CommandNotFound, 127),
            (ErrorKind::CommandNotExecutable, 126),
            (ErrorKind::BadRequest, 125),
            (ErrorKind::NoSuchBox, 125),
            (ErrorKind::Conflict, 125),
            (ErrorKind::NoAnswer, 125),
            (ErrorKind::Unsupported, 125),
            (ErrorKind::Busy, 125),
            (ErrorKind::Stuck, 125),
            (ErrorKind::Failed, 125),
        ] {
            let report = ExitReport::failed(Error::new(kind, "x"));
            assert_eq!(report.code, code);
            assert!(report.error.is_some());
        }
    }
}
