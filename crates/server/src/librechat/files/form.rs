//! A form from the network: its parts, limited in number, size and time.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use tokio::time::Instant;

use crate::app::App;
use crate::error::ServiceError;
use crate::librechat::files::multipart::{Head, Malformed, Parser, Piece};

/// The time limit for a whole form. Clients give up after two minutes.
const WHOLE_WITHIN: Duration = Duration::from_secs(600);
/// The size limit of a form beside the contents of its files.
const OTHER_BYTES_MAX: u64 = 1 << 20;
const FIELD_BYTES_MAX: usize = 1 << 10;

#[derive(Debug)]
pub struct Form {
    parser: Parser,
    body: BodyDataStream,
    left_bytes: u64,
    patience: Duration,
    until: Instant,
}

impl Form {
    pub fn new(app: &App, headers: &HeaderMap, body: Body) -> Result<Self, ServiceError> {
        let config = app.config();
        let given = headers.get(header::CONTENT_TYPE);
        let parser = given.and_then(|given| Parser::of(given.to_str().ok()?));
        let Some(parser) = parser else {
            let message = "The request has to be multipart/form-data";
            return Err(ServiceError::invalid("not_multipart", message));
        };
        Ok(Self {
            parser,
            body: body.into_data_stream(),
            // No owner may store more than this.
            left_bytes: config.files.owner_bytes.saturating_add(OTHER_BYTES_MAX),
            patience: config.limits.client,
            until: Instant::now() + WHOLE_WITHIN,
        })
    }

    /// The next part; `None` at the end.
    pub async fn part(&mut self) -> Result<Option<Head>, ServiceError> {
        loop {
            match self.next().await? {
                Piece::Part(head) => return Ok(Some(head)),
                Piece::End => return Ok(None),
                // The rest of a part that was not read.
                Piece::Content(_) | Piece::PartEnd => {}
            }
        }
    }

    /// The next bytes of the part; `None` at its end.
    pub async fn content(&mut self) -> Result<Option<Vec<u8>>, ServiceError> {
        match self.next().await? {
            Piece::Content(bytes) => Ok(Some(bytes)),
            Piece::PartEnd | Piece::Part(_) | Piece::End => Ok(None),
        }
    }

    /// All of the part, which is a field.
    pub async fn field(&mut self) -> Result<String, ServiceError> {
        let mut value = Vec::new();
        while let Some(bytes) = self.content().await? {
            value.extend(bytes);
            if value.len() > FIELD_BYTES_MAX {
                return Err(malformed(Malformed("a field is too long")));
            }
        }
        String::from_utf8(value).map_err(|_| malformed(Malformed("a field is not UTF-8")))
    }

    async fn next(&mut self) -> Result<Piece, ServiceError> {
        loop {
            if let Some(piece) = self.parser.next().map_err(malformed)? {
                return Ok(piece);
            }
            let until = self.until.min(Instant::now() + self.patience);
            let next = tokio::time::timeout_at(until, self.body.next()).await;
            let cut = || ServiceError::invalid("incomplete", "The body ended too early");
            let bytes = next.map_err(|_| timed_out())?.ok_or_else(cut)?;
            let bytes = bytes.map_err(|_| cut())?;
            let left = self.left_bytes.checked_sub(bytes.len() as u64);
            self.left_bytes = left.ok_or_else(too_large)?;
            self.parser.feed(&bytes);
        }
    }
}

fn malformed(Malformed(why): Malformed) -> ServiceError {
    ServiceError::invalid("malformed_form", format!("Invalid multipart body: {why}"))
}

fn timed_out() -> ServiceError {
    ServiceError::timed_out("upload_timeout", "Upload timeout")
}

fn too_large() -> ServiceError {
    ServiceError::too_large("file_too_large", "File size limit exceeded")
}
