//! The response to an execution. It is 200 even if the program failed: the reason is on stderr, which
//! is all that some clients show.

use std::collections::BTreeMap;

use serde::Serialize;
use tare_engine::Cause;
use tare_engine::spec::name;

use crate::http::text::Encoding;
use crate::librechat::run::box_spec::DATA;
use crate::librechat::run::inputs::SessionInput;
use crate::librechat::run::outputs::{Collected, LeftFile, SkipReason, Skipped};
use crate::store::id::Id;
use crate::work::run::outcome::RunOutput;

#[derive(Debug, Serialize)]
pub struct Answer {
    pub session_id: Id,
    pub stdout: String,
    pub stderr: String,
    #[serde(flatten)]
    pub files: FilesAnswer,
    /// `null` if a signal ended the program.
    pub code: Option<u8>,
    pub signal: Option<String>,
    pub message: Option<String>,
    /// `TO` after the timeout, `SG` for the memory limit, `OL` for the output limit.
    pub status: Option<&'static str>,
    /// In milliseconds.
    pub wall_time: u64,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    pub runtime: Option<Runtime>,
    /// What was added to stderr.
    #[serde(skip)]
    pub reason: Option<String>,
}

/// The files after an execution, and those that are missing. Clients ignore a field that has not
/// exactly the shape that they expect.
#[derive(Debug, Serialize)]
pub struct FilesAnswer {
    files: Vec<FileShown>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deleted_files: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_delivery: Option<Delivery>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_truncation: Option<Truncation>,
}

/// The session of the execution.
#[derive(Debug, Clone, Serialize)]
pub struct Runtime {
    pub runtime_session_id: String,
    pub runtime_status: RuntimeStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeStatus {
    New,
    Reused,
}

#[derive(Debug, Serialize)]
pub struct FileShown {
    pub id: Id,
    pub name: String,
    pub path: String,
    pub storage_session_id: Id,
    /// The same value, for first-generation clients.
    pub session_id: Id,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_from: Option<OriginShown>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inherited: bool,
}

#[derive(Debug, Serialize)]
pub struct OriginShown {
    pub id: Id,
    pub storage_session_id: Id,
}

#[derive(Debug, Serialize)]
pub struct Delivery {
    code: &'static str,
    status: &'static str,
    attempted: usize,
    delivered: usize,
    failed: usize,
}

#[derive(Debug, Serialize)]
pub struct Truncation {
    code: &'static str,
    /// How many files were skipped for each reason.
    reasons: BTreeMap<SkipReason, usize>,
    skipped: Vec<String>,
    skipped_count: usize,
}

/// How a program ended, in LibreChat's terms.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    code: Option<u8>,
    signal: Option<String>,
    status: Option<&'static str>,
    message: Option<String>,
}

impl Answer {
    pub fn new<T>(output: RunOutput<T>, session_id: Id, collected: Collected) -> Self {
        let verdict = Verdict::of(&output);
        let mut stderr = Encoding::Utf8.whole(output.stderr.bytes);
        // LibreChat's own words come first, and then the sentence of tare. The advice is for operators.
        let is_exit = output.end.cause == Cause::Exited;
        let reason = verdict.message.clone().map(|message| {
            if is_exit { message } else { format!("{message}. {}", output.sentence.text) }
        });
        if let Some(reason) = &reason {
            add_reason(&mut stderr, reason);
        }
        Self {
            session_id,
            stdout: Encoding::Utf8.whole(output.stdout.bytes),
            stderr,
            code: verdict.code,
            signal: verdict.signal,
            message: verdict.message,
            status: verdict.status,
            wall_time: u64::try_from(output.duration.as_millis()).unwrap_or(u64::MAX),
            files: FilesAnswer::of(collected),
            runtime: None,
            reason,
        }
    }

    /// Why the program failed, in the fixed texts that clients show to the model. `None` if it
    /// succeeded.
    pub fn failure(&self) -> Option<String> {
        match (self.status, &self.message, self.code) {
            (Some(_), Some(message), _) => Some(message.clone()),
            (_, _, Some(0)) => None,
            (_, _, Some(code)) => Some(format!("Sandbox exited with code {code}")),
            (_, _, None) => Some("Sandbox exited with code unknown".to_owned()),
        }
    }
}

/// Adds a line for the user to what the program wrote.
pub fn add_reason(stderr: &mut String, reason: &str) {
    stderr.push_str(&format!("\n[sandbox] {reason}\n"));
}

/// Returns what the program itself wrote, without the line that [`add_reason`] added.
pub fn without_reason(answer: &Answer) -> &str {
    let reason = answer.reason.as_ref().map(|reason| format!("\n[sandbox] {reason}\n"));
    reason.and_then(|line| answer.stderr.strip_suffix(&*line)).unwrap_or(&answer.stderr)
}

impl FilesAnswer {
    fn of(collected: Collected) -> Self {
        Self {
            artifact_delivery: delivery(&collected),
            artifact_truncation: truncation(collected.skipped),
            deleted_files: collected.deleted,
            files: collected.left.into_iter().map(FileShown::of).collect(),
        }
    }
}

impl Verdict {
    fn of<T>(output: &RunOutput<T>) -> Self {
        let killed = |status| Self {
            code: None,
            signal: Some("SIGKILL".to_owned()),
            status: Some(status),
            message: reason(output.end.cause, None),
        };
        if output.end.cause == Cause::Timeout {
            killed("TO")
        } else if output.end.cause == Cause::OutputLimit {
            killed("OL")
        } else {
            Self::of_exit(output)
        }
    }

    fn of_exit<T>(output: &RunOutput<T>) -> Self {
        let signal = output.end.signal().map(name::signal_name);
        let code = if signal.is_none() { Some(output.end.code()) } else { None };
        let truncated = || {
            let bytes = output.stderr.bytes.len();
            output.stderr.truncated.then(|| format!("stderr truncated at {bytes} bytes"))
        };
        Self {
            status: (output.end.cause == Cause::Memory).then_some("SG"),
            message: reason(output.end.cause, signal.as_deref()).or_else(truncated),
            code,
            signal,
        }
    }
}

/// Why a program ended that did not exit by itself.
fn reason(cause: Cause, signal: Option<&str>) -> Option<String> {
    let reason = match cause {
        Cause::Exited => return None,
        Cause::Memory => "Out of memory".to_owned(),
        Cause::Timeout => "Time limit exceeded".to_owned(),
        Cause::OutputLimit => "stdout length exceeded".to_owned(),
        Cause::Signalled => format!("Ended by {}", signal.unwrap_or("a signal")),
        Cause::Lease => "The session has expired".to_owned(),
        Cause::Stopped | Cause::Killed => "The operator has ended the sandbox".to_owned(),
        Cause::ServerStopping | Cause::ClientGone => "The execution was interrupted".to_owned(),
        Cause::Pids => "Too many processes".to_owned(),
        Cause::ScratchFull => "No space left".to_owned(),
        Cause::KeeperLost | Cause::MachineLost | Cause::StartFailed | Cause::HostRebooted => {
            "The sandbox has ended unexpectedly".to_owned()
        }
    };
    Some(reason)
}

impl FileShown {
    fn of(left: LeftFile) -> Self {
        let (SessionInput { name, object, .. }, inherited) = match left {
            LeftFile::Inherited(input) => (input, true),
            LeftFile::Kept(input) => (input, false),
        };
        let origin = object.modified_from.filter(|_| !inherited);
        Self {
            path: format!("{DATA}/{name}"),
            name,
            id: object.id,
            storage_session_id: object.session.clone(),
            session_id: object.session,
            modified_from: origin
                .map(|origin| OriginShown { id: origin.id, storage_session_id: origin.session }),
            inherited,
        }
    }
}

fn delivery(collected: &Collected) -> Option<Delivery> {
    if collected.failed == 0 {
        return None;
    }
    let kept = |left: &&LeftFile| matches!(left, LeftFile::Kept(_));
    let delivered = collected.left.iter().filter(kept).count();
    Some(Delivery {
        code: "artifact_delivery_failed",
        status: match delivered {
            0 => "failed",
            _ => "partial",
        },
        attempted: delivered + collected.failed,
        delivered,
        failed: collected.failed,
    })
}

fn truncation(skipped: Skipped) -> Option<Truncation> {
    let skipped_count = skipped.reasons.values().sum();
    (skipped_count > 0).then_some(Truncation {
        code: "artifact_truncated",
        reasons: skipped.reasons,
        skipped: skipped.names,
        skipped_count,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tare_engine::{BoxId, Circumstances, End, Pressure, Subject};

    use super::*;
    use crate::work::request::run::Warm;
    use crate::work::streams::output::Captured;

    fn answer(end: End) -> Answer {
        let output = RunOutput::<()> {
            id: BoxId::random(),
            end,
            stdout: Captured::default(),
            stderr: Captured::default(),
            collected: None,
            warm: Warm::Off,
            duration: Duration::from_millis(1),
            receipt: None,
            sentence: Circumstances::of(end, Subject::Box).sentence(),
        };
        Answer::new(output, Id::random(), Collected::default())
    }

    #[test]
    fn the_reason_for_an_end_uses_librechats_wording() {
        let told = |end| {
            let answer = serde_json::to_value(answer(end)).expect("JSON");
            let field = |name: &str| answer[name].to_string().replace('"', "");
            ["code", "signal", "status", "message"].map(field).join(" ")
        };
        let ended = |wait_status| End::of_command(wait_status);
        assert_eq!(told(ended(0)), "0 null null null");
        assert_eq!(told(ended(3 << 8)), "3 null null null");
        assert_eq!(told(ended(0).under(Pressure::OOM)), "0 null null null");
        assert_eq!(told(ended(3 << 8).under(Pressure::OOM)), "3 null SG Out of memory");
        assert_eq!(told(ended(9).under(Pressure::OOM)), "null SIGKILL SG Out of memory");
        assert_eq!(told(ended(11)), "null SIGSEGV null Ended by SIGSEGV");
        assert_eq!(told(End::killed(Cause::Timeout)), "null SIGKILL TO Time limit exceeded");
        let flooded = "null SIGKILL OL stdout length exceeded";
        assert_eq!(told(End::killed(Cause::OutputLimit)), flooded);
    }

    #[test]
    fn a_failure_of_code_that_calls_tools_is_one_of_the_fixed_texts() {
        let failure = |end| answer(end).failure();
        assert_eq!(failure(End::of_command(0)), None);
        let failed = |text: &str| Some(text.to_owned());
        assert_eq!(failure(End::of_command(3 << 8)), failed("Sandbox exited with code 3"));
        assert_eq!(failure(End::of_command(11)), failed("Sandbox exited with code unknown"));
        assert_eq!(failure(End::killed(Cause::Timeout)), failed("Time limit exceeded"));
        let memory = End::of_command(9).under(Pressure::OOM);
        assert_eq!(failure(memory), failed("Out of memory"));
    }

    #[test]
    fn the_reason_is_on_stderr_for_clients_that_show_nothing_else() {
        let answer = answer(End::killed(Cause::Timeout));
        let line = "\n[sandbox] Time limit exceeded. Killed by tare: timeout reached.\n";
        assert_eq!(answer.stderr, line);
        assert_eq!(without_reason(&answer), "");
    }
}
