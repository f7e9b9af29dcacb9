//! Whether LibreChat can ask now. It sends no credential with this request: the answer is a
//! status alone. `Host` and `Origin` are checked as on the other routes.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};

use crate::config::librechat::Auth;
use crate::error::ServiceError;
use crate::http::auth;
use crate::librechat::state::LibreChat;

/// 503 while a request for a box would be refused.
pub async fn health(
    State(app): State<LibreChat>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<StatusCode, ServiceError> {
    let config = app.config();
    auth::check_page(&headers, &uri, &config)?;
    // The other routes check it where they ask for no credential.
    if config.librechat.auth(&config.keys) == Auth::None {
        auth::check_host(&headers, &config, app.http.served_at())?;
    }
    let is_serving = app.shutdown.is_serving();
    if is_serving && app.admission.pressure.found().admits(0).is_ok() {
        Ok(StatusCode::OK)
    } else {
        Ok(StatusCode::SERVICE_UNAVAILABLE)
    }
}
