//! `GET /v1/boxes/{id}/logs`: what a box has written, and what it writes.
//!
//! Read from its log without asking its keeper, a bounded piece at a time: no reader
//! holds a box up, and none of it waits in memory for a reader.

use std::os::fd::{AsFd, OwnedFd};

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::json;
use tare_engine::logs::{Logs, Stream};
use tare_engine::spec::quantity;
use tare_engine::{Context as _, Engine, Error, Keeper, Timestamp};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use utoipa::IntoParams;

use crate::api::boxes::taken;
use crate::app::{App, Phase};
use crate::error::ServiceError;
use crate::fd;
use crate::http::error::ErrorBody;
use crate::http::extract::Path;
use crate::http::frames::{ALIVE_EVERY, Form, Texts};
use crate::http::request_log;
use crate::http::text::Encoding;
use crate::watch::followers::Follower;
use crate::work::relay::Chunk;

/// How much is read at a time, in whole records.
const PIECE_BYTES: usize = 64 << 10;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogsQuery {
    /// On with what the box writes, until it ends.
    #[serde(default)]
    pub follow: bool,
    /// The last lines, so many; all if left out.
    pub tail: Option<u32>,
    /// From this time on: `10m` (ago), or `2026-11-15T22:09:05Z`.
    pub since: Option<String>,
    /// In text: the time before each line.
    #[serde(default)]
    pub timestamps: bool,
    /// In frames: how bytes are written.
    #[serde(default)]
    #[param(inline)]
    pub encoding: Encoding,
}

/// What a box has written
///
/// As text, both streams as they came. With `Accept: text/event-stream` or
/// `application/x-ndjson` in frames: `stdout` and `stderr` with `data` and `time`, `missed`
/// with a number of `bytes` for which the log had no room, `alive` now and then while
/// nothing comes, and `end` last.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/logs",
    tag = "boxes",
    params(("id" = String, Path, description = "An id, the beginning of one, or a name"), LogsQuery),
    responses(
        (status = 200, body = String, content_type = "text/plain"),
        (status = "4XX", body = ErrorBody),
    )
)]
pub async fn logs(
    State(app): State<App>,
    Path(id): Path<String>,
    query: Result<Query<LogsQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ServiceError> {
    let query = taken(query)?;
    let since = query.since.as_deref().map(moment).transpose()?;
    let tail = query.tail;
    let follow = query.follow;
    if follow {
        request_log::hold_stream(&app)?;
    }
    let opened = app.ask(move |engine| Opened::of(engine, &id, since, tail, follow));
    let opened = opened.await?;
    let form = Form::wanted(&headers);
    let shown = match form {
        Form::Whole => Shown::Text { timestamps: query.timestamps, in_line: [false; 2] },
        Form::Events | Form::Lines => Shown::Frames(form, Texts::new(form, query.encoding)),
    };
    let reading = Reading {
        following: opened.following(&app)?,
        app,
        logs: Some(opened.logs),
        shown,
        place: Place::Reading,
    };
    let bytes = stream::unfold(reading, |mut reading| async move {
        let next = reading.next().await.transpose()?;
        Some((next.map_err(|error| error.message), reading))
    });
    Ok(match form {
        Form::Whole => {
            let mut response = Response::new(Body::from_stream(bytes));
            let text = HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, text);
            response
        }
        Form::Events | Form::Lines => form.response_of(bytes.boxed()),
    })
}

/// `10m` ago, or a moment as such.
fn moment(text: &str) -> Result<Timestamp, ServiceError> {
    if let Ok(ago) = quantity::duration(text) {
        return Ok(Timestamp::now().before(ago));
    }
    Timestamp::parse(text).map_err(|_| {
        let message = format!("since: {text:?} is neither a duration nor a time");
        ServiceError::invalid("invalid_query", message)
            .with_hint("write 10m for ten minutes ago, or 2026-11-15T22:09:05Z")
    })
}

struct Opened {
    logs: Logs,
    /// The keeper that writes it, where it is followed.
    keeper: Option<Keeper>,
}

impl Opened {
    fn of(
        engine: &Engine,
        reference: &str,
        since: Option<Timestamp>,
        tail: Option<u32>,
        follow: bool,
    ) -> Result<Self, Error> {
        let (mut logs, keeper) = engine.logs(&engine.find(reference)?)?;
        if let Some(since) = since {
            logs.since(since);
        }
        if let Some(lines) = tail {
            logs.tail(u64::from(lines))?;
        }
        let keeper = keeper.filter(|_| follow);
        if keeper.is_none() {
            logs.stop_here()?;
        }
        Ok(Self { logs, keeper })
    }

    /// Call it before the first look at the log, so that nothing falls between the two.
    fn following(&self, app: &App) -> Result<Option<Following>, ServiceError> {
        let Some(keeper) = &self.keeper else {
            return Ok(None);
        };
        let watched = |fd: std::os::fd::BorrowedFd<'_>| {
            fd::watched(fd.try_clone_to_owned()?, Interest::READABLE)
        };
        let keeper = watched(keeper.as_fd());
        Ok(Some(Following {
            keeper: keeper.context(|| "cannot wait for the box".to_owned())?,
            follower: app.followers.follow(&self.logs)?,
        }))
    }
}

struct Following {
    /// Readable when the keeper, who alone writes the log, is dead.
    keeper: AsyncFd<OwnedFd>,
    follower: Follower,
}

/// What ended a wait.
enum Woken {
    Written,
    Ended,
    Nothing,
}

impl Following {
    async fn wait(&mut self) -> Result<Woken, ServiceError> {
        let failed = |error: std::io::Error| ServiceError::internal(error.to_string());
        tokio::select! {
            () = self.follower.written() => Ok(Woken::Written),
            ended = self.keeper.readable() => ended.map(|_| Woken::Ended).map_err(failed),
            () = tokio::time::sleep(ALIVE_EVERY) => Ok(Woken::Nothing),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Reading,
    /// The box has ended: what is there now is all.
    Last,
    Over,
}

struct Reading {
    app: App,
    /// In another thread while it is read.
    logs: Option<Logs>,
    following: Option<Following>,
    shown: Shown,
    place: Place,
}

/// One record of the log.
struct Written {
    time: Timestamp,
    chunk: Chunk,
    missed_bytes: u64,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<Bytes>, ServiceError> {
        while self.place != Place::Over {
            let (records, missed_bytes) = self.read().await?;
            let is_all = records.is_empty();
            let mut bytes = self.shown.all(records, missed_bytes);
            if is_all {
                bytes.extend(self.wait().await?);
            }
            if !bytes.is_empty() {
                return Ok(Some(Bytes::from(bytes)));
            }
        }
        Ok(None)
    }

    /// At the end of what is there.
    async fn wait(&mut self) -> Result<Vec<u8>, ServiceError> {
        let following = match (&mut self.following, self.place) {
            (Some(following), Place::Reading) => following,
            (None, _) | (_, Place::Last | Place::Over) => return Ok(self.end()),
        };
        tokio::select! {
            woken = following.wait() => match woken? {
                Woken::Written => Ok(Vec::new()),
                Woken::Ended => {
                    self.place = Place::Last;
                    Ok(Vec::new())
                }
                Woken::Nothing => Ok(self.shown.alive()),
            },
            () = self.app.stopping.reached(Phase::Draining) => Ok(self.end()),
        }
    }

    fn end(&mut self) -> Vec<u8> {
        self.place = Place::Over;
        self.shown.end()
    }

    async fn read(&mut self) -> Result<(Vec<Written>, u64), ServiceError> {
        let Some(mut logs) = self.logs.take() else {
            return Ok((Vec::new(), 0));
        };
        let read = self.app.ask(move |_| {
            let records = piece(&mut logs)?;
            let missed = if records.is_empty() { logs.missed_at_end()? } else { 0 };
            Ok((logs, records, missed))
        });
        let (logs, records, missed_bytes) = read.await?;
        self.logs = Some(logs);
        Ok((records, missed_bytes))
    }
}

fn piece(logs: &mut Logs) -> Result<Vec<Written>, Error> {
    let mut records = Vec::new();
    let mut total = 0;
    while total < PIECE_BYTES {
        let Some(record) = logs.next_record()? else {
            break;
        };
        total += record.bytes.len();
        let bytes = record.bytes.to_vec();
        records.push(Written {
            time: record.time,
            missed_bytes: record.missed_bytes,
            chunk: match record.stream {
                Stream::Stdout => Chunk::Stdout(bytes),
                Stream::Stderr => Chunk::Stderr(bytes),
            },
        });
    }
    Ok(records)
}

/// How it is written.
enum Shown {
    Text {
        timestamps: bool,
        /// Whether the last of each stream was no whole line.
        in_line: [bool; 2],
    },
    Frames(Form, Texts),
}

impl Shown {
    fn all(&mut self, records: Vec<Written>, missed_bytes: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for record in records {
            bytes.extend(self.missed(record.missed_bytes));
            bytes.extend(self.record(record));
        }
        bytes.extend(self.missed(missed_bytes));
        bytes
    }

    fn record(&mut self, record: Written) -> Vec<u8> {
        match self {
            Self::Frames(_, texts) => texts.frame_at(record.chunk, record.time).into_bytes(),
            Self::Text { timestamps: false, .. } => record.chunk.bytes().to_vec(),
            Self::Text { in_line, .. } => {
                let in_line = match &record.chunk {
                    Chunk::Stdout(_) => &mut in_line[0],
                    Chunk::Stderr(_) => &mut in_line[1],
                };
                timed(record.chunk.bytes(), record.time, in_line)
            }
        }
    }

    fn missed(&mut self, bytes: u64) -> Vec<u8> {
        match (self, bytes) {
            (_, 0) => Vec::new(),
            (Self::Frames(form, _), bytes) => {
                form.frame("missed", json!({ "bytes": bytes })).into_bytes()
            }
            (Self::Text { .. }, bytes) => {
                format!("[{bytes} bytes of the output are missing here]\n").into_bytes()
            }
        }
    }

    fn alive(&self) -> Vec<u8> {
        match self {
            Self::Frames(form, _) => form.frame("alive", json!({})).into_bytes(),
            Self::Text { .. } => Vec::new(),
        }
    }

    fn end(&mut self) -> Vec<u8> {
        match self {
            Self::Frames(form, texts) => {
                let last = texts.last() + &form.frame("end", json!({}));
                last.into_bytes()
            }
            Self::Text { .. } => Vec::new(),
        }
    }
}

/// With the time before each line that begins here.
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
