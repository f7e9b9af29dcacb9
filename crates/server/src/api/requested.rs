//! The box or the process that a request names in its path, and the client that asks for it.

use std::sync::Arc;

use axum::extract::{Extension, FromRequestParts};
use axum::http::request::Parts;

use crate::admission::Caller;
use crate::api::openapi::{BoxPath, ExecPath};
use crate::app::AppState;
use crate::error::ServiceError;
use crate::http::extract::Path;
use crate::work::Service;
use crate::work::run::processes::ExecProcess;

/// A box, as the path names it: it may not exist.
#[derive(Debug)]
pub struct RequestedBox {
    pub service: Service,
    pub caller: Caller,
    pub id: String,
}

impl FromRequestParts<AppState> for RequestedBox {
    type Rejection = ServiceError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ServiceError> {
        let Path(BoxPath { id }) = Path::from_request_parts(parts, app).await?;
        Ok(Self { service: app.service.clone(), caller: caller(parts, app).await?, id })
    }
}

/// A detached process of a box that the caller can see.
#[derive(Debug)]
pub struct RequestedExec(pub Arc<ExecProcess>);

impl FromRequestParts<AppState> for RequestedExec {
    type Rejection = ServiceError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ServiceError> {
        let Path(ExecPath { id, exec }) = Path::from_request_parts(parts, app).await?;
        // A box that is gone has no processes.
        let id = app.service.find(&caller(parts, app).await?, &id).await?;
        Ok(Self(app.service.processes.find(&id, &exec)?))
    }
}

/// The client, as the authentication layer found it.
async fn caller(parts: &mut Parts, app: &AppState) -> Result<Caller, ServiceError> {
    let found = Extension::from_request_parts(parts, app).await;
    found.map(|Extension(caller)| caller).map_err(ServiceError::internal)
}
