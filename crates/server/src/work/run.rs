//! Runs one command in its own box, and returns after the box is gone.
//!
//! ```text
//! admit -> slot -> make box -> [copy in -> exec] -> relay -> [collect] -> tear down -> log
//!                      \_________ client gone, server stopping, error _____^
//! ```
//!
//! This file owns the order of these steps, and the promise that every box it makes is torn
//! down. It never parses a request and never formats a response.
//!
//! Without files, the command is the box's own command. With files, the command is an exec: the
//! box must exist while files are copied in, and outlive the command while results are collected.

use std::borrow::Cow;
use std::convert::Infallible;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tare_engine::spec::{Spec, command, name};
use tare_engine::{
    BoxId, Cause, End, Engine, Error, Event, ExecSpec, Keeper, RUN_LABEL, Session, Stdin,
};
use tokio_util::sync::CancellationToken;

use crate::admission::{Admitted, Caller, Need};
use crate::error::ServiceError;
use crate::telemetry::LogEvent;
use crate::telemetry::metrics::Phase;
use crate::work::Service;
use crate::work::boxes::{ENDED_WITHIN, TRY_AGAIN};
use crate::work::events::Events;
use crate::work::files::{self, InputFile};
use crate::work::outcome::RunOutput;
use crate::work::relay::{self, Input, OutputSink, PastLimit, Streams};
use crate::workers::CreateSlot;

/// Bounds the wait when a volume's file system does not answer.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);
/// A box that takes longer to start reports the system call that it waits in.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// A box that takes longer than this gives its create slot to the next box.
const SLOT_HELD_MAX: Duration = Duration::from_millis(100);
/// Bounds a copy, because processes in the box can slow it down.
const COPY_TIMEOUT: Duration = Duration::from_secs(30);
/// Bounds how long one attempt to end a box holds its thread.
const TRY_TIMEOUT: Duration = Duration::from_secs(1);

/// One command, the box it needs, and the files that go with it.
pub struct RunRequest<T> {
    /// The box, without a command.
    pub spec: Spec,
    pub exec: ExecSpec,
    pub stdin: Option<Vec<u8>>,
    pub files: Vec<InputFile>,
    pub collect: Option<Collect<T>>,
    /// The limit for each of stdout and stderr.
    pub output_bytes_max: u64,
    pub past_limit: PastLimit,
    pub progress: Progress,
}

/// Reads results out of the box after its command has finished. Blocks its thread.
pub type Collect<T> = Box<dyn FnOnce(&Engine, &BoxId, End) -> Result<T, Error> + Send>;

/// What a run is doing now, in words.
#[derive(Debug, Clone)]
pub struct Progress(Arc<Mutex<Cow<'static, str>>>);

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Mutex::new("waiting for its turn".into())))
    }
}

impl Progress {
    fn set(&self, step: impl Into<Cow<'static, str>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = step.into();
    }

    pub fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().into_owned()
    }
}

impl<T> RunRequest<T> {
    /// A request without input, files and results.
    pub fn new(spec: Spec, exec: ExecSpec, output_bytes_max: u64) -> Self {
        Self {
            spec,
            exec,
            stdin: None,
            files: Vec::new(),
            collect: None,
            output_bytes_max,
            past_limit: PastLimit::Truncate,
            progress: Progress::default(),
        }
    }

    /// Returns whether the command can be the box's own: it needs no copy in or out.
    fn is_box_command(&self) -> bool {
        self.files.is_empty() && self.collect.is_none()
    }

    fn stdin(&self) -> Stdin {
        self.stdin.as_ref().map_or(Stdin::Empty, |_| Stdin::Pipe)
    }

    fn label(&self) -> Option<(String, String)> {
        let program = Path::new(self.exec.command.first()?).file_name()?.to_str()?;
        name::label(&format!("{RUN_LABEL}={program}")).ok()
    }

    /// Returns the box to make, and the stdin of its own command.
    fn box_spec(&self) -> (Spec, Stdin) {
        let mut spec = self.spec.clone();
        if !self.is_box_command() {
            spec.labels.extend(self.label());
            return (spec, Stdin::Empty);
        }
        spec.command.clone_from(&self.exec.command);
        spec.env = command::later_wins(spec.env.into_iter().chain(self.exec.env.clone()));
        spec.timeout = self.exec.timeout;
        (spec, self.stdin())
    }
}

/// A run without a result.
struct Failed {
    /// How the command ended. With `exited`, the step after the command failed.
    cause: Cause,
    error: ServiceError,
}

impl From<ServiceError> for Failed {
    fn from(error: ServiceError) -> Self {
        Self { cause: Cause::StartFailed, error }
    }
}

impl Failed {
    /// A step after the command failed.
    fn after(self, end: End) -> Self {
        let cause = if self.cause == Cause::StartFailed { end.cause } else { self.cause };
        Self { cause, ..self }
    }

    fn client_gone() -> Self {
        let error = ServiceError::internal("the client of a run is gone");
        Self { cause: Cause::ClientGone, error }
    }
}

impl Service {
    /// Runs a command in a fresh box, and returns after tare has seen that the box is gone.
    pub async fn run<T: Send + 'static>(
        &self,
        caller: &Caller,
        request: RunRequest<T>,
        sink: OutputSink,
    ) -> Result<RunOutput<T>, ServiceError> {
        let admitted = self.admit_run(caller, &request.spec).await?;
        self.run_admitted(caller, admitted, request, sink).await
    }

    /// Waits for the turn of a run. A separate step for APIs that stream: until here a refusal
    /// is an error of the request, and from here on it is part of the stream.
    pub async fn admit_run(&self, caller: &Caller, spec: &Spec) -> Result<Admitted, ServiceError> {
        self.shutdown.check_serving()?;
        self.admit(caller, Need::run(spec)).await
    }

    /// The run has its own task. Dropping the returned future interrupts the task: the box is
    /// killed and torn down, and the cause of its end is `client_gone`.
    pub async fn run_admitted<T: Send + 'static>(
        &self,
        caller: &Caller,
        admitted: Admitted,
        mut request: RunRequest<T>,
        sink: OutputSink,
    ) -> Result<RunOutput<T>, ServiceError> {
        request.spec.tenant = caller.tenant.clone();
        let interrupt = self.shutdown.interrupt();
        let _interrupt_when_dropped = interrupt.clone().drop_guard();
        let steps = Steps {
            service: self.clone(),
            caller: caller.clone(),
            admitted: Some(admitted),
            interrupt,
            progress: request.progress.clone(),
            phase_began: Instant::now(),
        };
        let task = tokio::spawn(async move { steps.run_and_log(request, sink).await });
        task.await.map_err(ServiceError::internal)?
    }
}

/// What every step of one run needs.
struct Steps {
    service: Service,
    caller: Caller,
    /// Released last: a run counts against limits and quotas until its box is gone. `None`
    /// after the keeper watch has taken it for a box that is stuck.
    admitted: Option<Admitted>,
    /// Cancelled when the client disconnects, and when the server kills the remaining runs.
    interrupt: CancellationToken,
    progress: Progress,
    phase_began: Instant,
}

/// The result of the command, before teardown.
struct Finished<T> {
    end: End,
    streams: Streams,
    collected: Option<T>,
}

impl Steps {
    async fn run_and_log<T: Send + 'static>(
        mut self,
        request: RunRequest<T>,
        sink: OutputSink,
    ) -> Result<RunOutput<T>, ServiceError> {
        let started = Instant::now();
        let (box_id, result) = match self.make_box(request.box_spec()).await {
            Ok((session, slot)) => {
                let id = session.id().clone();
                (Some(id), self.use_box(session, slot, request, &sink).await)
            }
            Err(why) => (None, Err(why)),
        };
        let duration = started.elapsed();
        let (cause, exit_code, code) = match &result {
            Ok(output) => (output.end.cause, Some(output.end.code()), None),
            Err(failed) => (failed.cause, None, Some(failed.error.code)),
        };
        self.service.journal.record(&LogEvent::RunEnded {
            box_id: box_id.as_ref().map(BoxId::as_str),
            key: self.caller.tenant.key(),
            request_id: Some(self.caller.request_id.as_str()).filter(|id| !id.is_empty()),
            cause,
            exit_code,
            code: code.filter(|_| cause != Cause::ClientGone),
            duration,
        });
        result.map(|output| RunOutput { duration, ..output }).map_err(|failed| failed.error)
    }

    /// Makes the box on a thread that lives as long as the server: the kernel kills a keeper
    /// when the *thread* that created it exits (`PR_SET_PDEATHSIG`, prctl(2)).
    async fn make_box(
        &mut self,
        (spec, stdin): (Spec, Stdin),
    ) -> Result<(Session, CreateSlot), Failed> {
        let slot = self.unless_interrupted(self.service.creators.slot()).await?;
        self.progress.set("creating the box");
        let engine = Arc::clone(&self.service.engine);
        // Not interruptible: once the box exists, it must be torn down.
        let made = self.service.creators.call(move || engine.run(&spec, stdin)).await;
        let session = made.map_err(ServiceError::from)?;
        self.service.journal.record_box_notes(session.notes());
        self.end_phase(Phase::Create);
        self.progress.set("starting the box");
        Ok((session, slot))
    }

    /// Runs the command, then tears the box down, even if the command failed.
    async fn use_box<T: Send + 'static>(
        &mut self,
        mut session: Session,
        slot: CreateSlot,
        request: RunRequest<T>,
        sink: &OutputSink,
    ) -> Result<RunOutput<T>, Failed> {
        let id = session.id().clone();
        let finished = self.run_command(&mut session, slot, request, sink).await;
        self.progress.set("ending the box");
        if let Err(failed) = &finished {
            session.kill(End::killed(failed.cause));
        }
        let torn_down = self.tear_down(session).await;
        let Finished { end, mut streams, collected } = finished?;
        let of_box = torn_down.map_err(|error| Failed::from(error).after(end))?;
        // Every process that could write is dead. Read what is left in the pipes.
        streams.read_to_end(sink).await;
        let captured = streams.into_captured();
        let [stdout, stderr] = captured.map_err(|error| Failed::from(error).after(end))?;
        let end = end.with_oom(of_box.oom);
        Ok(RunOutput { id, end, stdout, stderr, collected, duration: Duration::ZERO })
    }

    async fn run_command<T: Send + 'static>(
        &mut self,
        session: &mut Session,
        slot: CreateSlot,
        mut request: RunRequest<T>,
        sink: &OutputSink,
    ) -> Result<Finished<T>, Failed> {
        self.until_made(session, slot).await?;
        if request.is_box_command() {
            let (end, streams) = self.relay(session, &mut request, sink).await?;
            return Ok(Finished { end, streams, collected: None });
        }
        let id = session.id().clone();
        if !request.files.is_empty() {
            let (of, inputs) = (id.clone(), std::mem::take(&mut request.files));
            let service = self.service.clone();
            let put = service.call(move |engine| files::put(engine, &of, inputs));
            self.copy(session, put).await?;
        }
        let (of, exec, stdin) = (id.clone(), request.exec.clone(), request.stdin());
        let mut exec = self.service.call(move |engine| engine.exec(&of, &exec, stdin)).await?;
        let (end, streams) = self.relay(&mut exec, &mut request, sink).await?;
        drop(exec);
        let collected = match request.collect {
            Some(collect) if end.cause != Cause::KeeperLost => {
                let service = self.service.clone();
                let collect = service.call(move |engine| collect(engine, &id, end));
                let collected = self.copy(session, collect).await;
                Some(collected.map_err(|failed| failed.after(end))?)
            }
            Some(_) | None => None,
        };
        Ok(Finished { end, streams, collected })
    }

    /// Waits until the keeper reports that the box is made.
    async fn until_made(&self, session: &mut Session, slot: CreateSlot) -> Result<(), Failed> {
        let events = Events::of(session.events_fd())?;
        let keeper = session.keeper().map_err(ServiceError::from)?;
        let made = async {
            match events.next(|| session.next_event()).await? {
                Event::Started => Ok(()),
                Event::Failed(error) => Err(ServiceError::from(error)),
                Event::Terminal(_) | Event::Ended(_) => {
                    let message = "the box was ended before its command started";
                    Err(ServiceError::unavailable("box_ended", message))
                }
            }
        };
        let made = async {
            tokio::pin!(made);
            let soon = tokio::time::timeout(SLOT_HELD_MAX, &mut made).await;
            drop(slot);
            match soon {
                Ok(made) => made,
                Err(_elapsed) => made.await,
            }
        };
        let made = tokio::time::timeout(CREATE_TIMEOUT, made);
        let made = async {
            tokio::select! {
                made = made => made,
                never = self.report_slow_start(&keeper) => match never {},
            }
        };
        match self.unless_interrupted(made).await? {
            Ok(made) => made?,
            Err(_elapsed) => {
                return Err(ServiceError::internal("the box was not made in time").into());
            }
        }
        self.progress.set("running the command");
        Ok(())
    }

    /// Names the system call that a box which is slow to start waits in.
    async fn report_slow_start(&self, keeper: &Keeper) -> Infallible {
        loop {
            tokio::time::sleep(SLOW_AFTER).await;
            if let Some(call) = keeper.system_call() {
                self.progress.set(format!("starting the box: its keeper is in {call}"));
            }
        }
    }

    /// Passes input and output until the command ends.
    async fn relay<T>(
        &mut self,
        session: &mut Session,
        request: &mut RunRequest<T>,
        sink: &OutputSink,
    ) -> Result<(End, Streams), Failed> {
        let (pipes, most) = (session.streams(), request.output_bytes_max);
        let mut streams = Streams::new(pipes, None, most, || self.service.charge(&self.caller))?;
        streams.set_past_limit(request.past_limit);
        if let Some(admitted) = &mut self.admitted {
            admitted.box_is_made(session.id());
        }
        self.end_phase(Phase::Start);
        let input = Input { bytes: request.stdin.take().unwrap_or_default(), ..Input::default() };
        let mut no_control = None;
        let relayed = relay::relay(session, &mut streams, input, &mut no_control, sink);
        self.unless_interrupted(relayed).await??;
        let end = session.seen_end();
        if end.cause == Cause::ClientGone {
            return Err(Failed::client_gone());
        }
        self.end_phase(Phase::Run);
        Ok((end, streams))
    }

    /// Waits for a copy, which blocks a thread until the box answers. To give up on a copy, this
    /// function kills the box: the copy then fails, and its thread is free again.
    async fn copy<D>(
        &self,
        session: &mut Session,
        copy: impl Future<Output = Result<D, ServiceError>>,
    ) -> Result<D, Failed> {
        tokio::pin!(copy);
        let limited = tokio::time::timeout(COPY_TIMEOUT, &mut copy);
        let failed = match self.unless_interrupted(limited).await {
            Ok(Ok(copied)) => return Ok(copied?),
            Ok(Err(_elapsed)) => {
                let message = "the box did not copy its files in time";
                Failed::from(ServiceError::invalid("files_stalled", message))
            }
            Err(failed) => failed,
        };
        session.kill(End::killed(failed.cause));
        copy.await.ok();
        Err(failed)
    }

    async fn unless_interrupted<D>(&self, step: impl Future<Output = D>) -> Result<D, Failed> {
        tokio::select! {
            done = step => Ok(done),
            () = self.interrupt.cancelled() => {
                Err(if self.service.shutdown.is_killing() {
                    Failed { cause: Cause::ServerStopping, error: ServiceError::stopping() }
                } else {
                    Failed::client_gone()
                })
            }
        }
    }

    /// Ends the box, again and again until the bound has passed. A box that cannot be ended
    /// stays on record as `stuck`: the keeper watch notices its end, and every sweep retries it.
    async fn tear_down(&mut self, mut session: Session) -> Result<End, ServiceError> {
        let service = self.service.clone();
        let started = Instant::now();
        let ended = loop {
            let ended;
            (session, ended) = try_end(&service, session).await;
            let left = ENDED_WITHIN.saturating_sub(started.elapsed());
            match ended {
                Ok(end) => break Ok(end),
                Err(error) if left.is_zero() => break Err(error),
                Err(_not_yet) => {
                    let keeper = session.keeper()?;
                    service.until_dead(keeper.as_fd(), left).await?;
                    tokio::time::sleep(TRY_AGAIN.min(left)).await;
                }
            }
        };
        service.metrics.observe(Phase::Teardown, started.elapsed());
        ended.map_err(|error| self.stuck(&session, error))
    }

    fn stuck(&mut self, session: &Session, error: Error) -> ServiceError {
        let id = session.id();
        let admitted = self.admitted.take().map(Admitted::without_turn);
        if let Ok(keeper) = session.keeper() {
            self.service.watch.add(id.clone(), keeper, admitted);
        }
        let error = ServiceError::from(error);
        let why = error.detail.as_deref().unwrap_or(&error.message);
        let of = (id.as_str(), self.caller.tenant.key());
        let request_id = Some(&*self.caller.request_id);
        self.service.journal.record(&LogEvent::stuck(of, request_id, why));
        error
    }

    fn end_phase(&mut self, phase: Phase) {
        let began = std::mem::replace(&mut self.phase_began, Instant::now());
        self.service.metrics.observe(phase, began.elapsed());
    }
}

async fn try_end(service: &Service, mut session: Session) -> (Session, Result<End, Error>) {
    service
        .workers
        .call(move || {
            let ended = session.try_end(TRY_TIMEOUT);
            (session, ended)
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_files_makes_a_box_without_a_command() {
        let exec = ExecSpec::of(["/bin/cat", "a.txt"]);
        let mut request = RunRequest::<()>::new(Spec::of(Vec::new()), exec, 0);
        assert_eq!(request.box_spec().0.command, ["/bin/cat", "a.txt"]);
        request.files.push(InputFile::new("a.txt", b"hello".to_vec()).expect("a path"));
        let spec = request.box_spec().0;
        assert!(spec.command.is_empty());
        assert_eq!(spec.labels[RUN_LABEL], "cat");
    }
}
