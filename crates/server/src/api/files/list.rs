//! A directory of a box as JSON, which is written while it is read.

use std::io;

use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde::Serialize;
use tare_engine::Timestamp;
use tare_engine::files::{LISTED_BYTES_MAX, Listed, ListedKind};
use utoipa::ToSchema;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::http::frames;
use crate::http::text::percent_encoded;
use crate::work::Service;
use crate::work::files::transfer::BoxFile;

/// The entries of a directory, in no order.
#[derive(Debug, Serialize, ToSchema)]
pub struct Listing {
    pub entries: Vec<ListingEntry>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ListingEntry {
    /// The name as text. Bytes that are not UTF-8 become U+FFFD.
    pub name: String,
    /// Every byte of the name, percent-encoded for a path.
    pub encoded_name: String,
    pub kind: EntryKind,
    pub size: u64,
    /// Permission bits, in octal.
    #[schema(example = "644")]
    pub mode: String,
    /// The time of the last change.
    #[schema(value_type = String)]
    pub mtime: Timestamp,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    /// A fifo, a socket or a device.
    Other,
}

impl ListingEntry {
    fn of(listed: Listed) -> Self {
        let mtime_ms = u64::try_from(listed.mtime).unwrap_or(0).saturating_mul(1000);
        Self {
            encoded_name: percent_encoded(&listed.name),
            name: String::from_utf8_lossy(&listed.name).into_owned(),
            kind: match listed.kind {
                ListedKind::File => EntryKind::File,
                ListedKind::Directory => EntryKind::Directory,
                ListedKind::Symlink => EntryKind::Symlink,
                ListedKind::Other => EntryKind::Other,
            },
            size: listed.size,
            mode: format!("{:o}", listed.mode),
            mtime: Timestamp::from_ms(mtime_ms),
        }
    }
}

pub async fn list(
    service: &Service,
    caller: &Caller,
    directory: BoxFile,
) -> Result<Response, ServiceError> {
    let mut stream = service.list_files(caller, directory).await?;
    let mut response = Response::new(frames::streamed(|sender| async move {
        let mut entries = Entries::default();
        sender.send("{\"entries\":[").await;
        while let Some(bytes) = stream.next().await? {
            sender.send(entries.json(&bytes)?).await;
        }
        if !entries.unread.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        sender.send("]}").await;
        Ok(())
    }));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

#[derive(Default)]
struct Entries {
    /// The beginning of an entry that is not complete yet.
    unread: Vec<u8>,
    has_first: bool,
}

impl Entries {
    /// Returns the entries that end in these bytes, each ended by a NUL.
    fn json(&mut self, bytes: &[u8]) -> io::Result<String> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        let mut text = String::new();
        for byte in bytes {
            if *byte != 0 {
                self.unread.push(*byte);
                if self.unread.len() > LISTED_BYTES_MAX {
                    return Err(wrong());
                }
                continue;
            }
            let listed = Listed::decode(&self.unread).ok_or_else(wrong)?;
            self.unread.clear();
            if std::mem::replace(&mut self.has_first, true) {
                text.push(',');
            }
            text.push_str(&serde_json::to_string(&ListingEntry::of(listed))?);
        }
        Ok(text)
    }
}
