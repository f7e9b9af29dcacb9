//! Exit codes, and when tare prints a sentence about the end of a command or a box.
//!
//! `run`, `exec` and `attach` exit with the code of the command, so tare's own failures have codes of
//! their own there: 124 to 127 and 137. The other commands exit with 0, 1 or 2.

use tare_engine::spec::quantity;
use tare_engine::{
    Actor, BoxId, Cause, Circumstances, End, Error, ErrorKind, Evidence, Pressure, Subject,
};

use crate::error::{print_note, sentence};
use crate::hint::words;

pub const DONE: u8 = 0;
pub const FAILED: u8 = 1;
pub const WRONG_USAGE: u8 = 2;

/// A failure of tare in `run`, `exec` and `attach`.
pub const RUN_FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// An exit code, and what tare prints about it.
#[derive(Debug)]
pub struct ExitReport {
    pub code: u8,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// The sentence about what tare did. `--quiet` suppresses it.
    note: Option<String>,
    /// Printed even with `--quiet`.
    pub error: Option<Error>,
    /// Printed after the error.
    more: Option<String>,
}

impl ExitReport {
    pub fn of(circumstances: &Circumstances<'_>) -> Self {
        let end = circumstances.end;
        Self {
            code: end.code(),
            signal: end.signal(),
            note: note(circumstances),
            error: None,
            more: None,
        }
    }

    /// A failure of tare replaces the command's own code: if output is missing, or if a part of the
    /// box may be left, the call is never a success.
    pub fn failed(error: Error) -> Self {
        Self { code: run_code(&error), signal: None, note: None, error: Some(error), more: None }
    }

    /// Adds to the note or error how to see more about the box, which is gone.
    pub fn of_box(self, id: &str) -> Self {
        let more = format!("See 'tare explain {id}'.");
        let note = self.note.map(|note| format!("{note} {more}"));
        Self { note, more: Some(more), ..self }
    }

    pub fn print(&self, quiet: bool) {
        if let Some(error) = &self.error {
            let more = self.more.as_ref().map(|more| format!(". {more}")).unwrap_or_default();
            print_note(&(sentence(error) + &more));
        }
        if let (Some(note), false) = (&self.note, quiet) {
            print_note(note);
        }
    }
}

/// Says that a box has lost its machine to a user who waited for the box: the exit code does not show it.
pub fn print_lost_machine(end: End, id: &BoxId) {
    if end.cause == Cause::MachineLost {
        ExitReport::of(&Circumstances::of(end, Subject::Box)).of_box(id.as_str()).print(false);
    }
}

/// Returns the sentence about the end. `None` if the user knows it already: the command ended by
/// itself without reaching a limit, or by a signal that this process passed on.
fn note(circumstances: &Circumstances<'_>) -> Option<String> {
    let pressure = circumstances.evidence.map(Evidence::pressure).unwrap_or_default();
    let is_by_itself = pressure == Pressure::default();
    let is_known = match circumstances.end.cause {
        Cause::StartFailed => true,
        Cause::Exited => is_by_itself,
        Cause::Signalled => is_by_itself && circumstances.by.is_none_or(is_this_process),
        Cause::Timeout
        | Cause::Lease
        | Cause::Memory
        | Cause::Pids
        | Cause::ScratchFull
        | Cause::OutputLimit
        | Cause::Stopped
        | Cause::Killed
        | Cause::ClientGone
        | Cause::ServerStopping
        | Cause::KeeperLost
        | Cause::HostRebooted
        | Cause::MachineLost => false,
    };
    (!is_known).then(|| circumstances.sentence().with_advice(words))
}

fn is_this_process(actor: &Actor) -> bool {
    matches!(actor, Actor::Command { pid, .. } if *pid == std::process::id())
}

/// The note about output that was dropped.
pub fn truncated(output_bytes_max: u64, dropped_bytes: u64) -> String {
    let (limit, dropped) =
        (quantity::show_bytes(output_bytes_max), quantity::show_bytes(dropped_bytes));
    format!("the output was truncated at the limit of {limit} (--output-limit): {dropped} dropped")
}

/// Returns the exit code of `run`, `exec` and `attach` for an error.
pub fn run_code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::CommandNotFound => NOT_FOUND,
        ErrorKind::CommandNotExecutable => NOT_EXECUTABLE,
        ErrorKind::BadRequest
        | ErrorKind::HostPath
        | ErrorKind::CgroupParent
        | ErrorKind::NoSuchBox
        | ErrorKind::Conflict
        | ErrorKind::Warm
        | ErrorKind::NoAnswer
        | ErrorKind::Unsupported
        | ErrorKind::Boot(_)
        | ErrorKind::Busy
        | ErrorKind::Stuck
        | ErrorKind::Failed => RUN_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(end: End, evidence: &Evidence, by: Option<&Actor>) -> (u8, Option<String>) {
        let circumstances =
            Circumstances { evidence: Some(evidence), by, ..Circumstances::of(end, Subject::Box) };
        let report = ExitReport::of(&circumstances);
        (report.code, report.note)
    }

    #[test]
    fn a_command_that_ends_by_itself_gets_no_note() {
        let exited = |wait_status| report(End::of_command(wait_status), &Evidence::default(), None);
        assert_eq!(exited(0), (0, None));
        assert_eq!(exited(124 << 8), (124, None));
        assert_eq!(exited(15), (143, None));
        assert_eq!(exited(9), (137, None));
        let passed_on = Actor::creator();
        assert_eq!(
            report(End::of_command(15), &Evidence::default(), Some(&passed_on)),
            (143, None)
        );
    }

    #[test]
    fn a_limit_and_an_act_of_another_process_get_a_note() {
        let evidence = Evidence { oom_kills: Some(1), ..Evidence::default() };
        for code in [0, 3] {
            let (_, note) = report(End::of_command(code << 8), &evidence, None);
            assert!(note.is_some_and(|note| note.contains("memory limit")), "{code}");
        }
        let other = Actor::Server { pid: 1 };
        let (code, note) = report(End::of_command(15), &Evidence::default(), Some(&other));
        assert!(code == 143 && note.is_some_and(|note| note.contains("sent by tare")));
        let (code, note) = report(End::killed(Cause::Timeout), &Evidence::default(), None);
        assert_eq!(
            (code, note.as_deref()),
            (124, Some("Killed by tare: timeout reached. Raise --timeout."))
        );
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
