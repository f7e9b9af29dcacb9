//! `GET /v1/boxes/{id}/exec/ws`: a terminal in a box over a WebSocket.
//!
//! Binary frames are bytes, both ways. Text frames are control: `{"resize":[24,80]}` and
//! `{"signal":15}` from the client, `{"exit_code":0}` from the server, which then closes.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::json;
use tare_engine::spec::name::SIGNAL_MAX;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

use crate::api::exec::ProcessFields;
use crate::api::openapi::BoxPath;
use crate::api::requested::RequestedBox;
use crate::api::stream;
use crate::error::ServiceError;
use crate::http::error::error_json;
use crate::http::extract::Query;
use crate::http::{Http, request_log};
use crate::work::request::spec::TerminalSize;
use crate::work::run::exec::{Process, ProcessInput, WAITING_MAX};
use crate::work::run::outcome::RunOutput;
use crate::work::streams::chunk::Chunk;
use crate::work::streams::relay::{Input, ProcessControl};

/// The largest frame of a client. A larger one closes the connection.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// The server closes a connection on which neither side sends anything for this long.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

/// A terminal in a box
///
/// The process has a terminal of `rows` and `columns`. Binary frames are its bytes, both
/// ways. Text frames are control: `{"resize":[rows,columns]}` and `{"signal":15}` from the
/// client, `{"exit_code":0,"signal":null,"cause":"exited"}` from the server, which closes
/// then. The process ends when the client disconnects, and after thirty minutes in which neither
/// side sends anything.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/exec/ws",
    tag = "execs",
    params(
        BoxPath,
        ("command" = Vec<String>, Query, description = "The program, then each argument"),
        ("rows" = Option<u16>, Query, minimum = 1, description = "24 if left out"),
        ("columns" = Option<u16>, Query, minimum = 1, description = "80 if left out"),
        ("env" = Option<Vec<String>>, Query, description = "`KEY=VALUE`, once for each"),
        ("workdir" = Option<String>, Query),
        ("user" = Option<String>, Query, description = "`UID` or `UID:GID`"),
    ),
    responses((status = 101, description = "The terminal is open"))
)]
pub async fn open(
    RequestedBox { service, caller, id }: RequestedBox,
    State(http): State<Http>,
    Query(pairs): Query<Vec<(String, String)>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ServiceError> {
    let query = TerminalQuery::of(pairs)?;
    let spec = ProcessFields {
        command: query.command,
        env: &query.env,
        workdir: query.workdir,
        user: query.user.as_deref(),
        terminal: Some(query.terminal),
    }
    .into_spec()?;
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => {
            let error = ServiceError::invalid("websocket_required", rejection.body_text());
            return Ok((StatusCode::UPGRADE_REQUIRED, error).into_response());
        }
    };
    let stream = request_log::open_stream(&http)?;
    let id = service.find(&caller, &id).await?;
    let process = service.exec(&caller, &id, spec, ProcessInput::Pipe).await?;
    let client_timeout = service.config().limits.client.0;
    // If the client does not upgrade, the process is dropped, which ends it.
    let upgrade = upgrade.max_frame_size(FRAME_BYTES_MAX).max_message_size(FRAME_BYTES_MAX);
    Ok(upgrade
        .on_upgrade(move |socket| async move {
            let _stream = stream;
            serve_connection(process, socket, client_timeout).await;
        })
        .into_response())
}

/// The query of the request.
#[derive(Debug)]
struct TerminalQuery {
    command: Vec<String>,
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    user: Option<String>,
    terminal: TerminalSize,
}

impl TerminalQuery {
    fn of(pairs: Vec<(String, String)>) -> Result<Self, ServiceError> {
        let mut wanted = Self {
            command: Vec::new(),
            env: BTreeMap::new(),
            workdir: None,
            user: None,
            terminal: TerminalSize { rows: ROWS, columns: COLUMNS },
        };
        for (key, value) in pairs {
            wanted.take(&key, value)?;
        }
        Ok(wanted)
    }

    fn take(&mut self, key: &str, value: String) -> Result<(), ServiceError> {
        let wrong = |expected: &str| {
            let message = format!("{key}: {value:?} is not {expected}");
            ServiceError::invalid("invalid_query", message)
        };
        let no_extent = || wrong("a whole number from 1 to 65535");
        match key {
            "command" => self.command.push(value),
            "env" => {
                let (name, content) = value.split_once('=').ok_or_else(|| wrong("KEY=VALUE"))?;
                self.env.insert(name.to_owned(), content.to_owned());
            }
            "workdir" => self.workdir = Some(value),
            "user" => self.user = Some(value),
            "rows" => self.terminal.rows = extent(&value).ok_or_else(no_extent)?,
            "columns" => self.terminal.columns = extent(&value).ok_or_else(no_extent)?,
            unknown => {
                let message = format!("there is no parameter {unknown:?}");
                return Err(ServiceError::invalid("invalid_query", message));
            }
        }
        Ok(())
    }
}

/// Parses the number of rows or columns.
fn extent(text: &str) -> Option<u16> {
    text.parse().ok().filter(|extent| *extent > 0)
}

/// A text frame of the client.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Control {
    Resize([u16; 2]),
    Signal(i32),
}

impl Control {
    fn parse(text: &str) -> Option<ProcessControl> {
        match serde_json::from_str(text).ok()? {
            Self::Resize([rows, columns]) if rows > 0 && columns > 0 => {
                Some(ProcessControl::Resize { rows, columns })
            }
            Self::Signal(signal) if (1..=SIGNAL_MAX).contains(&signal) => {
                Some(ProcessControl::Signal(signal))
            }
            Self::Resize(_) | Self::Signal(_) => None,
        }
    }
}

/// Serves the connection until the process or the client ends it.
async fn serve_connection(process: Process, socket: WebSocket, client_timeout: Duration) {
    let (sink, chunks) = stream::channel(client_timeout);
    let (input, more) = mpsc::channel(WAITING_MAX);
    let (control, controlled) = mpsc::channel(WAITING_MAX);
    let input_of_process = Input { bytes: Vec::new(), more: Some(more), charge: None };
    let (mut to, from) = socket.split();
    let (alive, activity) = tokio::sync::watch::channel(());
    let running = async {
        let output = process.relay(input_of_process, Some(controlled), &sink).await;
        drop(sink);
        output
    };
    let sending = send_output(&mut to, chunks, &alive, client_timeout);
    let receiving = receive(from, &input, &control, &alive, client_timeout);
    let (result, close) = tokio::select! {
        // The client gets all output before it gets the exit code.
        (output, sent) = async { tokio::join!(running, sending) } => match sent {
            Ok(()) => last(output),
            Err(Gone) => return,
        },
        refused = receiving => match refused {
            Some(why) => (None, close(close_code::POLICY, why)),
            None => return,
        },
        () = idle(activity) => (None, close(close_code::AWAY, "the connection was idle for too long")),
    };
    let closing = async {
        if let Some(result) = result {
            to.send(Message::Text(result.into())).await?;
        }
        to.send(Message::Close(Some(close))).await
    };
    // A client that does not read this is gone.
    tokio::time::timeout(client_timeout, closing).await.ok();
}

fn close(code: u16, why: &'static str) -> CloseFrame {
    CloseFrame { code, reason: why.into() }
}

fn last(output: Result<RunOutput, ServiceError>) -> (Option<String>, CloseFrame) {
    match output {
        Ok(RunOutput { end, .. }) => {
            let result = json!({
                "exit_code": end.code(),
                "signal": end.signal(),
                "cause": end.cause,
            });
            (Some(result.to_string()), close(close_code::NORMAL, ""))
        }
        Err(error) => {
            let result = json!({ "error": error_json(&error) });
            (Some(result.to_string()), close(close_code::ERROR, error.code))
        }
    }
}

/// The client is gone.
struct Gone;

async fn send_output(
    to: &mut (impl SinkExt<Message> + Unpin),
    mut chunks: mpsc::Receiver<Chunk>,
    alive: &tokio::sync::watch::Sender<()>,
    client_timeout: Duration,
) -> Result<(), Gone> {
    while let Some(Chunk { bytes, .. }) = chunks.recv().await {
        let message = Message::Binary(Bytes::from(bytes));
        match tokio::time::timeout(client_timeout, to.send(message)).await {
            Ok(Ok(())) => alive.send_replace(()),
            Ok(Err(_)) | Err(_) => return Err(Gone),
        }
    }
    Ok(())
}

/// Handles frames until the client is gone. Returns the reason if a frame is refused.
async fn receive(
    mut from: impl StreamExt<Item = Result<Message, axum::Error>> + Unpin,
    input: &mpsc::Sender<Vec<u8>>,
    control: &mpsc::Sender<ProcessControl>,
    alive: &tokio::sync::watch::Sender<()>,
    client_timeout: Duration,
) -> Option<&'static str> {
    while let Some(Ok(message)) = from.next().await {
        alive.send_replace(());
        let handled = match message {
            // A process that is about to end takes no input.
            Message::Binary(bytes) => {
                match input.send_timeout(bytes.to_vec(), client_timeout).await {
                    Ok(()) | Err(SendTimeoutError::Closed(_)) => Ok(()),
                    Err(SendTimeoutError::Timeout(_)) => Err("the process does not read"),
                }
            }
            Message::Text(text) => match Control::parse(&text) {
                Some(request) => {
                    control.send(request).await.ok();
                    Ok(())
                }
                None => Err("a text frame is a resize or a signal"),
            },
            Message::Ping(_) | Message::Pong(_) => Ok(()),
            Message::Close(_) => return None,
        };
        if let Err(why) = handled {
            return Some(why);
        }
    }
    None
}

/// Returns when neither side has sent anything for too long.
async fn idle(mut activity: tokio::sync::watch::Receiver<()>) {
    while let Ok(Ok(())) = tokio::time::timeout(IDLE_MAX, activity.changed()).await {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_control_message_is_refused() {
        let resize = ProcessControl::Resize { rows: 24, columns: 80 };
        assert_eq!(Control::parse(r#"{"resize":[24,80]}"#), Some(resize));
        assert_eq!(Control::parse(r#"{"signal":15}"#), Some(ProcessControl::Signal(15)));
        for wrong in [
            "",
            "{}",
            r#"{"resize":[0,80]}"#,
            r#"{"resize":[1]}"#,
            r#"{"resize":[70000,1]}"#,
            r#"{"signal":0}"#,
            r#"{"signal":65}"#,
            r#"{"signal":"TERM"}"#,
            r#"{"signal":15,"resize":[1,1]}"#,
        ] {
            assert_eq!(Control::parse(wrong), None, "{wrong}");
        }
    }
}
