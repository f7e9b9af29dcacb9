//! `GET /v1/boxes/{id}/exec/ws`: a terminal in a box over a WebSocket.
//!
//! Binary frames are bytes, both ways. Text frames are control: `{"resize":[24,80]}` and
//! `{"signal":15}` from the client, `{"exit_code":0}` from the server, which then closes.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

use crate::api::boxes::taken;
use crate::api::exec::{Asked, TerminalAsked, WAITING_MAX, signal_of};
use crate::app::App;
use crate::error::ServiceError;
use crate::http::error::{ErrorBody, error_json};
use crate::http::extract::Path;
use crate::http::frames;
use crate::http::request_log;
use crate::work::exec::{self, Fed, Outcome, Process};
use crate::work::relay::{Chunk, Input, Order};

/// A frame of a client; larger ones end its session.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// A session in which neither side says anything for so long is over.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

/// A terminal in a box
///
/// The process has a terminal of `rows` and `columns`. Binary frames are its bytes, both
/// ways. Text frames are control: `{"resize":[rows,columns]}` and `{"signal":15}` from the
/// client, `{"exit_code":0,"signal":null,"timed_out":false}` from the server, which closes
/// then. A client that goes away ends the process, and so do thirty minutes in which
/// neither side says anything.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/exec/ws",
    tag = "execs",
    params(
        ("id" = String, Path, description = "An id, the beginning of one, or a name"),
        ("command" = Vec<String>, Query, description = "The program, and once for each argument"),
        ("rows" = Option<u16>, Query, minimum = 1, description = "24 if left out"),
        ("columns" = Option<u16>, Query, minimum = 1, description = "80 if left out"),
        ("env" = Option<Vec<String>>, Query, description = "`KEY=VALUE`, once for each"),
        ("workdir" = Option<String>, Query),
        ("user" = Option<String>, Query, description = "`UID` or `UID:GID`"),
    ),
    responses(
        (status = 101, description = "The terminal is open"),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    )
)]
pub async fn open(
    State(app): State<App>,
    Path(id): Path<String>,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ServiceError> {
    let wanted = Wanted::of(taken(query)?)?;
    let spec = Asked {
        command: wanted.command,
        env: &wanted.env,
        workdir: wanted.workdir,
        user: wanted.user.as_deref(),
        terminal: Some(wanted.terminal),
    }
    .into_spec()?;
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => {
            let error = ServiceError::invalid("websocket_required", rejection.body_text());
            return Ok((StatusCode::UPGRADE_REQUIRED, error).into_response());
        }
    };
    let stream = request_log::open_stream(&app)?;
    let id = app.ask(move |engine| engine.find(&id)).await?;
    let process = exec::begin(&app, id, spec, Fed::Yes).await?;
    // A client that does not come drops the process, which ends it.
    let upgrade = upgrade.max_frame_size(FRAME_BYTES_MAX).max_message_size(FRAME_BYTES_MAX);
    Ok(upgrade
        .on_upgrade(move |socket| async move {
            let _stream = stream;
            attend(&app, process, socket).await;
        })
        .into_response())
}

/// What the query asks for.
#[derive(Debug)]
struct Wanted {
    command: Vec<String>,
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    user: Option<String>,
    terminal: TerminalAsked,
}

impl Wanted {
    fn of(pairs: Vec<(String, String)>) -> Result<Self, ServiceError> {
        let mut wanted = Self {
            command: Vec::new(),
            env: BTreeMap::new(),
            workdir: None,
            user: None,
            terminal: TerminalAsked { rows: ROWS, columns: COLUMNS },
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

/// Of a terminal, in one direction.
fn extent(text: &str) -> Option<u16> {
    text.parse().ok().filter(|extent| *extent > 0)
}

/// What a client says about the terminal.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Control {
    Resize([u16; 2]),
    Signal(i32),
}

/// The last of the real-time signals (signal(7)).
const SIGNAL_MAX: i32 = 64;

impl Control {
    fn parse(text: &str) -> Option<Order> {
        match serde_json::from_str(text).ok()? {
            Self::Resize([rows, columns]) if rows > 0 && columns > 0 => {
                Some(Order::Resize { rows, columns })
            }
            Self::Signal(signal) if (1..=SIGNAL_MAX).contains(&signal) => {
                Some(Order::Signal(signal))
            }
            Self::Resize(_) | Self::Signal(_) => None,
        }
    }
}

/// From the first frame to the last.
async fn attend(app: &App, process: Process, socket: WebSocket) {
    let patience = app.config().limits.client;
    let (output, chunks) = frames::passed(app);
    let (input, more) = mpsc::channel(WAITING_MAX);
    let (orders, ordered) = mpsc::channel(WAITING_MAX);
    let fed = Input { bytes: Vec::new(), more: Some(more), charge: None };
    let (mut to, from) = socket.split();
    let (alive, heard) = tokio::sync::watch::channel(());
    let running = async {
        let outcome = process.run(app, fed, Some(ordered), &output).await;
        drop(output);
        outcome
    };
    let passing = pass(&mut to, chunks, &alive, patience);
    let hearing = hear(from, &input, &orders, &alive, patience);
    let close = tokio::select! {
        // Everything that it wrote is passed on before its end is told.
        (outcome, passed) = async { tokio::join!(running, passing) } => match passed {
            Ok(()) => last(outcome),
            Err(Gone) => return,
        },
        refused = hearing => match refused {
            Some(why) => (None, close(close_code::POLICY, why)),
            None => return,
        },
        () = idle(heard) => (None, close(close_code::AWAY, "nothing was said for too long")),
    };
    let (told, close) = close;
    let farewell = async {
        if let Some(told) = told {
            to.send(Message::Text(told.into())).await?;
        }
        to.send(Message::Close(Some(close))).await
    };
    // Who does not hear it is gone.
    tokio::time::timeout(patience, farewell).await.ok();
}

fn close(code: u16, why: &'static str) -> CloseFrame {
    CloseFrame { code, reason: why.into() }
}

fn last(outcome: Result<Outcome, ServiceError>) -> (Option<String>, CloseFrame) {
    match outcome {
        Ok(outcome) => {
            let (exit, timed_out) = outcome.ended.verdict();
            let told = json!({
                "exit_code": exit.code(),
                "signal": signal_of(exit),
                "timed_out": timed_out,
            });
            (Some(told.to_string()), close(close_code::NORMAL, ""))
        }
        Err(error) => {
            let told = json!({ "error": error_json(&error) });
            (Some(told.to_string()), close(close_code::ERROR, error.code))
        }
    }
}

/// Whoever was to be told is not there.
struct Gone;

async fn pass(
    to: &mut (impl SinkExt<Message> + Unpin),
    mut chunks: mpsc::Receiver<Chunk>,
    alive: &tokio::sync::watch::Sender<()>,
    patience: Duration,
) -> Result<(), Gone> {
    while let Some(Chunk::Stdout(bytes) | Chunk::Stderr(bytes)) = chunks.recv().await {
        let message = Message::Binary(Bytes::from(bytes));
        match tokio::time::timeout(patience, to.send(message)).await {
            Ok(Ok(())) => alive.send_replace(()),
            Ok(Err(_)) | Err(_) => return Err(Gone),
        }
    }
    Ok(())
}

/// Until the client is gone, or says what cannot be heard.
async fn hear(
    mut from: impl StreamExt<Item = Result<Message, axum::Error>> + Unpin,
    input: &mpsc::Sender<Vec<u8>>,
    orders: &mpsc::Sender<Order>,
    alive: &tokio::sync::watch::Sender<()>,
    patience: Duration,
) -> Option<&'static str> {
    while let Some(Ok(message)) = from.next().await {
        alive.send_replace(());
        let heard = match message {
            // Of a process that is about to end neither is taken any more.
            Message::Binary(bytes) => match input.send_timeout(bytes.to_vec(), patience).await {
                Ok(()) | Err(SendTimeoutError::Closed(_)) => Ok(()),
                Err(SendTimeoutError::Timeout(_)) => Err("the process does not read"),
            },
            Message::Text(text) => match Control::parse(&text) {
                Some(order) => {
                    orders.send(order).await.ok();
                    Ok(())
                }
                None => Err("a text frame is a resize or a signal"),
            },
            Message::Ping(_) | Message::Pong(_) => Ok(()),
            Message::Close(_) => return None,
        };
        if let Err(why) = heard {
            return Some(why);
        }
    }
    None
}

/// Returns when nobody has said anything for too long.
async fn idle(mut heard: tokio::sync::watch::Receiver<()>) {
    while let Ok(Ok(())) = tokio::time::timeout(IDLE_MAX, heard.changed()).await {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_control_message_is_refused() {
        let resize = Order::Resize { rows: 24, columns: 80 };
        assert_eq!(Control::parse(r#"{"resize":[24,80]}"#), Some(resize));
        assert_eq!(Control::parse(r#"{"signal":15}"#), Some(Order::Signal(15)));
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
