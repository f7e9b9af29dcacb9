//! `POST /v1/run`: one command in a box of its own.

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tare_engine::spec::defaults::HOME;
use tare_engine::spec::{Accel, Driver};
use tare_engine::{ExecSpec, Receipt};
use utoipa::ToSchema;

use crate::admission::Caller;
use crate::api::exec::ExecResult;
use crate::api::openapi::{VARIABLES_MAX, VOLUMES_MAX};
use crate::api::stream;
use crate::config::Config;
use crate::error::ServiceError;
use crate::http::bounded::{ARGUMENTS_MAX, List, Texts};
use crate::http::extract::Json;
use crate::http::frames::StreamFormat;
use crate::http::text::{Encoding, base64, from_base64};
use crate::work::Service;
use crate::work::files::InputFile;
use crate::work::files::returned::{OmittedFile, OutputFile, OutputPath, RunFiles};
use crate::work::request::languages::Program;
use crate::work::request::run::{Collect, RunRequest, Warm, WarmWish};
use crate::work::request::spec::{self, BoxFields, LimitsRequest, NetworkRequest, VolumeRequest};
use crate::work::run::outcome::RunOutput;
use crate::work::streams::output::OutputSink;

/// The most outputs of a run. Each takes a call into the box.
const OUTPUTS_MAX: usize = 1000;
const INPUT_FILES_MAX: usize = 10_000;

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
    pub files: List<FileGiven, INPUT_FILES_MAX>,
    /// Files, directories and patterns of files to return. In a pattern, `*` and `?` stand for
    /// characters of a name, and `**` for any number of directories.
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
    /// The kernel that runs the box: the host's, or one of its own in a virtual machine. By default
    /// what the operator chose, `native` unless configured.
    pub driver: Option<Driver>,
    /// What runs the machine. By default what the operator chose, `kvm` unless configured.
    pub accel: Option<Accel>,
    /// Directories of the host, by the names that the operator gave them.
    #[serde(default)]
    #[schema(value_type = Vec<VolumeRequest>, max_items = 100)]
    pub volumes: List<VolumeRequest, VOLUMES_MAX>,
    /// The encoding of the output.
    #[serde(default)]
    pub encoding: Encoding,
    /// What the run may use that was made ahead: `any`, the default, a `clone` of an interpreter, an
    /// interpreter that was started in its box (`fresh`), or nothing (`off`). This is a wish: `warm` of
    /// the result says what the run got. A wish for a `clone` is answered with `fresh` if the server
    /// makes no clones, and with `off` if nothing suitable waits.
    #[serde(default)]
    pub warm: WarmWish,
    /// Whether the result has a receipt: what the box had held, and when tare saw each object gone.
    #[serde(default)]
    pub receipt: bool,
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
    /// What ran the box.
    pub driver: Driver,
    /// What was made before the request: a box with a copy of an interpreter (`clone`), or with an
    /// interpreter of its own (`fresh`), a `box`, or nothing (`off`).
    pub warm: Warm,
    pub files: Vec<FileReturned>,
    /// Requested files that are too large.
    pub files_omitted: Vec<FileOmitted>,
    /// Requested paths and patterns for which there is no readable regular file.
    pub files_missing: Vec<String>,
    /// Null unless the request has `receipt`.
    pub receipt: Option<Receipt>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct FileReturned {
    pub path: String,
    pub size_bytes: u64,
    pub content_base64: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct FileOmitted {
    pub path: String,
    /// Null for a directory or a pattern that has more files than a run returns.
    pub size_bytes: Option<u64>,
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
    let request = run_request(body, &service.config(), &caller)?;
    let driver = request.spec.driver();
    // Before the response begins: a refusal then has its own status, even if the response is a stream.
    let admitted = service.admit_run(&caller, &request.spec).await?;
    if format == StreamFormat::Whole {
        let output = service.run_admitted(&caller, admitted, request, OutputSink::Keep).await?;
        return Ok(axum::Json(RunResult::new(output, driver, encoding)).into_response());
    }
    let client_timeout = service.config().limits.client.0;
    Ok(stream::output(format, encoding, client_timeout, |sink| async move {
        let output = service.run_admitted(&caller, admitted, request, sink).await?;
        // The output was in earlier frames.
        Ok(RunResult::new(output, driver, Encoding::Utf8))
    }))
}

fn run_request(
    request: RunBody,
    config: &Config,
    caller: &Caller,
) -> Result<RunRequest<RunFiles>, ServiceError> {
    let most = &config.limits;
    let mut files =
        request.files.0.into_iter().map(FileGiven::take).collect::<Result<Vec<_>, _>>()?;
    let command = request.command.map(|command| command.0);
    let program = Program::of(config, HOME, command, request.language.as_deref(), request.code)?;
    files.extend(program.code);
    let mut env = program.env;
    env.extend(request.env.0);
    let exec = ExecSpec {
        env: spec::pairs(&env)?,
        timeout: Some(spec::timeout(request.timeout_ms, most)?),
        ..ExecSpec::of(spec::words(program.command))
    };
    tare_engine::spec::command::check(&exec.command, &exec.env)?;
    let fields = BoxFields {
        limits: request.limits,
        network: request.network,
        volumes: request.volumes.0,
        driver: request.driver,
        accel: request.accel,
        ..BoxFields::default()
    };
    Ok(RunRequest {
        code: program.interpreted,
        wish: request.warm,
        stdin: request.stdin.map(String::into_bytes),
        files,
        collect: collect(request.outputs.0, most.output_bytes.0)?,
        receipt: request.receipt,
        ..RunRequest::new(fields.into_spec(config, &caller.tenant)?, exec, most.output_bytes.0)
    })
}

fn collect(paths: Vec<String>, bytes_max: u64) -> Result<Option<Collect<RunFiles>>, ServiceError> {
    let paths = paths.into_iter().map(OutputPath::parse).collect::<Result<Vec<_>, _>>()?;
    if paths.is_empty() {
        return Ok(None);
    }
    Ok(Some(Box::new(move |files, _end| files.collect(&paths, bytes_max))))
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
    fn new(mut output: RunOutput<RunFiles>, driver: Driver, encoding: Encoding) -> Self {
        let file = |file: OutputFile| FileReturned {
            path: file.path,
            size_bytes: file.content.len() as u64,
            content_base64: base64(&file.content),
        };
        let omitted = |OmittedFile { path, size_bytes }| FileOmitted { path, size_bytes };
        let outputs = output.collected.take().unwrap_or_default();
        Self {
            id: output.id.to_string(),
            oom: output.end.oom,
            driver,
            warm: output.warm,
            receipt: output.receipt.take(),
            files: outputs.files.into_iter().map(file).collect(),
            files_omitted: outputs.omitted.into_iter().map(omitted).collect(),
            files_missing: outputs.missing,
            command: ExecResult::new(output, encoding),
        }
    }
}
