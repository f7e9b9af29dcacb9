//! `GET /v1/events`: what happens to the boxes that a caller can see, as it happens.

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::http::frames::{EventFrame, StreamFormat};
use crate::http::{Http, request_log};
use crate::work::boxes::logs::ALIVE_EVERY;

/// The log has a line for every request. Clients do not get these.
const NOT_SHOWN: &str = "request";

/// Events of boxes
///
/// Streams what this server does to the boxes of the key from now on, and what it sees of them:
/// `box_created`, `box_paused`, `box_resumed`, `box_lease_changed`,
/// `box_limits_changed`, `box_renamed`, `box_ended`, `box_removed`,
/// `run_ended` and the other events of its log except `request`. The key of an admin gets the
/// events of all boxes with the reasons of failures, and those of gauges and sweeps. The frames are server-sent events, or with
/// `Accept: application/x-ndjson` a JSON object on each line. A client that is too slow gets `missed`
/// with the number of lost `events`. The server sends `alive` while nothing happens.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "boxes",
    responses((status = 200, body = EventFrame, content_type = "text/event-stream"))
)]
pub async fn events(
    State(http): State<Http>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, ServiceError> {
    request_log::hold_stream(&http)?;
    let format = StreamFormat::of_stream(&headers);
    let mut records = http.journal.subscribe();
    Ok(format.streamed(|sender| async move {
        let alive = || format.frame("alive", json!({}));
        // A client that has read this frame misses nothing from here on.
        sender.send(alive()).await;
        loop {
            let next = tokio::select! {
                next = records.recv() => next,
                () = http.shutdown.draining() => return Ok(()),
                () = tokio::time::sleep(ALIVE_EVERY) => {
                    sender.send(alive()).await;
                    continue;
                }
            };
            match next {
                Ok(record) if record.event() == NOT_SHOWN || !caller.sees(record.key()) => {}
                Ok(record) => {
                    sender.send(format.frame(record.event(), caller.shown_event(&record))).await;
                }
                Err(RecvError::Lagged(missed)) => {
                    sender.send(format.frame("missed", json!({ "events": missed }))).await;
                }
                Err(RecvError::Closed) => return Ok(()),
            }
        }
    }))
}
