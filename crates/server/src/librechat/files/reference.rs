//! Finds the file that a request names, and checks that the client may access it.

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;

use crate::error::ServiceError;
use crate::http::extract::Path;
use crate::librechat::files::claim::{ResourceClaim, ResourceFields};
use crate::librechat::state::LibreChat;
use crate::store::Object;
use crate::store::id::Id;
use crate::store::owner::Principal;

/// The client of a request for a file, and the resource that it names.
#[derive(Debug)]
pub struct FileAccess {
    pub principal: Principal,
    pub claim: ResourceClaim,
}

impl FromRequestParts<LibreChat> for FileAccess {
    type Rejection = ServiceError;

    async fn from_request_parts(parts: &mut Parts, app: &LibreChat) -> Result<Self, ServiceError> {
        let principal = parts.extensions.get::<Principal>().cloned();
        let unknown = || ServiceError::internal("the request was not authenticated");
        let said = Query::<ResourceFields>::from_request_parts(parts, app).await;
        Ok(Self { principal: principal.ok_or_else(unknown)?, claim: queried(said)?.claim()? })
    }
}

pub fn queried<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ServiceError> {
    let refused =
        |rejection: QueryRejection| ServiceError::invalid("invalid_query", rejection.body_text());
    query.map(|Query(query)| query).map_err(refused)
}

/// The file of a path that ends in `{session}/{file}`.
#[derive(Debug)]
pub struct Named(pub Object);

impl FromRequestParts<LibreChat> for Named {
    type Rejection = ServiceError;

    async fn from_request_parts(parts: &mut Parts, app: &LibreChat) -> Result<Self, ServiceError> {
        let Path((session, file)) =
            Path::<(String, String)>::from_request_parts(parts, app).await?;
        let (session, file) = (parsed(&session)?, parsed(&file)?);
        let access = FileAccess::from_request_parts(parts, app).await?;
        let found = app.files.call_if_any(move |store| store.find(&session, &file));
        let found = found.await?.flatten();
        let object = found.ok_or_else(not_found)?;
        access.claim.check(&access.principal, &object)?;
        Ok(Self(object))
    }
}

pub fn parsed(id: &str) -> Result<Id, ServiceError> {
    let wrong = || ServiceError::invalid("invalid_id", "Invalid session or file id");
    Id::parse(id).ok_or_else(wrong)
}

pub fn not_found() -> ServiceError {
    ServiceError::not_found("file_not_found", "File not found")
        .with_hint("it never existed, was removed, or has expired")
}
