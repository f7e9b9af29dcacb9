//! What a box uses, and its end.

use std::os::fd::AsFd;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use tare_engine::{Doing, EndedBy, Usage};
use tokio::io::Interest;
use utoipa::{IntoParams, ToSchema};

use crate::api::boxes::taken;
use crate::app::{App, Phase};
use crate::edge::ErrorBody;
use crate::error::ApiError;
use crate::extract::Path;
use crate::{ready, spec};

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
) -> Result<axum::Json<Usage>, ApiError> {
    let usage = app.ask(move |engine| engine.usage(&engine.find(&id)?));
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
) -> Result<axum::Json<Waited>, ApiError> {
    let within = spec::timeout(taken(query)?.timeout_ms, &app.config().limits)?;
    let opened = app.ask(move |engine| {
        let id = engine.find(&id)?;
        // In this order: whoever is gone by now is seen to be.
        let watch = engine.watch_end(&id)?;
        Ok((watch, engine.keeper(&id)?))
    });
    let (watch, keeper) = opened.await?;
    if let Some(keeper) = keeper
        && !is_dead(&app, keeper.as_fd(), within).await?
    {
        return Ok(axum::Json(Waited::default()));
    }
    // Its keeper is dead: what is left takes no time of its own.
    let ended = app.ask(move |engine| engine.await_end(&watch)).await?;
    Ok(axum::Json(Waited {
        ended: true,
        exit_code: ended.exit_code,
        ended_by: ended.ended_by,
        oom: ended.oom,
    }))
}

/// Whether it is within this time, or before the server ends.
async fn is_dead(
    app: &App,
    keeper: std::os::fd::BorrowedFd<'_>,
    within: Duration,
) -> Result<bool, ApiError> {
    let keeper = keeper.try_clone_to_owned();
    let keeper = keeper.and_then(|fd| ready::watched(fd, Interest::READABLE));
    let keeper = keeper.doing(|| "cannot wait for the box".into())?;
    tokio::select! {
        dead = keeper.readable() => Ok(dead.is_ok()),
        () = tokio::time::sleep(within) => Ok(false),
        () = app.stopping.reached(Phase::Draining) => Ok(false),
    }
}
