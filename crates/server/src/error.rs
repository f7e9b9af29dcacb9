//! The one error of the service: a kind, a stable code, a sentence, a hint.
//!
//! Each API maps the kind to its own statuses and shapes (`http/error.rs`,
//! `librechat/errors.rs`). The message is for the client. A failure of the server itself can
//! name paths of the host: it goes into `detail`, which only the log gets.

use rustix::io::Errno;
use tare_engine::{
    BootFailure, BoxId, Cause, Circumstances, Error as EngineError, ErrorKind, Failure, Hint,
    Sentence,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceError {
    pub kind: Kind,
    pub code: &'static str,
    pub message: String,
    pub hint: Option<Hint>,
    /// When the same request may succeed, in seconds.
    pub retry_after_s: Option<u32>,
    /// The gauge, quota or limit that refused the request, for the metric `tare_refused`.
    pub refused_for: Option<&'static str>,
    /// Why a machine did not start.
    pub boot_failure: Option<BootFailure>,
    /// The box of a run that failed, or of an exec that the server interrupted.
    pub ended: Option<Box<FailedBox>>,
    /// For the log only.
    pub detail: Option<Box<str>>,
}

/// How the box of an error ended. Its history is kept, and the client can ask for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedBox {
    pub box_id: BoxId,
    pub cause: Cause,
    pub sentence: Sentence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Invalid,
    Unauthorized,
    Forbidden,
    NotFound,
    Conflict,
    /// The route exists, and does not support this method.
    WrongMethod,
    /// The client did not send or read in time.
    TooSlow,
    TooLarge,
    /// The body has a media type that is not accepted.
    WrongType,
    /// The request is valid, but this host or this box cannot do it.
    Unprocessable,
    /// The caller has reached a limit of its own.
    Limited,
    /// A failure of the server.
    Internal,
    /// The server is busy or stopping, or the host lacks something.
    Unavailable,
    /// An upload took longer than it may.
    TimedOut,
    NoSpace,
}

const RETRY_AFTER_S: u32 = 2;
/// The server sweeps this often. A sweep tries again to end boxes that are stuck.
const STUCK_RETRY_AFTER_S: u32 = 30;
/// The code of a refusal because the host has no room.
pub const PRESSURE: &str = "pressure";
/// The code of a box that could not be ended.
pub const STUCK: &str = "stuck";

impl ServiceError {
    fn new(kind: Kind, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            code,
            message: message.into(),
            hint: None,
            retry_after_s: None,
            refused_for: None,
            boot_failure: None,
            ended: None,
            detail: None,
        }
    }

    pub fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, code, message)
    }

    pub fn unauthorized(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::Unauthorized, code, message)
    }

    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::Forbidden, code, message)
    }

    pub fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, code, message)
    }

    pub fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::Conflict, code, message)
    }

    pub fn wrong_method() -> Self {
        let message = "this route does not support that method";
        Self::new(Kind::WrongMethod, "method_not_allowed", message)
    }

    pub fn too_slow(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::TooSlow, code, message)
    }

    pub fn too_large(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::TooLarge, code, message)
    }

    pub fn wrong_type(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::WrongType, code, message)
    }

    pub fn unprocessable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::Unprocessable, code, message)
    }

    pub fn timed_out(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::TimedOut, code, message)
    }

    pub fn no_space(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::NoSpace, code, message)
    }

    /// The caller has reached the limit that the code names.
    pub fn limited(code: &'static str, message: impl Into<String>, retry_after_s: u32) -> Self {
        Self {
            retry_after_s: Some(retry_after_s),
            refused_for: Some(code),
            ..Self::new(Kind::Limited, code, message)
        }
    }

    /// Something is used up, or too much is requested at once. The request may succeed later.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            retry_after_s: Some(RETRY_AFTER_S),
            refused_for: Some(code),
            ..Self::new(Kind::Unavailable, code, message)
        }
    }

    pub fn stopping() -> Self {
        Self::unavailable("stopping", "the server is stopping")
    }

    /// A failure of the server.
    pub fn internal(detail: impl ToString) -> Self {
        let message = "the server failed";
        let detail = Some(detail.to_string().into());
        Self { detail, ..Self::new(Kind::Internal, "internal", message) }
            .with_hint("the server's log has the reason, under the id of this request")
    }

    /// Returns whether the same request may succeed later: a limit was reached, or the server
    /// is busy or stopping.
    pub fn may_work_later(&self) -> bool {
        matches!(self.kind, Kind::Limited | Kind::Unavailable)
    }

    /// A box that could not be ended, with the step at which it is stuck. The reason can name processes
    /// and paths of the host: the log has it, and an admin sees it as `stuck_on` of the box.
    fn stuck(error: &EngineError) -> Self {
        Self {
            hint: error.hint().cloned(),
            retry_after_s: Some(STUCK_RETRY_AFTER_S),
            detail: Some(error.in_full().into()),
            ..Self::new(Kind::Unavailable, STUCK, error.to_string())
        }
    }

    /// The cgroup for boxes is missing, or has processes of its own. The log has its path.
    fn no_cgroup_parent(error: &EngineError) -> Self {
        let message = "the server cannot make boxes: the cgroup for them is missing or in use";
        Self {
            retry_after_s: Some(RETRY_AFTER_S),
            detail: Some(error.in_full().into()),
            ..Self::new(Kind::Unavailable, "cgroup_parent", message)
        }
        .with_hint("try again later, or tell the operator: the server's log names the cgroup")
    }

    /// A machine that did not start. Its reason contains what the machine printed last.
    fn not_booted(error: &EngineError, failure: BootFailure) -> Self {
        Self {
            hint: error.hint().cloned(),
            retry_after_s: Some(RETRY_AFTER_S),
            boot_failure: Some(failure),
            ..Self::new(Kind::Unavailable, "machine_not_started", error.in_full())
        }
    }

    /// Names the box of the run or exec that failed, and how it ended.
    pub fn in_box(self, box_id: BoxId, circumstances: &Circumstances<'_>) -> Self {
        let sentence = circumstances.sentence();
        let cause = circumstances.end.cause;
        Self { ended: Some(Box::new(FailedBox { box_id, cause, sentence })), ..self }
    }

    /// Returns why a box could not be used, for its history.
    pub fn failure(&self) -> Failure {
        Failure::new(self.detail.as_deref().unwrap_or(&self.message), self.detail.is_none())
    }

    pub fn with_hint(mut self, hint: impl Into<Hint>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<EngineError> for ServiceError {
    fn from(error: EngineError) -> Self {
        let (kind, code) = match error.kind() {
            ErrorKind::BadRequest => (Kind::Invalid, "invalid"),
            ErrorKind::CommandNotFound => (Kind::Invalid, "command_not_found"),
            ErrorKind::CommandNotExecutable => (Kind::Invalid, "command_not_executable"),
            ErrorKind::NoSuchBox => (Kind::NotFound, "no_such_box"),
            ErrorKind::Conflict => (Kind::Conflict, "conflict"),
            ErrorKind::Warm => (Kind::Conflict, "warm"),
            ErrorKind::NoAnswer => (Kind::Unavailable, "no_answer"),
            ErrorKind::Unsupported => (Kind::Unprocessable, "unsupported"),
            ErrorKind::Boot(failure) => return Self::not_booted(&error, failure),
            ErrorKind::Busy => (Kind::Conflict, "box_busy"),
            ErrorKind::Stuck => return Self::stuck(&error),
            ErrorKind::CgroupParent => return Self::no_cgroup_parent(&error),
            ErrorKind::HostPath | ErrorKind::Failed => return Self::failed(&error),
        };
        let hint = error.hint().cloned();
        Self { hint, ..Self::new(kind, code, error.in_full()) }
    }
}

impl ServiceError {
    fn failed(error: &EngineError) -> Self {
        // A text can name paths of the host.
        let is_text = |hint: &&Hint| matches!(hint, Hint::Text(_) | Hint::Also(_));
        let mut detail = error.in_full();
        if let Some(Hint::Text(hint)) = error.hint() {
            detail = format!("{detail} ({hint})");
        }
        let failed = match used_up(error) {
            Some(what) => Self {
                detail: Some(detail.into()),
                ..Self::unavailable("exhausted", format!("the host has no {what} left"))
            },
            None => Self::internal(detail),
        };
        match error.hint().filter(|hint| !is_text(hint)) {
            Some(hint) => failed.with_hint(hint.clone()),
            None => failed,
        }
    }
}

/// A message of serde without the names of Rust types.
pub fn in_plain_words(message: &str) -> String {
    let Some((before, expected)) = message.rsplit_once("expected ") else {
        return message.replace("invalid digit found in string", "not a whole number");
    };
    let end = expected.find(" at line ").unwrap_or(expected.len());
    let (what, place) = expected.split_at(end);
    let what = match what {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "i32" | "i64" => "a whole number",
        "f64" => "a number",
        one if one.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{before}expected {what}{place}")
}

/// Returns what the host has run out of, if that is the reason.
fn used_up(error: &EngineError) -> Option<&'static str> {
    match error.errno()? {
        Errno::MFILE | Errno::NFILE => Some("descriptors"),
        Errno::AGAIN => Some("processes"),
        Errno::NOMEM => Some("memory"),
        Errno::NOSPC | Errno::DQUOT => Some("space for names and records"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_failure_of_the_server_is_not_shown_to_a_client() {
        let error = EngineError::new(ErrorKind::Failed, "cannot open /secret/path")
            .caused_by(io::Error::from(Errno::IO));
        let error = ServiceError::from(error);
        assert_eq!(error.kind, Kind::Internal);
        assert!(!error.message.contains("secret"));
        assert!(error.detail.is_some_and(|detail| detail.contains("secret")));
    }

    #[test]
    fn the_reason_why_a_box_is_stuck_is_not_shown_to_a_client() {
        let error = EngineError::new(ErrorKind::Stuck, "cannot end the keeper of box a")
            .caused_by("process 7 does not die");
        let error = ServiceError::from(error);
        assert_eq!(error.message, "cannot end the keeper of box a");
        assert!(error.detail.is_some_and(|detail| detail.ends_with("process 7 does not die")));
    }

    #[test]
    fn advice_that_names_no_path_reaches_the_client_of_a_failure() {
        let hint = Hint::TooSmall(&[tare_engine::LimitName::Pids]);
        let failure = || EngineError::new(ErrorKind::Failed, "cannot open /secret/path");
        assert_eq!(ServiceError::from(failure().with_hint(hint.clone())).hint, Some(hint));
        let error = ServiceError::from(failure().with_hint("look into /secret"));
        assert!(!format!("{:?}", error.hint).contains("secret"));
        assert!(error.detail.is_some_and(|detail| detail.contains("look into /secret")));
    }

    #[test]
    fn an_exhausted_resource_is_named_and_retryable() {
        for (errno, what) in
            [(Errno::MFILE, "descriptors"), (Errno::AGAIN, "processes"), (Errno::NOSPC, "space")]
        {
            let source = io::Error::from(errno);
            let error = EngineError::new(ErrorKind::Failed, "cannot make it").caused_by(source);
            let error = ServiceError::from(error);
            assert_eq!(error.kind, Kind::Unavailable);
            assert!(error.message.contains(what), "{}", error.message);
            assert!(error.retry_after_s.is_some());
        }
    }

    #[test]
    fn no_rust_type_is_named() {
        for (message, plain) in [
            (
                "invalid value: integer `-1`, expected u32 at line 1 column 9",
                "invalid value: integer `-1`, expected a whole number that is not negative at line 1 column 9",
            ),
            (
                "invalid length 0, expected struct RunRequest with 11 elements at line 1 column 2",
                "invalid length 0, expected an object at line 1 column 2",
            ),
            ("tail: invalid digit found in string", "tail: not a whole number"),
            (
                "invalid type: integer `1`, expected a string",
                "invalid type: integer `1`, expected a string",
            ),
        ] {
            assert_eq!(in_plain_words(message), plain);
        }
    }
}
