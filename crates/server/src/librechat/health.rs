//! Whether it can be asked now. Nobody has to say who he is: a status is all that there
//! is to see.

use axum::extract::State;
use axum::http::StatusCode;

use crate::app::{App, Phase};

/// 503 when whoever came now would be sent away.
pub async fn health(State(app): State<App>) -> StatusCode {
    let is_serving = app.stopping.phase() == Phase::Serving;
    match is_serving && app.pressure.found().admits(0).is_ok() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}
