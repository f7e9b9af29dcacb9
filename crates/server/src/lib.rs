//! `tare serve`: the engine over HTTP.
//!
//! A face of the engine, not its owner: the boxes that live on belong to nobody, and
//! what this process knows of them it asks the engine each time. Killed, it takes along
//! the one-shots that it runs and nothing else; started again, it has them all.
//!
//! ```text
//! listen ─▶ edge (id, log, errors) ─▶ guard (keys, origins) ─▶ api ─▶ engine
//!                                                         └▶ oneshot
//! ```

mod admission;
#[allow(
    unused_qualifications,
    reason = "what describes the routes writes whole paths"
)]
mod api;
mod app;
mod config;
mod edge;
mod error;
mod events;
mod exec;
mod execs;
mod extract;
mod guard;
mod journal;
mod language;
mod listen;
mod makers;
mod memory;
mod notify;
mod oneshot;
mod page;
mod ready;
mod relay;
mod running;
mod spec;
mod text;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tare_engine::{BoxId, Doing, Engine, Error, State};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use app::{App, Phase};
pub use config::{Config, Key, Listen, LogFormat};
use error::ApiError;
use journal::Happening;
use listen::Listener;
use makers::Makers;
use watch::Watch;

/// Threads that wait in the engine for others; more requests than that wait their turn.
const BLOCKING_THREADS_MAX: usize = 64;
/// Ends that wait to be looked at; more wait in the kernel.
const ENDS_WAITING: usize = 64;
/// Boxes that others have made are watched after so long.
const WATCH_AGAIN: Duration = Duration::from_secs(30);
/// How long the last one-shots may take on their way out.
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// What `tare serve` was started with.
#[derive(Debug, Default)]
pub struct Options {
    pub state_root: Option<PathBuf>,
    pub config: Option<PathBuf>,
    /// Instead of what the configuration says.
    pub listen: Option<Listen>,
    /// Beside the keys of the configuration.
    pub api_key_file: Option<PathBuf>,
    pub log: Option<LogFormat>,
}

impl Options {
    fn configuration(&self) -> Result<Config, Error> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        if let Some(listen) = &self.listen {
            config.listen = listen.clone();
        }
        if let Some(log) = self.log {
            config.log = log;
        }
        if let Some(path) = &self.api_key_file {
            config.keys.extend(Key::read_file(path)?);
        }
        config.check()?;
        Ok(config)
    }
}

/// Serves until SIGTERM or SIGINT, and returns when nothing is left to be ended.
pub fn serve(options: &Options) -> Result<(), Error> {
    let config = options.configuration()?;
    let engine = Engine::open(options.state_root.clone())?.lasting();
    let waiting_max = config
        .limits
        .runs
        .saturating_add(config.limits.runs_waiting);
    let makers = Makers::start(waiting_max).doing(|| "cannot start threads".into())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .enable_all()
        .build()
        .doing(|| "cannot start threads".into())?;
    let (ends, ended) = mpsc::channel(ENDS_WAITING);
    let watch = Watch::start(move |id| drop(ends.blocking_send(id)));
    let watch = watch.doing(|| "cannot start threads".into())?;
    let app = App::new(engine, makers, watch, config);
    let result = runtime.block_on(live(app, ended, options));
    // A thread that waits in the engine for others must not hold this one.
    runtime.shutdown_background();
    result
}

async fn live(app: App, ended: mpsc::Receiver<BoxId>, options: &Options) -> Result<(), Error> {
    let failed = || "cannot wait for signals".to_owned();
    let mut terminated = signal(SignalKind::terminate()).doing(failed)?;
    let mut interrupted = signal(SignalKind::interrupt()).doing(failed)?;
    let mut hung_up = signal(SignalKind::hangup()).doing(failed)?;
    let listen = app.config().listen.clone();
    let listener = Listener::bind(&listen).await?;
    let on = listener.address(&listen);
    app.journal.note(Happening::Listening { on: &on });
    notify::ready();
    tokio::spawn(recover(app.clone()));
    tokio::spawn(look_after(app.clone(), ended));
    let serving = tokio::spawn(listen::serve(
        listener,
        api::router(app.clone()),
        app.clone(),
    ));
    loop {
        tokio::select! {
            _ = terminated.recv() => break,
            _ = interrupted.recv() => break,
            _ = hung_up.recv() => reload(&app, options),
        }
    }
    drain(&app).await;
    // The last answers are on their way.
    tokio::time::timeout(ENDED_WITHIN, serving).await.ok();
    if let Listen::Unix(path) = &listen {
        // Who comes next finds nobody there either way.
        std::fs::remove_file(path).ok();
    }
    Ok(())
}

/// What was there before this server is looked at behind its first answers.
async fn recover(app: App) {
    let started = Instant::now();
    let boxes = watch_all(&app).await.unwrap_or(0);
    app.recovery.done(boxes);
    app.journal.note(Happening::Recovered {
        boxes,
        duration: started.elapsed(),
    });
}

/// Every box that lives is watched, whoever made it; how many boxes there are.
async fn watch_all(app: &App) -> Result<usize, ApiError> {
    let watch = Arc::clone(&app.watch);
    app.ask(move |engine| {
        let boxes = engine.list()?;
        let live = boxes.iter().filter(|one| one.state != State::Exited);
        for one in live.filter(|one| !watch.has(&one.id)) {
            // What cannot be watched now is looked at again later.
            if let Ok(Some(keeper)) = engine.keeper(&one.id) {
                watch.add(one.id.clone(), keeper).ok();
            }
        }
        Ok(boxes.len())
    })
    .await
}

/// A box that has ended by itself is finished at once, and not when somebody asks.
async fn look_after(app: App, mut ended: mpsc::Receiver<BoxId>) {
    let mut again = tokio::time::interval(WATCH_AGAIN);
    loop {
        tokio::select! {
            Some(id) = ended.recv() => {
                let of = id.clone();
                // Gone altogether it needs no care.
                if let Ok(status) = app.ask(move |engine| engine.status(&of)).await {
                    app.journal.note(Happening::BoxEnded {
                        box_id: id.as_str(),
                        exit_code: status.exit_code,
                    });
                }
            }
            // Boxes that others have made.
            _ = again.tick() => {
                app.execs.forget_old();
                watch_all(&app).await.ok();
            }
        }
    }
}

/// A configuration that cannot be used changes nothing.
fn reload(app: &App, options: &Options) {
    match options.configuration() {
        Ok(config) => {
            app.configure(config);
            app.journal.note(Happening::Reloaded);
        }
        Err(error) => {
            let why = ApiError::from(error).message;
            app.journal.note(Happening::ReloadRefused { why: &why });
        }
    }
}

/// Nothing new begins; what runs may end by itself for a while, and is ended then.
async fn drain(app: &App) {
    app.journal.note(Happening::Draining);
    notify::stopping();
    app.stopping.enter(Phase::Draining);
    let limits = app.config().limits.clone();
    let idle = async { tokio::join!(app.admission.idle(limits.runs), app.execs.idle()) };
    tokio::pin!(idle);
    let ended = match tokio::time::timeout(limits.drain, &mut idle).await {
        Ok(_) => 0,
        Err(_late) => {
            let running = app.admission.running(limits.runs) + app.execs.running();
            app.stopping.enter(Phase::Ending);
            tokio::time::timeout(ENDED_WITHIN, &mut idle).await.ok();
            running
        }
    };
    app.journal.note(Happening::Drained { ended });
}
