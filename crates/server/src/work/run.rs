//! One command in a box of its own, from the request to nothing left.
//!
//! ```text
//! make ─▶ put files ─▶ exec ─▶ relay ─▶ collect files ─▶ the one way out ─▶ rest of the output
//!   └────────┴──────────┴────────┴── client gone, server ending ──▲
//! ```
//!
//! Where no file goes in or comes out, the command is the box's own, and there is
//! nothing between making it and relaying. Else the box has none and waits, before for
//! its files and afterwards until they are collected.
//!
//! It runs in a task of its own, which nobody cancels: from the moment that there is a
//! box every path leads through [`Session::end`]. A client that goes away is noticed
//! by the handle that it held.

use std::borrow::Cow;
use std::convert::Infallible;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tare_engine::spec::{Spec, command, name};
use tare_engine::{BoxId, Ending, Engine, Error, Event, ExecSpec, Exit, Keeper, Session, Stdin};

pub use crate::work::files::{FileIn, FileOut};

use crate::admission::{Admitted, Caller};
use crate::app::{App, Phase};
use crate::error::ServiceError;
use crate::shutdown::{self, Running, Wanted};
use crate::telemetry::LogEvent;
use crate::telemetry::metrics::{Phase as RunPhase, RunResult};
use crate::work::events::Events;
use crate::work::files;
use crate::work::relay::{self, Ended, Ends, Flood, Input, Kept, Output, Relayed};
use crate::work::stop::{ENDED_WITHIN, TRY_AGAIN, is_dead};
use crate::workers::CreateSlot;

/// For the box to be made. A file system that does not answer must not hold anybody.
const MADE_WITHIN: Duration = Duration::from_secs(60);
/// A box that takes longer to start says where it waits.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// How long a box that is made so slowly keeps others from being made.
const BENCH_HELD_MOST: Duration = Duration::from_millis(100);
/// For files to be put into it, and to be collected, in which whatever still runs in
/// the box has a say.
const COPIED_WITHIN: Duration = Duration::from_secs(30);

/// Of a box that has no command of its own: the program that it is for. Arguments and
/// code are nobody's to read in a list.
pub const RUN_LABEL: &str = "tare.run";

/// What is to be done.
pub struct OneShot<T> {
    /// Without a command: that is in `exec`.
    pub spec: Spec,
    pub exec: ExecSpec,
    pub stdin: Option<Vec<u8>>,
    pub files: Vec<FileIn>,
    pub collect: Option<Collect<T>>,
    pub output_bytes_max: u64,
    pub flood: Flood,
    pub stage: Stage,
}

/// What a run is waiting for, in words.
#[derive(Debug, Clone)]
pub struct Stage(Arc<Mutex<Cow<'static, str>>>);

impl Default for Stage {
    fn default() -> Self {
        Self(Arc::new(Mutex::new("waiting for its turn".into())))
    }
}

impl Stage {
    fn enter(&self, stage: impl Into<Cow<'static, str>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stage.into();
    }

    pub fn words(&self) -> String {
        let stage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stage.clone().into_owned()
    }
}

/// Takes what is to come back out of the box, once its command has ended so. It waits
/// for the box, in a thread that may.
pub type Collect<T> = Box<dyn FnOnce(&Engine, &BoxId, Ended) -> Result<T, Error> + Send>;

impl<T> OneShot<T> {
    fn copies_nothing(&self) -> bool {
        self.files.is_empty() && self.collect.is_none()
    }

    fn stdin(&self) -> Stdin {
        match self.stdin {
            Some(_) => Stdin::Pipe,
            None => Stdin::Empty,
        }
    }

    fn label(&self) -> Option<(String, String)> {
        let program = Path::new(self.exec.command.first()?).file_name()?.to_str()?;
        name::label(&format!("{RUN_LABEL}={program}")).ok()
    }

    /// The box that it needs, and what that is given to read.
    fn to_make(&self) -> (Spec, Stdin) {
        let mut spec = self.spec.clone();
        if !self.copies_nothing() {
            spec.labels.extend(self.label());
            return (spec, Stdin::Empty);
        }
        spec.command.clone_from(&self.exec.command);
        spec.env = command::later_wins(spec.env.into_iter().chain(self.exec.env.clone()));
        spec.timeout = self.exec.timeout;
        (spec, self.stdin())
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome<T> {
    pub id: BoxId,
    pub ended: Ended,
    pub oom: bool,
    pub stdout: Kept,
    pub stderr: Kept,
    /// `None` where nothing was to be, or its box was gone.
    pub collected: Option<T>,
    pub duration: Duration,
}

impl<T> Outcome<T> {
    pub fn exit(&self) -> Exit {
        self.ended.verdict().0
    }
}

/// Starts it.
pub fn start<T: Send + 'static>(
    app: &App,
    caller: &Caller,
    admitted: Admitted,
    what: OneShot<T>,
    output: Output,
) -> Running<Outcome<T>> {
    let app = app.clone();
    let request_id = caller.request_id.clone();
    let (mut wanted, running) = shutdown::pair();
    tokio::spawn(async move {
        let outcome = Course::run(&app, admitted, what, &output, &mut wanted, request_id).await;
        wanted.done(outcome);
    });
    running
}

const STOPPING: &str = "stopping";

/// Why it does not go on.
enum Cut {
    /// Nobody waits for it.
    Gone,
    /// The server is to end.
    Ending,
    Failed(ServiceError),
}

impl From<ServiceError> for Cut {
    fn from(error: ServiceError) -> Self {
        Self::Failed(error)
    }
}

impl Cut {
    fn into_error(self) -> ServiceError {
        match self {
            Self::Gone => ServiceError::internal("nobody waited for it"),
            Self::Ending => ServiceError::stopping(),
            Self::Failed(error) => error,
        }
    }
}

struct Course<'a, T> {
    app: &'a App,
    session: Session,
    /// Given back when nothing is left.
    admitted: Option<Admitted>,
    wanted: &'a mut Wanted<Outcome<T>>,
    /// When the lap that it is in began.
    since: Instant,
    stage: Stage,
}

/// What was learned on the way.
struct Ran<T> {
    ended: Ended,
    collected: Option<T>,
    ends: Ends,
}

impl<'a, T: Send + 'static> Course<'a, T> {
    async fn run(
        app: &'a App,
        admitted: Admitted,
        what: OneShot<T>,
        output: &Output,
        wanted: &'a mut Wanted<Outcome<T>>,
        request_id: String,
    ) -> Result<Outcome<T>, ServiceError> {
        let started = Instant::now();
        let request_id = Some(request_id.as_str()).filter(|id| !id.is_empty());
        let tell = |box_id: Option<&BoxId>, over: Over| {
            app.journal.record(&LogEvent::RunEnded {
                box_id: box_id.map(BoxId::as_str),
                request_id,
                result: over.result,
                exit_code: over.exit_code,
                code: over.code,
                duration: started.elapsed(),
            });
        };
        let (spec, stdin) = what.to_make();
        let stage = what.stage.clone();
        let bench = tokio::select! {
            bench = app.creators.slot() => bench,
            () = wanted.given_up() => {
                tell(None, Over::cut(&Cut::Gone));
                return Err(Cut::Gone.into_error());
            }
        };
        stage.enter("creating the box");
        let session = make(app, spec, stdin).await;
        let session = session.inspect_err(|error| tell(None, Over::failed(error)))?;
        app.journal.record_box_notes(session.notes());
        let id = session.id().clone();
        let mut course =
            Self { app, session, admitted: Some(admitted), wanted, since: started, stage };
        course.lap(RunPhase::Create);
        course.stage.enter("starting the box");
        let ran = course.go(what, output, bench).await;
        course.stage.enter("ending the box");
        if ran.is_err() {
            course.session.kill();
        }
        let ending = course.end(request_id).await;
        tell(Some(&id), Over::of(&ran, &ending));
        let ending = ending?;
        let mut ran = ran.map_err(Cut::into_error)?;
        // Everyone who could write is dead: what is left is in the pipes.
        ran.ends.rest(output).await;
        let [stdout, stderr] = ran.ends.into_kept();
        Ok(Outcome {
            id,
            ended: ran.ended,
            oom: ending.oom_kills > 0,
            stdout,
            stderr,
            collected: ran.collected,
            duration: started.elapsed(),
        })
    }

    fn box_is_made(&mut self) {
        if let Some(admitted) = &mut self.admitted {
            admitted.box_is_made();
        }
    }

    fn lap(&mut self, over: RunPhase) {
        let now = Instant::now();
        self.app.metrics.observe(over, now - self.since);
        self.since = now;
    }

    async fn go(
        &mut self,
        what: OneShot<T>,
        output: &Output,
        bench: CreateSlot,
    ) -> Result<Ran<T>, Cut> {
        self.await_made(bench).await?;
        if what.copies_nothing() {
            return self.go_straight(what, output).await;
        }
        let id = self.session.id().clone();
        let stdin = what.stdin();
        if !what.files.is_empty() {
            let app = self.app.clone();
            let put = files::put(&app, id.clone(), what.files);
            self.unless_cut(COPIED_WITHIN, put).await??;
        }
        let (of, exec) = (id.clone(), what.exec);
        let executed = self.app.ask(move |engine| engine.exec(&of, &exec, stdin));
        let mut executed = executed.await?;
        let ends = Ends::of(executed.streams(), None, what.output_bytes_max)?;
        let mut ends = ends.at_flood(what.flood);
        self.box_is_made();
        self.lap(RunPhase::Start);
        let (input, orders) = (Input::of(what.stdin), &mut None);
        let relayed = relay::relay(&mut executed, &mut ends, input, orders, output);
        let ended = unless_ended(self.app, self.wanted, relayed).await?;
        drop(executed);
        let mut collected = None;
        if let Some(collect) = what.collect.filter(|_| ended != Ended::Gone) {
            let app = self.app.clone();
            let collect = app.ask(move |engine| collect(engine, &id, ended));
            collected = Some(self.unless_cut(COPIED_WITHIN, collect).await??);
        }
        self.lap(RunPhase::Run);
        Ok(Ran { ended, collected, ends })
    }

    /// The command is the box's own.
    async fn go_straight(&mut self, what: OneShot<T>, output: &Output) -> Result<Ran<T>, Cut> {
        let session = &mut self.session;
        let ends = Ends::of(session.streams(), None, what.output_bytes_max)?;
        let mut ends = ends.at_flood(what.flood);
        self.box_is_made();
        self.lap(RunPhase::Start);
        let (input, orders) = (Input::of(what.stdin), &mut None);
        let relayed = relay::relay(&mut self.session, &mut ends, input, orders, output);
        let ended = unless_ended(self.app, self.wanted, relayed).await?;
        self.lap(RunPhase::Run);
        Ok(Ran { ended, collected: None, ends })
    }

    /// Until its keeper says that the box is made.
    async fn await_made(&mut self, bench: CreateSlot) -> Result<(), Cut> {
        let events = Events::of(self.session.events_fd())?;
        let keeper = self.session.keeper().map_err(ServiceError::from)?;
        let slow = say_where(&keeper, &self.stage);
        let session = &mut self.session;
        let made = async {
            match events.next(|| session.next_event()).await? {
                Event::Started => Ok(()),
                Event::Failed(error) => Err(ServiceError::from(error)),
                Event::Terminal(_) | Event::Exited(_) | Event::TimedOut | Event::Gone => {
                    let message = "the box was ended before its command started";
                    Err(ServiceError::unavailable("box_ended", message))
                }
            }
        };
        let made = async {
            tokio::pin!(made);
            let soon = tokio::time::timeout(BENCH_HELD_MOST, &mut made).await;
            drop(bench);
            match soon {
                Ok(made) => made,
                Err(_elapsed) => made.await,
            }
        };
        tokio::select! {
            made = made => {
                self.stage.enter("running the command");
                Ok(made?)
            }
            never = slow => match never {},
            () = self.wanted.given_up() => Err(Cut::Gone),
            () = self.app.stopping.reached(Phase::Ending) => Err(Cut::Ending),
            () = tokio::time::sleep(MADE_WITHIN) => {
                Err(Cut::Failed(ServiceError::internal("the box was not made in time")))
            }
        }
    }

    /// Something that the box has a say in, and that blocks a thread until it is over:
    /// whoever does not wait any longer kills the box, which ends it.
    async fn unless_cut<D>(
        &mut self,
        within: Duration,
        what: impl Future<Output = Result<D, ServiceError>>,
    ) -> Result<Result<D, ServiceError>, Cut> {
        tokio::pin!(what);
        let cut = tokio::select! {
            done = &mut what => return Ok(done),
            () = self.wanted.given_up() => Cut::Gone,
            () = self.app.stopping.reached(Phase::Ending) => Cut::Ending,
            () = tokio::time::sleep(within) => {
                let message = "the box did not copy its files in time";
                Cut::Failed(ServiceError::invalid("files_stalled", message))
            }
        };
        self.session.kill();
        what.await.ok();
        Err(cut)
    }

    /// The one way out. What cannot be ended is on record, and tried again by whoever
    /// looks next.
    async fn end(mut self, request_id: Option<&str>) -> Result<Ending, ServiceError> {
        let (app, id) = (self.app.clone(), self.session.id().clone());
        let started = Instant::now();
        let ended = loop {
            let (session, ended) = try_to_end(&app, self.session).await;
            let left = ENDED_WITHIN.saturating_sub(started.elapsed());
            match ended {
                Err(error) if left.is_zero() => {
                    // Its end is noticed, whenever that comes, and it is swept then.
                    if let Ok(keeper) = session.keeper() {
                        let admitted = self.admitted.take().map(Admitted::without_turn);
                        app.watch.add(id.clone(), keeper, admitted);
                    }
                    break Err(error);
                }
                Err(_not_yet) => {
                    let keeper = session.keeper()?;
                    is_dead(&app, keeper.as_fd(), left).await?;
                    tokio::time::sleep(TRY_AGAIN.min(left)).await;
                    self.session = session;
                }
                Ok(ending) => break Ok(ending),
            }
        };
        app.metrics.observe(RunPhase::Teardown, started.elapsed());
        ended.map_err(|error| {
            let error = ServiceError::from(error);
            let why = error.detail.as_deref().unwrap_or(&error.message);
            let stuck = LogEvent::stuck(id.as_str(), request_id, why);
            app.journal.record(&stuck);
            error
        })
    }
}

/// How long an attempt to end a box may hold its thread.
const TRIED_WITHIN: Duration = Duration::from_secs(1);

async fn try_to_end(app: &App, mut session: Session) -> (Session, Result<Ending, Error>) {
    app.call(move || {
        let ended = session.try_end(TRIED_WITHIN);
        (session, ended)
    })
    .await
}

/// How a run ended, for the log and the metrics.
struct Over {
    result: RunResult,
    exit_code: Option<u8>,
    code: Option<&'static str>,
}

impl Over {
    fn of<T>(ran: &Result<Ran<T>, Cut>, ending: &Result<Ending, ServiceError>) -> Self {
        let (ran, ending) = match (ran, ending) {
            (Err(cut), _) => return Self::cut(cut),
            (Ok(_), Err(error)) => return Self::failed(error),
            (Ok(ran), Ok(ending)) => (ran, ending),
        };
        let (exit, timed_out) = ran.ended.verdict();
        Self {
            result: match exit {
                _ if timed_out => RunResult::TimedOut,
                _ if ending.oom_kills > 0 => RunResult::Oom,
                Exit::Code(0) => RunResult::Ok,
                Exit::Code(_) | Exit::Signal(_) => RunResult::Failed,
            },
            exit_code: Some(exit.code()),
            code: None,
        }
    }

    fn cut(cut: &Cut) -> Self {
        let (result, code) = match cut {
            Cut::Gone => (RunResult::Disconnected, None),
            Cut::Ending => (RunResult::Error, Some(STOPPING)),
            Cut::Failed(error) => return Self::failed(error),
        };
        Self { result, exit_code: None, code }
    }

    fn failed(error: &ServiceError) -> Self {
        Self { result: RunResult::Error, exit_code: None, code: Some(error.code) }
    }
}

/// Says in which system call a box that is slow to start waits.
async fn say_where(keeper: &Keeper, stage: &Stage) -> Infallible {
    loop {
        tokio::time::sleep(SLOW_AFTER).await;
        if let Some(call) = keeper.system_call() {
            stage.enter(format!("starting the box: its keeper is in {call}"));
        }
    }
}

/// How the command ended, if it was let to.
async fn unless_ended<T>(
    app: &App,
    wanted: &mut Wanted<Outcome<T>>,
    relayed: impl Future<Output = Result<Relayed, ServiceError>>,
) -> Result<Ended, Cut> {
    tokio::select! {
        ended = relayed => match ended? {
            Relayed::Ended(ended) => Ok(ended),
            Relayed::NobodyReads => Err(Cut::Gone),
        },
        () = wanted.given_up() => Err(Cut::Gone),
        () = app.stopping.reached(Phase::Ending) => Err(Cut::Ending),
    }
}

async fn make(app: &App, spec: Spec, stdin: Stdin) -> Result<Session, ServiceError> {
    let engine = Arc::clone(&app.engine);
    Ok(app.creators.call(move || engine.run(&spec, stdin)).await?)
}
