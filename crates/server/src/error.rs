//! Errors as HTTP has them: a status, a stable code, a sentence, a hint.
//!
//! What a client did wrong is said in the engine's own words. What went wrong here is
//! not: it may name paths of the host. That goes to the log, under the request's id.

use std::error::Error as StdError;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rustix::io::Errno;
use tare_engine::{Error as EngineError, ErrorKind, reason};

/// What is said to the client, and what only the log gets.
#[derive(Debug, Clone)]
pub struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
    pub retry_after_s: Option<u32>,
    /// What there was too little or too much of: a gauge, a quota. For the metrics.
    pub refused_for: Option<&'static str>,
    /// For the log alone.
    pub detail: Option<String>,
}

/// How long whoever was refused for want of something may as well wait.
const RETRY_AFTER_S: u32 = 2;
/// The server sweeps that often, and tries to end what is stuck.
const STUCK_RETRY_AFTER_S: u32 = 30;
/// The code of a box that could not be ended.
pub const STUCK: &str = "stuck";

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            hint: None,
            retry_after_s: None,
            refused_for: None,
            detail: None,
        }
    }

    pub fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Something is used up, or too much is asked for at once: later it may work.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            retry_after_s: Some(RETRY_AFTER_S),
            refused_for: Some(code),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
        }
    }

    /// A fault of ours.
    pub fn internal(detail: impl Into<String>) -> Self {
        let message = "something went wrong that should not have";
        Self {
            detail: Some(detail.into()),
            ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
        }
        .with_hint("the server's log says more under this request's id")
    }

    /// Whether the same request may succeed later: a limit was reached, or the server is
    /// busy or stopping.
    pub fn may_work_later(&self) -> bool {
        let later = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
        later.contains(&self.status)
    }

    /// A box that could not be ended, with the step at which it is stuck.
    fn stuck(error: &EngineError) -> Self {
        Self {
            hint: error.hint().map(for_http),
            retry_after_s: Some(STUCK_RETRY_AFTER_S),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, STUCK, in_full(error))
        }
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let mut said = in_full(&error);
        let (status, code) = match error.kind() {
            ErrorKind::BadRequest => (StatusCode::BAD_REQUEST, "invalid"),
            ErrorKind::CommandNotFound => (StatusCode::BAD_REQUEST, "command_not_found"),
            ErrorKind::CommandNotExecutable => (StatusCode::BAD_REQUEST, "command_not_executable"),
            ErrorKind::NoSuchBox => (StatusCode::NOT_FOUND, "no_such_box"),
            ErrorKind::Conflict => (StatusCode::CONFLICT, "conflict"),
            ErrorKind::NoAnswer => (StatusCode::SERVICE_UNAVAILABLE, "no_answer"),
            ErrorKind::Unsupported => (StatusCode::UNPROCESSABLE_ENTITY, "unsupported"),
            ErrorKind::Busy => (StatusCode::CONFLICT, "box_busy"),
            ErrorKind::Stuck => return Self::stuck(&error),
            ErrorKind::Failed => {
                if let Some(hint) = error.hint() {
                    said = format!("{said} ({hint})");
                }
                return match used_up(&error) {
                    Some(what) => Self {
                        detail: Some(said),
                        ..Self::unavailable("exhausted", format!("the host has no {what} left"))
                    },
                    None => Self::internal(said),
                };
            }
        };
        if error.kind() == ErrorKind::Unsupported {
            said = for_http(&said);
        }
        let hint = error.hint().map(for_http);
        Self { hint, ..Self::new(status, code, said) }
    }
}

/// Where the engine speaks of its commands and options, the same is a route or a field
/// here. What is longer comes first.
const WORDS: [(&str, &str); 25] = [
    ("'tare ls -a' lists all", "GET /v1/boxes lists all"),
    ("it is tried again by the next command", "the server tries again"),
    ("'tare ls -a' says how", "GET of the box says how"),
    ("'tare run -d' starts another", "POST /v1/boxes makes another"),
    ("'tare inspect' says", "GET of the box says"),
    ("use 'tare rm -f'", "use DELETE with ?force=true"),
    ("'tare rm -f' tries", "DELETE with ?force=true tries"),
    ("'tare rm -f' removes", "DELETE with ?force=true removes"),
    ("'tare resume' lets", "POST to its /resume lets"),
    ("'tare explain' says what became of it", "for another box, send another Idempotency-Key"),
    ("start it with 'tare run -d'", "make it with POST /v1/boxes"),
    ("start a box with 'tare run -d'", "make one with POST /v1/boxes"),
    ("stdin or 'tare cp'", "stdin or in a file"),
    ("stdin or a volume", "stdin or in a file"),
    ("--scratch of 'tare run'", "limits.scratch_bytes"),
    ("--scratch", "limits.scratch_bytes"),
    (
        "/usr, or what --rootfs holds, and what -v gives it;",
        "/usr, and what the operator gives it;",
    ),
    ("-w takes", "workdir takes"),
    ("leave -u out", "leave 'user' out"),
    ("write a size such as 64k, 512m, 1.5g or 1048576", "write a number of bytes"),
    (
        "write KEY=VALUE, such as team=blue",
        "write {\"KEY\": \"VALUE\"}, such as {\"team\": \"blue\"}",
    ),
    ("write KEY=VALUE", "write {\"KEY\": \"VALUE\"}"),
    ("--memory", "limits.memory_bytes"),
    ("--pids", "limits.pids"),
    ("--cpus", "limits.cpus"),
];

/// What a reader of values says is wrong, without the names of our types.
pub fn in_plain_words(said: &str) -> String {
    let Some((before, expected)) = said.rsplit_once("expected ") else {
        return said.replace("invalid digit found in string", "not a whole number");
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

fn for_http(words: &str) -> String {
    let replace = |said: String, (ours, here): &(&str, &str)| said.replace(ours, here);
    WORDS.iter().fold(words.to_owned(), replace)
}

pub fn in_full(error: &EngineError) -> String {
    let mut said = error.to_string();
    for why in sources(error) {
        said.push_str(": ");
        said.push_str(&reason(why));
    }
    said
}

fn sources<'a>(error: &'a EngineError) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(error.source(), |&why| why.source())
}

/// What the host has no more of, if that is why.
fn used_up(error: &EngineError) -> Option<&'static str> {
    match error.errno()? {
        Errno::MFILE | Errno::NFILE => Some("descriptors"),
        Errno::AGAIN => Some("processes"),
        Errno::NOMEM => Some("memory"),
        Errno::NOSPC | Errno::DQUOT => Some("space for names and records"),
        _ => None,
    }
}

/// The edge makes the body of it, with the request's id ([`crate::http::request_log`]).
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn what_went_wrong_here_is_not_told_to_a_client() {
        let error = EngineError::new(ErrorKind::Failed, "cannot open /secret/path")
            .caused_by(io::Error::from(Errno::IO));
        let error = ApiError::from(error);
        assert_eq!(error.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!error.message.contains("secret"));
        assert!(error.detail.is_some_and(|detail| detail.contains("secret")));
    }

    #[test]
    fn what_the_host_has_no_more_of_is_named_and_may_be_there_later() {
        for (errno, what) in
            [(Errno::MFILE, "descriptors"), (Errno::AGAIN, "processes"), (Errno::NOSPC, "space")]
        {
            let source = io::Error::from(errno);
            let error = EngineError::new(ErrorKind::Failed, "cannot make it").caused_by(source);
            let error = ApiError::from(error);
            assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
            assert!(error.message.contains(what), "{}", error.message);
            assert!(error.retry_after_s.is_some());
        }
    }

    #[test]
    fn a_hint_names_what_there_is_here() {
        let error = EngineError::new(ErrorKind::NoSuchBox, "there is no box 'x'")
            .with_hint("'tare ls -a' lists all");
        let error = ApiError::from(error);
        assert_eq!(error.status, StatusCode::NOT_FOUND);
        assert_eq!(error.hint.as_deref(), Some("GET /v1/boxes lists all"));
    }

    #[test]
    fn no_type_of_ours_is_named() {
        for (said, plain) in [
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
            assert_eq!(in_plain_words(said), plain);
        }
    }

    #[test]
    fn what_the_host_cannot_do_is_a_field_here() {
        let message = "cannot enforce --memory on this host";
        let error = EngineError::new(ErrorKind::Unsupported, message)
            .caused_by(io::Error::from(Errno::ACCESS))
            .with_hint("leave --memory out");
        let error = ApiError::from(error);
        let said = "cannot enforce limits.memory_bytes on this host: Permission denied";
        assert_eq!(error.message, said);
        assert_eq!(error.hint.as_deref(), Some("leave limits.memory_bytes out"));
    }
}
