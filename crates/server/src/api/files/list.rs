//! What is in a directory of a box, as JSON that is written while it is read.

use std::collections::VecDeque;
use std::io;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use serde::Serialize;
use tare_engine::Timestamp;
use tare_engine::files::{LISTED_BYTES_MAX, Listed, ListedKind};
use utoipa::ToSchema;

use crate::api::files::download::{Other, Source};
use crate::api::files::failure::of_file;
use crate::api::files::path::Address;
use crate::app::App;
use crate::error::ServiceError;
use crate::http::percent::encoded;

/// In no order.
#[derive(Debug, Serialize, ToSchema)]
pub struct Listing {
    pub entries: Vec<ListingEntry>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ListingEntry {
    /// What is not UTF-8 in it is U+FFFD.
    pub name: String,
    /// Percent-encoded, as it is in a path: every byte of the name.
    pub encoded_name: String,
    pub kind: EntryKind,
    pub size: u64,
    /// Permission bits, in octal.
    #[schema(example = "644")]
    pub mode: String,
    /// When it was written last.
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
            encoded_name: encoded(&listed.name),
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

pub async fn list(app: &App, address: Address) -> Result<Response, ServiceError> {
    let Address { reference, path } = address;
    let permit = app.execs.permit()?;
    let opened = app.ask_in_box(move |engine| {
        let id = engine.find(&reference)?;
        Ok(engine.list_files(&id, &path))
    });
    let (stream, rest) = opened.await?.map_err(of_file)?.split();
    let lister = Lister {
        source: Source::new(app, stream, Other::File(rest), permit, None)?,
        unread: VecDeque::new(),
        place: Place::Begin,
    };
    let bytes = stream::unfold(lister, |mut lister| async move {
        let next = lister.next().await.transpose()?;
        Some((next, lister))
    });
    let mut response = Response::new(Body::from_stream(bytes));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

struct Lister {
    source: Source,
    /// The beginning of an entry, at most.
    unread: VecDeque<u8>,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Begin,
    First,
    Later,
    End,
}

impl Lister {
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut text = String::new();
        match self.place {
            Place::End => return Ok(None),
            Place::Begin => {
                text.push_str("{\"entries\":[");
                self.place = Place::First;
            }
            Place::First | Place::Later => {}
        }
        match self.source.next().await? {
            Some(bytes) => self.take(&bytes, &mut text)?,
            None if self.unread.is_empty() => {
                text.push_str("]}");
                self.place = Place::End;
            }
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(Some(Bytes::from(text)))
    }

    fn take(&mut self, bytes: &[u8], text: &mut String) -> io::Result<()> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        for byte in bytes {
            if *byte != 0 {
                self.unread.push_back(*byte);
                if self.unread.len() > LISTED_BYTES_MAX {
                    return Err(wrong());
                }
                continue;
            }
            let listed = Listed::decode(self.unread.make_contiguous()).ok_or_else(wrong)?;
            self.unread.clear();
            if self.place == Place::Later {
                text.push(',');
            }
            self.place = Place::Later;
            text.push_str(&serde_json::to_string(&ListingEntry::of(listed))?);
        }
        Ok(())
    }
}
