//! The life of a box: stop, kill, pause, resume, update, rename, and wait for its end.

use std::time::Duration;

use axum::extract::State;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tare_engine::{Cause, Changes, End, STOP_GRACE, Status};
use utoipa::{IntoParams, ToSchema};

use crate::api::openapi::BoxPath;
use crate::api::processes::SignalName;
use crate::api::requested::RequestedBox;
use crate::error::ServiceError;
use crate::http::extract::{Json, Query};
use crate::http::{Http, request_log};
use crate::work::request::spec::{self, LimitsRequest};

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StopRequest {
    /// The time that the command has to stop. By default 10 s.
    pub grace_ms: Option<u64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// The new lease, from now on, in milliseconds.
    #[schema(minimum = 1, exclusive_maximum = 3155760000000u64)]
    pub lease_ms: u64,
}

/// What to change. Fields that are not given stay the same.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateRequest {
    /// `memory_bytes`, `cpus` and `pids` can be changed.
    #[serde(default)]
    pub limits: LimitsRequest,
    /// The new lease, from now on, in milliseconds.
    #[schema(minimum = 1, exclusive_maximum = 3155760000000u64)]
    pub lease_ms: Option<u64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameRequest {
    /// Unique among the boxes of the key.
    #[schema(pattern = "^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$")]
    pub name: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KillRequest {
    /// By default `KILL`.
    pub signal: Option<SignalName>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WaitQuery {
    /// The longest time to wait. By default `[limits] timeout`, 30 s.
    #[param(minimum = 1)]
    pub timeout_ms: Option<u64>,
}

#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Waited {
    /// False if the box was still running after `timeout_ms`.
    pub ended: bool,
    pub exit_code: Option<u8>,
    #[schema(value_type = Option<String>)]
    pub cause: Option<Cause>,
    pub oom: bool,
}

/// Wait for the end of a box
///
/// Responds with how the box ended, even if it has been removed since.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/wait",
    tag = "boxes",
    params(BoxPath, WaitQuery),
    responses((status = 200, body = Waited))
)]
pub async fn wait(
    RequestedBox { service, caller, id }: RequestedBox,
    State(http): State<Http>,
    Query(query): Query<WaitQuery>,
) -> Result<axum::Json<Waited>, ServiceError> {
    let within = spec::timeout(query.timeout_ms, &service.config().limits)?;
    request_log::hold_stream(&http)?;
    let ended = service.wait(&caller, id, within).await?;
    Ok(axum::Json(ended.map_or_else(Waited::default, Waited::of)))
}

impl Waited {
    fn of(end: End) -> Self {
        Self { ended: true, exit_code: Some(end.code()), cause: Some(end.cause), oom: end.oom }
    }
}

/// Stop a box: SIGTERM, a grace period, then SIGKILL
///
/// Responds when only the record of the box is left. A box that keeps nothing is returned with its
/// last status. If the box cannot be ended, the response is 503 `stuck` with the failed step, and
/// the server tries again.
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/stop",
    tag = "boxes",
    params(BoxPath),
    request_body = Option<StopRequest>,
    responses((status = 200, body = Status))
)]
pub async fn stop(
    RequestedBox { service, caller, id }: RequestedBox,
    request: Option<Json<StopRequest>>,
) -> Result<axum::Json<Status>, ServiceError> {
    let grace_ms = request.and_then(|Json(request)| request.grace_ms);
    let grace = grace_ms.map_or(STOP_GRACE, Duration::from_millis);
    let grace = spec::at_most("grace_ms", grace, service.config().limits.timeout_max.0)?;
    Ok(axum::Json(service.stop(&caller, id, grace).await?))
}

/// Freeze every process of a box
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/pause",
    tag = "boxes",
    params(BoxPath),
    responses((status = 200, body = Status))
)]
pub async fn pause(
    RequestedBox { service, caller, id }: RequestedBox,
) -> Result<axum::Json<Status>, ServiceError> {
    Ok(axum::Json(service.pause(&caller, id).await?))
}

/// Continue a paused box
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/resume",
    tag = "boxes",
    params(BoxPath),
    responses((status = 200, body = Status))
)]
pub async fn resume(
    RequestedBox { service, caller, id }: RequestedBox,
) -> Result<axum::Json<Status>, ServiceError> {
    Ok(axum::Json(service.resume(&caller, id).await?))
}

/// Give a box another lease
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/lease",
    tag = "boxes",
    params(BoxPath),
    request_body = LeaseRequest,
    responses((status = 200, body = Status))
)]
pub async fn lease(
    RequestedBox { service, caller, id }: RequestedBox,
    Json(request): Json<LeaseRequest>,
) -> Result<axum::Json<Status>, ServiceError> {
    let lease = spec::lease(Some(request.lease_ms), &service.config().limits)?;
    let changes = Changes { lease: Some(Some(lease)), ..Changes::default() };
    Ok(axum::Json(service.update(&caller, id, changes).await?))
}

/// Change the limits or the lease of a box
///
/// If the new memory limit is below the box's use, the kernel reclaims memory or kills processes.
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/update",
    tag = "boxes",
    params(BoxPath),
    request_body = UpdateRequest,
    responses((status = 200, body = Status))
)]
pub async fn update(
    RequestedBox { service, caller, id }: RequestedBox,
    Json(request): Json<UpdateRequest>,
) -> Result<axum::Json<Status>, ServiceError> {
    let limits = service.config().limits.clone();
    let mut changes = request.limits.into_changes(&limits)?;
    if request.lease_ms.is_some() {
        changes.lease = Some(Some(spec::lease(request.lease_ms, &limits)?));
    }
    if changes == Changes::default() {
        return Err(ServiceError::invalid("invalid", "the request changes nothing")
            .with_hint("send 'limits' with memory_bytes, cpus or pids, or 'lease_ms'"));
    }
    Ok(axum::Json(service.update(&caller, id, changes).await?))
}

/// Give a box another name
///
/// If another box of the key has the name, the response is 409.
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/rename",
    tag = "boxes",
    params(BoxPath),
    request_body = RenameRequest,
    responses((status = 200, body = Status))
)]
pub async fn rename(
    RequestedBox { service, caller, id }: RequestedBox,
    Json(request): Json<RenameRequest>,
) -> Result<axum::Json<Status>, ServiceError> {
    let name = spec::box_name(&request.name)?;
    Ok(axum::Json(service.rename(&caller, id, name).await?))
}

/// Send a signal to the command of a box; by default, kill the whole box
///
/// KILL ends every process of the box, and the response comes when none is left, as that of a stop.
/// Any other signal goes to the box's command only.
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/kill",
    tag = "boxes",
    params(BoxPath),
    request_body = Option<KillRequest>,
    responses((status = 200, body = Status))
)]
pub async fn kill(
    RequestedBox { service, caller, id }: RequestedBox,
    request: Option<Json<KillRequest>>,
) -> Result<axum::Json<Status>, ServiceError> {
    let asked = request.and_then(|Json(request)| request.signal);
    let number = asked.map_or(Ok(Signal::KILL.as_raw()), SignalName::number)?;
    Ok(axum::Json(service.signal(&caller, id, number).await?))
}
