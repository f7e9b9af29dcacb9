//! `POST /v1/boxes/{id}/exec`: another process in a box.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tare_engine::spec::BoxId;
use tare_engine::spec::{Terminal, User, command};
use tare_engine::{Cause, ExecSpec};
use utoipa::ToSchema;

use crate::api::openapi::{BoxPath, VARIABLES_MAX};
use crate::api::processes::ExecStatus;
use crate::api::requested::RequestedBox;
use crate::api::stream;
use crate::config::{Config, Limits};
use crate::error::ServiceError;
use crate::http::bounded::{ARGUMENTS_MAX, List, Texts};
use crate::http::extract::Json;
use crate::http::frames::StreamFormat;
use crate::http::text::Encoding;
use crate::http::{Http, hint, request_log};
use crate::work::request::languages::Program;
use crate::work::request::spec::{self, TerminalSize};
use crate::work::run::exec::ProcessInput;
use crate::work::run::outcome::RunOutput;
use crate::work::streams::output::OutputSink;
use crate::work::streams::relay::Input;

/// Another process in a box.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// A program and its arguments; no shell is involved. Either this or `code`.
    #[schema(value_type = Option<Vec<String>>, example = json!(["ls", "-l"]), max_items = 100_000)]
    pub command: Option<List<String, ARGUMENTS_MAX>>,
    /// The language of `code`: `python`, `node`, `bash`, and others that the host has.
    #[schema(example = "python")]
    pub language: Option<String>,
    pub code: Option<String>,
    /// Added to the environment of the box.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub env: Texts<VARIABLES_MAX>,
    /// The working directory. By default that of the box's command.
    pub workdir: Option<String>,
    /// `UID` or `UID:GID`; by default the user of the box's command.
    pub user: Option<String>,
    /// The standard input; by default empty.
    pub stdin: Option<String>,
    /// After this time the process and all processes that it started are killed. By default the
    /// operator's limit; a detached process has none by default.
    #[schema(minimum = 1)]
    pub timeout_ms: Option<u64>,
    /// The size of a terminal. By default there are pipes. With a terminal all output is `stdout`.
    pub terminal: Option<TerminalSize>,
    /// The encoding of the output.
    #[serde(default)]
    pub encoding: Encoding,
    /// Whether to respond as soon as the process runs, with its id.
    #[serde(default)]
    pub detach: bool,
}

/// The result of a process.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExecResult {
    /// The process's own code, 128+N after signal N, 124 after the timeout.
    pub exit_code: u8,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Whether output is missing because it exceeded the limit.
    pub truncated: bool,
    /// Why the process ended.
    #[schema(value_type = String)]
    pub cause: Cause,
    /// Why the process ended, as a sentence.
    pub sentence: String,
    /// That of a run includes the creation and the removal of its box.
    pub duration_ms: u64,
}

/// Start a process in a box
///
/// Responds when the process has ended. Background processes that it started keep running in the
/// box. With `Accept: text/event-stream` or `application/x-ndjson`, the output is streamed, and the
/// result comes last. If the client disconnects, the process and all processes that it started are
/// killed.
///
/// With `"detach": true` the response comes when the process runs. The process needs no client, and
/// ends with this server.
#[utoipa::path(
    post,
    path = "/v1/boxes/{id}/exec",
    tag = "execs",
    params(BoxPath),
    request_body = ExecRequest,
    responses(
        (status = 200, body = ExecResult, description = "The process ran, with any exit code"),
        (status = 202, body = ExecStatus, description = "The process runs, detached"),
    )
)]
pub async fn exec(
    RequestedBox { service, caller, id }: RequestedBox,
    State(http): State<Http>,
    headers: HeaderMap,
    Json(mut request): Json<ExecRequest>,
) -> Result<Response, ServiceError> {
    let format = StreamFormat::accepted(&headers);
    let config = service.config();
    let client_timeout = config.limits.client.0;
    // Each code has a directory of its own: several may start at once.
    let directory = PathBuf::from(format!("/tmp/code-{}", BoxId::random()));
    let program = request.program(&config, &directory)?;
    let spec = request.spec(&program, &config.limits)?;
    if format != StreamFormat::Whole && !request.detach {
        request_log::hold_stream(&http)?;
    }
    let id = service.find(&caller, &id).await?;
    let code = match program.code {
        Some(code) => Some(service.place_code(&caller, &id, directory, code).await?),
        None => None,
    };
    let piped = if request.stdin.is_some() { ProcessInput::Pipe } else { ProcessInput::None };
    let bytes = request.stdin.unwrap_or_default().into_bytes();
    if request.detach {
        let input = Input { bytes, more: None, charge: request_log::take_body() };
        let exec = service.exec_detached(&caller, &id, program.command, spec, input, code).await?;
        return Ok((StatusCode::ACCEPTED, axum::Json(ExecStatus::of(&exec))).into_response());
    }
    let input = Input { bytes, more: None, charge: None };
    let process = service.exec(&caller, &id, spec, piped).await?;
    if format == StreamFormat::Whole {
        let output = process.relay(input, None, &OutputSink::Keep).await?;
        return Ok(axum::Json(ExecResult::new(output, request.encoding)).into_response());
    }
    Ok(stream::output(format, request.encoding, client_timeout, |sink| async move {
        let output = process.relay(input, None, &sink).await?;
        drop(code);
        // The output was in earlier frames.
        Ok(ExecResult::new(output, Encoding::Utf8))
    }))
}

impl ExecRequest {
    fn program(&mut self, config: &Config, directory: &Path) -> Result<Program, ServiceError> {
        let directory = directory.to_string_lossy();
        let command = self.command.take().map(|command| command.0);
        let (language, code) = (self.language.as_deref(), self.code.take());
        let mut program = Program::of(config, &directory, command, language, code)?;
        program.env.extend(std::mem::take(&mut self.env.0));
        Ok(program)
    }

    fn spec(&self, program: &Program, most: &Limits) -> Result<ExecSpec, ServiceError> {
        let timeout = match (self.timeout_ms, self.detach) {
            (None, true) => None,
            (Some(asked), true) => Some(spec::milliseconds("timeout_ms", asked)?),
            (asked, false) => Some(spec::timeout(asked, most)?),
        };
        ProcessFields {
            command: program.command.clone(),
            env: &program.env,
            workdir: self.workdir.clone(),
            user: self.user.as_deref(),
            terminal: self.terminal,
        }
        .into_spec()
        .map(|spec| ExecSpec { timeout, ..spec })
    }
}

/// The fields that every request for a process has.
#[derive(Debug)]
pub struct ProcessFields<'a> {
    pub command: Vec<String>,
    pub env: &'a BTreeMap<String, String>,
    pub workdir: Option<String>,
    pub user: Option<&'a str>,
    pub terminal: Option<TerminalSize>,
}

impl ProcessFields<'_> {
    pub fn into_spec(self) -> Result<ExecSpec, ServiceError> {
        if self.command.first().is_none_or(String::is_empty) {
            let message = "command: name a program";
            return Err(ServiceError::invalid("invalid", message));
        }
        let terminal = match self.terminal {
            None => Terminal::Pipes,
            Some(size) => size.into_terminal()?,
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

impl ExecResult {
    pub fn new<T>(output: RunOutput<T>, encoding: Encoding) -> Self {
        let duration_ms = output.duration_ms();
        let sentence = output.sentence.with_advice(hint::words);
        let RunOutput { end, stdout, stderr, .. } = output;
        Self {
            sentence,
            exit_code: end.code(),
            signal: end.signal(),
            cause: end.cause,
            truncated: stdout.truncated || stderr.truncated,
            stdout: encoding.whole(stdout.bytes),
            stderr: encoding.whole(stderr.bytes),
            duration_ms,
        }
    }
}
