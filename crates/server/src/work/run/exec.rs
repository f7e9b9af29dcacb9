//! A process in a box that exists already.
//!
//! ```text
//! exec -> relay -> read what is left in its pipes -> RunOutput
//!    \_______\__ client gone, server stopping: the channel to its keeper closes, and the
//!                keeper ends it with every process that it started
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tare_engine::spec::Terminal;
use tare_engine::{
    BoxId, Cause, Circumstances, End, Engine, Error, ExecSpec, Session, Stdin, Subject,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::admission::Caller;
use crate::error::ServiceError;
use crate::permits::Permit;
use crate::work::Service;
use crate::work::files::InputFile;
use crate::work::request::run::Warm;
use crate::work::run::outcome::RunOutput;
use crate::work::run::processes::ExecProcess;
use crate::work::streams::output::{OutputSink, PastLimit};
use crate::work::streams::relay::{self, Input, ProcessControl, Streams};

/// How long a keeper may take to start a process.
const STARTED_WITHIN: Duration = Duration::from_secs(30);
/// How many control requests and pieces of input wait for a process that is not ready for them.
pub const WAITING_MAX: usize = 4;

/// The input of a process without a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessInput {
    None,
    Pipe,
}

/// A running process. It ends when this is dropped.
#[derive(Debug)]
pub struct Process {
    service: Service,
    caller: Caller,
    box_id: BoxId,
    session: Session,
    streams: Streams,
    started: Instant,
    timeout: Option<Duration>,
    counted: CountedEnd,
    _permit: Permit,
}

/// Counts the end of a process when it is dropped. Dropped before the end is known, it counts as
/// `client_gone`.
#[derive(Debug)]
struct CountedEnd {
    service: Service,
    cause: Cause,
}

impl Drop for CountedEnd {
    fn drop(&mut self) {
        self.service.metrics.count_end(self.cause);
    }
}

/// Code in a box, in a directory of its own, until this is dropped.
#[derive(Debug)]
pub struct PlacedCode {
    service: Service,
    caller: Caller,
    box_id: BoxId,
    directory: PathBuf,
}

impl Drop for PlacedCode {
    /// A box that runs code for weeks must not fill up with it.
    fn drop(&mut self) {
        let (service, caller) = (self.service.clone(), self.caller.clone());
        let (id, directory) = (self.box_id.clone(), std::mem::take(&mut self.directory));
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let box_id = id.clone();
                let remove = move |engine: &Engine| engine.remove_file(&box_id, &directory);
                // If this fails, the box has ended, or its own processes prevent it.
                service.call_in_box(&caller, &id, remove).await.ok();
            });
        }
    }
}

impl Service {
    /// Puts code into a box. `directory` contains nothing else.
    pub async fn place_code(
        &self,
        caller: &Caller,
        box_id: &BoxId,
        directory: PathBuf,
        code: InputFile,
    ) -> Result<PlacedCode, ServiceError> {
        let (service, caller) = (self.clone(), caller.clone());
        let placed = PlacedCode { service, caller, box_id: box_id.clone(), directory };
        self.with_files(&placed.caller, box_id, |files| files.put(vec![code])).await?;
        Ok(placed)
    }

    /// Starts a process, and returns when it runs.
    pub async fn exec(
        &self,
        caller: &Caller,
        box_id: &BoxId,
        spec: ExecSpec,
        input: ProcessInput,
    ) -> Result<Process, ServiceError> {
        self.shutdown.check_serving()?;
        let permit = self.processes.permit()?;
        let bytes_max = self.config().limits.output_bytes.0;
        let stdin = match (input, spec.terminal) {
            (ProcessInput::Pipe, Terminal::Pipes) => Stdin::Pipe,
            (ProcessInput::None, _) | (ProcessInput::Pipe, Terminal::Pty { .. }) => Stdin::Empty,
        };
        let (started, timeout) = (Instant::now(), spec.timeout);
        let (id, service) = (box_id.clone(), self.clone());
        let session = self.call_in_box(caller, box_id, move |engine| {
            let session = engine.exec(&id, &spec, stdin)?;
            // From here on a process may run, and ends if the client disconnects.
            Ok((session, CountedEnd { service, cause: Cause::ClientGone }))
        });
        let (mut session, mut counted) = session.await?;
        let begun = tokio::time::timeout(STARTED_WITHIN, relay::started(&mut session)).await;
        let late = |_| {
            let message = format!("the box did not start the process within {STARTED_WITHIN:?}");
            ServiceError::unavailable("not_started", message)
        };
        let terminal = begun.map_err(late).flatten();
        let terminal = terminal.inspect_err(|_| counted.cause = Cause::StartFailed)?;
        let pipes = session.streams();
        let streams = Streams::new(pipes, terminal, bytes_max, || self.charge(caller))?;
        let (service, caller, box_id) = (self.clone(), caller.clone(), box_id.clone());
        Ok(Process {
            service,
            caller,
            box_id,
            session,
            streams,
            started,
            timeout,
            counted,
            _permit: permit,
        })
    }

    /// Starts a process that needs no client, and ends with this server at the latest.
    pub async fn exec_detached(
        &self,
        caller: &Caller,
        box_id: &BoxId,
        command: Vec<String>,
        spec: ExecSpec,
        mut input: Input,
        code: Option<PlacedCode>,
    ) -> Result<Arc<ExecProcess>, ServiceError> {
        let (control, controlled) = mpsc::channel(WAITING_MAX);
        let (stdin, more) = mpsc::channel(WAITING_MAX);
        let exec = Arc::new(ExecProcess::new(box_id.clone(), command, control, Some(stdin)));
        // The place comes first: a process without one must not run.
        let place = self.processes.reserve(Arc::clone(&exec))?;
        let process = self.exec(caller, box_id, spec, ProcessInput::Pipe).await?;
        place.keep();
        input.more = Some(more);
        let running = Arc::clone(&exec);
        tokio::spawn(async move {
            let sink = OutputSink::Remember(Arc::clone(&running.output));
            let output = process.relay(input, Some(controlled), &sink).await;
            drop(code);
            let unknown = End::killed(Cause::ServerStopping);
            running.ended(output.map_or(unknown, |output| output.end));
        });
        Ok(exec)
    }
}

impl Process {
    /// Sets what happens when the process writes more than is kept.
    pub fn with_past_limit(mut self, past_limit: PastLimit) -> Self {
        self.streams.set_past_limit(past_limit);
        self
    }

    /// Passes input and output until the process has ended. The process ends when this future
    /// is dropped.
    pub async fn relay(
        mut self,
        input: Input,
        mut control: Option<mpsc::Receiver<ProcessControl>>,
        sink: &OutputSink,
    ) -> Result<RunOutput, ServiceError> {
        let (session, streams) = (&mut self.session, &mut self.streams);
        tokio::select! {
            relayed = relay::relay(session, streams, input, &mut control, sink) => relayed?,
            () = self.service.shutdown.killing() => {
                session.kill(End::killed(Cause::ServerStopping));
            }
        }
        let (mut session, id) = (self.session, self.box_id.clone());
        let engine = Arc::clone(&self.service.engine);
        let end = move || -> Result<_, Error> {
            let (end, _) = session.end()?;
            let mut ended = session.ended().cloned();
            let is_asked_for = matches!(end.cause, Cause::Signalled | Cause::Stopped);
            if let Some(ended) = ended.as_mut().filter(|_| is_asked_for) {
                let (by, before) = engine.asked_for_exec(&id, end).unzip();
                (ended.by, ended.asked_before) = (by, before.flatten());
            }
            Ok((end, ended))
        };
        let (end, ended) = self.service.workers.call(end).await?;
        let ended = ended.map(|ended| self.caller.shown_end(ended));
        self.counted.cause = end.cause;
        if end.cause == Cause::ServerStopping {
            let error = ServiceError::stopping();
            return Err(error.in_box(self.box_id, &Circumstances::of(end, Subject::Exec)));
        }
        if end.cause == Cause::ClientGone {
            return Err(ServiceError::internal("the client did not read the output"));
        }
        self.streams.read_left(sink).await;
        let [stdout, stderr] = self.streams.into_captured()?;
        let (id, duration) = (self.box_id, self.started.elapsed());
        let circumstances = Circumstances {
            evidence: ended.as_ref().map(|ended| &ended.evidence),
            by: ended.as_ref().and_then(|ended| ended.by.as_ref()),
            asked_before: ended.as_ref().and_then(|ended| ended.asked_before),
            timeout: self.timeout,
            ..Circumstances::of(end, Subject::Exec)
        };
        let sentence = circumstances.sentence();
        Ok(RunOutput {
            id,
            end,
            stdout,
            stderr,
            collected: None,
            duration,
            sentence,
            warm: Warm::Off,
            receipt: None,
        })
    }
}
