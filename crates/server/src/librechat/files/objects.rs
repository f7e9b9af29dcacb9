//! `GET /v1/sessions/{session}/objects/{file}`: the record of a file. The `DELETE` of this
//! route is in [`crate::librechat::files::list`].

use axum::Json;
use serde_json::{Value, json};

use crate::librechat::files::list::key;
use crate::librechat::files::reference::Named;

pub async fn inspect(Named(object): Named) -> Json<Value> {
    Json(json!({
        "name": key(&object),
        "originalFilename": object.name,
        "size": object.size,
        "lastModified": object.created_at,
        "etag": object.sha256,
        "contentType": object.content_type(),
        "readOnly": object.read_only,
    }))
}
