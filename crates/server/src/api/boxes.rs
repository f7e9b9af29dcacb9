//! `/v1/boxes`: boxes that live on, as `tare ls --json` shows them.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tare_engine::spec::Spec;
use tare_engine::{
    BoxId, Changes, DetachOptions, Details, Engine, Started, State as BoxState, Status,
};
use utoipa::{IntoParams, ToSchema};

use crate::admission::quota;
use crate::admission::{Admitted, Caller, Need};
use crate::api::cursor::Cursor;
use crate::app::{App, Phase};
use crate::error::{ServiceError, in_plain_words};
use crate::http::error::ErrorBody;
use crate::http::extract::{Json, Path, Sent};
use crate::telemetry::LogEvent;
use crate::work::idempotency;
use crate::work::spec::{self, Asked, LimitsAsked, NetworkAsked};
use crate::work::stop;

/// A box that lives on by itself.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BoxRequest {
    /// Without one the box waits for what is executed in it.
    #[serde(default)]
    pub command: Vec<String>,
    /// Of no other box.
    #[schema(pattern = "^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$")]
    pub name: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub workdir: Option<String>,
    #[serde(default)]
    pub limits: LimitsAsked,
    #[serde(default)]
    pub network: NetworkAsked,
    /// It ends after so long; if left out, as configured: 24 h.
    #[schema(minimum = 1, exclusive_maximum = 3155760000000u64)]
    pub lease_ms: Option<u64>,
    /// Its record, exit code and log stay so long after its end, 24 h if left out.
    #[schema(minimum = 1, exclusive_maximum = 3155760000000u64)]
    pub retention_ms: Option<u64>,
    /// Whether what it wrote is kept as long as its record.
    #[serde(default)]
    pub keep: bool,
    /// Whether nothing of it is kept after its end.
    #[serde(default)]
    pub remove: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Boxes in this state; without it all that have not ended.
    #[param(value_type = Option<String>)]
    pub state: Option<String>,
    /// Those that have ended, too.
    #[serde(default)]
    pub all: bool,
    /// The box with this name.
    pub name: Option<String>,
    /// `KEY` or `KEY=VALUE`.
    pub label: Option<String>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// The `next` of the page before, also after its boxes were removed; or the id of a
    /// box that is there.
    pub after: Option<String>,
}

/// The oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct BoxList {
    pub boxes: Vec<Status>,
    /// For `after`, if there are more. Opaque.
    pub next: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Also if it runs.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StopRequest {
    /// For its command to stop, 10 s if left out.
    pub grace_ms: Option<u64>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// From now on.
    #[schema(minimum = 1, exclusive_maximum = 3155760000000u64)]
    pub lease_ms: u64,
}

const LIST_DEFAULT: usize = 1000;
const GRACE: Duration = Duration::from_secs(10);

/// Create a box
///
/// Answers when its command runs. It belongs to nobody: it outlives this server.
///
/// With an `Idempotency-Key` the box is made once, however often the request is sent: a
/// later one is answered with 200 and the box as it is by then, and with 409 after its
/// removal, for as long as its story is kept. With another request it is refused with 422.
#[utoipa::path(
    post,
    path = "/v1/boxes",
    tag = "boxes",
    params(("Idempotency-Key" = Option<String>, Header, max_length = 255, pattern = "^[!-~]+$")),
    request_body = BoxRequest,
    responses(
        (status = 200, body = Status, description = "A request before has made it"),
        (status = 201, body = Status),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    )
)]
pub async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Sent { request, bytes }: Sent<BoxRequest>,
) -> Result<Response, ServiceError> {
    let keyed = idempotency::keyed(&headers, &caller, &bytes)?;
    if app.stopping.phase() > Phase::Serving {
        return Err(ServiceError::stopping());
    }
    let (mut spec, options) = request.take(&app)?;
    if let Some(key) = &caller.key {
        spec.labels.insert(quota::KEY_LABEL.to_owned(), key.clone());
    }
    let created = match keyed {
        Some(keyed) => {
            let label = idempotency::REQUEST_LABEL.to_owned();
            spec.labels.insert(label, keyed.request);
            idempotency::start(&app, keyed.box_id, spec, options, &caller).await?
        }
        None => {
            let admitted = app.admit(&caller, Need::lasting_box(&spec)).await?;
            let server = app.clone();
            let start = move |engine: &Engine| {
                let started = engine.start(&spec, &options)?;
                Created::watched(&server, &caller, started, &spec, admitted)
            };
            app.ask_to_create(start).await?
        }
    };
    match created {
        Created::Now(status) => Ok((StatusCode::CREATED, axum::Json(status)).into_response()),
        Created::Before(status) => Ok(axum::Json(status).into_response()),
    }
}

/// A box that was asked for.
#[derive(Debug)]
pub enum Created {
    Now(Status),
    /// By a request with the same key.
    Before(Status),
}

impl Created {
    /// A new box, whose end is noticed. Without a pause after its start: whoever asked
    /// for it may be gone.
    pub fn watched(
        app: &App,
        caller: &Caller,
        started: Started,
        spec: &Spec,
        mut admitted: Admitted,
    ) -> Result<Self, tare_engine::Error> {
        admitted.box_is_made();
        let (box_id, request_id) = (started.id.as_str(), &*caller.request_id);
        // Its creation is logged before its end can be.
        app.journal.record(&LogEvent::BoxCreated { box_id, request_id });
        app.journal.record_box_notes(&started.notes);
        // What cannot be watched now is watched later.
        app.watch.add(started.id.clone(), started.keeper, Some(admitted));
        app.engine.status_of_new(&started.id, spec).map(Self::Now)
    }
}

impl BoxRequest {
    fn take(self, app: &App) -> Result<(Spec, DetachOptions), ServiceError> {
        let config = app.config();
        let asked = Asked {
            command: self.command,
            env: self.env,
            workdir: self.workdir,
            limits: self.limits,
            network: self.network,
        };
        let mut spec = asked.into_spec(&config.limits)?;
        spec.name = self.name.as_deref().map(spec::box_name).transpose()?;
        quota::check_labels(&self.labels)?;
        spec.labels = spec::labels(&self.labels)?;
        let mut options = DetachOptions {
            keep: self.keep,
            remove: self.remove,
            lease: Some(spec::lease(self.lease_ms, &config.limits)?),
            ..DetachOptions::default()
        };
        if self.keep && self.remove {
            return Err(ServiceError::invalid("invalid", "keep and remove exclude each other"));
        }
        if let Some(asked) = self.retention_ms {
            options.retention = spec::milliseconds("retention_ms", asked)?;
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
    responses((status = 200, body = BoxList), (status = "4XX", body = ErrorBody))
)]
pub async fn list(
    State(app): State<App>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<axum::Json<BoxList>, ServiceError> {
    let query = taken(query)?;
    let wanted = Wanted::of(&query)?;
    let limit = query.limit.unwrap_or(LIST_DEFAULT);
    if limit == 0 || limit > LIST_DEFAULT {
        let message = format!("limit: it has to be 1 to {LIST_DEFAULT}");
        return Err(ServiceError::invalid("invalid", message));
    }
    let mut boxes = app.ask(Engine::list).await?;
    if let Some(after) = &query.after {
        let place = Cursor::find(after, &boxes)?;
        boxes.retain(|one| Cursor::of(one) > place);
    }
    boxes.retain(|one| wanted.has(one));
    let more = boxes.len() > limit;
    boxes.truncate(limit);
    let last = boxes.last().map(|one| Cursor::of(one).encode());
    Ok(axum::Json(BoxList { next: last.filter(|_| more), boxes }))
}

/// Query parameters, or what is wrong with them.
pub fn taken<T>(
    query: Result<Query<T>, axum::extract::rejection::QueryRejection>,
) -> Result<T, ServiceError> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => {
            let said = rejection.body_text();
            let why = said.strip_prefix("Failed to deserialize query string: ");
            let why = in_plain_words(why.unwrap_or(&said));
            Err(ServiceError::invalid("invalid_query", why)
                .with_hint("GET /openapi.json describes what is taken"))
        }
    }
}

/// Which boxes a list is of.
struct Wanted<'a> {
    state: Option<BoxState>,
    all: bool,
    name: Option<&'a str>,
    label: Option<(&'a str, Option<&'a str>)>,
}

impl<'a> Wanted<'a> {
    fn of(query: &'a ListQuery) -> Result<Self, ServiceError> {
        let label = query.label.as_deref().map(|text| match text.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (text, None),
        });
        Ok(Self {
            state: query.state.as_deref().map(str::parse).transpose()?,
            all: query.all,
            name: query.name.as_deref(),
            label,
        })
    }

    fn has(&self, one: &Status) -> bool {
        let in_state = match self.state {
            Some(state) => one.state == state,
            None => self.all || one.state != BoxState::Exited,
        };
        let is_named = self.name.is_none_or(|name| one.name.as_deref() == Some(name));
        let has_label = self.label.is_none_or(|(key, value)| {
            let found = one.labels.get(key);
            found.is_some_and(|found| value.is_none_or(|value| found == value))
        });
        in_state && is_named && has_label
    }
}

/// Everything that is known of a box
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}",
    tag = "boxes",
    params(("id" = String, Path, description = "An id, the beginning of one, or a name")),
    responses((status = 200, body = Details), (status = "4XX", body = ErrorBody))
)]
pub async fn inspect(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<axum::Json<Details>, ServiceError> {
    let details = app.ask_in_box(move |engine| engine.details(&engine.find(&id)?)).await?;
    Ok(axum::Json(details))
}

/// Remove a box
///
/// Answers when nothing of it is left. A box that cannot be ended gets 503 `stuck`, with
/// the step that failed; the server tries again until the box is gone.
#[utoipa::path(
    delete,
    path = "/v1/boxes/{id}",
    tag = "boxes",
    params(("id" = String, Path, description = "An id, the beginning of one, or a name"), RemoveQuery),
    responses((status = 204), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody))
)]
pub async fn remove(
    State(app): State<App>,
    Extension(Caller { request_id, .. }): Extension<Caller>,
    Path(id): Path<String>,
    query: Result<Query<RemoveQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<StatusCode, ServiceError> {
    let force = taken(query)?.force;
    let removed = stop::remove(&app, id, force, &request_id).await?;
    app.journal.record(&LogEvent::BoxRemoved { box_id: removed.as_str(), request_id: &request_id });
    Ok(StatusCode::NO_CONTENT)
}

/// Stop a box: SIGTERM, a grace, then SIGKILL
///
/// Answers when nothing of it but its record is left. A box that cannot be ended gets 503
/// `stuck`, with the step that failed; the server tries again.
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/stop",
    tag = "boxes",
    params(("id" = String, Path, description = "An id, the beginning of one, or a name")),
    request_body = Option<StopRequest>,
    responses((status = 200, body = Status), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody))
)]
pub async fn stop(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Option<Json<StopRequest>>,
) -> Result<axum::Json<Status>, ServiceError> {
    let grace_ms = request.and_then(|Json(request)| request.grace_ms);
    let grace = grace_ms.map_or(GRACE, Duration::from_millis);
    if grace > app.config().limits.timeout_max {
        return Err(ServiceError::invalid("invalid", "grace_ms: it is too long"));
    }
    let _turn = app.admission.quotas.begin_stop(&caller)?;
    let stopped = stop::stop(&app, id, grace, &caller.request_id).await?;
    Ok(axum::Json(stopped))
}

/// Freeze every process of a box
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/pause",
    tag = "boxes",
    params(("id" = String, Path, description = "An id, the beginning of one, or a name")),
    responses((status = 200, body = Status), (status = "4XX", body = ErrorBody))
)]
pub async fn pause(
    State(app): State<App>,
    Extension(Caller { request_id, .. }): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<Status>, ServiceError> {
    let Changed { before, after } = change(&app, id, Engine::pause).await?;
    if before.state != tare_engine::State::Paused {
        app.journal
            .record(&LogEvent::BoxPaused { box_id: after.id.as_str(), request_id: &request_id });
    }
    Ok(axum::Json(after))
}

/// Let a paused box go on
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/resume",
    tag = "boxes",
    params(("id" = String, Path, description = "An id, the beginning of one, or a name")),
    responses((status = 200, body = Status), (status = "4XX", body = ErrorBody))
)]
pub async fn resume(
    State(app): State<App>,
    Extension(Caller { request_id, .. }): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<Status>, ServiceError> {
    let Changed { before, after } = change(&app, id, Engine::resume).await?;
    if before.state == tare_engine::State::Paused {
        app.journal
            .record(&LogEvent::BoxResumed { box_id: after.id.as_str(), request_id: &request_id });
    }
    Ok(axum::Json(after))
}

/// Give a box another lease
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/lease",
    tag = "boxes",
    params(("id" = String, Path, description = "An id, the beginning of one, or a name")),
    request_body = LeaseRequest,
    responses((status = 200, body = Status), (status = "4XX", body = ErrorBody))
)]
pub async fn lease(
    State(app): State<App>,
    Extension(Caller { request_id, .. }): Extension<Caller>,
    Path(id): Path<String>,
    Json(request): Json<LeaseRequest>,
) -> Result<axum::Json<Status>, ServiceError> {
    let lease = spec::lease(Some(request.lease_ms), &app.config().limits)?;
    let update = move |engine: &Engine, id: &BoxId| {
        let changes = Changes { lease: Some(Some(lease)), ..Changes::default() };
        engine.update(id, &changes)
    };
    let Changed { after, .. } = change(&app, id, update).await?;
    app.journal.record(&LogEvent::BoxLeaseChanged {
        box_id: after.id.as_str(),
        request_id: &request_id,
        lease_ends_at: after.lease_ends_at,
    });
    Ok(axum::Json(after))
}

/// A box before and after something was done to it.
#[derive(Debug)]
struct Changed {
    before: Status,
    after: Status,
}

/// Does something to a box.
async fn change(
    app: &App,
    reference: String,
    act: impl FnOnce(&Engine, &BoxId) -> Result<(), tare_engine::Error> + Send + 'static,
) -> Result<Changed, ServiceError> {
    let changed = app.ask_in_box(move |engine| {
        let id = engine.find(&reference)?;
        let before = engine.status(&id)?;
        act(engine, &id)?;
        let after = engine.status(&id)?;
        Ok(Changed { before, after })
    });
    changed.await
}
