//! Routes for operators: health, readiness, metrics, reload, audit, sweep.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use tare_engine::{Audit, Swept, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::admission::Caller;
use crate::app::AppState;
use crate::error::ServiceError;
use crate::http::extract::Query;
use crate::telemetry::metrics::Scrape;
use crate::work::Service;

const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`, or `stopping`.
    pub status: &'static str,
    pub version: &'static str,
    pub uptime_ms: u64,
    pub recovery: RecoveryHealth,
}

/// The recovery of boxes that existed before this server.
#[derive(Debug, Serialize, ToSchema)]
pub struct RecoveryHealth {
    pub done: bool,
    /// How many boxes it found. Null unless the key is an admin's.
    pub boxes: Option<usize>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Readiness {
    pub status: &'static str,
    /// The time from the creation of a box to its removal.
    pub duration_ms: u64,
}

/// As `tare sweep --json` prints it.
#[derive(Debug, Serialize, ToSchema)]
pub struct SweepAnswer {
    #[schema(value_type = Vec<Object>)]
    pub swept: Vec<Swept>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Whether to repeat the audit until records and host agree, for at most ten seconds.
    #[serde(default)]
    pub wait: bool,
    /// Include the boxes that were removed since this time: a time of RFC 3339, or a duration before
    /// now, such as `24h`.
    pub since: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SweepQuery {
    /// Whether to only report what a sweep would do.
    #[serde(default)]
    pub dry_run: bool,
}

/// Whether the server is up
#[utoipa::path(get, path = "/health", tag = "server", responses((status = 200, body = Health)))]
pub async fn health(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
) -> axum::Json<Health> {
    let boxes = app.recovery.boxes.load(Ordering::Relaxed);
    axum::Json(Health {
        status: if app.service.shutdown.is_serving() { "ok" } else { "stopping" },
        version: tare_engine::version::NUMBER,
        uptime_ms: milliseconds(app.started.elapsed()),
        recovery: RecoveryHealth {
            done: app.recovery.is_done.load(Ordering::Acquire),
            boxes: caller.is_admin.then_some(boxes),
        },
    })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whether the server can run a box, tested by running one
///
/// Responds within 10 s. If the box takes longer, the response is 503 with the current step.
#[utoipa::path(
    get,
    path = "/ready",
    tag = "server",
    responses((status = 200, body = Readiness))
)]
pub async fn ready(
    State(service): State<Service>,
    Extension(caller): Extension<Caller>,
) -> Result<axum::Json<Readiness>, ServiceError> {
    let took = service.probe(caller).await?;
    Ok(axum::Json(Readiness { status: "ready", duration_ms: milliseconds(took) }))
}

/// Metrics for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "server",
    responses((status = 200, body = String, content_type = "application/openmetrics-text"))
)]
pub async fn metrics(State(app): State<AppState>) -> ([(HeaderName, HeaderValue); 1], String) {
    let boxes = app.service.measured(app.service.config().metrics.boxes).await;
    let measured = app.service.admission.pressure.measured();
    let text = app.service.metrics.text(&Scrape {
        readings: &measured.readings,
        promised: &app.service.admission.pressure.promised(&measured.readings),
        threads: measured.threads,
        resident_bytes: measured.resident_bytes,
        boxes_live: app.service.admission.pressure.boxes_live(),
        machines_live: app.service.admission.machines.count(),
        runs_running: app.service.admission.running() as u64,
        runs_waiting: app.service.admission.waiting() as u64,
        streams_open: app.http.streams.count(),
        bodies_bytes: app.http.bodies.used_bytes(),
        files_bytes: app.files.used_bytes(),
        log_lines_dropped: app.service.journal.dropped(),
        uptime: app.started.elapsed(),
        boxes: &boxes,
    });
    ([(header::CONTENT_TYPE, OPEN_METRICS)], text)
}

/// Read the configuration again
///
/// Does what SIGHUP does. If the configuration cannot be used, the old one stays.
#[utoipa::path(post, path = "/v1/reload", tag = "server", responses((status = 204)))]
pub async fn reload(State(app): State<AppState>) -> Result<StatusCode, ServiceError> {
    app.reload().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Compare records and host: what each box holds, leftovers, and what is missing
///
/// Changes nothing.
#[utoipa::path(
    get,
    path = "/v1/audit",
    tag = "server",
    params(AuditQuery),
    responses((status = 200, body = Audit))
)]
pub async fn audit(
    State(service): State<Service>,
    Query(query): Query<AuditQuery>,
) -> Result<axum::Json<Audit>, ServiceError> {
    let since = query.since.as_deref().map(Timestamp::parse_or_ago).transpose()?;
    Ok(axum::Json(service.audit(query.wait, since).await?))
}

/// Remove what an audit finds, and finish every box that has ended
///
/// Optional: the server sweeps by itself.
#[utoipa::path(
    post,
    path = "/v1/sweep",
    tag = "server",
    params(SweepQuery),
    responses((status = 200, body = SweepAnswer))
)]
pub async fn sweep(
    State(service): State<Service>,
    Query(query): Query<SweepQuery>,
) -> Result<axum::Json<SweepAnswer>, ServiceError> {
    Ok(axum::Json(SweepAnswer { swept: service.sweep(query.dry_run).await? }))
}
