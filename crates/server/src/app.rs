//! What every request shares.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use tare_engine::Engine;
use tokio::sync::{Mutex, Semaphore, watch};

use crate::Options;
use crate::admission::bodies::Bodies;
use crate::admission::pressure::Pressure;
use crate::admission::streams::Streams;
use crate::admission::{Admission, Admitted, Caller, Need};
use crate::config::{Config, Exposure};
use crate::error::ServiceError;
use crate::librechat::{Cancellable, Sessions, Waiting};
use crate::store::open::Files;
use crate::telemetry::LogEvent;
use crate::telemetry::hook::Hook;
use crate::telemetry::journal::Journal;
use crate::telemetry::metrics::Metrics;
use crate::upkeep::Upkeep;
use crate::watch::followers::Followers;
use crate::watch::keepers::KeeperWatch;
use crate::work::processes::Execs;
use crate::workers::{Creators, Workers};

/// Each kind of call that may have to wait gets one in so many of the calling threads.
/// However many of them wait, the others list boxes and end runs.
const SHARE_OF_THREADS: usize = 4;

/// The threads that work for requests.
#[derive(Debug)]
pub struct Hands {
    pub creators: Creators,
    pub workers: Workers,
}

/// Cheap to clone: one for each request.
#[derive(Debug, Clone)]
pub struct App(Arc<Shared>);

#[derive(Debug)]
pub struct Shared {
    pub engine: Arc<Engine>,
    pub creators: Creators,
    pub workers: Workers,
    pub journal: Arc<Journal>,
    pub metrics: Arc<Metrics>,
    pub upkeep: Upkeep,
    pub hook: Hook,
    pub streams: Streams,
    pub followers: Followers,
    pub bodies: Bodies,
    pub admission: Admission,
    pub execs: Execs,
    pub files: Files,
    pub waiting: Waiting,
    pub sessions: Sessions,
    pub cancellable: Cancellable,
    pub recovery: Recovery,
    shares: Shares,
    /// Whoever looks at all of the host has this.
    pub proofs: Mutex<()>,
    /// As it was at the start, whatever a later configuration says.
    pub reach: Exposure,
    /// The TCP port that the listener has, once it has one.
    pub port: OnceLock<u16>,
    pub started: Instant,
    pub stopping: Stopping,
    pub watch: Arc<KeeperWatch>,
    /// What the configuration is read by, again and again.
    pub options: Arc<Options>,
    config: RwLock<Arc<Config>>,
}

/// Where this server is reached.
#[derive(Debug, Clone, Copy)]
pub struct ServedAt {
    pub reach: Exposure,
    /// `None` for a socket in the file system.
    pub port: Option<u16>,
}

/// How many threads each kind of call that may have to wait can hold at once.
#[derive(Debug)]
struct Shares {
    /// For a program of ours in a box: the box's own user may stop it.
    in_boxes: Arc<Semaphore>,
    /// For a new box, whose file systems may not answer.
    creating: Arc<Semaphore>,
    /// For the last process of a box, which may hang in the kernel.
    ending: Arc<Semaphore>,
}

impl Shares {
    fn of(threads: usize) -> Self {
        let share = || Arc::new(Semaphore::new((threads / SHARE_OF_THREADS).max(1)));
        Self { in_boxes: share(), creating: share(), ending: share() }
    }
}

/// How far the look at what was there before has come.
#[derive(Debug, Default)]
pub struct Recovery {
    pub is_done: AtomicBool,
    pub boxes: AtomicUsize,
}

/// That the server is to end: first nothing new, then nothing at all.
#[derive(Debug)]
pub struct Stopping {
    phase: watch::Sender<Phase>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    /// What runs may end; nothing begins.
    Draining,
    /// What still runs is ended.
    Ending,
}

impl Default for Stopping {
    fn default() -> Self {
        Self { phase: watch::Sender::new(Phase::Serving) }
    }
}

impl Stopping {
    pub fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let goes_on = *now < phase;
            *now = phase.max(*now);
            goes_on
        });
    }

    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub async fn reached(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        // Its sender is in this very value.
        phases.wait_for(|now| *now >= phase).await.ok();
    }
}

impl App {
    pub fn new(
        engine: Engine,
        hands: Hands,
        watch: Arc<KeeperWatch>,
        pressure: Pressure,
        options: Options,
        config: Config,
    ) -> io::Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let journal = Arc::new(Journal::start(config.log, Arc::clone(&metrics))?);
        let shares = Shares::of(hands.workers.threads());
        Ok(Self(Arc::new(Shared {
            engine: Arc::new(telling(engine, Arc::clone(&journal))),
            creators: hands.creators,
            workers: hands.workers,
            journal,
            metrics,
            admission: Admission::new(&config.limits, pressure),
            upkeep: Upkeep::default(),
            hook: Hook::default(),
            streams: Streams::default(),
            followers: Followers::default(),
            bodies: Bodies::default(),
            execs: Execs::new(config.limits.execs),
            files: Files::new(&config.files, options.state_root.as_deref()),
            waiting: Waiting::default(),
            sessions: Sessions::default(),
            cancellable: Cancellable::default(),
            recovery: Recovery::default(),
            shares,
            proofs: Mutex::default(),
            reach: config.listen.exposure(),
            port: OnceLock::new(),
            started: Instant::now(),
            stopping: Stopping::default(),
            watch,
            options: Arc::new(options),
            config: RwLock::new(Arc::new(config)),
        })))
    }

    /// As it is now; it may be another one for the next request.
    pub fn config(&self) -> Arc<Config> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&config)
    }

    pub fn served_at(&self) -> ServedAt {
        ServedAt { reach: self.reach, port: self.port.get().copied() }
    }

    pub fn configure(&self, config: Config) {
        self.admission.pressure.configure(config.gauge_settings());
        self.files.configure(&config.files);
        let mut held = self.config.write().unwrap_or_else(PoisonError::into_inner);
        *held = Arc::new(config);
    }

    /// Asks the engine, which waits for the kernel and for other tares, in a thread
    /// that may wait. Not for making attached boxes: see [`crate::workers`].
    pub async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Engine) -> Result<T, tare_engine::Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let engine = Arc::clone(&self.engine);
        Ok(self.call(move || ask(&engine)).await?)
    }

    /// Calls what waits as the engine does.
    pub async fn call<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        self.workers.call(call).await
    }
}

impl App {
    /// Waits for the right to have one more box.
    pub async fn admit(&self, caller: &Caller, need: Need) -> Result<Admitted, ServiceError> {
        let config = self.config();
        self.admission.admit(&config, caller, need).await
    }
}

/// Any call of the engine may end what somebody left behind.
fn telling(engine: Engine, journal: Arc<Journal>) -> Engine {
    engine.on_reclaimed(move |id, found| {
        journal.record(&LogEvent::OrphanReclaimed { box_id: id.as_str(), found });
    })
}

impl App {
    /// Asks the engine where it waits for a keeper, or for a program of ours in a box.
    pub async fn ask_in_box<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Engine) -> Result<T, tare_engine::Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        self.ask_in(&self.shares.in_boxes, ask).await
    }

    /// Asks the engine for a box that lives on.
    pub async fn ask_to_create<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Engine) -> Result<T, tare_engine::Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        self.ask_in(&self.shares.creating, ask).await
    }

    /// Asks the engine to end a box.
    pub async fn ask_to_end<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Engine) -> Result<T, tare_engine::Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        self.ask_in(&self.shares.ending, ask).await
    }

    async fn ask_in<T: Send + 'static>(
        &self,
        share: &Arc<Semaphore>,
        ask: impl FnOnce(&Engine) -> Result<T, tare_engine::Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let turn = Arc::clone(share).acquire_owned().await;
        let turn = turn.expect("the semaphore is never closed");
        self.ask(move |engine| {
            // Until the thread is free, whether or not anybody still waits for it.
            let _turn = turn;
            ask(engine)
        })
        .await
    }
}

impl Recovery {
    pub fn done(&self, boxes: usize) {
        self.boxes.store(boxes, Ordering::Relaxed);
        self.is_done.store(true, Ordering::Release);
    }
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
