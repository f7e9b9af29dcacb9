//! `POST /v1/exec/cancel` ends the execution of a request id.
//!
//! Later clients name each request (`X-LibreChat-Code-Request-ID`) and cancel it when they no
//! longer need the answer. This also works behind a proxy that keeps its connection open.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::error::ServiceError;
use crate::http::extract::Json;
use crate::librechat::state::LibreChat;
use crate::store::id::Id;
use crate::store::owner::Principal;

const REQUEST_ID: &str = "x-librechat-code-request-id";
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Requests that can be cancelled, at most as many as are served at the same time.
#[derive(Debug, Default)]
pub struct Cancellable(Mutex<HashMap<Named, Cancel>>);

/// How to cancel a request.
#[derive(Debug)]
struct Cancel {
    /// Identifies the request, because another request may have its name when it ends.
    of: Id,
    tell: oneshot::Sender<()>,
}

/// The client and the name of a request.
type Named = (Principal, String);

/// Guard for one request in flight; dropping it removes the request.
struct Served<'a> {
    all: &'a Cancellable,
    named: Named,
    id: Id,
}

impl Cancellable {
    fn all(&self) -> MutexGuard<'_, HashMap<Named, Cancel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let mut all = self.all.all();
        if all.get(&self.named).is_some_and(|one| one.of == self.id) {
            all.remove(&self.named);
        }
    }
}

/// Serves a request unless it is cancelled. A request without a name, or a second one with the same
/// name, cannot be cancelled.
pub async fn unless_cancelled<T>(
    app: &LibreChat,
    principal: &Principal,
    headers: &HeaderMap,
    served: impl Future<Output = Result<T, ServiceError>>,
) -> Result<T, ServiceError> {
    let name = headers.get(REQUEST_ID).and_then(|name| name.to_str().ok());
    let Some(name) = name.filter(|name| name.len() <= REQUEST_ID_BYTES_MAX) else {
        return served.await;
    };
    let named = (principal.clone(), name.to_owned());
    let (tell, cancelled) = oneshot::channel();
    let id = Id::random();
    let all = &app.cancellable;
    let is_new = {
        let mut all = all.all();
        let is_new = !all.contains_key(&named);
        if is_new {
            let of = id.clone();
            all.insert(named.clone(), Cancel { of, tell });
        }
        is_new
    };
    if !is_new {
        return served.await;
    }
    let _served = Served { all, named, id };
    tokio::select! {
        answer = served => answer,
        Ok(()) = cancelled => Err(ServiceError::conflict("execution_cancelled",
            "Execution cancelled",
        )),
    }
}

#[derive(Debug, Deserialize)]
pub struct CancelRequest {
    request_id: String,
}

/// Cancels a request. A request that has ended already is not an error.
pub async fn cancel(
    State(app): State<LibreChat>,
    Extension(principal): Extension<Principal>,
    Json(request): Json<CancelRequest>,
) -> axum::Json<Value> {
    let named = (principal, request.request_id);
    let cancel = app.cancellable.all().remove(&named);
    let cancelled = cancel.is_some_and(|cancel| cancel.tell.send(()).is_ok());
    axum::Json(json!({ "cancelled": cancelled }))
}
