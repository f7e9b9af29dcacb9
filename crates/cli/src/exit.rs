//! Exit codes, and the sentence for each way that a command or a box can end.
//!
//! `run`, `exec` and `attach` exit with the code of the command, so tare's own failures have codes of
//! their own there: 124 to 127 and 137. The other commands exit with 0, 1 or 2.

use std::io;
use std::time::Duration;

use rustix::process::Signal;
use tare_engine::spec::{Spec, quantity};
use tare_engine::{Ended, EndedBy, Error, ErrorKind, Exit};

use crate::error::{print_error, print_note};

pub const DONE: u8 = 0;
pub const FAILED: u8 = 1;
pub const WRONG_USAGE: u8 = 2;

const TIMED_OUT: u8 = 124;
/// A failure of tare in `run`, `exec` and `attach`.
pub const RUN_FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNALLED: u8 = 128;
/// 128 + SIGKILL.
const KILLED: u8 = SIGNALLED + 9;

/// How a command that tare stayed with ended.
#[derive(Debug)]
pub enum Outcome {
    Exited(Exit),
    TimedOut,
    /// The command could not be started.
    Failed(Error),
    /// The box ended before the command did.
    Gone,
    /// The output passed its limit and `--output-kill` was given.
    OutputKilled,
    /// The user asked a second time to stop, with this signal.
    Interrupted(i32),
    /// tare could not stay with the command.
    Lost(io::Error),
}

/// What a sentence is about: the command of `exec`, or the box of `run` with its limits.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    Command { timeout: Option<Duration> },
    Box { spec: &'a Spec, output_bytes_max: u64, oom_kills: u64 },
}

/// An exit code, and what tare prints about it.
#[derive(Debug)]
pub struct Verdict {
    pub code: u8,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// What tare did, unless `--quiet`.
    note: Option<String>,
    /// Printed in any case.
    pub error: Option<Error>,
}

impl Outcome {
    pub fn verdict(self, subject: Subject<'_>) -> Verdict {
        match self {
            Self::Exited(Exit::Signal(9)) | Self::Gone if subject.oom_kills() > 0 => {
                Verdict::killed(format!("the box was killed for memory: {}", subject.memory()))
            }
            Self::Exited(exit) => Verdict { note: subject.oom_note(), ..Verdict::exited(exit) },
            Self::Gone => Verdict::killed(subject.gone()),
            Self::TimedOut => {
                Verdict { note: Some(subject.timed_out()), ..Verdict::code(TIMED_OUT) }
            }
            Self::OutputKilled => Verdict::killed(subject.output_killed()),
            Self::Interrupted(signal) => {
                let note = format!("{} was killed at the second signal", subject.name());
                Verdict { note: Some(note), ..Verdict::signalled(signal) }
            }
            Self::Failed(error) => Verdict::failed(error),
            Self::Lost(error) => {
                Verdict::failed(Error::failed("cannot stay attached to the box").caused_by(error))
            }
        }
    }
}

impl Verdict {
    fn code(code: u8) -> Self {
        Self { code, signal: None, note: None, error: None }
    }

    fn exited(exit: Exit) -> Self {
        match exit {
            Exit::Code(code) => Self::code(code),
            Exit::Signal(signal) => Self::signalled(signal),
        }
    }

    fn killed(note: String) -> Self {
        Self { note: Some(note), ..Self::signalled(Signal::KILL.as_raw()) }
    }

    /// Replaces the command's own code where output is missing, or the box may not be gone:
    /// that is never a success.
    pub fn failed(error: Error) -> Self {
        let code = run_code(&error);
        Self { error: Some(error), ..Self::code(code) }
    }

    pub fn signalled(signal: i32) -> Self {
        let code = u8::try_from(signal).map_or(u8::MAX, |signal| SIGNALLED.saturating_add(signal));
        Self { signal: Some(signal), ..Self::code(code) }
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

    fn oom_kills(&self) -> u64 {
        match self {
            Self::Command { .. } => 0,
            Self::Box { oom_kills, .. } => *oom_kills,
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
            Self::Command { .. } => String::new(),
            Self::Box { spec, .. } => {
                let limit = quantity::show_bytes(spec.limits.memory_bytes.value());
                format!("its limit is {limit} (--memory)")
            }
        }
    }

    /// What to say when the command ended by itself, but the kernel killed others of its box.
    fn oom_note(&self) -> Option<String> {
        let who = match self.oom_kills() {
            0 => return None,
            1 => "a process of the box was".to_owned(),
            many => format!("{many} processes of the box were"),
        };
        Some(format!("{who} killed for memory: {}", self.memory()))
    }

    fn output_killed(&self) -> String {
        let limit = quantity::show_bytes(self.output_bytes_max());
        format!(
            "the box was killed: its output passed the limit of {limit} (--output-limit, \
             --output-kill)"
        )
    }

    /// What to say of output that was dropped.
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

/// The exit code of `run` and `exec` for an error.
pub fn run_code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::CommandNotFound => NOT_FOUND,
        ErrorKind::CommandNotExecutable => NOT_EXECUTABLE,
        ErrorKind::BadRequest
        | ErrorKind::NoSuchBox
        | ErrorKind::Conflict
        | ErrorKind::NoAnswer
        | ErrorKind::Unsupported
        | ErrorKind::Busy
        | ErrorKind::Stuck
        | ErrorKind::Failed => RUN_FAILED,
    }
}

/// The exit code of a box that has ended: that of its command, if it has one.
pub fn ended_code(ended: &Ended) -> u8 {
    match (ended.exit_code, ended.ended_by) {
        (Some(code), _) => code,
        (None, Some(EndedBy::Timeout | EndedBy::Lease)) => TIMED_OUT,
        (None, Some(EndedBy::Command | EndedBy::Stop | EndedBy::Kill | EndedBy::Output) | None) => {
            KILLED
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_engine::spec::Limit;

    /// The verdict on a box with `--memory 64m --timeout 30s --output-limit 64m`.
    fn of_box(outcome: Outcome, oom_kills: u64) -> (u8, Option<i32>, Option<String>) {
        let mut spec = Spec::of(vec!["true".into()]);
        spec.limits.memory_bytes = Limit::Asked(64 << 20);
        spec.timeout = Some(Duration::from_secs(30));
        let subject = Subject::Box { spec: &spec, output_bytes_max: 64 << 20, oom_kills };
        let verdict = outcome.verdict(subject);
        (verdict.code, verdict.signal, verdict.note)
    }

    fn of_command(outcome: Outcome) -> (u8, Option<String>) {
        let timeout = Some(Duration::from_secs(2));
        let verdict = outcome.verdict(Subject::Command { timeout });
        (verdict.code, verdict.note)
    }

    #[test]
    fn a_command_that_ends_by_itself_gets_no_note() {
        let exited = |exit| of_box(Outcome::Exited(exit), 0);
        assert_eq!(exited(Exit::Code(0)), (0, None, None));
        assert_eq!(exited(Exit::Code(124)), (124, None, None));
        assert_eq!(exited(Exit::Signal(15)), (143, Some(15), None));
        assert_eq!(exited(Exit::Signal(9)), (137, Some(9), None));
        assert_eq!(of_command(Outcome::Exited(Exit::Signal(15))), (143, None));
    }

    #[test]
    fn a_box_killed_for_memory_names_its_limit() {
        let note = "the box was killed for memory: its limit is 64 MiB (--memory)".to_owned();
        let killed = (137, Some(9), Some(note));
        assert_eq!(of_box(Outcome::Exited(Exit::Signal(9)), 1), killed);
        assert_eq!(of_box(Outcome::Gone, 2), killed);
        let note = "2 processes of the box were killed for memory: its limit is 64 MiB (--memory)";
        assert_eq!(of_box(Outcome::Exited(Exit::Code(1)), 2), (1, None, Some(note.to_owned())));
    }

    #[test]
    fn other_ends_name_what_ended_the_box_or_the_command() {
        let note = |(_, note): (u8, Option<String>)| note.unwrap();
        let box_note = |outcome| of_box(outcome, 0).2.unwrap();
        assert_eq!(of_box(Outcome::TimedOut, 0).0, 124);
        assert_eq!(box_note(Outcome::TimedOut), "the box was killed: its timeout of 30s passed");
        assert_eq!(of_command(Outcome::TimedOut).0, 124);
        let told = "the command was killed: its timeout of 2s passed";
        assert_eq!(note(of_command(Outcome::TimedOut)), told);
        assert_eq!(of_box(Outcome::OutputKilled, 0).0, 137);
        let told = "the box was killed: its output passed the limit of 64 MiB (--output-limit, \
                    --output-kill)";
        assert_eq!(box_note(Outcome::OutputKilled), told);
        assert_eq!(of_box(Outcome::Interrupted(2), 0).0, 130);
        assert_eq!(of_box(Outcome::Gone, 0).0, 137);
        assert_eq!(of_command(Outcome::Gone).0, 137);
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
            let verdict = Outcome::Failed(Error::new(kind, "x"));
            let verdict = verdict.verdict(Subject::Command { timeout: None });
            assert_eq!(verdict.code, code);
            assert!(verdict.error.is_some());
        }
    }

    #[test]
    fn a_box_without_an_exit_code_has_the_code_of_what_ended_it() {
        for (exit_code, ended_by, code) in [
            (Some(3), Some(EndedBy::Command), 3),
            (None, Some(EndedBy::Timeout), 124),
            (None, Some(EndedBy::Lease), 124),
            (None, None, 137),
        ] {
            let ended = Ended { exit_code, ended_by, oom: false };
            assert_eq!(ended_code(&ended), code);
        }
    }
}
