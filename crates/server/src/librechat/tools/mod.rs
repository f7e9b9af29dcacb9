//! `POST /v1/exec/programmatic`: code that calls the client's tools, in several rounds.

mod execution;
pub mod open;
mod request;
mod response;
mod stubs;

use axum::extract::{Extension, State};
use axum::http::HeaderMap;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::http::extract::Json;
use crate::librechat::answer::{Answer, add_reason, without_reason};
use crate::librechat::cancel;
use crate::librechat::run::calls::{Call, Forged};
use crate::librechat::run::task::LibreChatRun;
use crate::librechat::state::LibreChat;
use crate::librechat::tools::execution::{Execution, Taken};
use crate::librechat::tools::open::ExecutionLock;
use crate::librechat::tools::request::{Asked, Request};
use crate::librechat::tools::response::ToolResponse;
use crate::store::owner::Principal;

/// The error of code that forged its calls, in a text that clients know.
const FAILED: &str = "Execution failed or timed out";

pub async fn programmatic(
    State(app): State<LibreChat>,
    Extension(principal): Extension<Principal>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(request): Json<Request>,
) -> Result<axum::Json<ToolResponse>, ServiceError> {
    let step = step(&app, &principal, &caller, request);
    let response =
        match cancel::unless_cancelled(&app.cancellable, &principal, &headers, step).await {
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
            (ExecutionLock::new(&app.executions, principal)?, execution, Vec::new())
        }
        Asked::Continue { token, results } => {
            let (lock, mut execution) = ExecutionLock::again(&app.executions, &token, principal)?;
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
    run(app, caller, execution, lock, taken).await
}

/// Runs the code in a box, with the results so far.
async fn run(
    app: &LibreChat,
    caller: &Caller,
    mut execution: Box<Execution>,
    lock: ExecutionLock<'_>,
    taken: Vec<Taken>,
) -> Result<ToolResponse, ServiceError> {
    let (mut answer, calls) = match execute(app, caller, &execution).await {
        Err(error) if !taken.is_empty() && error.may_work_later() => {
            execution.give_back(taken);
            lock.waits(execution)?;
            return Err(error);
        }
        executed => executed?,
    };
    let calls = match calls {
        Ok(calls) if !calls.is_empty() && answer.status.is_none() => calls,
        Ok(_) => return Ok(ToolResponse::of(answer, execution.calls_made)),
        Err(why) => {
            add_reason(&mut answer.stderr, why);
            return Ok(ToolResponse::failed(FAILED.to_owned(), answer, execution.calls_made));
        }
    };
    if let Some(call) = calls.iter().find(|call| execution.start.tool(&call.name).is_none()) {
        let error = stubs::unregistered(&call.name);
        return Ok(ToolResponse::failed(error, answer, execution.calls_made));
    }
    let tool_calls = execution.request_results(calls)?;
    // The program for bash kills itself to wait for results, which is not a failure.
    let partial_stderr = without_reason(&answer).to_owned();
    Ok(ToolResponse::ToolCallRequired {
        continuation_token: lock.waits(execution)?,
        session_id: answer.session_id,
        tool_calls,
        partial_stdout: answer.stdout,
        partial_stderr,
    })
}

async fn execute(
    app: &LibreChat,
    caller: &Caller,
    execution: &Execution,
) -> Result<(Answer, Result<Vec<Call>, Forged>), ServiceError> {
    let work = execution.work(&app.service.config())?;
    let files = execution.start.files.clone();
    let user_id = execution.start.user_id.clone();
    let task = LibreChatRun::of(app, &execution.principal, work, files, user_id).await?;
    task.run(app, caller, Some(execution.start.language)).await
}
