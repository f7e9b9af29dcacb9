//! LibreChat's code-interpreter API, in the form that its clients expect: its sessions with their
//! queues, its open executions, its tokens. Boxes are made and used only through the service layer.
//!
//! ```text
//! errors (in LibreChat's form) ─▶ profile ─▶ auth ─▶ attached ─▶ executions
//!                                          │      └▶ files, cancel
//!                                          └▶ health
//! ```

mod answer;
mod attached;
mod auth;
mod body_fields;
mod cancel;
mod errors;
mod files;
mod health;
mod profile;
mod run;
mod state;
mod tools;

use axum::routing::{any, delete, get, post};
use axum::{Router, middleware};

use crate::error::ServiceError;
pub use crate::librechat::auth::{Keys, read_keys};
pub use crate::librechat::run::known::session_box;
pub use crate::librechat::state::LibreChat;

/// LibreChat's routes, below the same `/v1` as the native API.
pub fn router<S: Clone + Send + Sync + 'static>(app: &LibreChat) -> Router<S> {
    executed()
        .merge(stored())
        .layer(middleware::from_fn_with_state(app.clone(), auth::layer))
        .route("/v1/health", get(health::health))
        .route("/v1/bridge/{*rest}", any(attached::no_bridge))
        .route("/v1/workspace-tools/{*rest}", any(attached::no_bridge))
        .method_not_allowed_fallback(async || ServiceError::wrong_method())
        .layer(middleware::from_fn_with_state(app.clone(), profile::layer))
        .layer(middleware::from_fn(errors::layer))
        .with_state(app.clone())
}

/// Routes that execute code.
fn executed() -> Router<LibreChat> {
    Router::new()
        .route("/v1/exec", post(run::exec::exec))
        .route("/v1/exec/programmatic", post(tools::programmatic))
        .route_layer(middleware::from_fn(attached::layer))
        .route("/v1/exec/cancel", post(cancel::cancel))
        .route("/v1/exec/programmatic/cancel", post(cancel::cancel))
}

/// Routes for files of clients.
fn stored() -> Router<LibreChat> {
    Router::new()
        .route("/v1/upload", post(files::upload::upload))
        .route("/v1/upload/batch", post(files::upload::batch))
        .route("/v1/download/{session}/{file}", get(files::download::download))
        .route("/v1/files/{session}", get(files::list::list))
        .route("/v1/files/{session}/{file}", delete(files::list::delete))
        .route(
            "/v1/sessions/{session}/objects/{file}",
            get(files::objects::inspect).delete(files::list::delete),
        )
}
