//! `GET /v1/download/{session}/{file}`: a file, or a range of it, in constant memory.
//!
//! Whatever is in it, a browser saves it and shows nothing: it would be a page of this
//! server.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::stream;

use crate::app::App;
use crate::error::ServiceError;
use crate::http::download;
use crate::librechat::files::range::{Range, Wanted};
use crate::librechat::files::reference::{Named, not_found};
use crate::store::Object;
use crate::work::processes::Transfer;

/// Read at a time, and held for one client.
const PIECE_BYTES: u64 = 256 << 10;

pub async fn download(
    State(app): State<App>,
    Named(object): Named,
    headers: HeaderMap,
) -> Result<Response, ServiceError> {
    let transfer = app.execs.transfer()?;
    let etag = format!("\"{}\"", object.sha256);
    let wanted = Wanted::of(&headers, &etag, object.size);
    let opening = object.clone();
    let file = app.files.call(&app.workers, move |store| store.read(&opening)).await?;
    let file = Arc::new(file.ok_or_else(not_found)?);
    let range = match wanted {
        Wanted::All => Range::all(object.size),
        Wanted::Part(range) => range,
        Wanted::Nothing => return Ok(unsatisfiable(object.size)),
    };
    let mut response = Response::new(body(app, file, range, transfer));
    describe(&object, &etag, response.headers_mut());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(range.bytes()));
    if let Wanted::Part(range) = wanted {
        headers.insert(header::CONTENT_RANGE, ascii(range.shown(object.size)));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

fn describe(object: &Object, etag: &str, headers: &mut HeaderMap) {
    let name = object.name.rsplit('/').next().unwrap_or(&object.name);
    let disposition = download::attachment(name.as_bytes());
    let known = HeaderValue::from_static;
    headers.insert(header::CONTENT_TYPE, known(object.content_type()));
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    headers.insert(header::CACHE_CONTROL, known("private"));
    headers.insert(header::ACCEPT_RANGES, known("bytes"));
    headers.insert(header::ETAG, ascii(etag.to_owned()));
}

fn ascii(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("it is of digits and known words")
}

fn unsatisfiable(size: u64) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
    let range = ascii(format!("bytes */{size}"));
    response.headers_mut().insert(header::CONTENT_RANGE, range);
    response
}

/// A piece is read when the one before was taken. An error ends the connection, so that
/// a client cannot take a part for the whole.
fn body(app: App, file: Arc<File>, range: Range, transfer: Transfer) -> Body {
    let pieces = stream::unfold((range, transfer), move |(mut left, transfer)| {
        let (app, file) = (app.clone(), Arc::clone(&file));
        async move {
            let (from, count) = left.take(PIECE_BYTES)?;
            let piece = app.call(move || piece(&file, from, count)).await;
            Some((piece, (left, transfer)))
        }
    });
    Body::from_stream(pieces)
}

fn piece(file: &File, from: u64, count: usize) -> io::Result<Bytes> {
    let mut bytes = vec![0; count];
    file.read_exact_at(&mut bytes, from)?;
    Ok(Bytes::from(bytes))
}
