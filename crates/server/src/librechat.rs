//! LibreChat's code interpreter: the API that its clients expect, on boxes.
//!
//! ```text
//! words (errors as they expect them) ─▶ profile ─▶ identity ─▶ exec, files, sessions ─▶ boxes
//!                                              └▶ health
//! ```

mod answer;
mod arriving;
mod boxes;
mod cancel;
mod claim;
pub mod config;
mod download;
mod exec;
mod file_name;
mod files;
mod form;
mod health;
mod id;
mod identity;
mod inputs;
mod known;
mod multipart;
mod objects;
mod outputs;
mod owner;
mod profile;
mod programmatic;
mod range;
mod reference;
mod sessions;
mod upload;
mod words;

use axum::routing::{delete, get, post};
use axum::{Router, middleware};

use crate::app::App;
pub use cancel::Cancellable;
pub use id::Id;
pub use known::is_over;
pub use owner::Owner;
#[cfg(test)]
pub use owner::{Principal, Resource};
pub use programmatic::Waiting;
pub use sessions::Sessions;

/// Its routes, below the same `/v1` as the native ones.
pub fn router(app: &App) -> Router<App> {
    executed()
        .merge(stored())
        .layer(middleware::from_fn_with_state(app.clone(), identity::layer))
        .route("/v1/health", get(health::health))
        .layer(middleware::from_fn_with_state(app.clone(), profile::layer))
        .layer(middleware::from_fn(words::layer))
}

/// Code that is run.
fn executed() -> Router<App> {
    Router::new()
        .route("/v1/exec", post(exec::exec))
        .route("/v1/exec/programmatic", post(programmatic::programmatic))
        .route("/v1/exec/cancel", post(cancel::cancel))
        .route("/v1/exec/programmatic/cancel", post(cancel::cancel))
}

/// Files that clients send, and get.
fn stored() -> Router<App> {
    Router::new()
        .route("/v1/upload", post(upload::upload))
        .route("/v1/upload/batch", post(upload::batch))
        .route("/v1/download/{session}/{file}", get(download::download))
        .route("/v1/files/{session}", get(files::list))
        .route("/v1/files/{session}/{file}", delete(files::delete))
        .route("/v1/sessions/{session}/objects/{file}", get(objects::inspect).delete(files::delete))
}
