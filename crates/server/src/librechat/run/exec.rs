//! `POST /v1/exec`: runs code with the files that it works on.

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::http::bounded::ARGUMENTS_MAX;
use crate::http::extract::Json;
use crate::librechat::answer::Answer;
use crate::librechat::body_fields::{FileRef, REFERENCES_MAX, few_or_none, user_id_or_none};
use crate::librechat::run::box_spec::CodeRun;
use crate::librechat::run::session::{self, Hint};
use crate::librechat::run::task::LibreChatRun;
use crate::librechat::state::LibreChat;
use crate::librechat::{attached, cancel};
use crate::store::owner::Principal;

/// The body of a request. Unknown fields are ignored: clients of all ages send them.
#[derive(Debug, Deserialize)]
pub struct CodeRequest {
    pub code: String,
    pub lang: String,
    #[serde(default, deserialize_with = "few_or_none::<_, _, ARGUMENTS_MAX>")]
    pub args: Vec<String>,
    #[serde(default, deserialize_with = "few_or_none::<_, _, REFERENCES_MAX>")]
    pub files: Vec<FileRef>,
    /// The user that the client names. The record of each output has a copy.
    #[serde(default, deserialize_with = "user_id_or_none")]
    pub user_id: Option<String>,
    /// In milliseconds; at most what the operator allows.
    pub timeout: Option<f64>,
    pub runtime_session_hint: Option<String>,
    /// A copy of a directory on an attached machine.
    workspace_instance_id: Option<IgnoredAny>,
}

pub async fn exec(
    State(app): State<LibreChat>,
    Extension(principal): Extension<Principal>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(request): Json<CodeRequest>,
) -> Result<axum::Json<Answer>, ServiceError> {
    let executed = execute(&app, &principal, &caller, request);
    let answer = cancel::unless_cancelled(&app.cancellable, &principal, &headers, executed).await?;
    Ok(axum::Json(answer))
}

async fn execute(
    app: &LibreChat,
    principal: &Principal,
    caller: &Caller,
    request: CodeRequest,
) -> Result<Answer, ServiceError> {
    if request.workspace_instance_id.is_some() {
        return Err(attached::mismatch());
    }
    let user = principal.user.clone().or_else(|| request.user_id.clone());
    let caller = &Caller { user, ..caller.clone() };
    let hint = Hint::parse(request.runtime_session_hint.as_deref().unwrap_or_default())?;
    let work = CodeRun::of(
        &app.service.config(),
        &request.lang,
        request.code,
        &request.args,
        request.timeout,
    )?;
    // A call waits before its files are looked up, so that calls run in the order in which they came.
    let turn = match hint {
        None => None,
        Some(hint) => {
            let most = app.service.config().librechat.session_queue;
            Some(app.queues.enter(hint.session_of(principal), most)?.turn(&app.service).await?)
        }
    };
    let task = LibreChatRun::of(app, principal, work, request.files, request.user_id).await?;
    match turn {
        None => Ok(task.run(app, caller, None).await?.0),
        Some(turn) => session::run(app, caller, turn, task).await,
    }
}
