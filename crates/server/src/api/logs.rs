//! `GET /v1/boxes/{id}/logs`: the log of a box, as text or in frames.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use tare_engine::Timestamp;
use tare_engine::logs::Stream;
use utoipa::IntoParams;

use crate::api::openapi::BoxPath;
use crate::api::requested::RequestedBox;
use crate::error::ServiceError;
use crate::http::extract::Query;
use crate::http::frames::{self, StreamFormat, TextFrames};
use crate::http::text::Encoding;
use crate::http::{Http, request_log};
use crate::work::boxes::logs::{LogPart, LogPiece, LogRange, LogReader};
use crate::work::streams::chunk::Chunk;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogsQuery {
    /// Whether to continue with what the box writes, until it ends.
    #[serde(default)]
    pub follow: bool,
    /// The number of last lines to return; by default all.
    pub tail: Option<u32>,
    /// Returns output since this time: `10m` (ago), or `2026-11-15T22:09:05Z`.
    pub since: Option<String>,
    /// Whether each line of text begins with its time.
    #[serde(default)]
    pub timestamps: bool,
    /// The encoding of bytes in frames.
    #[serde(default)]
    #[param(inline)]
    pub encoding: Encoding,
}

/// The log of a box
///
/// The response is text, with both streams in the order of their writes. With `Accept:
/// text/event-stream` or `application/x-ndjson` it consists of frames: `stdout` and `stderr` with `data` and `time`, `missed` with the
/// number of `bytes` for which the log had no room, `alive` while the box writes nothing, and `end`
/// last.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/logs",
    tag = "boxes",
    params(BoxPath, LogsQuery),
    responses((status = 200, body = String, content_type = "text/plain"))
)]
pub async fn logs(
    RequestedBox { service, caller, id }: RequestedBox,
    State(http): State<Http>,
    Query(query): Query<LogsQuery>,
    headers: HeaderMap,
) -> Result<Response, ServiceError> {
    let since = query.since.as_deref().map(since).transpose()?;
    let range = LogRange { since, tail: query.tail, follow: query.follow };
    if range.follow {
        request_log::hold_stream(&http)?;
    }
    let reader = service.logs(&caller, id, range).await?;
    let format = StreamFormat::accepted(&headers);
    if format == StreamFormat::Whole {
        let shown = Shown::Text { timestamps: query.timestamps, in_line: [false; 2] };
        let body = frames::streamed(|sender| write(reader, shown, sender));
        let mut response = Response::new(body);
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, text);
        return Ok(response);
    }
    let shown = Shown::Frames(TextFrames::new(format, query.encoding));
    Ok(format.streamed(|sender| write(reader, shown, sender)))
}

async fn write(
    mut reader: LogReader,
    mut shown: Shown,
    sender: frames::BodySender,
) -> Result<(), axum::BoxError> {
    loop {
        let part = reader.next().await.map_err(|error| error.message)?;
        let is_end = matches!(part, LogPart::End);
        sender.send(shown.part(part)).await;
        if is_end {
            return Ok(());
        }
    }
}

fn since(text: &str) -> Result<Timestamp, ServiceError> {
    Timestamp::parse_or_ago(text).map_err(|error| {
        let error = ServiceError::from(error);
        let message = format!("since: {}", error.message);
        ServiceError { code: "invalid_query", message, ..error }
    })
}

/// The format of the response.
enum Shown {
    Text {
        timestamps: bool,
        /// For each stream, whether its last line is not complete yet.
        in_line: [bool; 2],
    },
    Frames(TextFrames),
}

impl Shown {
    fn part(&mut self, part: LogPart) -> Vec<u8> {
        match part {
            LogPart::Records(records) => {
                let mut bytes = Vec::new();
                for record in records {
                    bytes.extend(self.missed(record.missed_bytes));
                    bytes.extend(self.record(record));
                }
                bytes
            }
            LogPart::Missed(bytes) => self.missed(bytes),
            LogPart::Alive => self.event("alive"),
            LogPart::End => self.event("end"),
        }
    }

    fn record(&mut self, record: LogPiece) -> Vec<u8> {
        let Chunk { stream, bytes } = record.chunk;
        match self {
            Self::Frames(texts) => {
                texts.frame_at(stream, bytes, &record.time.to_string()).into_bytes()
            }
            Self::Text { timestamps: false, .. } => bytes,
            Self::Text { in_line: [stdout, stderr], .. } => match stream {
                Stream::Stdout => timed(&bytes, record.time, stdout),
                Stream::Stderr => timed(&bytes, record.time, stderr),
            },
        }
    }

    fn missed(&mut self, bytes: u64) -> Vec<u8> {
        match (self, bytes) {
            (_, 0) => Vec::new(),
            (Self::Frames(texts), bytes) => {
                texts.event("missed", json!({ "bytes": bytes })).into_bytes()
            }
            (Self::Text { .. }, bytes) => {
                format!("[{bytes} bytes of the output are missing here]\n").into_bytes()
            }
        }
    }

    fn event(&mut self, name: &str) -> Vec<u8> {
        match self {
            Self::Frames(texts) => {
                let flushed = if name == "end" { texts.flush() } else { String::new() };
                (flushed + &texts.event(name, json!({}))).into_bytes()
            }
            Self::Text { .. } => Vec::new(),
        }
    }
}

/// Adds the time before each line that begins in these bytes.
fn timed(bytes: &[u8], time: Timestamp, in_line: &mut bool) -> Vec<u8> {
    let mut shown = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if !*in_line {
            shown.extend(format!("{time} ").into_bytes());
        }
        shown.extend_from_slice(line);
        *in_line = !line.ends_with(b"\n");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_before_each_line_and_not_within_one() {
        let mut in_line = false;
        let time = Timestamp::from_ms(0);
        let shown =
            [&b"a\nb"[..], b"c\n", b"d"].map(|part| timed(part, time, &mut in_line)).concat();
        let text = String::from_utf8_lossy(&shown).replace(&time.to_string(), "T");
        assert_eq!(text, "T a\nT bc\nT d");
    }
}
