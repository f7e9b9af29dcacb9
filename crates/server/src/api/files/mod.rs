//! `/v1/boxes/{id}/files/PATH`: files of a box, and whole trees of them as tar.

mod download;
mod failure;
mod list;
mod path;
mod upload;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::api::boxes::taken;
use crate::api::files::failure::of_file;
pub use crate::api::files::list::Listing;
use crate::api::files::path::Address;
use crate::app::App;
use crate::error::ServiceError;
use crate::http::error::ErrorBody;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GetQuery {
    /// What is in this directory.
    #[serde(default)]
    pub list: bool,
    /// The file or directory, with all that is in it, as a tar archive.
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
/// The path is absolute in the box: `/v1/boxes/x/files/work/a.txt` is `/work/a.txt`. Links
/// lead where they lead for the box itself. With `list` what is in a directory, with
/// `tar` an archive of a file or a whole directory.
#[utoipa::path(
    get,
    path = "/v1/boxes/{id}/files/{*path}",
    tag = "files",
    params(
        ("id" = String, Path, description = "An id, the beginning of one, or a name"),
        ("path" = String, Path, description = "In the box, percent-encoded, slashes as they are"),
        GetQuery,
    ),
    responses(
        (status = 200, description = "The file, the list, or the archive", content(
            (Vec<u8> = "application/octet-stream"),
            (Listing = "application/json"),
            (Vec<u8> = "application/x-tar"),
        )),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    )
)]
pub async fn get(
    State(app): State<App>,
    uri: Uri,
    query: Result<Query<GetQuery>, QueryRejection>,
) -> Result<Response, ServiceError> {
    let address = Address::of(&uri)?;
    let query = taken(query)?;
    match (query.list, query.tar) {
        (true, true) => {
            Err(ServiceError::invalid("invalid_query", "list and tar exclude each other"))
        }
        (true, false) => list::list(&app, address).await,
        (false, true) => download::archive(&app, address).await,
        (false, false) => download::file(&app, address).await,
    }
}

/// Put a file into a box
///
/// The body becomes the file, and directories that it is in are made. It is there when
/// all of it has come, in place of whatever file or link was there. With `tar` and
/// `Content-Type: application/x-tar` the body is unpacked into this directory.
#[utoipa::path(
    put,
    path = "/v1/boxes/{id}/files/{*path}",
    tag = "files",
    params(
        ("id" = String, Path, description = "An id, the beginning of one, or a name"),
        ("path" = String, Path, description = "In the box, percent-encoded, slashes as they are"),
        PutQuery,
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 204),
        (status = "4XX", body = ErrorBody),
        (status = "5XX", body = ErrorBody),
    )
)]
pub async fn put(
    State(app): State<App>,
    uri: Uri,
    query: Result<Query<PutQuery>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, ServiceError> {
    let address = Address::of(&uri)?;
    if taken(query)?.tar {
        upload::archive(&app, address, &headers, body).await?
    } else {
        upload::file(&app, address, &headers, body).await?
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Remove a file of a box, or a directory with all that is in it
///
/// Of a link the link, and not where it leads.
#[utoipa::path(
    delete,
    path = "/v1/boxes/{id}/files/{*path}",
    tag = "files",
    params(
        ("id" = String, Path, description = "An id, the beginning of one, or a name"),
        ("path" = String, Path, description = "In the box, percent-encoded, slashes as they are"),
    ),
    responses((status = 204), (status = "4XX", body = ErrorBody))
)]
pub async fn delete(State(app): State<App>, uri: Uri) -> Result<StatusCode, ServiceError> {
    let Address { reference, path } = Address::of(&uri)?;
    let _permit = app.execs.permit()?;
    app.ask_in_box(move |engine| {
        let id = engine.find(&reference)?;
        Ok(engine.remove_file(&id, &path))
    })
    .await?
    .map_err(of_file)?;
    Ok(StatusCode::NO_CONTENT)
}
