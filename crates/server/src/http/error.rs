//! Errors as the native API sends them: a status, and a body with code, message and hint.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::{Kind, ServiceError};

/// Every error of the native API.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorObject,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorObject {
    /// Stable, for programs.
    pub code: String,
    /// A sentence, for people.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The same as the header `X-Request-Id`, and as in the server's log.
    pub request_id: String,
}

/// An error that another API has already written into its own response. Only the log needs it.
#[derive(Debug, Clone)]
pub struct ReportedError(pub ServiceError);

pub fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Unauthorized => StatusCode::UNAUTHORIZED,
        Kind::Forbidden => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Conflict => StatusCode::CONFLICT,
        Kind::TooSlow => StatusCode::REQUEST_TIMEOUT,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::WrongType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Kind::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
        Kind::Limited => StatusCode::TOO_MANY_REQUESTS,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        Kind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
    }
}

/// Only the status. The outermost layer writes the body, because it knows the request's id
/// ([`crate::http::request_log`]); LibreChat's layer writes another body.
impl IntoResponse for ServiceError {
    fn into_response(self) -> Response {
        let mut response = status(self.kind).into_response();
        response.extensions_mut().insert(self);
        response
    }
}

pub fn response(status: StatusCode, error: &ServiceError, request_id: &str) -> Response {
    let body = ErrorBody {
        error: ErrorObject {
            code: error.code.to_owned(),
            message: message(error),
            hint: hint(error),
            request_id: request_id.to_owned(),
        },
    };
    let mut response = (status, axum::Json(body)).into_response();
    insert_retry_after(&mut response, error);
    response
}

pub fn insert_retry_after(response: &mut Response, error: &ServiceError) {
    if let Some(seconds) = error.retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
}

/// An error in a stream, whose status was sent before.
pub fn error_json(error: &ServiceError) -> Value {
    json!({
        "status": status(error.kind).as_u16(),
        "code": error.code,
        "message": message(error),
        "hint": hint(error),
    })
}

/// Where the engine names an option that the host cannot enforce, a client knows a field.
pub fn message(error: &ServiceError) -> String {
    if error.code == "unsupported" { for_http(&error.message) } else { error.message.clone() }
}

pub fn hint(error: &ServiceError) -> Option<String> {
    error.hint.as_deref().map(for_http)
}

/// The engine names commands and options of the command line. A client has routes and fields
/// instead. Longer texts come first.
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

fn for_http(text: &str) -> String {
    let replace = |text: String, (engine, http): &(&str, &str)| text.replace(engine, http);
    WORDS.iter().fold(text.to_owned(), replace)
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustix::io::Errno;
    use tare_engine::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_hint_names_a_route() {
        let error = Error::new(ErrorKind::NoSuchBox, "there is no box 'x'")
            .with_hint("'tare ls -a' lists all");
        let error = ServiceError::from(error);
        assert_eq!(status(error.kind), StatusCode::NOT_FOUND);
        assert_eq!(hint(&error).as_deref(), Some("GET /v1/boxes lists all"));
    }

    #[test]
    fn a_limit_that_the_host_cannot_enforce_is_named_as_a_field() {
        let message_of_the_engine = "cannot enforce --memory on this host";
        let error = Error::new(ErrorKind::Unsupported, message_of_the_engine)
            .caused_by(io::Error::from(Errno::ACCESS))
            .with_hint("leave --memory out");
        let error = ServiceError::from(error);
        let expected = "cannot enforce limits.memory_bytes on this host: Permission denied";
        assert_eq!(message(&error), expected);
        assert_eq!(hint(&error).as_deref(), Some("leave limits.memory_bytes out"));
    }
}
