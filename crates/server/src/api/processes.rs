//! `/v1/boxes/{id}/execs/{exec}`: processes that were started detached.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tare_engine::Timestamp;
use tare_engine::spec::name;
use utoipa::{IntoParams, ToSchema};

use crate::api::boxes::taken;
use crate::api::exec::{TerminalAsked, signal_of};
use crate::app::App;
use crate::error::ServiceError;
use crate::http::error::ErrorBody;
use crate::http::extract::{Json, Path};
use crate::http::frames::{EventFrame, Form, Texts};
use crate::http::request_log;
use crate::http::text::Encoding;
use crate::work::processes::Exec;
use crate::work::recent_output::{Next, Place};
use crate::work::relay::{CHUNK_BYTES, Order};
use crate::work::spec;

/// A detached process.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExecStatus {
    pub id: String,
    /// The box's.
    pub box_id: String,
    pub command: Vec<String>,
    pub state: ExecState,
    #[schema(value_type = String)]
    pub started_at: Timestamp,
    #[schema(value_type = Option<String>)]
    pub ended_at: Option<Timestamp>,
    /// Its own, 128+N after signal N, 124 after its timeout.
    pub exit_code: Option<u8>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    pub timed_out: bool,
    /// All that it has written.
    pub output_bytes: u64,
    /// What of it is not there any more: the last 256 KiB are.
    pub dropped_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecState {
    Running,
    Exited,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StreamQuery {
    /// How the output is written.
    #[serde(default)]
    #[param(inline)]
    pub encoding: Encoding,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StdinQuery {
    /// Whether nothing comes after this. A terminal gets Ctrl-D.
    #[serde(default)]
    pub close: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    pub signal: SignalAsked,
}

/// A name such as `TERM` or `SIGTERM`, or a number.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SignalAsked {
    Number(u8),
    Name(String),
}

impl SignalAsked {
    fn number(self) -> Result<i32, ServiceError> {
        let text = match self {
            Self::Number(number) => number.to_string(),
            Self::Name(name) => name,
        };
        name::signal(&text).map_err(|error| spec::of_field("signal", error))
    }
}

impl ExecStatus {
    pub fn of(exec: &Exec) -> Self {
        let end = exec.end();
        let (output_bytes, dropped_bytes) = exec.memory.counts();
        Self {
            id: exec.id.clone(),
            box_id: exec.box_id.to_string(),
            command: exec.command.clone(),
            state: match end {
                None => ExecState::Running,
                Some(_) => ExecState::Exited,
            },
            started_at: exec.started_at,
            ended_at: end.map(|end| end.at),
            exit_code: end.map(|end| end.exit.code()),
            signal: end.and_then(|end| signal_of(end.exit)),
            timed_out: end.is_some_and(|end| end.timed_out),
            output_bytes,
            dropped_bytes,
        }
    }
}

/// A detached process as it is now
///
/// It is remembered for ten minutes after its end, 64 of a box, and by this server
/// alone: when that ends, so does the process, and nobody knows of it any more.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/execs/{exec}",
    tag = "execs",
    params(
        ("id" = String, Path, description = "An id, the beginning of one, or a name"),
        ("exec" = String, Path, description = "The id of a detached process"),
    ),
    responses((status = 200, body = ExecStatus), (status = "4XX", body = ErrorBody))
)]
pub async fn inspect(
    State(app): State<App>,
    Path((id, exec)): Path<(String, String)>,
) -> Result<axum::Json<ExecStatus>, ServiceError> {
    let exec = find(&app, id, &exec).await?;
    Ok(axum::Json(ExecStatus::of(&exec)))
}

/// The output of a detached process, and how it ended
///
/// From what is still there of it, the last 256 KiB, on to its end: frames of `stdout`
/// and `stderr`, `missed` with a number of `bytes` where some are not there any more,
/// and a `result` last. As server-sent events, or with `Accept: application/x-ndjson` a
/// JSON object on each line.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/execs/{exec}/stream",
    tag = "execs",
    params(
        ("id" = String, Path, description = "An id, the beginning of one, or a name"),
        ("exec" = String, Path, description = "The id of a detached process"),
        StreamQuery,
    ),
    responses(
        (status = 200, body = EventFrame, content_type = "text/event-stream"),
        (status = "4XX", body = ErrorBody),
    )
)]
pub async fn stream_of(
    State(app): State<App>,
    Path((id, exec)): Path<(String, String)>,
    query: Result<Query<StreamQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ServiceError> {
    let encoding = taken(query)?.encoding;
    request_log::hold_stream(&app)?;
    let exec = find(&app, id, &exec).await?;
    let form = Form::of_stream(&headers);
    let following = Following {
        exec,
        place: Place::default(),
        texts: Texts::new(form, encoding),
        form,
        is_over: false,
    };
    Ok(form.response(stream::unfold(following, |mut following| async move {
        let frame = following.next().await?;
        Some((Ok(frame), following))
    })))
}

struct Following {
    exec: Arc<Exec>,
    place: Place,
    texts: Texts,
    form: Form,
    is_over: bool,
}

impl Following {
    async fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        Some(match self.exec.memory.next(&mut self.place).await {
            Next::Chunk(chunk) => self.texts.frame(chunk),
            Next::Missed(bytes) => {
                let last = self.texts.last();
                last + &self.form.frame("missed", json!({ "bytes": bytes }))
            }
            Next::Over => {
                self.is_over = true;
                let status = serde_json::to_value(ExecStatus::of(&self.exec));
                let result = status.unwrap_or(Value::Null);
                self.texts.last() + &self.form.frame("result", result)
            }
        })
    }
}

/// Input for a detached process
///
/// Answers when all of it is on its way. A process that does not read gets nothing: its
/// client is told after a while.
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/execs/{exec}/stdin",
    tag = "execs",
    params(
        ("id" = String, Path, description = "An id, the beginning of one, or a name"),
        ("exec" = String, Path, description = "The id of a detached process"),
        StdinQuery,
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204), (status = "4XX", body = ErrorBody))
)]
pub async fn stdin(
    State(app): State<App>,
    Path((id, exec)): Path<(String, String)>,
    query: Result<Query<StdinQuery>, QueryRejection>,
    body: Body,
) -> Result<StatusCode, ServiceError> {
    let close = taken(query)?.close;
    let exec = find(&app, id, &exec).await?;
    let Some(input) = exec.input() else {
        let message = "its input is closed, or it has ended";
        return Err(ServiceError::conflict("stdin_closed", message));
    };
    let patience = app.config().limits.client;
    let stalled = |code, message| ServiceError::too_slow(code, message);
    let mut body = body.into_data_stream();
    loop {
        let next = tokio::time::timeout(patience, body.next()).await;
        let slow = |_| stalled("slow_body", "the body did not come in time");
        let Some(bytes) = next.map_err(slow)? else {
            break;
        };
        let cut = |_| ServiceError::invalid("incomplete", "the body ended too early");
        for piece in bytes.map_err(cut)?.chunks(CHUNK_BYTES) {
            let sent = input.send_timeout(piece.to_vec(), patience).await;
            sent.map_err(|_| stalled("stdin_stalled", "the process does not read its input"))?;
        }
    }
    if close {
        exec.close_input();
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Send a signal to a detached process
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/execs/{exec}/signal",
    tag = "execs",
    params(
        ("id" = String, Path, description = "An id, the beginning of one, or a name"),
        ("exec" = String, Path, description = "The id of a detached process"),
    ),
    request_body = SignalRequest,
    responses((status = 204), (status = "4XX", body = ErrorBody))
)]
pub async fn signal(
    State(app): State<App>,
    Path((id, exec)): Path<(String, String)>,
    Json(request): Json<SignalRequest>,
) -> Result<StatusCode, ServiceError> {
    let order = Order::Signal(request.signal.number()?);
    give(&app, id, &exec, order).await
}

/// Give the terminal of a detached process another size
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/execs/{exec}/resize",
    tag = "execs",
    params(
        ("id" = String, Path, description = "An id, the beginning of one, or a name"),
        ("exec" = String, Path, description = "The id of a detached process"),
    ),
    request_body = TerminalAsked,
    responses((status = 204), (status = "4XX", body = ErrorBody))
)]
pub async fn resize(
    State(app): State<App>,
    Path((id, exec)): Path<(String, String)>,
    Json(request): Json<TerminalAsked>,
) -> Result<StatusCode, ServiceError> {
    request.into_terminal()?;
    let TerminalAsked { rows, columns } = request;
    give(&app, id, &exec, Order::Resize { rows, columns }).await
}

async fn give(app: &App, id: String, exec: &str, order: Order) -> Result<StatusCode, ServiceError> {
    let exec = find(app, id, exec).await?;
    // Whoever does not take it has ended.
    let given = match exec.end() {
        None => exec.orders.send(order).await.is_ok(),
        Some(_) => false,
    };
    if given {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ServiceError::conflict("exec_ended", "the process has ended"))
    }
}

/// A box that is gone has no processes.
async fn find(app: &App, id: String, exec: &str) -> Result<Arc<Exec>, ServiceError> {
    let id = app.ask(move |engine| engine.find(&id)).await?;
    app.execs.find(&id, exec)
}
