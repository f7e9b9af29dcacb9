//! LibreChat's code interpreter: the API that its clients expect, on boxes.
//!
//! ```text
//! words (errors as they expect them) ─▶ profile ─▶ identity ─▶ exec, files, sessions ─▶ boxes
//!                                              └▶ health
//! ```

pub mod config;
mod health;
#[allow(dead_code, reason = "the next step uses it")]
mod id;
mod identity;
#[allow(dead_code, reason = "the next step uses it")]
mod owner;
mod profile;
mod words;

use axum::routing::get;
use axum::{Router, middleware};

use crate::app::App;

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
}
