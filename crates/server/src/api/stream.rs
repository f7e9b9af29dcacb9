//! The output of a command as frames: `stdout` and `stderr` with `data`, then one `result`, or one
//! `error`. If the client reads nothing for `[limits] client`, the command is killed.

use std::time::Duration;

use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::error::ServiceError;
use crate::http::error::error_json;
use crate::http::frames::{StreamFormat, TextFrames};
use crate::http::text::Encoding;
use crate::work::streams::chunk::Chunk;
use crate::work::streams::output::OutputSink;

/// How many chunks of output wait for their reader. Each is at most what a pipe holds.
const CHUNKS_WAITING: usize = 4;

/// Returns a sink for output that a client reads as it comes, and the client's end of it.
pub fn channel(client_timeout: Duration) -> (OutputSink, mpsc::Receiver<Chunk>) {
    let (to, chunks) = mpsc::channel(CHUNKS_WAITING);
    (OutputSink::Pass { to, client_timeout }, chunks)
}

/// A response with the output of `run` as frames, and its result as the last one.
pub fn output<R: Serialize + Send, F>(
    format: StreamFormat,
    encoding: Encoding,
    client_timeout: Duration,
    run: impl FnOnce(OutputSink) -> F,
) -> Response
where
    F: Future<Output = Result<R, ServiceError>> + Send + 'static,
{
    let (sink, mut chunks) = channel(client_timeout);
    let running = run(sink);
    format.streamed(|sender| async move {
        let mut texts = TextFrames::new(format, encoding);
        let forwarding = async {
            while let Some(chunk) = chunks.recv().await {
                sender.send(texts.frame(chunk.stream, chunk.bytes)).await;
            }
        };
        let (result, ()) = tokio::join!(running, forwarding);
        let last = match result {
            Ok(result) => texts.event("result", json(&result)),
            Err(error) => texts.event("error", error_json(&error)),
        };
        sender.send(texts.flush() + &last).await;
        Ok(())
    })
}

pub fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}
