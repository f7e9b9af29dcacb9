//! Requests for a machine that a user has attached to LibreChat. This server has no such machines,
//! and code for one must not run anywhere else. So every route that runs code refuses it before
//! anything runs. A token may also name a machine (`code_worker_id`); the header decides.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ServiceError;

/// Headers that name a machine, or a directory on it.
const HEADERS: [&str; 2] = ["x-librechat-code-worker-id", "x-librechat-code-workspace-id"];

pub async fn layer(request: Request, next: Next) -> Response {
    if HEADERS.iter().any(|name| request.headers().contains_key(*name)) {
        return mismatch().into_response();
    }
    next.run(request).await
}

pub fn mismatch() -> ServiceError {
    ServiceError::conflict(
        "bridge_worker_mismatch",
        "this server runs no code on attached machines or in their directories",
    )
}

/// LibreChat's routes for attached machines, which this server does not have.
pub async fn no_bridge() -> ServiceError {
    ServiceError::not_found("no_bridge", "this server has no attached machines")
}
