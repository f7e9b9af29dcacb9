//! What a box uses, and its end.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use tare_engine::{Ended, EndedBy, Looked, Usage};
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use crate::api::boxes::taken;
use crate::app::{App, Phase};
use crate::error::ServiceError;
use crate::http::error::ErrorBody;
use crate::http::extract::Path;
use crate::http::request_log;
use crate::work::spec;
use crate::work::stop::is_dead;

/// Between looks at a box that another process is making or ending, or that is stuck.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WaitQuery {
    /// So long at most. The operator's default if left out, 30 s unless configured.
    #[param(minimum = 1)]
    pub timeout_ms: Option<u64>,
}

#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Waited {
    /// `false`: it had not in that time.
    pub ended: bool,
    pub exit_code: Option<u8>,
    #[schema(value_type = Option<String>)]
    pub ended_by: Option<EndedBy>,
    pub oom: bool,
}

/// What a live box uses now, and what it may
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/stats",
    tag = "boxes",
    params(("id" = String, Path, description = "An id, the beginning of one, or a name")),
    responses((status = 200, body = Usage), (status = "4XX", body = ErrorBody))
)]
pub async fn stats(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<axum::Json<Usage>, ServiceError> {
    let usage = app.ask_in_box(move |engine| engine.usage(&engine.find(&id)?));
    Ok(axum::Json(usage.await?))
}

/// Wait for the end of a box
///
/// Answers when it has ended, how; also of one of which nothing is left by then.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/wait",
    tag = "boxes",
    params(("id" = String, Path, description = "An id, the beginning of one, or a name"), WaitQuery),
    responses((status = 200, body = Waited), (status = "4XX", body = ErrorBody))
)]
pub async fn wait(
    State(app): State<App>,
    Path(id): Path<String>,
    query: Result<Query<WaitQuery>, QueryRejection>,
) -> Result<axum::Json<Waited>, ServiceError> {
    let within = spec::timeout(taken(query)?.timeout_ms, &app.config().limits)?;
    request_log::hold_stream(&app)?;
    let until = Instant::now() + within;
    let opened = app.ask(move |engine| engine.watch_end(&engine.find(&id)?));
    let watch = Arc::new(opened.await?);
    loop {
        let watched = Arc::clone(&watch);
        let looked = app.ask(move |engine| engine.look_for_end(&watched));
        let looked = looked.await?;
        let left = until.saturating_duration_since(Instant::now());
        match looked {
            Looked::Ended(ended) => return Ok(axum::Json(Waited::of(&ended))),
            Looked::Lives(_) | Looked::Between if left.is_zero() => break,
            Looked::Lives(keeper) => drop(is_dead(&app, keeper.as_fd(), left).await?),
            Looked::Between => tokio::time::sleep(LOOK_AGAIN.min(left)).await,
        }
        if app.stopping.phase() > Phase::Serving {
            break;
        }
    }
    Ok(axum::Json(Waited::default()))
}

impl Waited {
    fn of(ended: &Ended) -> Self {
        Self { ended: true, exit_code: ended.exit_code, ended_by: ended.ended_by, oom: ended.oom }
    }
}
