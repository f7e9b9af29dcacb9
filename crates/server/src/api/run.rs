//! `POST /v1/run`: one command in a box of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tare_engine::ExecSpec;
use tare_engine::spec::defaults::HOME;
use utoipa::ToSchema;

use crate::admission::Caller;
use crate::api::exec::ExecResult;
use crate::api::openapi::{ARGUMENTS_MAX, VARIABLES_MAX};
use crate::api::stream;
use crate::config::Config;
use crate::error::ServiceError;
use crate::http::bounded::{List, Texts};
use crate::http::extract::Json;
use crate::http::frames::StreamFormat;
use crate::http::text::{Encoding, base64, from_base64};
use crate::work::Service;
use crate::work::files::{InputFile, OutputFile};
use crate::work::languages::Host;
use crate::work::outcome::RunOutput;
use crate::work::output::OutputSink;
use crate::work::run_request::{Collect, RunRequest};
use crate::work::spec::{self, BoxFields, LimitsRequest, NetworkRequest};

/// The most outputs of a run. Each takes a call into the box.
const OUTPUTS_MAX: usize = 1000;
const FILES_MAX: usize = 10_000;
/// The hint for a request that names nothing to run, or two things.
const WHAT_TO_RUN: &str = "send either 'command', or 'language' and 'code'";

/// A command or code to run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunBody {
    /// A program and its arguments; no shell is involved. Either this or `code`.
    #[schema(value_type = Option<Vec<String>>, example = json!(["echo", "hello"]), max_items = 100_000)]
    pub command: Option<List<String, ARGUMENTS_MAX>>,
    /// The language of `code`: `python`, `node`, `bash`, and others that the host has.
    #[schema(example = "python")]
    pub language: Option<String>,
    pub code: Option<String>,
    /// The standard input; by default empty.
    pub stdin: Option<String>,
    /// Files to put into the working directory, `/work`.
    #[serde(default)]
    #[schema(value_type = Vec<FileGiven>, max_items = 10_000)]
    pub files: List<FileGiven, FILES_MAX>,
    /// Files and directories to return. Missing ones are skipped.
    #[serde(default)]
    #[schema(value_type = Vec<String>, max_items = 1000)]
    pub outputs: List<String, OUTPUTS_MAX>,
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub env: Texts<VARIABLES_MAX>,
    /// By default the operator's limit, 30 s unless configured.
    #[schema(minimum = 1)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub limits: LimitsRequest,
    #[serde(default)]
    pub network: NetworkRequest,
    /// The encoding of the output.
    #[serde(default)]
    pub encoding: Encoding,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileGiven {
    /// A path below `/work`.
    pub path: String,
    /// The content as text; give this or `content_base64`.
    pub content: Option<String>,
    pub content_base64: Option<String>,
}

/// The result of a command.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunResult {
    /// The id of the box, which no longer exists.
    pub id: String,
    #[serde(flatten)]
    pub command: ExecResult,
    /// Whether the kernel killed a process of the box because of its memory limit.
    pub oom: bool,
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
/// Responds when the command has ended and its box is removed. With `Accept: text/event-stream` or
/// `application/x-ndjson`, the output is streamed, and the result comes last. If the client
/// disconnects, the command is killed.
#[utoipa::path(
    post,
    path = "/v1/run",
    tag = "run",
    request_body = RunBody,
    responses((status = 200, body = RunResult, description = "The command ran, with any exit code"))
)]
pub async fn run(
    State(service): State<Service>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(body): Json<RunBody>,
) -> Result<Response, ServiceError> {
    let (format, encoding) = (StreamFormat::accepted(&headers), body.encoding);
    let request = run_request(body, &service.config())?;
    // Before the response begins: a refusal then has its own status, even if the response is a stream.
    let admitted = service.admit_run(&caller, &request.spec).await?;
    if format == StreamFormat::Whole {
        let output = service.run_admitted(&caller, admitted, request, OutputSink::Keep).await?;
        return Ok(axum::Json(RunResult::new(output, encoding)).into_response());
    }
    let client_timeout = service.config().limits.client.0;
    Ok(stream::output(format, encoding, client_timeout, |sink| async move {
        let output = service.run_admitted(&caller, admitted, request, sink).await?;
        // The output was in earlier frames.
        Ok(RunResult::new(output, Encoding::Utf8))
    }))
}

fn run_request(
    request: RunBody,
    config: &Config,
) -> Result<RunRequest<Vec<OutputFile>>, ServiceError> {
    let most = &config.limits;
    let mut files =
        request.files.0.into_iter().map(FileGiven::take).collect::<Result<Vec<_>, _>>()?;
    let mut env = BTreeMap::new();
    let command = match (request.command.map(|command| command.0), request.language, request.code) {
        (Some(command), None, None) if !command.is_empty() => command,
        (None, Some(language), Some(code)) => {
            let language = config.languages.find(&language, Host::alone())?;
            files.push(InputFile::new(&language.file, code.into_bytes())?);
            env.extend(language.env.clone());
            language.command(HOME, &[])
        }
        (Some(command), _, _) if !command.is_empty() => {
            let message = "the request has a command, and also a language or code";
            return Err(ServiceError::invalid("invalid", message).with_hint(WHAT_TO_RUN));
        }
        (_, _, _) => {
            let message = "the request has no command and no code";
            return Err(ServiceError::invalid("invalid", message).with_hint(WHAT_TO_RUN));
        }
    };
    env.extend(request.env.0);
    let exec = ExecSpec {
        env: spec::pairs(&env)?,
        timeout: Some(spec::timeout(request.timeout_ms, most)?),
        ..ExecSpec::of(spec::words(command))
    };
    tare_engine::spec::command::check(&exec.command, &exec.env)?;
    let fields =
        BoxFields { limits: request.limits, network: request.network, ..BoxFields::default() };
    Ok(RunRequest {
        stdin: request.stdin.map(String::into_bytes),
        files,
        collect: collect(outputs(request.outputs.0)?, most.output_bytes.0),
        ..RunRequest::new(fields.into_spec(most)?, exec, most.output_bytes.0)
    })
}

fn collect(paths: Vec<PathBuf>, bytes_max: u64) -> Option<Collect<Vec<OutputFile>>> {
    if paths.is_empty() {
        return None;
    }
    Some(Box::new(move |files, _end| files.collect(&paths, bytes_max)))
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
    fn take(self) -> Result<InputFile, ServiceError> {
        let content = match (self.content, self.content_base64) {
            (Some(text), None) => Some(text.into_bytes()),
            (None, Some(text)) => from_base64(&text),
            (None, None) | (Some(_), Some(_)) => None,
        };
        let content = content.ok_or_else(|| {
            let message = format!("files: {:?} needs either content or content_base64", self.path);
            ServiceError::invalid("invalid", message)
        })?;
        InputFile::new(&self.path, content)
    }
}

impl RunResult {
    fn new(mut output: RunOutput<Vec<OutputFile>>, encoding: Encoding) -> Self {
        let file = |file: OutputFile| FileReturned {
            path: file.path,
            size_bytes: file.content.len() as u64,
            content_base64: base64(&file.content),
        };
        Self {
            id: output.id.to_string(),
            oom: output.end.oom,
            files: output.collected.take().into_iter().flatten().map(file).collect(),
            command: ExecResult::new(output, encoding),
        }
    }
}
