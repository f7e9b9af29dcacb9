//! LibreChat's code interpreter: the API that its clients expect, on boxes.
//!
//! ```text
//! identity ─▶ words (errors as they expect them) ─▶ exec, files, sessions ─▶ boxes
//! ```

#[allow(dead_code, reason = "the next step uses it")]
mod id;
#[allow(dead_code, reason = "the next step uses it")]
mod owner;
mod words;

use axum::{Router, middleware};

use crate::app::App;
pub use id::Id;
#[allow(unused_imports, reason = "the next step uses it")]
pub use owner::{Owner, Principal, Resource};

/// Its routes, below the same `/v1` as the native ones.
pub fn router() -> Router<App> {
    Router::new().layer(middleware::from_fn(words::layer))
}
