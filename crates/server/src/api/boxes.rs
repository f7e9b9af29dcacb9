//! `/v1/boxes`: boxes that live on, as `tare ls --json` shows them: create, list, inspect, remove.

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tare_engine::spec::{Accel, Driver, Spec};
use tare_engine::{BoxFilter, Condition, DetachOptions, Details, Receipt, Status, Usage};
use utoipa::{IntoParams, ToSchema};

use crate::admission::Caller;
use crate::api::openapi::{BoxPath, VARIABLES_MAX, VOLUMES_MAX};
use crate::api::requested::RequestedBox;
use crate::config::Config;
use crate::error::ServiceError;
use crate::http::bounded::{ARGUMENTS_MAX, List, Texts};
use crate::http::extract::{JsonWithBytes, Query};
use crate::http::hint;
use crate::work::Service;
use crate::work::boxes::BoxPage;
use crate::work::boxes::create::{CreateRequest, Created};
use crate::work::request::idempotency::{self, Keyed};
use crate::work::request::run::Warm;
use crate::work::request::spec::{self, BoxFields, LimitsRequest, NetworkRequest, VolumeRequest};

const LIST_DEFAULT: usize = 1000;

/// A box to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BoxRequest {
    /// Without a command, the box waits for execs.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 100_000)]
    pub command: List<String, ARGUMENTS_MAX>,
    /// Unique among the boxes of the key.
    #[schema(pattern = "^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$")]
    pub name: Option<String>,
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Texts<VARIABLES_MAX>,
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub env: Texts<VARIABLES_MAX>,
    pub workdir: Option<String>,
    #[serde(default)]
    pub limits: LimitsRequest,
    #[serde(default)]
    pub network: NetworkRequest,
    /// The kernel that runs the box: the host's, or one of its own in a virtual machine. By default
    /// what the operator chose, `native` unless configured.
    pub driver: Option<Driver>,
    /// What runs the machine. By default what the operator chose, `kvm` unless configured.
    pub accel: Option<Accel>,
    /// Directories of the host, by the names that the operator gave them.
    #[serde(default)]
    #[schema(value_type = Vec<VolumeRequest>, max_items = 100)]
    pub volumes: List<VolumeRequest, VOLUMES_MAX>,
    /// Lease in milliseconds. Default: `[limits] lease`, 24 h.
    #[schema(minimum = 1, exclusive_maximum = 3155760000000u64)]
    pub lease_ms: Option<u64>,
    /// For how long record, exit code and log are kept after the end. Default: 24 h.
    #[schema(minimum = 1, exclusive_maximum = 3155760000000u64)]
    pub retention_ms: Option<u64>,
    /// Whether the files that the box wrote are kept as long as its record.
    #[serde(default)]
    pub keep: bool,
    /// Whether nothing is kept after the end.
    #[serde(default)]
    pub remove: bool,
}

/// The box of a request to create one.
#[derive(Debug, Serialize, ToSchema)]
pub struct CreatedBox {
    #[serde(flatten)]
    pub status: Status,
    /// What was made before the request: the `box`, or nothing (`off`).
    pub warm: Warm,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Only boxes in this state. By default all that have not ended.
    #[param(value_type = Option<String>)]
    pub state: Option<String>,
    /// Whether to include boxes that have ended.
    #[serde(default)]
    pub all: bool,
    /// The box with this name.
    pub name: Option<String>,
    /// `KEY` or `KEY=VALUE`.
    pub label: Option<String>,
    /// The largest number of boxes in the response.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `next` of the previous page, which stays valid after its boxes are removed. Or the id of
    /// a listed box.
    pub after: Option<String>,
}

/// A page of boxes, the oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct BoxList {
    pub boxes: Vec<Status>,
    /// The value of `after` for the next page, if there is one.
    pub next: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Whether to remove a running box.
    #[serde(default)]
    pub force: bool,
    /// Whether to respond with 200 and the receipt: what the box had held, and when tare saw each of
    /// it gone.
    #[serde(default)]
    pub receipt: bool,
}

/// Create a box
///
/// Responds when the command runs. The box belongs to the key, and outlives this server.
///
/// With an `Idempotency-Key` the box is created once. A repeated request gets 200 and the box's
/// current state. After the box is removed, the request gets 409 for as long as tare keeps the
/// box's history. Another request with the same key gets 422.
#[utoipa::path(
    post,
    path = "/v1/boxes",
    tag = "boxes",
    params(("Idempotency-Key" = Option<String>, Header, max_length = 255, pattern = "^[!-~]+$")),
    request_body = BoxRequest,
    responses(
        (status = 200, body = CreatedBox, description = "An earlier request created the box"),
        (status = 201, body = CreatedBox),
    )
)]
pub async fn create(
    State(service): State<Service>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    JsonWithBytes { value: request, bytes }: JsonWithBytes<BoxRequest>,
) -> Result<Response, ServiceError> {
    let key = idempotency_key(&headers)?;
    let keyed = key.map(|key| Keyed::new(key, &caller, &bytes)).transpose()?;
    let (spec, options) = request.into_spec(&service.config(), &caller)?;
    let may_be_warm = keyed.is_none();
    let request = CreateRequest { spec, options, may_be_warm, keyed };
    let Created { status, existed, warm } = service.create(&caller, request).await?;
    let code = if existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((code, axum::Json(CreatedBox { status, warm })).into_response())
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&[u8]>, ServiceError> {
    let mut keys = headers.get_all("idempotency-key").iter();
    match (keys.next(), keys.next()) {
        (None, _) => Ok(None),
        (Some(key), None) => Ok(Some(key.as_bytes())),
        (Some(_), Some(_)) => Err(idempotency::invalid_key()),
    }
}

impl BoxRequest {
    fn into_spec(
        self,
        config: &Config,
        caller: &Caller,
    ) -> Result<(Spec, DetachOptions), ServiceError> {
        let fields = BoxFields {
            command: self.command.0,
            env: self.env.0,
            workdir: self.workdir,
            limits: self.limits,
            network: self.network,
            volumes: self.volumes.0,
            driver: self.driver,
            accel: self.accel,
        };
        let mut spec = fields.into_spec(config, &caller.tenant)?;
        spec.name = self.name.as_deref().map(spec::box_name).transpose()?;
        spec.labels = spec::labels(&self.labels.0)?;
        let mut options = DetachOptions {
            keep: self.keep,
            remove: self.remove,
            lease: Some(spec::lease(self.lease_ms, &config.limits)?),
            ..DetachOptions::default()
        };
        if self.keep && self.remove {
            return Err(ServiceError::invalid(
                "invalid",
                "keep and remove exclude each other: send one of them",
            ));
        }
        if let Some(ms) = self.retention_ms {
            options.retention = spec::milliseconds("retention_ms", ms)?;
        }
        Ok((spec, options))
    }
}

/// List boxes
#[utoipa::path(
    get,
    path = "/v1/boxes",
    tag = "boxes",
    params(ListQuery),
    responses((status = 200, body = BoxList))
)]
pub async fn list(
    State(service): State<Service>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<BoxList>, ServiceError> {
    let limit = query.limit.unwrap_or(LIST_DEFAULT);
    if limit == 0 || limit > LIST_DEFAULT {
        let message = format!("limit: it has to be 1 to {LIST_DEFAULT}");
        return Err(ServiceError::invalid("invalid", message));
    }
    let after = query.after.clone();
    let filter = query.into_filter()?;
    let BoxPage { boxes, next } = service.list(&caller, &filter, after.as_deref(), limit).await?;
    Ok(axum::Json(BoxList { boxes, next: next.map(|cursor| cursor.encode()) }))
}

impl ListQuery {
    fn into_filter(self) -> Result<BoxFilter, ServiceError> {
        let label = self.label.map(|text| Condition::label(&text));
        let state = self.state.as_deref().map(str::parse).transpose()?;
        let name = self.name.map(Condition::Name);
        let conditions = [label, state.map(Condition::State), name].into_iter().flatten();
        Ok(BoxFilter { all: self.all, conditions: conditions.collect() })
    }
}

/// Everything about a box
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}",
    tag = "boxes",
    params(BoxPath),
    responses((status = 200, body = Details))
)]
pub async fn inspect(
    RequestedBox { service, caller, id }: RequestedBox,
) -> Result<axum::Json<Details>, ServiceError> {
    Ok(axum::Json(service.inspect(&caller, id).await?))
}

/// Why a box ended, and what happened to it
///
/// Works while the box exists, and after its removal for as long as its history is kept. As
/// `tare explain --json` prints it.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/explain",
    tag = "boxes",
    params(BoxPath),
    responses((status = 200, body = Object))
)]
pub async fn explain(
    RequestedBox { service, caller, id }: RequestedBox,
) -> Result<axum::Json<serde_json::Value>, ServiceError> {
    Ok(axum::Json(service.explain(&caller, id).await?.to_json(hint::words)))
}

/// The resource use of a running box, and its limits
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/stats",
    tag = "boxes",
    params(BoxPath),
    responses((status = 200, body = Usage))
)]
pub async fn stats(
    RequestedBox { service, caller, id }: RequestedBox,
) -> Result<axum::Json<Usage>, ServiceError> {
    Ok(axum::Json(service.usage(&caller, id).await?))
}

/// Remove a box
///
/// Responds when nothing of the box is left. If the box cannot be ended, the response is 503 `stuck`
/// with the failed step, and the server tries again until the box is gone.
#[utoipa::path(
    delete,
    path = "/v1/boxes/{id}",
    tag = "boxes",
    params(BoxPath, RemoveQuery),
    responses(
        (status = 200, body = Receipt, description = "With `receipt=true`"),
        (status = 204),
    )
)]
pub async fn remove(
    RequestedBox { service, caller, id }: RequestedBox,
    Query(query): Query<RemoveQuery>,
) -> Result<Response, ServiceError> {
    let receipt = service.remove(&caller, id, query.force).await?;
    match (query.receipt, receipt) {
        (false, _) => Ok(StatusCode::NO_CONTENT.into_response()),
        (true, Some(receipt)) => Ok(axum::Json(receipt).into_response()),
        (true, None) => Err(ServiceError::conflict(
            "no_receipt",
            "the box is removed; another process removed it and kept no receipt",
        )),
    }
}

/// What a removed box had held, and when tare saw each object gone
///
/// A receipt is kept for the retention of its box. A run has one only if its request had `receipt`,
/// or if another request ended it.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/receipt",
    tag = "boxes",
    params(BoxPath),
    responses((status = 200, body = Receipt))
)]
pub async fn receipt(
    RequestedBox { service, caller, id }: RequestedBox,
) -> Result<axum::Json<Receipt>, ServiceError> {
    Ok(axum::Json(service.receipt(&caller, id).await?))
}
