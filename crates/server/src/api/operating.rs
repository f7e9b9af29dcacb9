//! What an operator asks of the server itself.

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};

use crate::app::App;
use crate::error::ServiceError;
use crate::http::error::ErrorBody;
use crate::telemetry::metrics::Scrape;

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
    let measured = app.admission.pressure.found();
    let text = app.metrics.text(&Scrape {
        readings: &measured.readings,
        threads: measured.threads,
        resident_bytes: measured.resident_bytes,
        boxes_live: app.admission.pressure.boxes_live(),
        runs_running: app.admission.running() as u64,
        runs_waiting: app.admission.waiting() as u64,
        streams_open: app.streams.count() as u64,
        bodies_bytes: app.bodies.used_bytes(),
        files_bytes: app.files.used_bytes(),
        executions_waiting: app.waiting.count() as u64,
        log_lines_dropped: app.journal.dropped(),
        uptime: app.started.elapsed(),
    });
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
