//! Whether the server lives, and whether it can do what it is for.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use serde::Serialize;
use tare_engine::ExecSpec;
use tare_engine::spec::Spec;
use utoipa::ToSchema;

use crate::admission::Need;
use crate::app::{App, Phase};
use crate::error::ServiceError;
use crate::http::error::ErrorBody;
use crate::http::request_log;
use crate::work::relay::{Flood, Output};
use crate::work::run::{self, OneShot, Stage};

#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`, or `stopping`.
    pub status: &'static str,
    pub version: &'static str,
    pub uptime_ms: u64,
    pub recovery: RecoveryHealth,
}

/// The look at what was there before this server.
#[derive(Debug, Serialize, ToSchema)]
pub struct RecoveryHealth {
    pub done: bool,
    /// How many boxes it found.
    pub boxes: usize,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Readiness {
    pub status: &'static str,
    /// What a box took, from its making to its removal.
    pub duration_ms: u64,
}

/// Whether the server answers
#[utoipa::path(get, path = "/health", tag = "server", responses((status = 200, body = Health)))]
pub async fn health(State(app): State<App>) -> axum::Json<Health> {
    let uptime_ms = app.started.elapsed().as_millis();
    axum::Json(Health {
        status: match app.stopping.phase() {
            Phase::Serving => "ok",
            Phase::Draining | Phase::Ending => "stopping",
        },
        version: env!("CARGO_PKG_VERSION"),
        uptime_ms: u64::try_from(uptime_ms).unwrap_or(u64::MAX),
        recovery: RecoveryHealth {
            done: app.recovery.is_done.load(Ordering::Acquire),
            boxes: app.recovery.boxes.load(Ordering::Relaxed),
        },
    })
}

/// Whether it can run a box: it runs one
///
/// Answers within 10 s: a box that takes longer gets 503 with the step that it waits at.
#[utoipa::path(
    get,
    path = "/ready",
    tag = "server",
    responses((status = 200, body = Readiness), (status = 503, body = ErrorBody))
)]
pub async fn ready(State(app): State<App>) -> Result<axum::Json<Readiness>, ServiceError> {
    if app.stopping.phase() > Phase::Serving {
        return Err(not_ready("the server is stopping"));
    }
    let stage = Stage::default();
    let tried = tokio::time::timeout(READY_WITHIN, run_one(&app, stage.clone())).await;
    tried.unwrap_or_else(|_late| {
        let waits = format!("{} s have passed while {}", READY_WITHIN.as_secs(), stage.words());
        Err(not_ready(&waits))
    })
}

/// Less than the 10 s that are promised, so that the answer arrives in time.
const READY_WITHIN: Duration = Duration::from_secs(8);

fn not_ready(why: &str) -> ServiceError {
    ServiceError::unavailable("not_ready", format!("no box can be run now: {why}"))
}

async fn run_one(app: &App, stage: Stage) -> Result<axum::Json<Readiness>, ServiceError> {
    let caller = request_log::caller(None);
    let what = OneShot::<()> {
        spec: Spec::of(Vec::new()),
        exec: ExecSpec { timeout: Some(app.config().limits.timeout), ..ExecSpec::of(["true"]) },
        stdin: None,
        files: Vec::new(),
        collect: None,
        output_bytes_max: 0,
        flood: Flood::Passes,
        stage,
    };
    let admitted = app.admit(&caller, Need::run(&what.spec)).await?;
    let outcome = run::start(app, &caller, admitted, what, Output::Keep).result().await;
    let outcome = outcome
        .map_err(|error| ServiceError { detail: error.detail, ..not_ready(&error.message) })?;
    match outcome.exit().code() {
        0 => Ok(axum::Json(Readiness {
            status: "ready",
            duration_ms: u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
        })),
        code => Err(not_ready(&format!("true ended with {code}"))),
    }
}
