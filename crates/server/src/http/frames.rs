//! Streamed responses: server-sent events, or a JSON object on each line.
//!
//! A response is an `async` block with a sender ([`streamed`]). It runs as part of the
//! connection's own task, and is dropped when the client disconnects.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use serde_json::{Value, json};
use tare_engine::logs::Stream;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::http::text::{Encoding, Utf8Pieces};

/// A server-sent event.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it describes what `StreamFormat::frame` writes")]
pub struct EventFrame {
    /// The kind of the frame.
    event: String,
    /// A JSON object.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// The response format that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFormat {
    /// One JSON object, or plain text. Not a stream of frames.
    Whole,
    Events,
    Lines,
}

impl StreamFormat {
    pub fn accepted(headers: &HeaderMap) -> Self {
        let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        let accepted = accepted.unwrap_or("");
        let accepts = |kind: &str| accepted.split(',').any(|one| essence(one) == kind);
        match (accepts("text/event-stream"), accepts("application/x-ndjson")) {
            (true, _) => Self::Events,
            (false, true) => Self::Lines,
            (false, false) => Self::Whole,
        }
    }

    /// The format of a route that always streams.
    pub fn of_stream(headers: &HeaderMap) -> Self {
        match Self::accepted(headers) {
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

    /// A response of frames. See [`streamed`].
    pub fn streamed<F: Future<Output = Result<(), axum::BoxError>> + Send + 'static>(
        self,
        write: impl FnOnce(BodySender) -> F,
    ) -> Response {
        let mut response = Response::new(streamed(write));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.media_type()));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

fn essence(media_range: &str) -> &str {
    media_range.split(';').next().unwrap_or("").trim()
}

/// The side of a streamed body that writes.
#[derive(Debug)]
pub struct BodySender(mpsc::Sender<Bytes>);

impl BodySender {
    /// Waits until the client has taken what was sent before. Empty bytes are not sent.
    pub async fn send(&self, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        if !bytes.is_empty() {
            // The receiver lives as long as the future that calls this.
            self.0.send(bytes).await.ok();
        }
    }
}

/// A body that `write` writes. After an error the server closes the connection, so that the client
/// cannot take a part for the whole. When the client disconnects, the future is dropped.
pub fn streamed<F: Future<Output = Result<(), axum::BoxError>> + Send + 'static>(
    write: impl FnOnce(BodySender) -> F,
) -> Body {
    let (sender, receiver) = mpsc::channel(1);
    let writing = Some(Box::pin(write(BodySender(sender))) as Writing);
    Body::from_stream(Streamed { writing, receiver, failed: None })
}

type Writing = Pin<Box<dyn Future<Output = Result<(), axum::BoxError>> + Send>>;

struct Streamed {
    /// `None` when it is done.
    writing: Option<Writing>,
    receiver: mpsc::Receiver<Bytes>,
    /// Returned after everything that was sent.
    failed: Option<axum::BoxError>,
}

impl futures_util::Stream for Streamed {
    type Item = Result<Bytes, axum::BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Poll::Ready(Some(bytes)) = self.receiver.poll_recv(context) {
                return Poll::Ready(Some(Ok(bytes)));
            }
            let Some(writing) = &mut self.writing else {
                return Poll::Ready(self.failed.take().map(Err));
            };
            let Poll::Ready(written) = writing.as_mut().poll(context) else {
                // The writer may have sent a frame before it became pending: take the frame first.
                return match self.receiver.poll_recv(context) {
                    Poll::Ready(Some(bytes)) => Poll::Ready(Some(Ok(bytes))),
                    Poll::Ready(None) | Poll::Pending => Poll::Pending,
                };
            };
            self.writing = None;
            self.failed = written.err();
        }
    }
}

/// Output as frames of text: `stdout` and `stderr` with `data`.
#[derive(Debug)]
pub struct TextFrames {
    format: StreamFormat,
    stdout: Utf8Pieces,
    stderr: Utf8Pieces,
}

impl TextFrames {
    pub fn new(format: StreamFormat, encoding: Encoding) -> Self {
        Self { format, stdout: Utf8Pieces::new(encoding), stderr: Utf8Pieces::new(encoding) }
    }

    pub fn frame(&mut self, stream: Stream, bytes: Vec<u8>) -> String {
        let (name, data) = self.text(stream, bytes);
        self.format.frame(name, json!({ "data": data }))
    }

    /// A frame of output whose time is known.
    pub fn frame_at(&mut self, stream: Stream, bytes: Vec<u8>, time: &str) -> String {
        let (name, data) = self.text(stream, bytes);
        self.format.frame(name, json!({ "time": time, "data": data }))
    }

    /// A frame that is not output.
    pub fn event(&self, name: &str, value: Value) -> String {
        self.format.frame(name, value)
    }

    fn text(&mut self, stream: Stream, bytes: Vec<u8>) -> (&'static str, String) {
        match stream {
            Stream::Stdout => ("stdout", self.stdout.next(bytes)),
            Stream::Stderr => ("stderr", self.stderr.next(bytes)),
        }
    }

    /// Returns frames of characters that were cut and never completed.
    pub fn flush(&mut self) -> String {
        let mut frames = String::new();
        for (name, pieces) in [("stdout", &mut self.stdout), ("stderr", &mut self.stderr)] {
            let data = pieces.flush();
            if !data.is_empty() {
                frames.push_str(&self.format.frame(name, json!({ "data": data })));
            }
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn the_accept_header_decides_the_format() {
        let format = |accept: &'static str| {
            let value = HeaderValue::from_static(accept);
            StreamFormat::accepted(&HeaderMap::from_iter([(header::ACCEPT, value)]))
        };
        assert_eq!(StreamFormat::accepted(&HeaderMap::new()), StreamFormat::Whole);
        assert_eq!(format("*/*"), StreamFormat::Whole);
        assert_eq!(format("application/json"), StreamFormat::Whole);
        assert_eq!(format("text/event-stream"), StreamFormat::Events);
        assert_eq!(format("application/x-ndjson;q=0.9, */*"), StreamFormat::Lines);
    }

    /// Output cannot make a frame of its own.
    #[test]
    fn a_frame_is_always_one_line() {
        let value = || json!({ "data": "a\n\nevent: result\ndata: {}\n\n" });
        let event = StreamFormat::Events.frame("stdout", value());
        assert_eq!(event.matches('\n').count(), 3, "{event}");
        let line = StreamFormat::Lines.frame("stdout", value());
        assert_eq!(line.matches('\n').count(), 1, "{line}");
    }

    #[tokio::test]
    async fn a_streamed_body_has_everything_that_was_sent_and_ends_with_an_error() {
        let body = streamed(|sender| async move {
            for number in 0..5 {
                sender.send(number.to_string()).await;
                tokio::task::yield_now().await;
            }
            Ok(())
        });
        let whole = body.collect().await.expect("it is whole").to_bytes();
        assert_eq!(&whole[..], b"01234");
        let mut body = streamed(|sender| async move {
            sender.send("a").await;
            Err("broken".into())
        });
        let first = body.frame().await.expect("a frame").expect("bytes");
        assert_eq!(first.into_data().ok().as_deref(), Some(&b"a"[..]));
        assert!(body.frame().await.expect("an end").is_err());
    }

    #[tokio::test]
    async fn a_body_that_is_dropped_drops_its_writer() {
        let (alive, mut is_dropped) = mpsc::channel::<()>(1);
        let body = streamed(|sender| async move {
            let _alive = alive;
            sender.send("a").await;
            std::future::pending().await
        });
        drop(body);
        assert!(is_dropped.recv().await.is_none());
    }
}
