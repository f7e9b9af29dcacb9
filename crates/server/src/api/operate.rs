//! Routes for operators: health, readiness, metrics, reload, audit, sweep.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::extract::{Extension, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use tare_engine::spec::{Spec, Tenant};
use tare_engine::{Audit, ExecSpec, Swept, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::admission::Caller;
use crate::app::AppState;
use crate::error::ServiceError;
use crate::http::extract::Query;
use crate::telemetry::metrics::Scrape;
use crate::work::Service;
use crate::work::request::run::{Progress, RunRequest};
use crate::work::request::spec::BoxFields;
use crate::work::streams::output::OutputSink;

const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
/// Less than the 10 s that are promised, so that the response arrives in time.
const READY_WITHIN: Duration = Duration::from_secs(8);

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
    let progress = Progress::default();
    // The test counts for no key.
    let caller = Caller { tenant: Tenant::default(), ..caller };
    let tried = run_one(&service, &caller, progress.clone());
    let tried = tokio::time::timeout(READY_WITHIN, tried).await;
    tried.unwrap_or_else(|_late| {
        let waits = format!("{} s have passed while {}", READY_WITHIN.as_secs(), progress.text());
        Err(not_ready(&waits))
    })
}

fn not_ready(why: &str) -> ServiceError {
    ServiceError::unavailable("not_ready", format!("no box can be run now: {why}"))
}

async fn run_one(
    service: &Service,
    caller: &Caller,
    progress: Progress,
) -> Result<axum::Json<Readiness>, ServiceError> {
    let config = service.config();
    let timeout = Some(config.limits.timeout.0);
    let exec = ExecSpec { timeout, ..ExecSpec::of(["true"]) };
    // A box as every client gets it, with the operator's root and packages. A machine would take
    // seconds of processor time at each look, and is made of a native box.
    let spec = BoxFields::default().into_spec(&config, &caller.tenant)?;
    let spec = Spec { machine: None, ..spec };
    let request = RunRequest::<()> { progress, ..RunRequest::new(spec, exec, 0) };
    let admitted = service.admit_run(caller, &request.spec).await;
    let admitted = admitted.map_err(|error| match error.code {
        "stopping" => not_ready(&error.message),
        _ => error,
    })?;
    let began = Instant::now();
    let output = service.run_admitted(caller, admitted, request, OutputSink::Keep).await;
    match output.map(|output| output.end.code()) {
        Ok(0) => {}
        // The box was made: only the operator's root has no such program.
        Err(error) if error.code == "command_not_found" => {}
        Ok(code) => return Err(not_ready(&format!("true ended with {code}"))),
        Err(error) => {
            let why = not_ready(&error.message);
            return Err(ServiceError { detail: error.detail, ..why });
        }
    }
    Ok(axum::Json(Readiness { status: "ready", duration_ms: milliseconds(began.elapsed()) }))
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
