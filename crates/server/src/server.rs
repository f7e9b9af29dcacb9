//! Starts the server, handles its signals, reloads its configuration, drains it.

use std::path::PathBuf;
use std::sync::Arc;

use tare_engine::vm::MachineSettings;
use tare_engine::{BoxId, Change, Context as _, Engine, Error, Purpose};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};

use crate::admission::Admission;
use crate::admission::descriptors::DescriptorBudget;
use crate::admission::pressure::Pressure;
use crate::app::{AppState, ReloadRequest};
use crate::config::current::CurrentConfig;
use crate::config::{ByteSize, Config, HistoryConfig, Key, Listen, LogFormat};
use crate::error::ServiceError;
use crate::http::Http;
use crate::http::listen::{self, Listener};
use crate::librechat::{Keys, LibreChat};
use crate::shutdown::Shutdown;
use crate::store::open::Files;
use crate::telemetry::LogEvent;
use crate::telemetry::journal::Journal;
use crate::telemetry::metrics::Metrics;
use crate::watch::followers::Followers;
use crate::watch::keepers::KeeperWatch;
use crate::work::boxes::create::KeyedInMaking;
use crate::work::boxes::ending::{ENDED_WITHIN, StuckBoxes};
use crate::work::pool::Pools;
use crate::work::run::processes::Processes;
use crate::work::{Service, ServiceParts, Shares};
use crate::workers::{Creators, Workers};
use crate::{api, librechat, notify, upkeep};

/// Level changes that wait to be logged. Beyond that, the thread of the gauges waits.
const CHANGES_WAITING: usize = 64;
/// Ends of boxes that wait to be reported. Beyond that, the tasks of their keepers wait.
const ENDS_WAITING: usize = 64;

/// The options of `tare serve`.
#[derive(Debug, Default)]
pub struct Options {
    pub state_root: Option<PathBuf>,
    pub config: Option<PathBuf>,
    /// Replaces `listen` of the configuration.
    pub listen: Option<Listen>,
    /// Adds keys to those of the configuration.
    pub api_key_file: Option<PathBuf>,
    pub log: Option<LogFormat>,
    /// Replaces `bytes` of `[history]`.
    pub history_bytes: Option<u64>,
    /// What the environment sets for machines. `None`: there is no directory for kernels.
    pub machines: Option<MachineSettings>,
}

impl Options {
    fn load(&self) -> Result<Loaded, Error> {
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
        if let Some(bytes) = self.history_bytes {
            config.history.bytes = Some(ByteSize(bytes));
        }
        if let Some(path) = &self.api_key_file {
            config.keys.extend(Key::read_file(path)?);
        }
        config.check()?;
        config.find_directories()?;
        let machines = self.machines.as_ref().map(|it| config.vm.settings(it));
        config.find_machines(machines.as_ref())?;
        config.hooks.find_program()?;
        config.files.try_directory()?;
        let jwt = config.librechat.jwt.as_ref();
        let jwt_keys = jwt.map(|jwt| librechat::read_keys(&jwt.keys)).transpose()?;
        let lowered = DescriptorBudget::found().lower_to_fit(&mut config.limits);
        Ok(Loaded { config, machines, jwt_keys: jwt_keys.unwrap_or_default(), lowered })
    }
}

/// A configuration that can be used, with the files that it names.
struct Loaded {
    config: Config,
    machines: Option<MachineSettings>,
    jwt_keys: Keys,
    /// The names of limits that were lowered because there are too few descriptors.
    lowered: Vec<&'static str>,
}

/// Serves until SIGTERM or SIGINT, and returns when all runs have ended.
pub fn serve(options: Options) -> Result<(), Error> {
    let no_threads = || "cannot start threads".to_owned();
    let descriptors = DescriptorBudget::make();
    let Loaded { config, machines, jwt_keys, lowered } = options.load()?;
    let engine = Engine::open(options.state_root.clone(), Purpose::Serve)?;
    let engine = match &config.boxes.cgroup_parent {
        Some(parent) => engine.below(parent.clone())?,
        None => engine,
    };
    set_history(&engine, config.history)?;
    machines.into_iter().for_each(|machines| engine.set_machines(machines));
    let creators = Creators::start().context(no_threads)?;
    let workers = Workers::start("worker", descriptors.calls()).context(no_threads)?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build().context(no_threads)?;
    let (ends, ended) = mpsc::channel(ENDS_WAITING);
    let watch = KeeperWatch::new(runtime.handle().clone(), ends);
    let metrics = Arc::new(Metrics::default());
    let journal = Journal::start(config.log, Arc::clone(&metrics)).context(no_threads)?;
    let journal = Arc::new(journal);
    let reclaiming = Arc::clone(&journal);
    // Any call of the engine can remove leftovers.
    let engine = Arc::new(engine.on_reclaimed(move |id, found| {
        reclaiming.record(&LogEvent::OrphanReclaimed { box_id: id.as_str(), found });
    }));
    let (changes_to, changes) = mpsc::channel(CHANGES_WAITING);
    let (config, shutdown) = (CurrentConfig::new(config), Shutdown::default());
    let pressure = Pressure::start(Arc::clone(&engine), config.clone(), changes_to)?;
    let files = Files::new(config.clone(), workers.clone(), options.state_root.as_deref());
    let limits = &config.get().limits;
    let service = Service::new(ServiceParts {
        engine,
        creators,
        shares: Shares::of(workers.threads()),
        workers,
        admission: Admission::new(limits, pressure),
        watch,
        followers: Followers::default(),
        processes: Processes::new(limits.execs),
        pools: Pools::default(),
        stuck: StuckBoxes::default(),
        keyed_in_making: KeyedInMaking::default(),
        sweep_wanted: Notify::new(),
        journal: Arc::clone(&journal),
        metrics,
        shutdown: shutdown.clone(),
        config: config.clone(),
    });
    let bodies = service.admission.bodies.clone();
    let http = Http::new(config, Arc::clone(&journal), shutdown, bodies);
    let (reloads, reload_requests) = mpsc::channel(1);
    let librechat = LibreChat::new(service.clone(), http.clone(), files.clone());
    librechat.jwt_keys.set(jwt_keys);
    let app = AppState::new(service, http, files, reloads);
    let inputs = Inputs { ended, changes, reload_requests, lowered, options: Arc::new(options) };
    let result = runtime.block_on(live(app, librechat, inputs));
    journal.flush();
    // Not a drop of the runtime: a thread that waits in the engine must not delay the exit.
    runtime.shutdown_background();
    result
}

/// Applies the settings of histories to the state root, if there are any.
fn set_history(engine: &Engine, wanted: HistoryConfig) -> Result<(), Error> {
    match wanted {
        HistoryConfig { bytes: None, stderr: None } => Ok(()),
        HistoryConfig { bytes, stderr } => {
            engine.set_history(bytes.map(|ByteSize(bytes)| bytes), stderr)
        }
    }
}

/// What the server reacts to, beside requests and signals.
struct Inputs {
    ended: mpsc::Receiver<BoxId>,
    changes: mpsc::Receiver<Change>,
    reload_requests: mpsc::Receiver<ReloadRequest>,
    lowered: Vec<&'static str>,
    options: Arc<Options>,
}

async fn live(app: AppState, librechat: LibreChat, mut inputs: Inputs) -> Result<(), Error> {
    let failed = || "cannot wait for signals".to_owned();
    let mut terminated = signal(SignalKind::terminate()).context(failed)?;
    let mut interrupted = signal(SignalKind::interrupt()).context(failed)?;
    let mut hung_up = signal(SignalKind::hangup()).context(failed)?;
    let listen = app.service.config().listen.clone();
    if let Err(error) = app.service.start_pools().await {
        app.service.close_pools().await;
        return Err(error);
    }
    let listener = Listener::bind(&listen).await?;
    let on = listener.address(&listen);
    if let Some(port) = listener.port() {
        app.http.port.get_or_init(|| port);
    }
    app.service.journal.record(&LogEvent::Listening { on: &on });
    record_findings(&app.service, &inputs.lowered);
    notify::ready();
    tokio::spawn(upkeep::recover(app.clone()));
    tokio::spawn(upkeep::report_ends(app.service.clone(), inputs.ended));
    tokio::spawn(upkeep::sweep_periodically(app.clone()));
    let calling = app.hook.start(Arc::clone(&app.service.journal));
    tokio::spawn(upkeep::watch_gauges(app.clone(), inputs.changes));
    tokio::spawn(upkeep::sweep_when_wanted(app.service.clone()));
    tokio::spawn(app.service.clone().keep_pools());
    let router = api::router(&app, librechat::router(&librechat));
    let serving = tokio::spawn(listen::serve(listener, router, app.http.clone()));
    loop {
        tokio::select! {
            _ = terminated.recv() => break,
            _ = interrupted.recv() => break,
            _ = hung_up.recv() => drop(reload(&app, &librechat, &inputs.options).await),
            Some(done) = inputs.reload_requests.recv() => {
                done.send(reload(&app, &librechat, &inputs.options).await).ok();
            }
        }
    }
    drain(&app.service).await;
    app.hook.end();
    calling.await.ok();
    // The last responses are being sent.
    tokio::time::timeout(ENDED_WITHIN, serving).await.ok();
    if let Listen::Unix(path) = &listen {
        // If this fails, a client finds a socket on which no server listens.
        std::fs::remove_file(path).ok();
    }
    Ok(())
}

/// Logs what an operator should know about a configuration that was just read.
fn record_findings(service: &Service, lowered: &[&'static str]) {
    if service.config().lacks_admin() {
        let hint = "no client can use /metrics, /v1/audit, /v1/sweep and /v1/reload: \
                    set admin = true for a key, or begin its line in the key file with admin:";
        service.journal.record(&LogEvent::NoAdmin { hint });
    }
    if !lowered.is_empty() {
        service.journal.record(&LogEvent::LimitsLowered { limits: lowered });
    }
}

/// Reads the configuration again. An invalid one changes nothing.
async fn reload(
    app: &AppState,
    librechat: &LibreChat,
    options: &Arc<Options>,
) -> Result<(), ServiceError> {
    let options = Arc::clone(options);
    // The listener stays as it was at the start.
    let reach = app.http.reach;
    let read = app.service.call(move |engine| {
        let mut loaded = options.load()?;
        loaded.config.check_host_network(reach)?;
        set_history(engine, loaded.config.history)?;
        loaded.machines.take().into_iter().for_each(|machines| engine.set_machines(machines));
        Ok(loaded)
    });
    match read.await {
        Ok(Loaded { config, jwt_keys, lowered, .. }) => {
            librechat.jwt_keys.set(jwt_keys);
            app.service.configure(config);
            app.service.journal.record(&LogEvent::Reloaded);
            record_findings(&app.service, &lowered);
            Ok(())
        }
        Err(error) => {
            app.service.journal.record(&LogEvent::ReloadRefused { why: &error.message });
            Err(error)
        }
    }
}

/// Starts nothing new, waits for runs and execs, and kills them after `[limits] drain`.
async fn drain(service: &Service) {
    service.journal.record(&LogEvent::Draining);
    notify::stopping();
    service.shutdown.drain();
    let limits = service.config().limits.clone();
    let idle = async { tokio::join!(service.admission.idle(), service.processes.idle()) };
    tokio::pin!(idle);
    let ended = match tokio::time::timeout(limits.drain.0, &mut idle).await {
        Ok(_) => 0,
        Err(_late) => {
            let running = service.admission.running() + service.processes.running();
            service.shutdown.kill();
            tokio::time::timeout(ENDED_WITHIN, &mut idle).await.ok();
            running
        }
    };
    service.close_pools().await;
    service.journal.record(&LogEvent::Drained { ended });
}

#[cfg(test)]
mod tests {
    use tare_harness::TemporaryDirectory;

    use super::*;

    #[test]
    fn a_configuration_that_names_missing_files_is_refused_at_start() {
        let directory = TemporaryDirectory::new();
        for (text, named) in [
            ("[boxes]\nrootfs = '/no/such/root'", "[boxes] rootfs"),
            ("[boxes]\npackages = '/no/such/packages'", "[boxes] packages"),
            ("[[volumes]]\nname = 'a'\npath = '/no/such/volume'", "[[volumes]] \"a\""),
            ("[librechat.boxes]\nrootfs = '/no/such/root'", "[librechat.boxes] rootfs"),
            ("[librechat.boxes]\npackages = '/no/such/packages'", "[librechat.boxes] packages"),
            ("[librechat.jwt]\nkeys = '/no/such/keys'", "/no/such/keys"),
            ("[hooks]\ncommand = ['/no/such/program']", "[hooks] command"),
            ("[files]\ndirectory = '/proc/files'", "[files] directory"),
        ] {
            let config = Some(directory.write("tare.toml", text));
            let refused = Options { config, ..Options::default() }.load();
            let message = refused.err().map(|error| error.to_string());
            assert!(message.as_ref().is_some_and(|it| it.contains(named)), "{text}: {message:?}");
        }
    }
}
