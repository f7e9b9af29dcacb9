//! Output as it comes: server-sent events, or a JSON object on each line.
//!
//! Frames are `stdout` and `stderr` with `data`, then one `result`, or one `error` if
//! there is none. A reader who takes nothing is cut off, and with him the command.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use serde_json::{Value, json};
use tare_engine::Timestamp;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::admission::{Admitted, Caller};
use crate::api::run::RunResult;
use crate::app::App;
use crate::http::error::error_json;
use crate::http::text::{Encoding, Pieces};
use crate::shutdown::Running;
use crate::work::relay::{Chunk, Output};
use crate::work::run::{self, FileOut, OneShot};

/// How much output waits for its reader: so many times what a pipe holds.
const CHUNKS_WAITING: usize = 4;

/// Where nothing happens for so long that is said: whoever is gone is noticed then.
pub const ALIVE_EVERY: Duration = Duration::from_secs(15);

/// A server-sent event.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it describes what `Form::frame` writes")]
pub struct EventFrame {
    /// What it is.
    event: String,
    /// A JSON object.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// How an answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Whole,
    Events,
    Lines,
}

impl Form {
    pub fn wanted(headers: &HeaderMap) -> Self {
        let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        let accepted = accepted.unwrap_or("");
        let accepts = |kind: &str| accepted.split(',').any(|one| essence(one) == kind);
        match (accepts("text/event-stream"), accepts("application/x-ndjson")) {
            (true, _) => Self::Events,
            (false, true) => Self::Lines,
            (false, false) => Self::Whole,
        }
    }

    /// Of what is a stream in any case.
    pub fn of_stream(headers: &HeaderMap) -> Self {
        match Self::wanted(headers) {
            Self::Lines => Self::Lines,
            Self::Whole | Self::Events => Self::Events,
        }
    }

    fn media_type(self) -> &'static str {
        match self {
            Self::Whole => "application/json",
            Self::Events => "text/event-stream",
            Self::Lines => "application/x-ndjson",
        }
    }

    /// One frame.
    pub fn frame(self, name: &str, mut value: Value) -> String {
        match self {
            Self::Events => format!("event: {name}\ndata: {value}\n\n"),
            Self::Whole | Self::Lines => {
                if let Value::Object(fields) = &mut value {
                    fields.insert("type".to_owned(), name.into());
                }
                format!("{value}\n")
            }
        }
    }

    /// An answer whose frames come from here.
    pub fn response(
        self,
        frames: impl futures_util::Stream<Item = Result<String, Infallible>> + Send + 'static,
    ) -> Response {
        self.response_of(frames)
    }

    /// The same of bytes that may break off.
    pub fn response_of<B, E>(
        self,
        frames: impl futures_util::Stream<Item = Result<B, E>> + Send + 'static,
    ) -> Response
    where
        B: Into<axum::body::Bytes> + 'static,
        E: Into<axum::BoxError> + 'static,
    {
        let mut response = Response::new(Body::from_stream(frames));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.media_type()));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

fn essence(media_range: &str) -> &str {
    media_range.split(';').next().unwrap_or("").trim()
}

pub fn run(
    app: &App,
    caller: &Caller,
    admitted: Admitted,
    what: OneShot<Vec<FileOut>>,
    encoding: Encoding,
    form: Form,
) -> Response {
    let (output, chunks) = passed(app);
    let running = run::start(app, caller, admitted, what, output);
    // The output was in the frames before.
    frames(form, encoding, chunks, running, |outcome| {
        serde_json::to_value(RunResult::of(outcome, Encoding::Utf8)).unwrap_or(Value::Null)
    })
}

/// For output that is read as it comes.
pub fn passed(app: &App) -> (Output, mpsc::Receiver<Chunk>) {
    let (to, chunks) = mpsc::channel(CHUNKS_WAITING);
    let patience = app.config().limits.client;
    (Output::Pass { to, patience }, chunks)
}

/// An answer of the output as it comes, and what came of it last.
pub fn frames<T: Send + 'static>(
    form: Form,
    encoding: Encoding,
    chunks: mpsc::Receiver<Chunk>,
    running: Running<T>,
    told: fn(T) -> Value,
) -> Response {
    let frames =
        Frames { running, chunks, texts: Texts::new(form, encoding), told, is_over: false };
    form.response(stream::unfold(frames, |mut frames| async move {
        let frame = frames.next().await?;
        Some((Ok(frame), frames))
    }))
}

struct Frames<T> {
    /// Dropped with the answer, when its client is gone: that ends the command.
    running: Running<T>,
    chunks: mpsc::Receiver<Chunk>,
    texts: Texts,
    told: fn(T) -> Value,
    is_over: bool,
}

impl<T> Frames<T> {
    async fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        if let Some(chunk) = self.chunks.recv().await {
            return Some(self.texts.frame(chunk));
        }
        self.is_over = true;
        let mut frames = self.texts.last();
        let (name, last) = match self.running.result().await {
            Ok(outcome) => ("result", (self.told)(outcome)),
            Err(error) => ("error", error_json(&error)),
        };
        frames.push_str(&self.texts.form.frame(name, last));
        Some(frames)
    }
}

/// Both streams as frames of text.
#[derive(Debug)]
pub struct Texts {
    form: Form,
    stdout: Pieces,
    stderr: Pieces,
}

impl Texts {
    pub fn new(form: Form, encoding: Encoding) -> Self {
        Self { form, stdout: Pieces::new(encoding), stderr: Pieces::new(encoding) }
    }

    pub fn frame(&mut self, chunk: Chunk) -> String {
        let (name, data) = self.named(chunk);
        self.form.frame(name, json!({ "data": data }))
    }

    /// The same of what came at a time that is known.
    pub fn frame_at(&mut self, chunk: Chunk, time: Timestamp) -> String {
        let (name, data) = self.named(chunk);
        self.form.frame(name, json!({ "time": time.to_string(), "data": data }))
    }

    fn named(&mut self, chunk: Chunk) -> (&'static str, String) {
        match chunk {
            Chunk::Stdout(bytes) => ("stdout", self.stdout.next(bytes)),
            Chunk::Stderr(bytes) => ("stderr", self.stderr.next(bytes)),
        }
    }

    /// What never got its other half.
    pub fn last(&mut self) -> String {
        let mut frames = String::new();
        for (name, pieces) in [("stdout", &mut self.stdout), ("stderr", &mut self.stderr)] {
            let data = pieces.last();
            if !data.is_empty() {
                frames.push_str(&self.form.frame(name, json!({ "data": data })));
            }
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_header_decides_the_format() {
        let form = |accept: &'static str| {
            let value = HeaderValue::from_static(accept);
            Form::wanted(&HeaderMap::from_iter([(header::ACCEPT, value)]))
        };
        assert_eq!(Form::wanted(&HeaderMap::new()), Form::Whole);
        assert_eq!(form("*/*"), Form::Whole);
        assert_eq!(form("application/json"), Form::Whole);
        assert_eq!(form("text/event-stream"), Form::Events);
        assert_eq!(form("application/x-ndjson;q=0.9, */*"), Form::Lines);
    }

    /// Output cannot make a frame of its own.
    #[test]
    fn a_frame_is_always_one_line() {
        let value = || json!({ "data": "a\n\nevent: result\ndata: {}\n\n" });
        let event = Form::Events.frame("stdout", value());
        assert_eq!(event.matches('\n').count(), 3, "{event}");
        let line = Form::Lines.frame("stdout", value());
        assert_eq!(line.matches('\n').count(), 1, "{line}");
    }
}
