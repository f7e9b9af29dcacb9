//! `POST /v1/upload` and `/v1/upload/batch`: files of a client, into a session of their
//! own. Fields say what they belong to, and come before them.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::error::ServiceError;
use crate::librechat::files::claim::Said;
use crate::librechat::files::form::{MultipartForm, PartHead};
use crate::librechat::files::incoming::{Arrived, Arriving};
use crate::librechat::files::name::{self, Form as NameForm};
use crate::librechat::state::LibreChat;
use crate::store::id::Id;
use crate::store::owner::Principal;
use crate::store::{Meta, Object};

const USER_ID: &str = "user-id";
/// An id of a user is far shorter.
const USER_ID_BYTES_MAX: usize = 256;
/// Fields of one form; it has a handful.
const FIELDS_MAX: usize = 32;

/// All of them, or none.
pub async fn upload(
    State(app): State<LibreChat>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServiceError> {
    let _transfer = app.processes.transfer()?;
    let mut upload = Upload::new(&app, principal, &headers, body)?;
    let mut arrived = Arrived::new(&app);
    while let Some(head) = upload.next_file().await? {
        if upload.files > upload.files_max {
            let message = format!("at most {} files are taken at once", upload.files_max);
            return Err(ServiceError::invalid("too_many_files", message));
        }
        arrived.add(upload.take(&head).await?);
    }
    let kept = arrived.told();
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

/// Each for itself.
pub async fn batch(
    State(app): State<LibreChat>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServiceError> {
    let _transfer = app.processes.transfer()?;
    let mut upload = Upload::new(&app, principal, &headers, body)?;
    let mut arrived = Arrived::new(&app);
    let mut results = Vec::new();
    while let Some(head) = upload.next_file().await? {
        // The rest is read, so that the client hears of what was taken.
        if upload.files > upload.files_max {
            continue;
        }
        match upload.take(&head).await {
            Ok(object) => {
                let Value::Object(mut result) = named(&object) else {
                    continue;
                };
                result.insert("status".to_owned(), "success".into());
                results.push(Value::Object(result));
                arrived.add(object);
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
    Ok(upload.answer(arrived.told().len(), results))
}

struct Upload<'a> {
    app: &'a LibreChat,
    principal: Principal,
    form: MultipartForm,
    session: Id,
    /// The header `User-Id`. It counts where the form names no user.
    said_by: Option<String>,
    said: Said,
    read_only: bool,
    fields: usize,
    files: usize,
    files_max: usize,
    /// Nothing can be read of the form any more.
    is_over: bool,
}

impl<'a> Upload<'a> {
    fn new(
        app: &'a LibreChat,
        principal: Principal,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Self, ServiceError> {
        Ok(Self {
            app,
            principal,
            form: MultipartForm::new(app, headers, body)?,
            session: Id::random(),
            said_by: said_by(headers),
            said: Said::default(),
            read_only: false,
            fields: 0,
            files: 0,
            files_max: app.config().files.request_files,
            is_over: false,
        })
    }

    /// Heeds the fields that come before it.
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
            self.heed(&head.name, value)?;
        }
        Ok(None)
    }

    fn heed(&mut self, name: &str, value: String) -> Result<(), ServiceError> {
        let field = match name {
            "kind" => &mut self.said.kind,
            "id" => &mut self.said.id,
            "version" => &mut self.said.version,
            "entity_id" => &mut self.said.entity_id,
            "read_only" => {
                self.read_only = value == "true";
                return Ok(());
            }
            _ => return Ok(()),
        };
        // What came before it has an owner already.
        if self.files > 0 || field.is_some() {
            let message = format!("the field {name} comes once, and before the files");
            return Err(ServiceError::invalid("misplaced_field", message));
        }
        *field = Some(value);
        Ok(())
    }

    async fn take(&mut self, head: &PartHead) -> Result<Object, ServiceError> {
        let claim = self.said.claim()?;
        let name = head.filename.clone().unwrap_or_default();
        name::check(&name, self.name_form())?;
        let owner = claim.owner(&self.principal);
        let mut arriving = Arriving::begin(self.app, owner).await?;
        loop {
            let content = self.form.content().await;
            let content = content.inspect_err(|_| self.is_over = true)?;
            match content {
                Some(bytes) => arriving.write(bytes).await?,
                None => break,
            }
        }
        let meta = Meta {
            name,
            said_by: claim.user().or(self.said_by.as_deref()).map(str::to_owned),
            read_only: self.read_only,
            modified_from: None,
        };
        arriving.keep(self.session.clone(), meta).await
    }

    /// Only those who name a kind know of directories.
    fn name_form(&self) -> NameForm {
        match self.said.kind {
            Some(_) => NameForm::Nested,
            None => NameForm::Plain,
        }
    }

    fn answer(&self, succeeded: usize, results: Vec<Value>) -> Response {
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

/// The user whom the client says that it speaks for.
fn said_by(headers: &HeaderMap) -> Option<String> {
    let said = headers.get(USER_ID)?.to_str().ok()?;
    let is_id = !said.is_empty() && said.len() <= USER_ID_BYTES_MAX;
    is_id.then(|| said.to_owned())
}
