//! `POST /v1/upload` and `/v1/upload/batch`: files of a client, into a session of their own. The
//! fields of the form come before the files and name the resource that the files belong to.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::error::ServiceError;
use crate::librechat::body_fields::USER_ID_BYTES_MAX;
use crate::librechat::files::claim::ResourceFields;
use crate::librechat::files::form::{MultipartForm, PartHead};
use crate::librechat::files::incoming::{IncomingFile, UploadedFiles};
use crate::librechat::files::name::{self, NameRule};
use crate::librechat::state::LibreChat;
use crate::store::id::Id;
use crate::store::owner::Principal;
use crate::store::{Meta, Object};
use crate::work::files::transfer::TransferPermit;

const USER_ID: &str = "user-id";
/// Fields of one form; it has a handful.
const FIELDS_MAX: usize = 32;

/// Stores all files, or none.
pub async fn upload(mut upload: Upload) -> Result<Response, ServiceError> {
    while let Some(head) = upload.next_file().await? {
        if upload.files > upload.files_max {
            let message = format!("at most {} files are taken at once", upload.files_max);
            return Err(ServiceError::invalid("too_many_files", message));
        }
        upload.take(&head).await?;
    }
    let kept = upload.uploaded.keep();
    if kept.is_empty() {
        return Err(ServiceError::invalid("no_file", "No file provided"));
    }
    Ok(Json(json!({
        "message": "success",
        "session_id": upload.session,
        "storage_session_id": upload.session,
        "files": kept.iter().map(named).collect::<Vec<_>>(),
    }))
    .into_response())
}

fn named(object: &Object) -> Value {
    json!({ "filename": object.name, "fileId": object.id })
}

/// Stores every file that it can, with a result for each.
pub async fn batch(mut upload: Upload) -> Result<Response, ServiceError> {
    let mut results = Vec::new();
    while let Some(head) = upload.next_file().await? {
        // The rest is read, so that the client gets the results of the files before.
        if upload.files > upload.files_max {
            continue;
        }
        match upload.take(&head).await {
            Ok(mut result) => {
                result["status"] = "success".into();
                results.push(result);
            }
            // The form itself is broken, or its client is gone.
            Err(error) if upload.is_over => return Err(error),
            Err(error) => results.push(json!({
                "status": "error",
                "filename": head.filename,
                "error": error.message,
            })),
        }
    }
    Ok(upload.answer(results))
}

/// A form with files, and what was stored of it. If it is dropped before the client is answered,
/// nothing is left.
pub struct Upload {
    app: LibreChat,
    principal: Principal,
    form: MultipartForm,
    session: Id,
    uploaded: UploadedFiles,
    /// The header `User-Id`. It counts if the form names no user.
    said_by: Option<String>,
    resource: ResourceFields,
    read_only: bool,
    fields: usize,
    files: usize,
    files_max: usize,
    /// Nothing more can be read from the form.
    is_over: bool,
    _transfer: TransferPermit,
}

impl FromRequest<LibreChat> for Upload {
    type Rejection = ServiceError;

    async fn from_request(request: Request, app: &LibreChat) -> Result<Self, ServiceError> {
        let (mut parts, body) = request.into_parts();
        let principal = Extension::<Principal>::from_request_parts(&mut parts, app).await;
        let Extension(principal) = principal.map_err(ServiceError::internal)?;
        Ok(Self {
            _transfer: app.service.processes.transfer()?,
            app: app.clone(),
            principal,
            form: MultipartForm::new(app, &parts.headers, body)?,
            session: Id::random(),
            uploaded: UploadedFiles::new(app),
            said_by: said_by(&parts.headers),
            resource: ResourceFields::default(),
            read_only: false,
            fields: 0,
            files: 0,
            files_max: app.service.config().files.request_files,
            is_over: false,
        })
    }
}

impl Upload {
    /// Reads the fields before the next file, and the head of that file.
    async fn next_file(&mut self) -> Result<Option<PartHead>, ServiceError> {
        while let Some(head) = self.form.next_part().await? {
            if head.filename.is_some() {
                self.files += 1;
                return Ok(Some(head));
            }
            self.fields += 1;
            if self.fields > FIELDS_MAX {
                let message = "Invalid multipart body: it has too many fields";
                return Err(ServiceError::invalid("malformed_form", message));
            }
            let value = self.form.field().await?;
            self.set_field(&head.name, value)?;
        }
        Ok(None)
    }

    fn set_field(&mut self, name: &str, value: String) -> Result<(), ServiceError> {
        let field = match name {
            "kind" => &mut self.resource.kind,
            "id" => &mut self.resource.id,
            "version" => &mut self.resource.version,
            "entity_id" => &mut self.resource.entity_id,
            "read_only" => {
                self.read_only = value == "true";
                return Ok(());
            }
            _ => return Ok(()),
        };
        // The files before it already have an owner.
        if self.files > 0 || field.is_some() {
            let message = format!("the field {name} comes once, and before the files");
            return Err(ServiceError::invalid("misplaced_field", message));
        }
        *field = Some(value);
        Ok(())
    }

    /// Stores a file, and returns its description for the client.
    async fn take(&mut self, head: &PartHead) -> Result<Value, ServiceError> {
        let claim = self.resource.claim()?;
        let name = head.filename.clone().unwrap_or_default();
        name::check(&name, self.name_rule())?;
        let owner = claim.owner(&self.principal);
        let mut incoming = IncomingFile::begin(&self.app, owner).await?;
        loop {
            let content = self.form.content().await;
            let content = content.inspect_err(|_| self.is_over = true)?;
            match content {
                Some(bytes) => incoming.write(bytes).await?,
                None => break,
            }
        }
        let meta = Meta {
            name,
            said_by: claim.user().or(self.said_by.as_deref()).map(str::to_owned),
            read_only: self.read_only,
            modified_from: None,
        };
        let object = incoming.keep(self.session.clone(), meta).await?;
        let description = named(&object);
        self.uploaded.add(object);
        Ok(description)
    }

    /// Only clients that name a kind know directories.
    fn name_rule(&self) -> NameRule {
        match self.resource.kind {
            Some(_) => NameRule::Nested,
            None => NameRule::Plain,
        }
    }

    fn answer(mut self, results: Vec<Value>) -> Response {
        let succeeded = self.uploaded.keep().len();
        let failed = results.len() - succeeded;
        let (status, message) = match (succeeded, failed) {
            (0, _) => (StatusCode::BAD_REQUEST, "error"),
            (_, 0) => (StatusCode::OK, "success"),
            (_, _) => (StatusCode::OK, "partial_success"),
        };
        let mut body = json!({
            "message": message,
            "session_id": self.session,
            "storage_session_id": self.session,
            "files": results,
            "succeeded": succeeded,
            "failed": failed,
        });
        if self.files > self.files_max {
            body["filesLimitReached"] = true.into();
            body["maxFiles"] = self.files_max.into();
        }
        if self.files == 0 {
            body["error"] = "No files provided".into();
        }
        (status, Json(body)).into_response()
    }
}

/// The user that the client names.
fn said_by(headers: &HeaderMap) -> Option<String> {
    let said = headers.get(USER_ID)?.to_str().ok()?;
    let is_id = !said.is_empty() && said.len() <= USER_ID_BYTES_MAX;
    is_id.then(|| said.to_owned())
}
