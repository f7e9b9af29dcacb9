//! A file, or a tar archive of a file or a directory, out of a box.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use axum::http::{HeaderValue, header};
use axum::response::Response;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::http::{download, frames};
use crate::work::Service;
use crate::work::files::transfer::{BoxFile, BoxStream};

pub async fn file(
    service: &Service,
    caller: &Caller,
    file: BoxFile,
) -> Result<Response, ServiceError> {
    let path = file.path.clone();
    let stream = service.read_file(caller, file).await?;
    let size = stream.size;
    let mut response = response(stream, "application/octet-stream", &path, "");
    if let Some(size) = size {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    Ok(response)
}

pub async fn archive(
    service: &Service,
    caller: &Caller,
    file: BoxFile,
) -> Result<Response, ServiceError> {
    let path = file.path.clone();
    let stream = service.pack(caller, file).await?;
    Ok(response(stream, "application/x-tar", &path, ".tar"))
}

fn response(
    mut stream: BoxStream,
    media_type: &'static str,
    path: &Path,
    suffix: &str,
) -> Response {
    let mut response = Response::new(frames::streamed(|sender| async move {
        while let Some(bytes) = stream.next().await? {
            sender.send(bytes).await;
        }
        Ok(())
    }));
    let name = path.file_name().unwrap_or(OsStr::new("root")).as_bytes();
    let name = [name, suffix.as_bytes()].concat();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CONTENT_DISPOSITION, download::attachment(&name));
    // The next request may get another file of this name: parts must not be put together.
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("none"));
    response
}
