//! LibreChat's code interpreter: the API that its clients expect, on boxes.
//!
//! ```text
//! words (errors as they expect them) ─▶ profile ─▶ identity ─▶ exec, files, sessions ─▶ boxes
//!                                              └▶ health
//! ```

mod answer;
mod boxes;
pub mod config;
mod exec;
mod health;
mod id;
mod identity;
mod inputs;
mod name;
mod outputs;
mod owner;
mod profile;
mod programmatic;
mod sessions;
mod words;

use axum::routing::{get, post};
use axum::{Router, middleware};

use crate::app::App;
pub use id::Id;
pub use owner::Owner;
#[cfg(test)]
pub use owner::{Principal, Resource};
pub use programmatic::Waiting;
pub use sessions::Sessions;

/// Its routes, below the same `/v1` as the native ones.
pub fn router(app: &App) -> Router<App> {
    identified()
        .layer(middleware::from_fn_with_state(app.clone(), identity::layer))
        .route("/v1/health", get(health::health))
        .layer(middleware::from_fn_with_state(app.clone(), profile::layer))
        .layer(middleware::from_fn(words::layer))
}

/// Those for which it matters who asks.
fn identified() -> Router<App> {
    Router::new()
        .route("/v1/exec", post(exec::exec))
        .route("/v1/exec/programmatic", post(programmatic::programmatic))
}
