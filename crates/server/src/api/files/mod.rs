//! `/v1/boxes/{id}/files/PATH`: files of a box, and whole trees of them as tar.

mod download;
mod list;
mod path;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::admission::Caller;
use crate::api::files::list::Listing;
use crate::api::files::path::FilePath;
use crate::error::ServiceError;
use crate::http::body::BoundedBody;
use crate::http::extract::Query;
use crate::work::Service;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GetQuery {
    /// Whether to list this directory.
    #[serde(default)]
    pub list: bool,
    /// Whether to return the file or the whole directory as a tar archive.
    #[serde(default)]
    pub tar: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PutQuery {
    /// Whether the body is a tar archive for this directory.
    #[serde(default)]
    pub tar: bool,
}

/// A file of a box
///
/// The path is absolute in the box: `/v1/boxes/x/files/work/a.txt` is `/work/a.txt`. Links are
/// resolved inside the box. `list` lists a directory, and `tar` returns an archive of a file or a
/// whole directory.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/files/{*path}",
    tag = "files",
    params(FilePath, GetQuery),
    responses(
        (status = 200, description = "The file, the list, or the archive", content(
            (Vec<u8> = "application/octet-stream"),
            (Listing = "application/json"),
            (Vec<u8> = "application/x-tar"),
        )),
    )
)]
pub async fn get(
    State(service): State<Service>,
    Extension(caller): Extension<Caller>,
    file: FilePath,
    Query(query): Query<GetQuery>,
) -> Result<Response, ServiceError> {
    match (query.list, query.tar) {
        (true, true) => Err(ServiceError::invalid(
            "invalid_query",
            "list and tar exclude each other: send one of them",
        )),
        (true, false) => list::list(&service, &caller, file.into()).await,
        (false, true) => download::archive(&service, &caller, file.into()).await,
        (false, false) => download::file(&service, &caller, file.into()).await,
    }
}

/// Put a file into a box
///
/// The body becomes the file. Missing directories are created. The file replaces an existing file or
/// link when the whole body has arrived. With `tar` and `Content-Type: application/x-tar`, the body
/// is unpacked into this directory.
#[utoipa::path(
    put,
    path = "/v1/boxes/{id}/files/{*path}",
    tag = "files",
    params(FilePath, PutQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204))
)]
pub async fn put(
    State(service): State<Service>,
    Extension(caller): Extension<Caller>,
    file: FilePath,
    Query(query): Query<PutQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, ServiceError> {
    if query.tar {
        check_tar(&headers)?;
    }
    let limits = service.config().limits.clone();
    let hint = Some("the operator's limit is [limits] upload_bytes");
    let body = BoundedBody::new(body, limits.upload_bytes.0, limits.client.0, hint)?.into_stream();
    if query.tar {
        service.unpack(&caller, file.into(), body).await?;
    } else {
        service.write_file(&caller, file.into(), body).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Remove a file of a box, or a directory with everything in it
///
/// If the path is a link, the link is removed, not its target.
#[utoipa::path(
    delete,
    path = "/v1/boxes/{id}/files/{*path}",
    tag = "files",
    params(FilePath),
    responses((status = 204))
)]
pub async fn delete(
    State(service): State<Service>,
    Extension(caller): Extension<Caller>,
    file: FilePath,
) -> Result<StatusCode, ServiceError> {
    service.remove_file(&caller, file.into()).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn check_tar(headers: &HeaderMap) -> Result<(), ServiceError> {
    let given = headers.get(header::CONTENT_TYPE);
    if given.is_some_and(|given| given == "application/x-tar") {
        Ok(())
    } else {
        let message = "the body has to be a tar archive";
        Err(ServiceError::wrong_type("unsupported_media_type", message)
            .with_hint("send 'Content-Type: application/x-tar'"))
    }
}
