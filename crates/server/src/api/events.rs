//! `GET /v1/events`: what happens to all boxes, as it happens.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::stream;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::app::{App, Phase};
use crate::error::ServiceError;
use crate::http::error::ErrorBody;
use crate::http::frames::{ALIVE_EVERY, EventFrame, Form};
use crate::http::request_log;
use crate::telemetry::journal::LogRecord;

/// What happens to boxes
///
/// From now on, what this server does to boxes and what it sees of them, whoever made
/// them: `box_created`, `box_paused`, `box_resumed`, `box_lease_changed`, `box_ended`,
/// `box_removed`, `run_ended` and more, as in its log, but for requests. As server-sent events, or with `Accept: application/x-ndjson` a JSON object
/// on each line. Whoever is too slow gets `missed` with a number of `events`; `alive`
/// comes now and then while nothing happens.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "boxes",
    responses(
        (status = 200, body = EventFrame, content_type = "text/event-stream"),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    )
)]
pub async fn events(State(app): State<App>, headers: HeaderMap) -> Result<Response, ServiceError> {
    request_log::hold_stream(&app)?;
    let form = Form::of_stream(&headers);
    let listening = Listening { noted: app.journal.subscribe(), app, form, has_begun: false };
    let frames = stream::unfold(listening, |mut listening| async move {
        let frame = listening.next().await?;
        Some((Ok(frame), listening))
    });
    Ok(form.response(frames))
}

struct Listening {
    app: App,
    noted: Receiver<Arc<LogRecord>>,
    form: Form,
    has_begun: bool,
}

/// A line in the log for every request is no event of a box.
const NOT_TOLD: &str = "request";

impl Listening {
    async fn next(&mut self) -> Option<String> {
        if !std::mem::replace(&mut self.has_begun, true) {
            // Whoever reads this misses nothing from here on.
            return Some(self.form.frame("alive", json!({})));
        }
        loop {
            let noted = tokio::select! {
                noted = self.noted.recv() => noted,
                () = self.app.stopping.reached(Phase::Draining) => return None,
                () = tokio::time::sleep(ALIVE_EVERY) => {
                    return Some(self.form.frame("alive", json!({})));
                }
            };
            match noted {
                Ok(noted) if noted.event() == NOT_TOLD => {}
                Ok(noted) => return Some(self.form.frame(noted.event(), noted.to_json())),
                Err(RecvError::Lagged(missed)) => {
                    return Some(self.form.frame("missed", json!({ "events": missed })));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }
}
