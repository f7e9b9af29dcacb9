//! What an operator asks of the server itself.

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};

use crate::app::App;
use crate::error::ServiceError;
use crate::http::error::ErrorBody;

const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// What is counted and measured, for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "server",
    responses((status = 200, body = String, content_type = "application/openmetrics-text"))
)]
pub async fn metrics(State(app): State<App>) -> ([(HeaderName, HeaderValue); 1], String) {
    let text = app.metrics.text(&app);
    ([(header::CONTENT_TYPE, OPEN_METRICS)], text)
}

/// Read the configuration again
///
/// As SIGHUP does. One that cannot be used is refused, and the old one stays.
#[utoipa::path(
    post,
    path = "/v1/reload",
    tag = "server",
    responses((status = 204), (status = 400, body = ErrorBody))
)]
pub async fn reload(State(app): State<App>) -> Result<StatusCode, ServiceError> {
    crate::reload(&app).await?;
    Ok(StatusCode::NO_CONTENT)
}
