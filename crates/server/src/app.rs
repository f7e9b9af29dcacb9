//! What every request shares.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use tare_engine::Engine;
use tokio::sync::{Mutex, Semaphore, watch};

use crate::Options;
use crate::admission::Admission;
use crate::callers::{self, Callers};
use crate::config::{Config, Reach};
use crate::error::ApiError;
use crate::execs::Execs;
use crate::files::Files;
use crate::hooks::Hooks;
use crate::journal::{Happening, Journal};
use crate::librechat::{Cancellable, Sessions, Waiting};
use crate::makers::Makers;
use crate::metrics::Metrics;
use crate::pressure::Pressure;
use crate::quota::Quotas;
use crate::sweeping::Sweeping;
use crate::watch::Watch;

/// Of those that wait in the engine for others.
const THREADS_IN_BOXES_MAX: usize = 16;

/// The threads that work for requests.
#[derive(Debug)]
pub struct Hands {
    pub makers: Makers,
    pub callers: Callers,
}

/// Cheap to clone: one for each request.
#[derive(Debug, Clone)]
pub struct App(Arc<Shared>);

#[derive(Debug)]
pub struct Shared {
    pub engine: Arc<Engine>,
    pub makers: Makers,
    callers: Callers,
    pub journal: Arc<Journal>,
    pub metrics: Arc<Metrics>,
    pub pressure: Pressure,
    pub sweeping: Sweeping,
    pub hooks: Arc<Hooks>,
    pub quotas: Quotas,
    pub admission: Admission,
    pub execs: Execs,
    pub files: Files,
    pub waiting: Waiting,
    pub sessions: Sessions,
    pub cancellable: Cancellable,
    pub recovery: Recovery,
    /// Threads that wait for somebody in a box, who may keep them waiting: others have
    /// to be left for everybody else.
    in_boxes: Arc<Semaphore>,
    /// Whoever looks at all of the host has this.
    pub proofs: Mutex<()>,
    /// As it was at the start, whatever a later configuration says.
    pub reach: Reach,
    pub started: Instant,
    pub stopping: Stopping,
    pub watch: Arc<Watch>,
    /// What the configuration is read by, again and again.
    pub options: Arc<Options>,
    config: RwLock<Arc<Config>>,
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
        Self {
            phase: watch::Sender::new(Phase::Serving),
        }
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
        watch: Arc<Watch>,
        pressure: Pressure,
        options: Options,
        config: Config,
    ) -> io::Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let journal = Arc::new(Journal::start(config.log, Arc::clone(&metrics))?);
        Ok(Self(Arc::new(Shared {
            engine: Arc::new(telling(engine, Arc::clone(&journal))),
            makers: hands.makers,
            callers: hands.callers,
            journal,
            metrics,
            admission: Admission::new(&config.limits, pressure.clone()),
            pressure,
            sweeping: Sweeping::default(),
            hooks: Arc::default(),
            quotas: Quotas::default(),
            execs: Execs::new(config.limits.execs),
            files: Files::new(&config.files, options.state_root.as_deref()),
            waiting: Waiting::default(),
            sessions: Sessions::default(),
            cancellable: Cancellable::default(),
            recovery: Recovery::default(),
            in_boxes: Arc::new(Semaphore::new(THREADS_IN_BOXES_MAX)),
            proofs: Mutex::default(),
            reach: config.listen.reach(),
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

    pub fn configure(&self, config: Config) {
        self.pressure.configure(config.gauge_settings());
        self.files.configure(&config.files);
        let mut held = self.config.write().unwrap_or_else(PoisonError::into_inner);
        *held = Arc::new(config);
    }

    /// Asks the engine, which waits for the kernel and for other tares, in a thread
    /// that may wait. Not for making attached boxes: see [`crate::makers`].
    pub async fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Engine) -> Result<T, tare_engine::Error> + Send + 'static,
    ) -> Result<T, ApiError> {
        let engine = Arc::clone(&self.engine);
        Ok(self.call(move || ask(&engine)).await??)
    }

    /// Calls what waits as the engine does.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let called = self.callers.call(call).await;
        called.map_err(|callers::Panicked| ApiError::internal("a call of the engine panicked"))
    }
}

/// Any call of the engine may end what somebody left behind.
fn telling(engine: Engine, journal: Arc<Journal>) -> Engine {
    engine.telling(move |id, found| {
        journal.note(Happening::OrphanReclaimed {
            box_id: id.as_str(),
            found,
        });
    })
}

impl App {
    /// The same where the engine waits for a program of ours that runs in a box: it is
    /// the box's own user, who may stop it.
    pub async fn ask_in_box<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Engine) -> Result<T, tare_engine::Error> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.in_boxes).acquire_owned().await;
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
