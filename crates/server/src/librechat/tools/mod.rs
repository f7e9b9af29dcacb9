//! `POST /v1/exec/programmatic`: code that calls the client's tools, in several rounds.

pub mod calls;
mod execution;
pub mod open;
mod request;
mod response;
pub mod stubs;

use axum::extract::{Extension, State};
use axum::http::HeaderMap;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::http::extract::Json;
use crate::librechat::cancel;
use crate::librechat::state::LibreChat;
use crate::librechat::tools::execution::Execution;
use crate::librechat::tools::open::ExecutionLock;
use crate::librechat::tools::request::{Asked, Request};
use crate::librechat::tools::response::ToolResponse;
use crate::store::owner::Principal;

pub async fn programmatic(
    State(app): State<LibreChat>,
    Extension(principal): Extension<Principal>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(request): Json<Request>,
) -> Result<axum::Json<ToolResponse>, ServiceError> {
    let step = step(&app, &principal, &caller, request);
    let response = match cancel::unless_cancelled(&app, &principal, &headers, step).await {
        Err(error) if error.code == cancel::CANCELLED => ToolResponse::cancelled(),
        step => step?,
    };
    Ok(axum::Json(response))
}

async fn step(
    app: &LibreChat,
    principal: &Principal,
    caller: &Caller,
    request: Request,
) -> Result<ToolResponse, ServiceError> {
    let (lock, execution, taken) = match request.parse()? {
        Asked::Start(start) => {
            let execution = Execution::new(principal.clone(), *start);
            (ExecutionLock::new(app, principal)?, execution, Vec::new())
        }
        Asked::Continue { token, results } => {
            let (lock, mut execution) = ExecutionLock::again(app, &token, principal)?;
            if let Err(wrong) = execution.check(&results) {
                // The execution keeps waiting for valid results.
                lock.waits(execution)?;
                return Err(wrong);
            }
            let taken = execution.take(results);
            execution.check_bytes()?;
            (lock, execution, taken)
        }
    };
    execution.run(app, caller, lock, taken).await
}
