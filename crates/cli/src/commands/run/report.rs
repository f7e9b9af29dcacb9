//! How a run ended: what is said about it, its JSON.

use serde::Serialize;
use tare_engine::Exit;
use tare_engine::spec::{Spec, bytes};

use crate::commands::run::spec::Request;
use crate::exit::Verdict;
use crate::stdio::Outcome;

/// One JSON object for `--json`.
#[derive(Debug, Serialize)]
pub struct Report {
    pub id: String,
    pub name: Option<String>,
    pub exit_code: u8,
    pub signal: Option<i32>,
    pub timed_out: bool,
    pub oom: bool,
    pub truncated: bool,
    pub output_killed: bool,
    pub duration_ms: u64,
    pub stdout: String,
    pub stderr: String,
}

/// `oom_kills`: processes of the box that were killed for its memory limit.
pub fn judge(outcome: Outcome, oom_kills: u64, request: &Request) -> Verdict {
    let spec = &request.spec;
    match outcome {
        Outcome::Exited(Exit::Signal(9)) | Outcome::Gone if oom_kills > 0 => {
            Verdict::killed(format!("the box was killed for memory: {}", memory(spec)))
        }
        Outcome::Exited(exit) => Verdict {
            note: (oom_kills > 0).then(|| oom_note(oom_kills, spec)),
            ..Verdict::exited(exit)
        },
        Outcome::Gone => Verdict::killed("the box ended from outside before its command did"),
        Outcome::TimedOut => Verdict::timed_out("the box", spec.timeout),
        Outcome::OutputKilled => Verdict::killed(format!(
            "the box was ended: its output passed the limit of {} (--output-limit, --output-kill)",
            bytes::show(request.relay.output_bytes_max)
        )),
        Outcome::Interrupted(signal) => Verdict::interrupted("the box", signal),
        Outcome::Failed(error) => Verdict::failed(error),
        Outcome::Lost(error) => Verdict::lost(error),
    }
}

/// What is said of output that was dropped.
pub fn truncation(request: &Request, dropped_bytes: u64) -> String {
    format!(
        "the output was truncated at the limit of {} (--output-limit): {} dropped",
        bytes::show(request.relay.output_bytes_max),
        bytes::show(dropped_bytes)
    )
}

fn memory(spec: &Spec) -> String {
    let limit = bytes::show(spec.limits.memory_bytes.value());
    format!("its limit is {limit} (--memory)")
}

fn oom_note(oom_kills: u64, spec: &Spec) -> String {
    let memory = memory(spec);
    match oom_kills {
        1 => format!("a process of the box was killed for memory: {memory}"),
        _ => format!("{oom_kills} processes of the box were killed for memory: {memory}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::run::spec::tests::request;
    use tare_engine::{Error, ErrorKind};

    fn verdict(outcome: Outcome, oom_kills: u64) -> (u8, Option<i32>, Option<String>) {
        let request = request(&["--memory", "64m", "--timeout", "30s"]);
        let verdict = judge(outcome, oom_kills, &request);
        (verdict.code, verdict.signal, verdict.note)
    }

    #[test]
    fn a_commands_own_end_is_passed_on_in_silence() {
        let exited = |exit| verdict(Outcome::Exited(exit), 0);
        assert_eq!(exited(Exit::Code(0)), (0, None, None));
        assert_eq!(exited(Exit::Code(124)), (124, None, None));
        assert_eq!(exited(Exit::Signal(15)), (143, Some(15), None));
        assert_eq!(exited(Exit::Signal(9)), (137, Some(9), None));
    }

    #[test]
    fn a_box_killed_for_memory_names_its_limit() {
        let said = "the box was killed for memory: its limit is 64 MiB (--memory)".to_owned();
        let killed = (137, Some(9), Some(said));
        assert_eq!(verdict(Outcome::Exited(Exit::Signal(9)), 1), killed);
        assert_eq!(verdict(Outcome::Gone, 2), killed);
        let (code, _, note) = verdict(Outcome::Exited(Exit::Code(1)), 2);
        assert_eq!(code, 1);
        assert_eq!(
            note.unwrap(),
            "2 processes of the box were killed for memory: its limit is 64 MiB (--memory)"
        );
    }

    #[test]
    fn other_ends_say_what_ended_the_box() {
        let (code, signal, note) = verdict(Outcome::TimedOut, 0);
        assert_eq!((code, signal), (124, None));
        assert_eq!(note.unwrap(), "the box was ended after its timeout of 30s");
        let (code, _, note) = verdict(Outcome::OutputKilled, 0);
        assert_eq!(code, 137);
        assert_eq!(
            note.unwrap(),
            "the box was ended: its output passed the limit of 64 MiB (--output-limit, --output-kill)"
        );
        assert_eq!(verdict(Outcome::Interrupted(2), 0).0, 130);
        assert_eq!(verdict(Outcome::Gone, 0).0, 137);
    }

    #[test]
    fn a_command_that_is_not_there_has_its_own_code() {
        let request = request(&[]);
        for (kind, code) in [
            (ErrorKind::CommandNotFound, 127),
            (ErrorKind::CommandNotExecutable, 126),
            (ErrorKind::Failed, 125),
        ] {
            let verdict = judge(Outcome::Failed(Error::new(kind, "x")), 0, &request);
            assert_eq!(verdict.code, code);
            assert!(verdict.error.is_some());
        }
    }
}
