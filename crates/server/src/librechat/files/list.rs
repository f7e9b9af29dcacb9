//! `GET /v1/files/{session}` lists a session at the requested level of detail; `DELETE
//! /v1/files/{session}/{file}` removes a file.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::ServiceError;
use crate::http::extract::Path;
use crate::librechat::files::claim;
use crate::librechat::files::reference::{FileAccess, Named, not_found, parsed, queried};
use crate::librechat::state::LibreChat;
use crate::store::Object;

#[derive(Debug, Deserialize)]
pub struct FilesQuery {
    #[serde(default)]
    detail: Detail,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Detail {
    #[default]
    Simple,
    Summary,
    Full,
    Normalized,
}

/// Returns an empty list for an unknown session, because its files may have expired.
pub async fn list(
    State(app): State<LibreChat>,
    Path(session): Path<String>,
    query: Result<Query<FilesQuery>, QueryRejection>,
    access: FileAccess,
) -> Result<Json<Vec<Value>>, ServiceError> {
    let session = parsed(&session)?;
    let detail = queried(query)?.detail;
    let objects = app.files.call_if_any(move |store| store.list(&session)).await?;
    let mut objects = objects.unwrap_or_default();
    let had_some = !objects.is_empty();
    objects.retain(|object| access.claim.allows(&access.principal, object));
    if had_some && objects.is_empty() {
        Err(claim::forbidden())
    } else {
        Ok(Json(objects.iter().map(|one| shown(one, detail)).collect()))
    }
}

/// The key that clients expect as the path in an object store.
pub fn key(object: &Object) -> String {
    format!("{}/{}{}", object.session, object.id, object.extension())
}

fn shown(object: &Object, detail: Detail) -> Value {
    let summary = json!({
        "name": key(object),
        "size": object.size,
        "lastModified": object.created_at,
        "etag": object.sha256,
    });
    match detail {
        Detail::Simple => key(object).into(),
        Detail::Summary => summary,
        Detail::Full => with(
            summary,
            json!({
                "metadata": {
                    "content-type": object.content_type(),
                    "original-filename": object.name,
                },
                "versionId": null,
                "contentType": object.content_type(),
            }),
        ),
        Detail::Normalized => {
            let normalized = json!({
                "id": object.id,
                "name": object.name,
                "session_id": object.session,
                "storage_session_id": object.session,
                "size": object.size,
                "contentType": object.content_type(),
                "lastModified": object.created_at,
            });
            if object.read_only {
                with(normalized, json!({ "read_only": true }))
            } else {
                normalized
            }
        }
    }
}

fn with(mut one: Value, more: Value) -> Value {
    if let (Value::Object(one), Value::Object(more)) = (&mut one, more) {
        one.extend(more);
    }
    one
}

pub async fn delete(
    State(app): State<LibreChat>,
    Named(object): Named,
) -> Result<Json<Value>, ServiceError> {
    let answer = json!({
        "message": "File deleted successfully",
        "session_id": object.session,
        "fileId": object.id,
    });
    if app.files.call(move |store| store.remove(&object)).await? {
        Ok(Json(answer))
    } else {
        Err(not_found())
    }
}
