//! How a command ended: the exit code, and what is said about it.

use std::time::Duration;

use rustix::process::Signal;
use tare_engine::spec::duration;
use tare_engine::{Ended, EndedBy, Error, Exit};

use crate::error::{print_error, print_note, run_code};

const TIMED_OUT: u8 = 124;
const SIGNALLED: u8 = 128;
/// 128 + SIGKILL.
const KILLED: u8 = SIGNALLED + 9;

/// What is to be said and returned.
#[derive(Debug)]
pub struct Verdict {
    pub code: u8,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// A sentence about what tare did, unless `--quiet`.
    pub note: Option<String>,
    /// Said in any case.
    pub error: Option<Error>,
}

impl Verdict {
    fn code(code: u8) -> Self {
        Self { code, signal: None, note: None, error: None }
    }

    pub fn exited(exit: Exit) -> Self {
        match exit {
            Exit::Code(code) => Self::code(code),
            Exit::Signal(signal) => Self::signalled(signal),
        }
    }

    pub fn killed(note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..Self::signalled(Signal::KILL.as_raw()) }
    }

    /// `subject`: the box or the command, whichever had the timeout.
    pub fn timed_out(subject: &str, timeout: Option<Duration>) -> Self {
        let timeout = duration::show(timeout.unwrap_or_default());
        Self {
            note: Some(format!("{subject} was ended after its timeout of {timeout}")),
            ..Self::code(TIMED_OUT)
        }
    }

    pub fn interrupted(subject: &str, signal: i32) -> Self {
        Self {
            note: Some(format!("{subject} was ended at the second signal")),
            ..Self::signalled(signal)
        }
    }

    /// Also after the command had its say: when the box may not be gone, or
    /// output is missing, that is never a success.
    pub fn failed(error: Error) -> Self {
        let code = run_code(&error);
        Self { error: Some(error), ..Self::code(code) }
    }

    pub fn lost(error: std::io::Error) -> Self {
        Self::failed(Error::failed("cannot stay attached to the box").caused_by(error))
    }

    pub fn signalled(signal: i32) -> Self {
        let code = u8::try_from(signal).map_or(u8::MAX, |signal| SIGNALLED.saturating_add(signal));
        Self { signal: Some(signal), ..Self::code(code) }
    }

    pub fn say(&self, quiet: bool) {
        if let Some(error) = &self.error {
            print_error(error);
        }
        if let (Some(note), false) = (&self.note, quiet) {
            print_note(note);
        }
    }
}

/// The exit code of a box that has ended, its command's own where that had one.
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

    #[test]
    fn a_box_without_a_code_of_its_command_has_that_of_what_ended_it() {
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
