//! Runs commands: each in a box of its own, or as an exec in a box that exists already.
//!
//! A command in a box of its own returns after the box is gone.
//!
//! ```text
//! admit -> slot -> make box, or claim one -> [copy in -> exec] -> relay -> [collect] -> tear down -> log
//!                      \_________ client gone, server stopping, error _____^
//! ```
//!
//! This file owns the order of these steps, and the promise that every box it makes is torn
//! down. It never parses a request and never formats a response.
//!
//! Without files, the command is the box's own command. With files, the command is an exec: the
//! box must exist while files are copied in, and outlive the command while results are collected.

pub mod exec;
pub mod outcome;
mod probe;
pub mod processes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tare_engine::spec::Spec;
use tare_engine::{
    AtEnd, BoxId, Cause, Circumstances, Conclusion, End, EndedLine, Error, Keeper, Receipt,
    Session, Stdin, Subject,
};
use tokio_util::sync::CancellationToken;

use crate::admission::{Admitted, Caller, Need};
use crate::error::ServiceError;
use crate::permits::Permit;
use crate::telemetry::metrics::Phase;
use crate::telemetry::{LogEvent, OfBox};
use crate::work::Service;
use crate::work::boxes::ending::REPORTED_AFTER;
use crate::work::files::BoxFiles;
use crate::work::pool::{self, Claimed, Shape, Template};
use crate::work::request::run::{Progress, RunRequest, Warm};
use crate::work::run::outcome::RunOutput;
use crate::work::streams::output::OutputSink;
use crate::work::streams::relay::{self, Input, Streams};

/// A box that takes longer to start reports the system call that it waits in.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// A box that takes longer than this gives its create slot to the next box.
const SLOT_HELD_MAX: Duration = Duration::from_millis(100);
/// Bounds a copy, because processes in the box can slow it down.
const COPY_TIMEOUT: Duration = Duration::from_secs(30);

/// A run without a result.
struct Failed {
    /// Why the run was interrupted. `None` if one of its steps failed.
    interrupted: Option<Cause>,
    error: ServiceError,
}

impl From<ServiceError> for Failed {
    fn from(error: ServiceError) -> Self {
        Self { interrupted: None, error }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        ServiceError::from(error).into()
    }
}

impl Failed {
    fn client_gone() -> Self {
        let error = ServiceError::internal("the client of a run is gone");
        Self { interrupted: Some(Cause::ClientGone), error }
    }

    fn server_stopping() -> Self {
        Self { interrupted: Some(Cause::ServerStopping), error: ServiceError::stopping() }
    }

    /// Adds the box of the run, and how it ended.
    fn in_box(self, box_id: BoxId, circumstances: &Circumstances<'_>) -> Self {
        Self { error: self.error.in_box(box_id, circumstances), ..self }
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
            command_ended: None,
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
    /// How the command ended, even if a step after it fails.
    command_ended: Option<End>,
}

/// The box of a run.
struct OwnBox {
    session: Session,
    /// `None` for a box that was made before the request.
    slot: Option<Permit>,
    /// An interpreter that waits in the box for its order.
    interpreter: Option<Session>,
    /// Of the interpreter. Held until the box has ended.
    template: Option<Arc<Template>>,
    warm: Warm,
}

/// The result of the command, before teardown.
struct Finished<T> {
    end: End,
    streams: Streams,
    collected: Option<T>,
    /// The keeper reported it for the command.
    scratch_full: bool,
}

impl Steps {
    async fn run_and_log<T: Send + 'static>(
        mut self,
        request: RunRequest<T>,
        sink: OutputSink,
    ) -> Result<RunOutput<T>, ServiceError> {
        // The client has waited for its turn too.
        let started = self.admitted.as_ref().map_or_else(Instant::now, |it| it.asked_at);
        let (box_id, result) =
            match self.get_box(self.service.shape_for(&request), request.box_spec()).await {
                Ok(mut own) => {
                    if request.receipt {
                        own.session.want_receipt();
                    }
                    let id = own.session.id().clone();
                    (Some(id), self.use_box(own, request, &sink).await)
                }
                Err(failed) => (None, Err(failed)),
            };
        let duration = started.elapsed();
        let (cause, exit_code, code) = match &result {
            Ok(output) => (output.end.cause, Some(output.end.code()), None),
            Err(failed) => (self.end_of(failed).cause, None, Some(failed.error.code)),
        };
        self.service.journal.record(&LogEvent::RunEnded {
            box_id: box_id.as_ref().map(BoxId::as_str),
            key: self.caller.tenant.key(),
            request_id: self.caller.request_id(),
            cause,
            exit_code,
            code: code.filter(|_| cause != Cause::ClientGone),
            duration,
        });
        result.map(|output| RunOutput { duration, ..output }).map_err(|failed| failed.error)
    }

    /// How a failed run ended. If a step after the command failed, the end is that of the command.
    fn end_of(&self, failed: &Failed) -> End {
        match (failed.interrupted, self.command_ended) {
            (Some(cause), _) => End::killed(cause),
            (None, Some(end)) => end,
            (None, None) => End::killed(Cause::StartFailed),
        }
    }

    /// Returns the box of a run: one that waits in a pool, or a new one.
    async fn get_box(
        &mut self,
        shape: Option<Shape>,
        (spec, stdin): (Spec, Stdin),
    ) -> Result<OwnBox, Failed> {
        let claimed = match shape {
            Some(shape) => self.service.claim(shape, &spec).await,
            None => None,
        };
        let Some((claimed, warm)) = claimed else {
            let (session, slot) = self.make_box((spec, stdin)).await?;
            return Ok(OwnBox {
                session,
                slot: Some(slot),
                interpreter: None,
                template: None,
                warm: Warm::Off,
            });
        };
        let (session, interpreter, template) = match claimed {
            Claimed::Box(session) => (session, None, None),
            Claimed::Interpreter(it) => (it.session, Some(it.process), it.template),
        };
        self.service.journal.record_box_notes(session.notes());
        self.end_phase(Phase::Create);
        Ok(OwnBox { session, slot: None, interpreter, template, warm })
    }

    /// Makes the box on a thread that lives as long as the server: the kernel kills a keeper
    /// when the *thread* that created it exits (`PR_SET_PDEATHSIG`, prctl(2)).
    async fn make_box(
        &mut self,
        (spec, stdin): (Spec, Stdin),
    ) -> Result<(Session, Permit), Failed> {
        let slot = self.unless_interrupted(self.service.creators.slot()).await?;
        self.progress.set("creating the box");
        let engine = Arc::clone(&self.service.engine);
        // Not interruptible: once the box exists, it must be torn down.
        let creating = self.service.creators.call(move || engine.run(&spec, stdin));
        let session = self.service.reporting_slow(creating).await?;
        self.service.journal.record_box_notes(session.notes());
        self.end_phase(Phase::Create);
        self.progress.set("starting the box");
        Ok((session, slot))
    }

    /// Runs the command, then tears the box down, even if the command failed.
    async fn use_box<T: Send + 'static>(
        &mut self,
        own: OwnBox,
        request: RunRequest<T>,
        sink: &OutputSink,
    ) -> Result<RunOutput<T>, Failed> {
        let OwnBox { mut session, slot, interpreter, template, warm } = own;
        let id = session.id().clone();
        let (timeout, output_bytes_max) = (request.exec.timeout, Some(request.output_bytes_max));
        let begun = (slot, interpreter);
        let mut finished = self.run_command(&mut session, begun, request, sink).await;
        self.progress.set("ending the box");
        let mut conclusion = Conclusion {
            timeout,
            output_bytes_max,
            // Its record exists as long as `template` is held.
            template: template.as_deref().map(|template| template.id.clone()),
            ..Conclusion::default()
        };
        match &mut finished {
            Ok(finished) => {
                conclusion.end = Some(finished.end);
                conclusion.scratch_full = finished.scratch_full;
                conclusion.failure = finished.streams.refused().map(ServiceError::failure);
                if !finished.end.is_success() {
                    conclusion.stderr = finished.streams.last_stderr(sink).await;
                }
            }
            Err(failed) => {
                session.kill(self.end_of(failed));
                let is_unstarted = self.end_of(failed).cause == Cause::StartFailed;
                conclusion.failure = is_unstarted.then(|| failed.error.failure());
            }
        }
        session.conclude(conclusion);
        let torn_down = self.tear_down(session).await;
        // A template that no shelf uses any more can end now.
        drop(template);
        self.service.refill_pools();
        let limits = (timeout, output_bytes_max);
        let Finished { mut streams, collected, .. } = match (finished, &torn_down) {
            (Ok(finished), _) => finished,
            (Err(failed), Ok((end, ended, _))) => {
                return Err(failed.in_box(id, &circumstances(*end, ended.as_ref(), limits)));
            }
            (Err(failed), Err(_)) => {
                let end = self.end_of(&failed);
                return Err(failed.in_box(id, &circumstances(end, None, limits)));
            }
        };
        let (end, ended, receipt) = torn_down?;
        let circumstances = circumstances(end, ended.as_ref(), limits);
        let sentence = circumstances.sentence();
        // Every process that could write is dead. Read what is left in the pipes.
        streams.read_to_end(sink).await;
        let captured = streams.into_captured();
        let in_box = |error| Failed::from(error).in_box(id.clone(), &circumstances);
        let [stdout, stderr] = captured.map_err(in_box)?;
        let duration = Duration::ZERO;
        Ok(RunOutput { id, end, stdout, stderr, collected, duration, warm, sentence, receipt })
    }

    async fn run_command<T: Send + 'static>(
        &mut self,
        session: &mut Session,
        (slot, interpreter): (Option<Permit>, Option<Session>),
        mut request: RunRequest<T>,
        sink: &OutputSink,
    ) -> Result<Finished<T>, Failed> {
        let (id, service) = (session.id().clone(), self.service.clone());
        let mut exec = if let Some(process) = interpreter {
            self.order(session, process, &mut request).await?
        } else {
            self.until_made(session, slot).await?;
            if request.is_box_command() {
                let (end, streams) = self.relay(session, &mut request, sink).await?;
                return Ok(Finished { end, streams, collected: None, scratch_full: false });
            }
            self.put_files(session, &mut request).await?;
            let (box_id, exec, stdin) = (id.clone(), request.exec.clone(), request.stdin());
            let mut exec = service.call(move |engine| engine.exec(&box_id, &exec, stdin)).await?;
            if request.receipt {
                self.unless_interrupted(relay::started(&mut exec)).await??;
            }
            exec
        };
        session.look_for_receipt();
        let (end, streams) = self.relay(&mut exec, &mut request, sink).await?;
        let (scratch_full, is_home_empty) = (exec.saw_full_scratch(), exec.saw_empty_home());
        drop(exec);
        let collected = match request.collect {
            Some(collect) if !matches!(end.cause, Cause::KeeperLost | Cause::MachineLost) => {
                let collect = service
                    .call(move |engine| collect(BoxFiles { engine, id: &id, is_home_empty }, end));
                Some(self.copy(session, collect).await?)
            }
            Some(_) | None => None,
        };
        Ok(Finished { end, streams, collected, scratch_full })
    }

    /// Tells an interpreter that waits in the box what to run. The order is the beginning of its
    /// input. The deadline counts from now.
    async fn order<T>(
        &self,
        session: &mut Session,
        mut process: Session,
        request: &mut RunRequest<T>,
    ) -> Result<Session, Failed> {
        self.progress.set("running the command");
        if !pool::are_inline(&request.files) {
            self.put_files(session, request).await?;
        }
        let code = request.code.as_ref();
        let code = code.ok_or_else(|| ServiceError::internal("an interpreter without code"))?;
        let own_env: Vec<_> = code.own_env(&request.exec.env).cloned().collect();
        let order = pool::Order {
            has_input: request.stdin.is_some(),
            arguments: &code.arguments,
            env: &own_env,
            files: &request.files,
        };
        let mut input = order.encode();
        input.append(&mut request.stdin.take().unwrap_or_default());
        request.stdin = Some(input);
        let at_end = match (&request.collect, request.receipt) {
            (Some(_), _) => AtEnd::LookForFiles,
            // The server looks at what the box holds before it ends the box.
            (None, true) => AtEnd::Nothing,
            (None, false) => AtEnd::EndBox,
        };
        process.begin_work(request.exec.timeout, at_end)?;
        Ok(process)
    }

    /// Copies the files of a request into its box.
    async fn put_files<T>(
        &self,
        session: &mut Session,
        request: &mut RunRequest<T>,
    ) -> Result<(), Failed> {
        if request.files.is_empty() {
            return Ok(());
        }
        let (id, inputs) = (session.id().clone(), std::mem::take(&mut request.files));
        let put = self.service.call(move |engine| BoxFiles::of(engine, &id).put(inputs));
        self.copy(session, put).await
    }

    /// Waits until the keeper reports that the box is made.
    async fn until_made(&self, session: &mut Session, slot: Option<Permit>) -> Result<(), Failed> {
        let (keeper, id) = (session.keeper()?, session.id().clone());
        let (within, boots, began) = (session.start_within(), session.boots(), Instant::now());
        let made = async {
            let made = relay::started(session);
            tokio::pin!(made);
            let soon = tokio::time::timeout(SLOT_HELD_MAX, &mut made).await;
            drop(slot);
            match soon {
                Ok(made) => made,
                Err(_elapsed) => made.await,
            }
        };
        let made = async {
            tokio::select! {
                made = made => made.map(drop),
                error = self.watch_slow_start(&keeper, &id, (within, boots)) => Err(error),
            }
        };
        let made = self.unless_interrupted(made).await?;
        made.inspect_err(|error| self.service.count_failed_boot(error))?;
        if boots {
            self.service.metrics.count_boot(Ok(began.elapsed()));
        }
        self.progress.set("running the command");
        Ok(())
    }

    /// Reports the system call in which the keeper of a slow box waits. A machine may take long to
    /// boot, and has its own error if it fails. Returns an error after `within`.
    async fn watch_slow_start(
        &self,
        keeper: &Keeper,
        id: &BoxId,
        (within, boots): (Duration, bool),
    ) -> ServiceError {
        let (started, mut is_reported) = (Instant::now(), false);
        while started.elapsed() < within {
            tokio::time::sleep(SLOW_AFTER).await;
            if boots {
                self.progress.set("booting the machine of the box");
                continue;
            }
            let call = keeper.system_call().unwrap_or_else(|| "an unknown system call".to_owned());
            let why = format!("its keeper builds it, in {call}");
            self.progress.set(format!("starting the box: {why}"));
            if !is_reported && started.elapsed() >= REPORTED_AFTER {
                let (box_id, key) = (id.as_str(), self.caller.tenant.key());
                let of_box = OfBox { box_id, key, request_id: self.caller.request_id() };
                self.service.journal.record(&LogEvent::StartSlow { of_box, why: &why });
                is_reported = true;
            }
        }
        let message = format!("the box was not made within {within:?}");
        ServiceError::unavailable("not_started", message)
            .with_hint("the server is busy, or a file system does not answer; /ready says which")
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
        self.command_ended = Some(end);
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
                let message = format!("the box did not copy its files within {COPY_TIMEOUT:?}");
                ServiceError::conflict("files_stalled", message).into()
            }
            Err(failed) => failed,
        };
        session.kill(self.end_of(&failed));
        copy.await.ok();
        Err(failed)
    }

    async fn unless_interrupted<D>(&self, step: impl Future<Output = D>) -> Result<D, Failed> {
        tokio::select! {
            done = step => Ok(done),
            () = self.interrupt.cancelled() => {
                let is_killing = self.service.shutdown.is_killing();
                Err(if is_killing { Failed::server_stopping() } else { Failed::client_gone() })
            }
        }
    }

    /// Ends the box, and returns what the caller may see of that. If it cannot be ended, it stays on record as `stuck`: the keeper watch notices
    /// its end, and every sweep tries it again.
    async fn tear_down(
        &mut self,
        session: Session,
    ) -> Result<(End, Option<EndedLine>, Option<Receipt>), ServiceError> {
        self.phase_began = Instant::now();
        let (mut session, ended) = self.service.end_session(session).await;
        self.end_phase(Phase::Teardown);
        let error = match ended {
            Ok(end) => {
                let ended = session.ended().cloned().map(|it| self.caller.shown_end(it));
                let receipt = session.take_receipt().map(|it| self.caller.shown_receipt(it));
                return Ok((end, ended, receipt));
            }
            Err(error) => ServiceError::from(error),
        };
        let (id, admitted) = (session.id(), self.admitted.take().map(Admitted::without_run));
        if let Ok(keeper) = session.keeper() {
            self.service.watch.add(id.clone(), keeper, admitted);
        }
        let (key, request_id) = (self.caller.tenant.key(), self.caller.request_id());
        self.service.note_stuck(id, OfBox { box_id: id.as_str(), key, request_id }, &error);
        Err(error)
    }

    fn end_phase(&mut self, phase: Phase) {
        let began = std::mem::replace(&mut self.phase_began, Instant::now());
        self.service.metrics.observe(phase, began.elapsed());
    }
}

/// What is known about the end of a run, with its limits on time and output.
fn circumstances(
    end: End,
    ended: Option<&EndedLine>,
    (timeout, output_bytes_max): (Option<Duration>, Option<u64>),
) -> Circumstances<'_> {
    Circumstances {
        evidence: ended.map(|ended| &ended.evidence),
        by: ended.and_then(|ended| ended.by.as_ref()),
        asked_before: ended.and_then(|ended| ended.asked_before),
        timeout,
        output_bytes_max,
        failure: ended.and_then(|ended| ended.failure.as_deref()),
        ..Circumstances::of(end, Subject::Box)
    }
}
