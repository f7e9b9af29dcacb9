//! `POST /v1/exec`: runs code with the files that it works on.

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::http::bounded::{ARGUMENTS_MAX, List};
use crate::http::extract::Json;
use crate::librechat::answer::Answer;
use crate::librechat::files::upload::USER_ID_BYTES_MAX;
use crate::librechat::run::box_spec::CodeRun;
use crate::librechat::run::inputs::{self, FileRef, SessionInputs};
use crate::librechat::run::outputs::{Collected, LeftFile, SessionOutputs};
use crate::librechat::run::session::{self, Hint};
use crate::librechat::state::LibreChat;
use crate::librechat::tools::calls::{self, Call, Forged};
use crate::librechat::tools::stubs::ToolLanguage;
use crate::librechat::{attached, cancel};
use crate::store::id::Id;
use crate::store::owner::{Principal, Resource};
use crate::work::request::run::{Collect, RunRequest};
use crate::work::streams::output::{OutputSink, PastLimit};

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

/// Bounds the list of references to inputs. Their size has its own limit.
pub const REFERENCES_MAX: usize = 10_000;

/// A list with a bound. Clients write `null` for what they leave out.
pub fn few_or_none<'de, D, T, const MAX: usize>(input: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<List<T, MAX>>::deserialize(input)?.unwrap_or_default().0)
}

/// The id of a user, which has at most [`USER_ID_BYTES_MAX`] bytes.
pub fn user_id_or_none<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    match Option::<String>::deserialize(input)? {
        Some(id) if id.len() > USER_ID_BYTES_MAX => {
            let message = format!("a user id has at most {USER_ID_BYTES_MAX} bytes");
            Err(D::Error::custom(message))
        }
        id => Ok(id),
    }
}

/// Clients write `null` for what they leave out.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    input: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

pub async fn exec(
    State(app): State<LibreChat>,
    Extension(principal): Extension<Principal>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(request): Json<CodeRequest>,
) -> Result<axum::Json<Answer>, ServiceError> {
    let executed = execute(&app, &principal, &caller, request);
    let answer = cancel::unless_cancelled(&app, &principal, &headers, executed).await?;
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
            Some(app.queues.enter(hint.session_of(principal), most)?.turn(app).await?)
        }
    };
    let task = LibreChatRun::of(app, principal, work, request.files, request.user_id).await?;
    match turn {
        None => Ok(task.run(app, caller, None).await?.0),
        Some(turn) => session::run(app, caller, turn, task).await,
    }
}

/// Code to run, with its files.
pub struct LibreChatRun {
    pub work: CodeRun,
    pub inputs: SessionInputs,
    pub outputs: SessionOutputs,
    /// Whether the answer lists unchanged inputs. First-generation clients take every listed file
    /// for one that this execution made, and then look for it in the wrong session.
    lists_inherited: bool,
}

impl LibreChatRun {
    /// Finds the files that the code works on, and checks that the client may use them.
    pub async fn of(
        app: &LibreChat,
        principal: &Principal,
        work: CodeRun,
        files: Vec<FileRef>,
        user_id: Option<String>,
    ) -> Result<Self, ServiceError> {
        let lists_inherited = files.iter().all(|file| file.storage_session_id.is_some());
        let inputs = inputs::find(app, principal, files, user_id.as_deref()).await?;
        let outputs = SessionOutputs {
            app: app.clone(),
            session: Id::random(),
            owner: principal.owner(&Resource::User),
            said_by: user_id,
            files_max: app.service.config().librechat.boxes.output_files,
        };
        Ok(Self { work, inputs, outputs, lists_inherited })
    }

    /// Runs the code in a box of its own, which is removed afterwards. Code that may call tools
    /// also returns its calls without a result.
    pub async fn run(
        self,
        app: &LibreChat,
        caller: &Caller,
        language: Option<ToolLanguage>,
    ) -> Result<(Answer, Result<Vec<Call>, Forged>), ServiceError> {
        let session = self.outputs.session.clone();
        let files = self.inputs.values().map(|input| input.file(app));
        let output_bytes_max = app.service.config().limits.output_bytes.0;
        let request = RunRequest {
            files: files.chain(self.work.code).collect(),
            collect: Some(collect(self.outputs, self.inputs.clone(), language)),
            code: self.work.interpreted,
            past_limit: PastLimit::Kill,
            ..RunRequest::new(self.work.spec, self.work.exec, output_bytes_max)
        };
        let mut output = app.service.run(caller, request, OutputSink::Keep).await?;
        let nothing = || (SessionOutputs::of_failed(&self.inputs), Ok(Vec::new()));
        let (mut collected, calls) = output.collected.take().unwrap_or_else(nothing);
        if !self.lists_inherited {
            collected.left.retain(|file| matches!(file, LeftFile::Kept(_)));
        }
        Ok((Answer::new(output, session, collected), calls))
    }
}

fn collect(
    outputs: SessionOutputs,
    inputs: SessionInputs,
    language: Option<ToolLanguage>,
) -> Collect<(Collected, Result<Vec<Call>, Forged>)> {
    Box::new(move |files, end| {
        let calls = language.map_or(Ok(Vec::new()), |language| calls::collect(files, language));
        // Code with open calls runs again, and its files are collected then.
        let is_done = end.is_success() && calls.as_ref().is_ok_and(Vec::is_empty);
        let collected = if is_done {
            outputs.collect(files, &inputs)
        } else {
            SessionOutputs::of_failed(&inputs)
        };
        Ok((collected, calls))
    })
}
