//! `tare serve`: the engine over HTTP.
//!
//! A face of the engine, not its owner: the boxes that live on belong to nobody, and
//! what this process knows of them it asks the engine each time. Killed, it takes along
//! the one-shots that it runs and nothing else; started again, it has them all.
//!
//! ```text
//! listen ─▶ edge (id, log, errors) ─▶ guard (keys, origins) ─▶ api ─▶ engine
//!                           │                            └▶ oneshot
//!                           └▶ librechat (its own words and ways to say who asks)
//! ```

mod admission;
#[allow(unused_qualifications, reason = "what describes the routes writes whole paths")]
mod api;
mod app;
mod config;
mod error;
mod fd;
mod http;
mod librechat;
mod notify;
mod shutdown;
mod store;
mod telemetry;
mod upkeep;
mod watch;
mod work;
mod workers;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tare_engine::{BoxId, Change, Context as _, Engine, Error, OpenOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use admission::descriptors::Room;
use admission::pressure::Pressure;
use app::{App, Hands, Phase};
pub use config::{Config, Key, Listen, LogFormat};
use error::ServiceError;
use http::listen::Listener;
use telemetry::LogEvent;
pub use telemetry::hook_runner;
use watch::keepers::KeeperWatch;
pub use work::run::RUN_LABEL;
use workers::{Creators, Workers};

/// Changes of levels that wait to be told; more wait with their gauge.
const CHANGES_WAITING: usize = 64;
/// Ends of boxes that wait to be reported; more wait in their tasks.
const ENDS_WAITING: usize = 64;
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
        config.librechat.read_keys()?;
        config.hooks.find_program()?;
        config.librechat.boxes.find_directories()?;
        config.files.try_directory()?;
        config.fit(Room::found());
        Ok(config)
    }
}

/// Serves until SIGTERM or SIGINT, and returns when nothing is left to be ended.
pub fn serve(options: Options) -> Result<(), Error> {
    let room = Room::make();
    let config = options.configuration()?;
    let engine = Engine::open(options.state_root.clone(), OpenOptions::SERVE)?;
    let no_threads = || "cannot start threads".to_owned();
    let hands = Hands {
        creators: Creators::start().context(no_threads)?,
        workers: Workers::start("worker", room.calls()).context(no_threads)?,
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context(no_threads)?;
    let (ends, ended) = mpsc::channel(ENDS_WAITING);
    let watch = KeeperWatch::new(runtime.handle().clone(), ends);
    let settings = config.gauge_settings();
    let gauges = engine.gauges(settings)?;
    let (tell, changes) = mpsc::channel(CHANGES_WAITING);
    let pressure = Pressure::start(gauges, settings, tell).context(no_threads)?;
    let app = App::new(engine, hands, watch, pressure, options, config).context(no_threads)?;
    let result = runtime.block_on(live(app.clone(), ended, changes));
    app.journal.flush();
    // A thread that waits in the engine for others must not hold this one.
    runtime.shutdown_background();
    result
}

async fn live(
    app: App,
    ended: mpsc::Receiver<BoxId>,
    changes: mpsc::Receiver<Change>,
) -> Result<(), Error> {
    let failed = || "cannot wait for signals".to_owned();
    let mut terminated = signal(SignalKind::terminate()).context(failed)?;
    let mut interrupted = signal(SignalKind::interrupt()).context(failed)?;
    let mut hung_up = signal(SignalKind::hangup()).context(failed)?;
    let listen = app.config().listen.clone();
    let listener = Listener::bind(&listen).await?;
    let on = listener.address(&listen);
    if let Some(port) = listener.port() {
        app.port.get_or_init(|| port);
    }
    app.journal.record(&LogEvent::Listening { on: &on });
    note_lowered(&app);
    notify::ready();
    tokio::spawn(upkeep::recover(app.clone()));
    tokio::spawn(upkeep::report_ends(app.clone(), ended));
    tokio::spawn(upkeep::sweep_periodically(app.clone()));
    let calling = app.hook.start(Arc::clone(&app.journal));
    tokio::spawn(upkeep::watch_gauges(app.clone(), changes));
    tokio::spawn(upkeep::sweep_when_wanted(app.clone()));
    let serving =
        tokio::spawn(http::listen::serve(listener, api::router(app.clone()), app.clone()));
    loop {
        tokio::select! {
            _ = terminated.recv() => break,
            _ = interrupted.recv() => break,
            _ = hung_up.recv() => drop(reload(&app).await),
        }
    }
    drain(&app).await;
    app.hook.end();
    calling.await.ok();
    // The last answers are on their way.
    tokio::time::timeout(ENDED_WITHIN, serving).await.ok();
    if let Listen::Unix(path) = &listen {
        // Who comes next finds nobody there either way.
        std::fs::remove_file(path).ok();
    }
    Ok(())
}

fn note_lowered(app: &App) {
    let config = app.config();
    if !config.lowered.is_empty() {
        let limits = &config.lowered;
        app.journal.record(&LogEvent::LimitsLowered { limits });
    }
}

/// A configuration that cannot be used changes nothing.
async fn reload(app: &App) -> Result<(), ServiceError> {
    let options = Arc::clone(&app.options);
    // The listener stays what it was at the start.
    let reach = app.reach;
    let read = app.ask(move |_| {
        let config = options.configuration()?;
        config.check_host_network(reach)?;
        Ok(config)
    });
    let read = read.await;
    match read {
        Ok(config) => {
            app.configure(config);
            app.journal.record(&LogEvent::Reloaded);
            note_lowered(app);
            Ok(())
        }
        Err(error) => {
            let why = &error.message;
            app.journal.record(&LogEvent::ReloadRefused { why });
            Err(error)
        }
    }
}

/// Nothing new begins; what runs may end by itself for a while, and is ended then.
async fn drain(app: &App) {
    app.journal.record(&LogEvent::Draining);
    notify::stopping();
    app.stopping.enter(Phase::Draining);
    let limits = app.config().limits.clone();
    let idle = async { tokio::join!(app.admission.idle(), app.execs.idle()) };
    tokio::pin!(idle);
    let ended = match tokio::time::timeout(limits.drain, &mut idle).await {
        Ok(_) => 0,
        Err(_late) => {
            let running = app.admission.running() + app.execs.running();
            app.stopping.enter(Phase::Ending);
            tokio::time::timeout(ENDED_WITHIN, &mut idle).await.ok();
            running
        }
    };
    app.journal.record(&LogEvent::Drained { ended });
}
