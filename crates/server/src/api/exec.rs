//! `POST /v1/boxes/{id}/exec`: another process in a box.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tare_engine::spec::{Terminal, User, command};
use tare_engine::{BoxId, ExecSpec, Exit};
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::api::processes::ExecStatus;
use crate::app::App;
use crate::error::ServiceError;
use crate::http::error::ErrorBody;
use crate::http::extract::{Json, Path};
use crate::http::frames::{self, Form};
use crate::http::request_log;
use crate::http::text::Encoding;
use crate::shutdown;
use crate::work::exec::{self, Fed, Outcome, Process};
use crate::work::processes::Exec;
use crate::work::relay::{Input, Output};
use crate::work::spec;

/// How many orders and pieces of input wait for a process that is not ready for them.
pub const WAITING_MAX: usize = 4;

/// Another process in a box.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// A program and its arguments; no shell is involved.
    #[schema(example = json!(["ls", "-l"]), min_items = 1)]
    pub command: Vec<String>,
    /// Over the environment of the box.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// As the box's command if left out.
    pub workdir: Option<String>,
    /// `UID` or `UID:GID`; as the box's command if left out.
    pub user: Option<String>,
    /// What it reads; nothing if left out.
    pub stdin: Option<String>,
    /// After so long it ends with everyone that it started. The operator's default if
    /// left out; of a detached one there is none then.
    #[schema(minimum = 1)]
    pub timeout_ms: Option<u64>,
    /// Pipes if left out. With a terminal all output is `stdout`.
    pub terminal: Option<TerminalAsked>,
    /// How the output is written.
    #[serde(default)]
    pub encoding: Encoding,
    /// Whether the answer comes at once, with an id.
    #[serde(default)]
    pub detach: bool,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalAsked {
    #[schema(minimum = 1, maximum = 65535)]
    pub rows: u16,
    #[schema(minimum = 1, maximum = 65535)]
    pub columns: u16,
}

/// What came of a process.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExecResult {
    /// Its own, 128+N after signal N, 124 after its timeout.
    pub exit_code: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Whether some of the output is missing, because it passed its limit.
    pub truncated: bool,
    pub timed_out: bool,
    pub duration_ms: u64,
}

/// Start a process in a box
///
/// The answer comes when it has ended; what it left running in the background stays, as
/// part of the box. With `Accept: text/event-stream` or `application/x-ndjson` the
/// output comes as it is written, and the result last. A client that hangs up ends the
/// process, and everyone that it started.
///
/// With `"detach": true` the answer comes when it runs, and the process goes on without
/// its client, for as long as this server does.
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/exec",
    tag = "execs",
    params(("id" = String, Path, description = "An id, the beginning of one, or a name")),
    request_body = ExecRequest,
    responses(
        (status = 200, body = ExecResult, description = "It ran, whatever its exit code"),
        (status = 202, body = ExecStatus, description = "It runs, detached"),
        (status = "4XX", body = ErrorBody, description = "It cannot be run as asked"),
        (status = "5XX", body = ErrorBody, description = "It cannot be run now"),
    )
)]
pub async fn exec(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(request): Json<ExecRequest>,
) -> Result<Response, ServiceError> {
    let form = Form::wanted(&headers);
    let spec = request.spec(&app)?;
    if form != Form::Whole && !request.detach {
        request_log::hold_stream(&app)?;
    }
    let id = app.ask(move |engine| engine.find(&id)).await?;
    if request.detach {
        let exec = detach(&app, id, spec, request).await?;
        let status = axum::Json(ExecStatus::of(&exec));
        return Ok((StatusCode::ACCEPTED, status).into_response());
    }
    let fed = match request.stdin {
        Some(_) => Fed::Yes,
        None => Fed::No,
    };
    let encoding = request.encoding;
    let process = exec::begin(&app, id, spec, fed).await?;
    let input =
        Input { bytes: request.stdin.unwrap_or_default().into_bytes(), more: None, charge: None };
    match form {
        Form::Whole => {
            let outcome = process.run(&app, input, None, &Output::Keep).await?;
            Ok(axum::Json(ExecResult::of(outcome, encoding)).into_response())
        }
        Form::Events | Form::Lines => Ok(streamed(&app, process, input, encoding, form)),
    }
}

fn streamed(app: &App, process: Process, input: Input, encoding: Encoding, form: Form) -> Response {
    let (output, chunks) = frames::passed(app);
    let (mut wanted, running) = shutdown::pair();
    let app = app.clone();
    tokio::spawn(async move {
        let outcome = tokio::select! {
            outcome = process.run(&app, input, None, &output) => outcome,
            () = wanted.given_up() => return,
        };
        drop(output);
        wanted.done(outcome);
    });
    // The output was in the frames before.
    frames::frames(form, encoding, chunks, running, |outcome| {
        serde_json::to_value(ExecResult::of(outcome, Encoding::Utf8)).unwrap_or(Value::Null)
    })
}

/// Lets it run without anybody who waits for it.
async fn detach(
    app: &App,
    id: BoxId,
    spec: ExecSpec,
    request: ExecRequest,
) -> Result<Arc<Exec>, ServiceError> {
    let (orders, ordered) = mpsc::channel(WAITING_MAX);
    let (input, more) = mpsc::channel(WAITING_MAX);
    let exec = Arc::new(Exec::new(id.clone(), request.command, orders, Some(input)));
    // First: a process that has no place must not run.
    let place = app.execs.reserve(Arc::clone(&exec))?;
    let process = exec::begin(app, id, spec, Fed::Yes).await?;
    place.keep();
    let input = Input {
        bytes: request.stdin.unwrap_or_default().into_bytes(),
        more: Some(more),
        charge: request_log::take_body(),
    };
    let (app, running) = (app.clone(), Arc::clone(&exec));
    tokio::spawn(async move {
        let output = Output::Remember(Arc::clone(&running.memory));
        let outcome = process.run(&app, input, Some(ordered), &output).await;
        let (exit, timed_out) = match outcome {
            Ok(outcome) => outcome.ended.verdict(),
            // The server ends, and the process with it.
            Err(_) => (Exit::Signal(SIGKILL), false),
        };
        running.ended(exit, timed_out);
    });
    Ok(exec)
}

const SIGKILL: i32 = 9;

impl ExecRequest {
    fn spec(&self, app: &App) -> Result<ExecSpec, ServiceError> {
        let most = &app.config().limits;
        let timeout = match (self.timeout_ms, self.detach) {
            (None, true) => None,
            (Some(asked), true) => Some(spec::milliseconds("timeout_ms", asked)?),
            (asked, false) => Some(spec::timeout(asked, most)?),
        };
        Asked {
            command: self.command.clone(),
            env: &self.env,
            workdir: self.workdir.clone(),
            user: self.user.as_deref(),
            terminal: self.terminal,
        }
        .into_spec()
        .map(|spec| ExecSpec { timeout, ..spec })
    }
}

/// What every process is asked for with.
#[derive(Debug)]
pub struct Asked<'a> {
    pub command: Vec<String>,
    pub env: &'a BTreeMap<String, String>,
    pub workdir: Option<String>,
    pub user: Option<&'a str>,
    pub terminal: Option<TerminalAsked>,
}

impl Asked<'_> {
    pub fn into_spec(self) -> Result<ExecSpec, ServiceError> {
        if self.command.first().is_none_or(String::is_empty) {
            let message = "command: a program has to be named";
            return Err(ServiceError::invalid("invalid", message));
        }
        let terminal = match self.terminal {
            None => Terminal::Pipes,
            Some(asked) => asked.into_terminal()?,
        };
        let user = self.user.map(User::parse).transpose();
        let spec = ExecSpec {
            env: spec::pairs(self.env)?,
            workdir: self.workdir.map(spec::workdir).transpose()?,
            user: user.map_err(|error| spec::of_field("user", error))?,
            terminal,
            ..ExecSpec::of(spec::words(self.command))
        };
        command::check(&spec.command, &spec.env)?;
        Ok(spec)
    }
}

impl TerminalAsked {
    pub fn into_terminal(self) -> Result<Terminal, ServiceError> {
        let Self { rows, columns } = self;
        if rows == 0 || columns == 0 {
            Err(ServiceError::invalid("invalid", "a terminal has at least one row and one column"))
        } else {
            Ok(Terminal::Pty { rows, columns })
        }
    }
}

impl ExecResult {
    fn of(outcome: Outcome, encoding: Encoding) -> Self {
        let (exit, timed_out) = outcome.ended.verdict();
        let Outcome { stdout, stderr, .. } = outcome;
        Self {
            exit_code: exit.code(),
            signal: signal_of(exit),
            truncated: stdout.truncated || stderr.truncated,
            stdout: encoding.whole(stdout.bytes),
            stderr: encoding.whole(stderr.bytes),
            timed_out,
            duration_ms: u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The signal that ended it, if one did.
pub fn signal_of(exit: Exit) -> Option<i32> {
    match exit {
        Exit::Code(_) => None,
        Exit::Signal(signal) => Some(signal),
    }
}
