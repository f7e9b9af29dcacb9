//! `GET /v1/audit` and `POST /v1/sweep`: the proof, and what is done about it.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use tare_engine::{AuditedBox, Finding, Swept};
use utoipa::{IntoParams, ToSchema};

use crate::api::boxes::taken;
use crate::app::App;
use crate::error::ServiceError;
use crate::http::error::ErrorBody;

/// As `tare audit --json` prints it.
#[derive(Debug, Serialize, ToSchema)]
pub struct AuditAnswer {
    /// Whether records and host agree.
    pub clean: bool,
    /// Each with all that it holds, the oldest first.
    #[schema(value_type = Vec<Object>)]
    pub boxes: Vec<AuditedBox>,
    /// On the host, and in no record.
    #[schema(value_type = Vec<Object>)]
    pub orphans: Vec<Finding>,
    /// In a record, and not on the host.
    #[schema(value_type = Vec<Object>)]
    pub lost: Vec<Finding>,
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
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SweepQuery {
    /// Whether it is only said.
    #[serde(default)]
    pub dry_run: bool,
}

/// What every box holds, what is nobody's, and what is missing
///
/// Changes nothing.
#[utoipa::path(
    get,
    path = "/v1/audit",
    tag = "server",
    params(AuditQuery),
    responses((status = 200, body = AuditAnswer), (status = "4XX", body = ErrorBody))
)]
pub async fn audit(
    State(app): State<App>,
    query: Result<Query<AuditQuery>, QueryRejection>,
) -> Result<axum::Json<AuditAnswer>, ServiceError> {
    let wait = taken(query)?.wait;
    // A look at every process of the host: one at a time is enough.
    let _turn = app.proofs.lock().await;
    let audit =
        app.ask(move |engine| if wait { engine.audit_until_clean() } else { engine.audit() });
    let audit = audit.await?;
    let clean = audit.is_clean();
    let (orphans, lost) =
        audit.findings.into_iter().partition(|finding| finding.kind.is_unrecorded());
    Ok(axum::Json(AuditAnswer { clean, boxes: audit.boxes, orphans, lost }))
}

/// Do what an audit finds, and finish every box that is over
///
/// Nobody has to: this server does it all the time.
#[utoipa::path(
    post,
    path = "/v1/sweep",
    tag = "server",
    params(SweepQuery),
    responses((status = 200, body = SweepAnswer), (status = "4XX", body = ErrorBody))
)]
pub async fn sweep(
    State(app): State<App>,
    query: Result<Query<SweepQuery>, QueryRejection>,
) -> Result<axum::Json<SweepAnswer>, ServiceError> {
    let dry_run = taken(query)?.dry_run;
    let _turn = app.proofs.lock().await;
    let swept = app.ask(move |engine| if dry_run { engine.plan_sweep() } else { engine.sweep() });
    Ok(axum::Json(SweepAnswer { swept: swept.await? }))
}
