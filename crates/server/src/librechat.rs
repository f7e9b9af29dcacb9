//! LibreChat's code interpreter: the API that its clients expect, on boxes.
//!
//! ```text
//! identity ─▶ words (errors as they expect them) ─▶ exec, files, sessions ─▶ boxes
//! ```

mod answer;
mod boxes;
mod exec;
mod id;
mod inputs;
mod name;
mod outputs;
mod owner;
mod programmatic;
mod sessions;
mod shim;
mod words;

use axum::routing::post;
use axum::{Router, middleware};

use crate::app::App;
pub use boxes::BoxesConfig;
pub use id::Id;
pub use owner::Owner;
#[cfg(test)]
pub use owner::{Principal, Resource};
#[allow(unused_imports, reason = "the next step uses it")]
pub use programmatic::Waiting;
pub use sessions::Sessions;

/// Its routes, below the same `/v1` as the native ones.
pub fn router() -> Router<App> {
    Router::new()
        .route("/v1/exec", post(exec::exec))
        .route("/v1/exec/programmatic", post(programmatic::programmatic))
        .layer(middleware::from_fn(shim::layer))
        .layer(middleware::from_fn(words::layer))
}

/// `[librechat]`
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LibreChatConfig {
    pub boxes: BoxesConfig,
}
