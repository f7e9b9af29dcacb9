//! `/v1/boxes/{id}/execs/{exec}`: processes that were started detached.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tare_engine::spec::name;
use tare_engine::{Cause, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::api::openapi::ExecPath;
use crate::api::requested::RequestedExec;
use crate::api::stream;
use crate::error::ServiceError;
use crate::http::body::BoundedBody;
use crate::http::extract::{Json, Query};
use crate::http::frames::{EventFrame, StreamFormat, TextFrames};
use crate::http::text::Encoding;
use crate::http::{Http, request_log};
use crate::work::Service;
use crate::work::request::spec::{self, TerminalSize};
use crate::work::run::processes::ExecProcess;
use crate::work::streams::chunk::CHUNK_BYTES;
use crate::work::streams::recent_output::{Piece, Position};
use crate::work::streams::relay::ProcessControl;

/// A detached process.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExecStatus {
    pub id: String,
    /// The id of the box.
    pub box_id: String,
    pub command: Vec<String>,
    pub state: ExecState,
    #[schema(value_type = String)]
    pub started_at: Timestamp,
    #[schema(value_type = Option<String>)]
    pub ended_at: Option<Timestamp>,
    /// The process's own code, 128+N after signal N, 124 after the timeout.
    pub exit_code: Option<u8>,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// Why the process ended; `null` while it runs.
    #[schema(value_type = Option<String>)]
    pub cause: Option<Cause>,
    /// The number of bytes that the process has written.
    pub output_bytes: u64,
    /// The number of those bytes that the server no longer has. It keeps the last 256 KiB.
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
    /// The encoding of the output.
    #[serde(default)]
    #[param(inline)]
    pub encoding: Encoding,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StdinQuery {
    /// Whether this is the end of the input. A terminal gets Ctrl-D.
    #[serde(default)]
    pub close: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    pub signal: SignalName,
}

/// A name such as `TERM` or `SIGTERM`, or a number.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SignalName {
    Number(u8),
    Name(String),
}

impl SignalName {
    pub fn number(self) -> Result<i32, ServiceError> {
        let text = match self {
            Self::Number(number) => number.to_string(),
            Self::Name(name) => name,
        };
        name::signal(&text).map_err(|error| spec::of_field("signal", error))
    }
}

impl ExecStatus {
    pub fn of(exec: &ExecProcess) -> Self {
        let end = exec.end();
        let (output_bytes, dropped_bytes) = exec.output.counts();
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
            exit_code: end.map(|end| end.end.code()),
            signal: end.and_then(|end| end.end.signal()),
            cause: end.map(|end| end.end.cause),
            output_bytes,
            dropped_bytes,
        }
    }
}

/// A detached process as it is now
///
/// The server remembers a process for ten minutes after its end, and at most 64 of a box. When the
/// server exits, its detached processes are killed, and the next server returns 404 for them.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/execs/{exec}",
    tag = "execs",
    params(ExecPath),
    responses((status = 200, body = ExecStatus))
)]
pub async fn inspect(RequestedExec(exec): RequestedExec) -> axum::Json<ExecStatus> {
    axum::Json(ExecStatus::of(&exec))
}

/// The output of a detached process, and how it ended
///
/// Begins with the last 256 KiB and ends with the process: frames `stdout` and `stderr`, `missed` with
/// the number of `bytes` that the server no longer has, and a `result` last. The frames are
/// server-sent events, or with `Accept: application/x-ndjson` a JSON object on each line.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/execs/{exec}/stream",
    tag = "execs",
    params(ExecPath, StreamQuery),
    responses((status = 200, body = EventFrame, content_type = "text/event-stream"))
)]
pub async fn output(
    RequestedExec(exec): RequestedExec,
    State(http): State<Http>,
    Query(query): Query<StreamQuery>,
    headers: HeaderMap,
) -> Result<Response, ServiceError> {
    request_log::hold_stream(&http)?;
    let format = StreamFormat::of_stream(&headers);
    let mut texts = TextFrames::new(format, query.encoding);
    Ok(format.streamed(|sender| async move {
        let mut position = Position::default();
        loop {
            match exec.output.next(&mut position).await {
                Piece::Chunk(chunk) => {
                    sender.send(texts.frame(chunk.stream, chunk.bytes)).await;
                }
                Piece::Missed(bytes) => {
                    let missed = texts.event("missed", json!({ "bytes": bytes }));
                    sender.send(texts.flush() + &missed).await;
                }
                Piece::Over => {
                    let result = texts.event("result", stream::json(&ExecStatus::of(&exec)));
                    sender.send(texts.flush() + &result).await;
                    return Ok(());
                }
            }
        }
    }))
}

/// Input for a detached process
///
/// Responds when all input is sent to the process. If the process does not read it within `[limits]
/// client`, the response is 408 `stdin_stalled`.
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/execs/{exec}/stdin",
    tag = "execs",
    params(ExecPath, StdinQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204))
)]
pub async fn stdin(
    RequestedExec(exec): RequestedExec,
    State(service): State<Service>,
    Query(query): Query<StdinQuery>,
    body: Body,
) -> Result<StatusCode, ServiceError> {
    let Some(input) = exec.input() else {
        let message = "the input of the process is closed, or the process has ended";
        return Err(ServiceError::conflict("stdin_closed", message));
    };
    let client_timeout = service.config().limits.client.0;
    let mut body = BoundedBody::unbounded(body, client_timeout);
    while let Some(bytes) = body.next().await? {
        for piece in bytes.chunks(CHUNK_BYTES) {
            let sent = input.send_timeout(piece.to_vec(), client_timeout).await;
            let message = "the process does not read its input";
            sent.map_err(|_| ServiceError::too_slow("stdin_stalled", message))?;
        }
    }
    if query.close {
        exec.close_input();
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Send a signal to a detached process
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/execs/{exec}/signal",
    tag = "execs",
    params(ExecPath),
    request_body = SignalRequest,
    responses((status = 204))
)]
pub async fn signal(
    RequestedExec(exec): RequestedExec,
    Json(request): Json<SignalRequest>,
) -> Result<StatusCode, ServiceError> {
    control(&exec, ProcessControl::Signal(request.signal.number()?)).await
}

/// Give the terminal of a detached process another size
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/execs/{exec}/resize",
    tag = "execs",
    params(ExecPath),
    request_body = TerminalSize,
    responses((status = 204))
)]
pub async fn resize(
    RequestedExec(exec): RequestedExec,
    Json(request): Json<TerminalSize>,
) -> Result<StatusCode, ServiceError> {
    request.into_terminal()?;
    let TerminalSize { rows, columns } = request;
    control(&exec, ProcessControl::Resize { rows, columns }).await
}

async fn control(exec: &ExecProcess, request: ProcessControl) -> Result<StatusCode, ServiceError> {
    // Sending fails only after the process has ended.
    let is_sent = exec.end().is_none() && exec.control.send(request).await.is_ok();
    if is_sent {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ServiceError::conflict("exec_ended", "the process has ended"))
    }
}
