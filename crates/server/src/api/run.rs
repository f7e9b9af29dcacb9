//! `POST /v1/run`: one command in a box of its own; nothing is left of it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tare_engine::ExecSpec;
use tare_engine::spec::defaults::HOME;
use utoipa::ToSchema;

use crate::admission::{Caller, Need};
use crate::app::{App, Phase};
use crate::error::ServiceError;
use crate::http::error::ErrorBody;
use crate::http::extract::{Json, at_most};
use crate::http::frames::{self, Form};
use crate::http::text::{Encoding, base64, from_base64};
use crate::work::files;
use crate::work::languages::Host;
use crate::work::relay::{Flood, Output};
use crate::work::run::{self, Collect, FileIn, FileOut, OneShot, Outcome, Stage};
use crate::work::spec::{self, Asked, LimitsAsked, NetworkAsked};

/// For each the box is asked once.
const OUTPUTS_MAX: usize = 1000;
/// Of a request that names nothing to run, or two things.
const WHAT_TO_RUN: &str = "send either 'command', or 'language' and 'code'";

/// One command, or some code.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// A program and its arguments; no shell is involved. Either this or `code`.
    #[schema(example = json!(["echo", "hello"]))]
    pub command: Option<Vec<String>>,
    /// Code in this language: `python`, `node`, `bash`, and what the host has besides.
    #[schema(example = "python")]
    pub language: Option<String>,
    pub code: Option<String>,
    /// What the command reads; nothing if left out.
    pub stdin: Option<String>,
    /// Files in its working directory, `/work`.
    #[serde(default)]
    pub files: Vec<FileGiven>,
    /// Files and directories that come back, as far as they are there.
    #[serde(default, deserialize_with = "at_most::<_, _, OUTPUTS_MAX>")]
    #[schema(max_items = 1000)]
    pub outputs: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The operator's default if left out, 30 s unless configured.
    #[schema(minimum = 1)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub limits: LimitsAsked,
    #[serde(default)]
    pub network: NetworkAsked,
    /// How the output is written.
    #[serde(default)]
    pub encoding: Encoding,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileGiven {
    /// Below `/work`.
    pub path: String,
    /// As text; either this or `content_base64`.
    pub content: Option<String>,
    pub content_base64: Option<String>,
}

/// What came of a command.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunResult {
    /// Of the box, which is gone.
    pub id: String,
    /// The command's own, 128+N after signal N, 124 after its timeout.
    pub exit_code: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Whether some of the output is missing, because it passed its limit.
    pub truncated: bool,
    pub timed_out: bool,
    /// Whether the kernel killed a process of it for its memory limit.
    pub oom: bool,
    /// With the making and the removal of its box.
    pub duration_ms: u64,
    pub files: Vec<FileReturned>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct FileReturned {
    pub path: String,
    pub size_bytes: u64,
    pub content_base64: String,
}

/// Run a command in a fresh box
///
/// The answer comes when the command has ended and nothing is left of its box. With
/// `Accept: text/event-stream` or `application/x-ndjson` the output comes as it is
/// written, and the result last. A client that hangs up ends the command.
#[utoipa::path(
    post,
    path = "/v1/run",
    tag = "run",
    request_body = RunRequest,
    responses(
        (status = 200, body = RunResult, description = "It ran, whatever its exit code"),
        (status = "4XX", body = ErrorBody, description = "It cannot be run as asked"),
        (status = "5XX", body = ErrorBody, description = "It cannot be run now"),
    )
)]
pub async fn run(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(request): Json<RunRequest>,
) -> Result<Response, ServiceError> {
    let form = Form::wanted(&headers);
    let encoding = request.encoding;
    let what = one_shot(request, &app)?;
    if app.stopping.phase() > Phase::Serving {
        return Err(ServiceError::stopping());
    }
    let admitted = app.admit(&caller, Need::run(&what.spec)).await?;
    match form {
        Form::Whole => {
            let mut running = run::start(&app, &caller, admitted, what, Output::Keep);
            let outcome = running.result().await?;
            Ok(axum::Json(RunResult::of(outcome, encoding)).into_response())
        }
        Form::Events | Form::Lines => {
            Ok(frames::run(&app, &caller, admitted, what, encoding, form))
        }
    }
}

fn one_shot(request: RunRequest, app: &App) -> Result<OneShot<Vec<FileOut>>, ServiceError> {
    let config = app.config();
    let most = &config.limits;
    let mut files =
        request.files.into_iter().map(FileGiven::take).collect::<Result<Vec<_>, _>>()?;
    let mut env = BTreeMap::new();
    let command = match (request.command, request.language, request.code) {
        (Some(command), None, None) if !command.is_empty() => command,
        (None, Some(language), Some(code)) => {
            let language = config.languages.find(&language, Host::alone())?;
            files.push(FileIn::new(&language.file, code.into_bytes())?);
            env.extend(language.env.clone());
            language.command(HOME, &[])
        }
        (Some(command), _, _) if !command.is_empty() => {
            let message = "a command is given, and with it a language or code";
            return Err(ServiceError::invalid("invalid", message).with_hint(WHAT_TO_RUN));
        }
        (_, _, _) => {
            let message = "nothing to run is given";
            return Err(ServiceError::invalid("invalid", message).with_hint(WHAT_TO_RUN));
        }
    };
    env.extend(request.env);
    let exec = ExecSpec {
        env: spec::pairs(&env)?,
        timeout: Some(spec::timeout(request.timeout_ms, most)?),
        ..ExecSpec::of(spec::words(command))
    };
    tare_engine::spec::command::check(&exec.command, &exec.env)?;
    let asked = Asked { limits: request.limits, network: request.network, ..Asked::default() };
    Ok(OneShot {
        spec: asked.into_spec(most)?,
        exec,
        stdin: request.stdin.map(String::into_bytes),
        files,
        collect: collect(outputs(request.outputs)?, most.output_bytes),
        output_bytes_max: most.output_bytes,
        flood: Flood::Passes,
        stage: Stage::default(),
    })
}

fn collect(paths: Vec<PathBuf>, bytes_max: u64) -> Option<Collect<Vec<FileOut>>> {
    if paths.is_empty() {
        return None;
    }
    Some(Box::new(move |engine, id, _ended| files::collect(engine, id, &paths, bytes_max)))
}

fn outputs(asked: Vec<String>) -> Result<Vec<PathBuf>, ServiceError> {
    let path = |text: String| {
        if text.is_empty() || text.contains('\0') {
            Err(ServiceError::invalid("invalid_path", "outputs: a path is empty or has a NUL"))
        } else {
            Ok(PathBuf::from(text))
        }
    };
    asked.into_iter().map(path).collect()
}

impl FileGiven {
    fn take(self) -> Result<FileIn, ServiceError> {
        let content = match (self.content, self.content_base64) {
            (Some(text), None) => Some(text.into_bytes()),
            (None, Some(text)) => from_base64(&text),
            (None, None) | (Some(_), Some(_)) => None,
        };
        let content = content.ok_or_else(|| {
            let message = format!("files: {:?} needs either content or content_base64", self.path);
            ServiceError::invalid("invalid", message)
        })?;
        FileIn::new(&self.path, content)
    }
}

impl RunResult {
    pub fn of(outcome: Outcome<Vec<FileOut>>, encoding: Encoding) -> Self {
        let (exit, timed_out) = outcome.ended.verdict();
        let Outcome { stdout, stderr, .. } = outcome;
        let file = |file: FileOut| FileReturned {
            path: file.path,
            size_bytes: file.content.len() as u64,
            content_base64: base64(&file.content),
        };
        Self {
            id: outcome.id.to_string(),
            exit_code: exit.code(),
            signal: match exit {
                tare_engine::Exit::Code(_) => None,
                tare_engine::Exit::Signal(signal) => Some(signal),
            },
            truncated: stdout.truncated || stderr.truncated,
            stdout: encoding.whole(stdout.bytes),
            stderr: encoding.whole(stderr.bytes),
            timed_out,
            oom: outcome.oom,
            duration_ms: u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
            files: outcome.collected.into_iter().flatten().map(file).collect(),
        }
    }
}
