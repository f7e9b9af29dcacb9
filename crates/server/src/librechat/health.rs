//! `GET /v1/health`: whether an execution would be accepted now. LibreChat sends no credential with
//! this request, so the response is only a status. `Host` and `Origin` are checked as on the other
//! routes.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};

use crate::config::librechat::Auth;
use crate::error::ServiceError;
use crate::http::auth;
use crate::librechat::state::LibreChat;

/// Returns 503 while a new box would be refused.
pub async fn health(
    State(app): State<LibreChat>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<StatusCode, ServiceError> {
    let config = app.service.config();
    auth::check_page(&headers, &uri, &config)?;
    // If a credential is configured, `Host` is not checked, as on the other routes.
    if config.librechat.auth(&config.keys) == Auth::None {
        auth::check_host(&headers, &config, app.http.served_at())?;
    }
    let is_serving = app.service.shutdown.is_serving();
    if is_serving && app.service.admission.pressure.measured().check(0).is_ok() {
        Ok(StatusCode::OK)
    } else {
        Ok(StatusCode::SERVICE_UNAVAILABLE)
    }
}
