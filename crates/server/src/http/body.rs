//! A request body with limits in size and time. Every route reads its body through this.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use futures_util::{Stream, StreamExt, stream};
use tare_engine::spec::quantity;

use crate::error::ServiceError;

#[derive(Debug)]
pub struct BoundedBody {
    body: BodyDataStream,
    left: u64,
    bytes_max: u64,
    /// How long the client may take for the next bytes.
    client_timeout: Duration,
    hint: Option<&'static str>,
}

impl BoundedBody {
    /// Fails at once if the client announces a body that is too large.
    pub fn new(
        body: Body,
        bytes_max: u64,
        client_timeout: Duration,
        hint: Option<&'static str>,
    ) -> Result<Self, ServiceError> {
        let announced = body.size_hint().lower();
        let body = body.into_data_stream();
        let bounded = Self { body, left: bytes_max, bytes_max, client_timeout, hint };
        if announced > bytes_max { Err(bounded.too_large()) } else { Ok(bounded) }
    }

    /// A body without a limit in size, whose bytes are passed on.
    pub fn unbounded(body: Body, client_timeout: Duration) -> Self {
        let body = body.into_data_stream();
        Self { body, left: u64::MAX, bytes_max: u64::MAX, client_timeout, hint: None }
    }

    /// Returns `None` at the end of the body.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ServiceError> {
        let next = tokio::time::timeout(self.client_timeout, self.body.next()).await;
        let Some(bytes) = next.map_err(|_| too_slow())? else {
            return Ok(None);
        };
        let cut =
            |_| ServiceError::invalid("incomplete", "the body ended before its announced length");
        let bytes = bytes.map_err(cut)?;
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(|| self.too_large())?;
        Ok(Some(bytes))
    }

    /// Reads and drops the rest, because some clients read no response before they have sent their
    /// whole body.
    pub async fn drain(&mut self) {
        while let Ok(Some(_)) = self.next().await {}
    }

    /// The bytes as a stream, which ends with the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, ServiceError>> + Send + Unpin {
        Box::pin(stream::try_unfold(self, |mut body| async move {
            Ok(body.next().await?.map(|bytes| (bytes, body)))
        }))
    }

    fn too_large(&self) -> ServiceError {
        let message = format!("the body has more than {}", quantity::show_bytes(self.bytes_max));
        let error = ServiceError::too_large("too_large", message);
        ServiceError { hint: self.hint.map(Into::into), ..error }
    }
}

pub fn too_slow() -> ServiceError {
    ServiceError::too_slow("slow_body", "the body did not arrive in time")
}
