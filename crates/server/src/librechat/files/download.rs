//! `GET /v1/download/{session}/{file}`: a file, in constant memory.
//!
//! A browser saves the file whatever it contains, and never shows it: it would be a page of this
//! server.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use futures_util::stream;

use crate::error::ServiceError;
use crate::http::download;
use crate::librechat::files::reference::{Named, not_found};
use crate::librechat::state::LibreChat;
use crate::store::Object;
use crate::work::files::transfer::TransferPermit;

/// How much is read at a time, and held for one client.
const PIECE_BYTES: u64 = 256 << 10;

pub async fn download(
    State(app): State<LibreChat>,
    Named(object): Named,
) -> Result<Response, ServiceError> {
    let transfer = app.service.processes.transfer()?;
    let opening = object.clone();
    let file = app.files.call(move |store| store.read(&opening)).await?;
    let file = file.ok_or_else(not_found)?;
    let mut response = Response::new(body(app, file, object.size, transfer));
    describe(&object, response.headers_mut());
    Ok(response)
}

fn describe(object: &Object, headers: &mut HeaderMap) {
    let name = object.name.rsplit('/').next().unwrap_or(&object.name);
    let etag = HeaderValue::try_from(format!("\"{}\"", object.sha256));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(object.content_type()));
    headers.insert(header::CONTENT_DISPOSITION, download::attachment(name.as_bytes()));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(object.size));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("none"));
    headers.insert(header::ETAG, etag.expect("a hash has only digits"));
}

/// Reads a piece when the client has taken the one before. An error ends the connection, so that
/// a client cannot mistake a part for the whole.
fn body(app: LibreChat, file: File, size: u64, transfer: TransferPermit) -> Body {
    let file = Arc::new(file);
    let pieces = stream::unfold((0, transfer), move |(from, transfer)| {
        let (app, file) = (app.clone(), Arc::clone(&file));
        async move {
            let count = PIECE_BYTES.min(size - from);
            if count == 0 {
                return None;
            }
            let piece = app.service.workers.call(move || piece(&file, from, count)).await;
            Some((piece, (from + count, transfer)))
        }
    });
    Body::from_stream(pieces)
}

fn piece(file: &File, from: u64, count: u64) -> io::Result<Bytes> {
    let mut bytes = vec![0; usize::try_from(count).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, from)?;
    Ok(Bytes::from(bytes))
}
