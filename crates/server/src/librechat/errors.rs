//! Errors as LibreChat expects them: a status, and `{"error": ...}`.
//!
//! If the contract has a code for an error, `error` is that code. Otherwise it is the message, which
//! clients show to the user.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::{Kind, ServiceError};
use crate::http::error::{self, ReportedError};

/// Codes that clients know. `error` contains them instead of the message.
const CODES: [&str; 10] = [
    "bridge_worker_mismatch",
    "execution_cancelled",
    "runtime_session_busy",
    "execution_profile_mismatch",
    "invalid_execution_profile",
    "session_input_unavailable",
    "sandbox_execution_failed",
    "sandbox_setup_failed",
    "execution_timeout",
    "rate_limited",
];

/// Further fields of an error's body, in the response's extensions.
#[derive(Debug, Clone)]
pub struct Fields(pub Vec<(&'static str, &'static str)>);

/// Codes whose message clients compare. The hint is in a field of its own.
const SENTENCES: [&str; 3] = ["file_not_found", "file_too_large", "upload_timeout"];

pub async fn layer(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<ServiceError>() {
        Some(error) => of(error, response),
        None => response,
    }
}

/// The response, with the error for the log. It keeps the headers of the bare response.
fn of(error: ServiceError, mut bare: Response) -> Response {
    let mut body = body(&error);
    if let Some(Fields(fields)) = bare.extensions_mut().remove() {
        for (name, value) in fields {
            body[name] = json!(value);
        }
    }
    let headers = std::mem::take(bare.headers_mut());
    let status = error::status(error.kind);
    let mut response = (status, headers, axum::Json(body)).into_response();
    error::insert_retry_after(&mut response, &error);
    response.extensions_mut().insert(ReportedError(error));
    response
}

fn body(error: &ServiceError) -> Value {
    // The description of the native API does not contain these routes.
    let hint = error::hint(error).filter(|hint| !hint.contains("/openapi.json"));
    let message = match error.code {
        "stopping" => "Service is shutting down".to_owned(),
        _ => error.message.clone(),
    };
    let sentence = match &hint {
        Some(hint) => format!("{message}; {hint}"),
        None => message.clone(),
    };
    if error.kind == Kind::Limited {
        return json!({
            "error": "rate_limited",
            "message": sentence,
            "retry_after_seconds": error.retry_after_s,
        });
    }
    if SENTENCES.contains(&error.code) {
        return match &hint {
            Some(details) => json!({ "error": message, "details": details }),
            None => json!({ "error": message }),
        };
    }
    match (CODES.contains(&error.code), error.kind) {
        (true, _) => json!({ "error": error.code, "message": sentence }),
        (false, Kind::Internal) => json!({ "error": "Internal server error" }),
        (false, _) => json!({ "error": sentence, "code": error.code }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_are_returned_and_otherwise_the_message() {
        let busy = ServiceError::conflict("runtime_session_busy", "it runs");
        assert_eq!(body(&busy)["error"], "runtime_session_busy");
        let language = ServiceError::invalid("unsupported_language", "Unsupported language: x");
        assert_eq!(body(&language)["error"], "Unsupported language: x");
        let missing =
            ServiceError::not_found("file_not_found", "File not found").with_hint("it was removed");
        let said = json!({ "error": "File not found", "details": "it was removed" });
        assert_eq!(body(&missing), said);
        let ours = ServiceError::internal("/secret/path");
        assert_eq!(body(&ours), json!({ "error": "Internal server error" }));
        let quota = ServiceError::limited("quota_boxes", "too many", 5);
        assert_eq!(body(&quota)["error"], "rate_limited");
        assert_eq!(body(&quota)["retry_after_seconds"], 5);
    }
}
