//! Errors as the native API sends them: a status, and a body with code, message and hint.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::{Kind, ServiceError};
use crate::http::hint;

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
    /// The box of a run that failed, or of an exec that the server interrupted. Missing in other errors,
    /// as the next two. `GET /v1/boxes/{id}/explain` and `tare explain` have its history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub box_id: Option<String>,
    /// Why it ended, for example `start_failed` or `server_stopping`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The same as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
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
        Kind::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
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
    let ended = error.ended.as_deref();
    let body = ErrorBody {
        error: ErrorObject {
            code: error.code.to_owned(),
            message: error.message.clone(),
            hint: hint(error),
            request_id: request_id.to_owned(),
            box_id: ended.map(|it| it.box_id.to_string()),
            cause: ended.map(|it| it.cause.to_string()),
            sentence: ended.map(|it| it.sentence.with_advice(hint::words)),
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
    let mut body = json!({
        "status": status(error.kind).as_u16(),
        "code": error.code,
        "message": error.message,
        "hint": hint(error),
    });
    if let Some(ended) = &error.ended {
        body["box_id"] = ended.box_id.as_str().into();
        body["cause"] = ended.cause.as_str().into();
        body["sentence"] = ended.sentence.with_advice(hint::words).into();
    }
    body
}

pub fn hint(error: &ServiceError) -> Option<String> {
    error.hint.as_ref().map(hint::words)
}

#[cfg(test)]
mod tests {
    use tare_engine::{Error, ErrorKind, Hint};

    use super::*;

    #[test]
    fn a_hint_names_a_route() {
        let error =
            Error::new(ErrorKind::NoSuchBox, "there is no box 'x'").with_hint(Hint::ListBoxes);
        let error = ServiceError::from(error);
        assert_eq!(status(error.kind), StatusCode::NOT_FOUND);
        assert_eq!(hint(&error).as_deref(), Some("GET /v1/boxes?all=true lists all"));
    }
}
