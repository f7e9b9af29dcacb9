//! The service layer: everything that an API can do. Every API calls [`Service`].
//!
//! It contains no HTTP type and no authentication. An API turns its requests into the types of
//! this folder, and the results into its own responses. The parts of a request that every API
//! shares, such as limits and volumes, have their JSON shape here.

pub mod box_calls;
pub mod boxes;
pub mod files;
pub mod pool;
pub mod request;
pub mod run;
pub mod streams;

use std::ops::Deref;
use std::sync::Arc;

use tare_engine::{BoxId, Engine, Error};
use tokio::sync::Notify;

use crate::admission::bodies::Charge;
use crate::admission::{Admission, Admitted, Caller, Need};
use crate::config::Config;
use crate::config::current::CurrentConfig;
use crate::error::{PRESSURE, ServiceError};
use crate::permits::Permits;
use crate::shutdown::Shutdown;
use crate::telemetry::journal::Journal;
use crate::telemetry::metrics::Metrics;
use crate::watch::followers::Followers;
use crate::watch::keepers::KeeperWatch;
use crate::work::box_calls::BoxCalls;
use crate::work::boxes::create::KeyedInMaking;
use crate::work::boxes::ending::StuckBoxes;
use crate::work::pool::Pools;
use crate::work::run::processes::Processes;
use crate::workers::{Creators, Workers};

/// Each kind of call that may have to wait gets one fourth of the worker threads. However many of
/// them wait, other threads list boxes and end runs.
const WORKER_SHARE_DIVISOR: usize = 4;

/// How many lists are made at once.
const LISTS_AT_ONCE: usize = 2;

/// Cheap to clone: one for each request.
#[derive(Debug, Clone)]
pub struct Service(Arc<ServiceParts>);

#[derive(Debug)]
pub struct ServiceParts {
    pub engine: Arc<Engine>,
    pub creators: Creators,
    pub workers: Workers,
    pub admission: Admission,
    pub watch: Arc<KeeperWatch>,
    pub followers: Followers,
    pub processes: Processes,
    pub pools: Pools,
    pub stuck: StuckBoxes,
    pub keyed_in_making: KeyedInMaking,
    /// Starts a sweep.
    pub sweep_wanted: Notify,
    pub journal: Arc<Journal>,
    pub metrics: Arc<Metrics>,
    pub shutdown: Shutdown,
    pub config: CurrentConfig,
    pub shares: Shares,
}

/// How many threads each kind of call that may have to wait can hold at once.
#[derive(Debug)]
pub struct Shares {
    /// Calls that wait for a keeper or a program of ours in a box, which the box's user can stop.
    in_boxes: BoxCalls,
    /// Calls that list all boxes, each of which reads every record.
    listing: Permits,
    /// Calls that create a box, whose file systems may not answer.
    creating: Permits,
    /// Those of them that wait until a machine has booted.
    booting: Permits,
    /// Calls that end a box, whose last process may hang in the kernel.
    ending: Permits,
    /// Calls that look at the whole host: one at a time is enough.
    whole_host: Permits,
}

impl Shares {
    pub fn of(threads: usize) -> Self {
        let most = (threads / WORKER_SHARE_DIVISOR).max(1);
        Self {
            in_boxes: BoxCalls::new(most),
            listing: Permits::new(LISTS_AT_ONCE),
            creating: Permits::new(most),
            booting: Permits::new((most / 2).max(1)),
            ending: Permits::new(most),
            whole_host: Permits::new(1),
        }
    }
}

impl Service {
    pub fn new(parts: ServiceParts) -> Self {
        pool::count_from_zero(&parts.metrics.pools);
        Self(Arc::new(parts))
    }

    /// The configuration as it is now. The next request may get another one.
    pub fn config(&self) -> Arc<Config> {
        self.config.get()
    }

    pub fn configure(&self, config: Config) {
        self.config.set(config);
        self.renew_pools();
    }

    /// Returns an empty charge for output that is kept for a response to this caller.
    pub fn charge(&self, caller: &Caller) -> Charge {
        self.admission.bodies.charge(&self.config(), caller.tenant.key())
    }

    /// Waits for the right to have one more box.
    pub async fn admit(&self, caller: &Caller, need: Need) -> Result<Admitted, ServiceError> {
        let config = self.config();
        loop {
            match self.admission.admit(&config, caller, need).await {
                // Boxes that wait in pools make room, one after another.
                Err(error) if error.code == PRESSURE && self.give_back(1).await => {}
                admitted => return admitted,
            }
        }
    }

    /// Returns the box that a caller names by id, by the beginning of an id, or by name.
    pub async fn find(&self, caller: &Caller, reference: &str) -> Result<BoxId, ServiceError> {
        let (caller, reference) = (caller.clone(), reference.to_owned());
        self.call(move |engine| find(engine, &caller, &reference)).await
    }

    /// Calls the engine on a worker thread. Not for boxes of runs: see [`crate::workers`].
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let engine = Arc::clone(&self.engine);
        Ok(self.workers.call(move || call(&engine)).await?)
    }

    /// Calls the engine where it waits for the keeper of a box, or for a program of ours in it.
    pub async fn call_in_box<T: Send + 'static>(
        &self,
        caller: &Caller,
        id: &BoxId,
        call: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let keys = self.config().keys.len();
        let permit = self.shares.in_boxes.next(caller, id, keys).await?;
        self.call_with(permit, call).await
    }

    /// Calls the engine with the box that a caller names, where it waits for a keeper or for a
    /// program of ours in the box.
    pub async fn in_box<T: Send + 'static>(
        &self,
        caller: &Caller,
        reference: String,
        act: impl FnOnce(&Engine, &BoxId) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let id = self.find(caller, &reference).await?;
        let box_id = id.clone();
        self.call_in_box(caller, &id, move |engine| act(engine, &box_id)).await
    }

    /// Calls the engine when the share of this kind of call has a free thread.
    async fn call_in_share<T: Send + 'static>(
        &self,
        share: &Permits,
        call: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        self.call_with(share.next().await, call).await
    }

    /// Calls the engine, and holds a permit until the thread is free, even if the client is gone.
    async fn call_with<T: Send + 'static>(
        &self,
        permit: impl Send + 'static,
        call: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let call = move |engine: &Engine| {
            let _permit = permit;
            call(engine)
        };
        self.call(call).await
    }
}

/// Finds a box among those that the caller sees. For a caller, boxes of other tenants do not exist.
fn find(engine: &Engine, caller: &Caller, reference: &str) -> Result<BoxId, Error> {
    engine.find_in(&caller.scope(), reference)
}

impl Deref for Service {
    type Target = ServiceParts;

    fn deref(&self) -> &ServiceParts {
        &self.0
    }
}
