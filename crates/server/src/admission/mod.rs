//! Decides whether new work may begin: the queue of runs, the gauges of the host, the quotas
//! of keys, the memory of bodies, the number of streams. It starts no work itself.
//!
//! [`Admission::admit`] returns one guard. A run holds it until its box is gone. The keeper
//! watch holds it for a box that lives on. The number of guards is the number of live boxes.

pub mod bodies;
pub mod descriptors;
pub mod machines;
pub mod measurement;
pub mod places;
pub mod pressure;
pub mod promise;
pub mod quota;
pub mod share;
pub mod streams;

use std::sync::Arc;
use std::time::Instant;

use tare_engine::spec::{Driver, Spec, Tenant};
use tare_engine::{
    Actor, BoxId, Changes, Details, EndedLine, Explanation, Receipt, Scope, Status, monitor_pids,
};

use crate::admission::bodies::Bodies;
use crate::admission::machines::{MachineHold, Machines};
use crate::admission::measurement::Measurement;
use crate::admission::places::Place;
use crate::admission::pressure::Pressure;
use crate::admission::promise::Promise;
use crate::admission::quota::{QuotaHold, Quotas};
use crate::config::{Config, Key, Limits};
use crate::error::ServiceError;
use crate::permits::{Permit, Permits};
use crate::telemetry::LogRecord;

/// The client that sent a request. Every API makes one from its own kind of authentication.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// The tenant that owns the boxes of the request, and whose quota counts.
    pub tenant: Tenant,
    /// Whether it sees the boxes of all tenants, and may use the routes for operators.
    pub is_admin: bool,
    /// The user of a client that serves several users with one key, such as LibreChat.
    pub user: Option<String>,
    pub request_id: String,
    /// The address of the client. Empty outside of a request.
    pub client: String,
    /// The method and the path of the request.
    pub route: String,
}

impl Caller {
    /// A client of a server without keys, which is open to every process of this host.
    pub fn without_keys() -> Self {
        Self { is_admin: true, ..Self::default() }
    }

    pub fn with_key(key: &Key) -> Self {
        Self { is_admin: key.admin, ..Self::of(key.name.clone().into()) }
    }

    /// A client that sees the boxes of one tenant.
    pub fn of(tenant: Tenant) -> Self {
        Self { tenant, ..Self::default() }
    }

    /// Returns the actor that the history of a box names for this request.
    pub fn actor(&self) -> Actor {
        let key = self.tenant.key().map(str::to_owned);
        Actor::Http { key, client: self.client.clone(), route: self.route.clone() }
    }

    /// `None` outside of a request, as in a test.
    pub fn request_id(&self) -> Option<&str> {
        Some(self.request_id.as_str()).filter(|id| !id.is_empty())
    }

    /// Whose part of the shared threads it uses: that of its user, or else of its key. `None` for a
    /// client without either.
    pub fn sharer(&self) -> Option<String> {
        match (self.tenant.key(), &self.user) {
            (None, None) => None,
            (Some(key), None) => Some(key.to_owned()),
            // The name of a key has no slash.
            (key, Some(user)) => Some(format!("{}/{user}", key.unwrap_or_default())),
        }
    }

    /// The boxes that it sees.
    pub fn scope(&self) -> Scope {
        if self.is_admin { Scope::All } else { Scope::Tenant(self.tenant.clone()) }
    }

    /// Whether it sees boxes, and events about boxes, of this key.
    pub fn sees(&self, key: Option<&str>) -> bool {
        self.is_admin || key.is_some_and(|key| key == self.tenant.as_str())
    }

    /// Only an admin sees paths and pids of the host in a receipt.
    pub fn shown_receipt(&self, receipt: Receipt) -> Receipt {
        if self.is_admin { receipt } else { receipt.without_host() }
    }

    /// Only an admin sees why a box is stuck: the reason names processes and paths of the host.
    pub fn shown_status(&self, status: Status) -> Status {
        if self.is_admin { status } else { status.without_host() }
    }

    /// Only an admin sees in an event why a box is stuck.
    pub fn shown_event(&self, event: &LogRecord) -> serde_json::Value {
        let mut shown = event.to_json();
        if !self.is_admin
            && let Some(fields) = shown.as_object_mut()
        {
            fields.remove("why");
        }
        shown
    }

    /// Only an admin sees paths and pids of the host in the details of a box.
    pub fn shown_details(&self, details: Details) -> Details {
        if self.is_admin { details } else { details.without_host() }
    }

    /// Only an admin sees pids of the host in an explanation.
    pub fn shown_explanation(&self, explanation: Explanation) -> Explanation {
        if self.is_admin { explanation } else { explanation.without_host() }
    }

    /// Only an admin sees the pid of the process that ended a box, and paths of the host.
    pub fn shown_end(&self, mut ended: EndedLine) -> EndedLine {
        if !self.is_admin {
            ended.hide_host();
        }
        ended
    }
}

/// What a request needs.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    work: Work,
    driver: Driver,
    pids: u32,
    memory_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A run, which ends by itself soon.
    Run,
    /// A box that lives on.
    Box,
}

impl Need {
    /// One command in its own box. It waits for its turn.
    pub fn run(spec: &Spec) -> Self {
        Self::of(Work::Run, spec)
    }

    /// A box that lives on.
    pub fn lasting_box(spec: &Spec) -> Self {
        Self::of(Work::Box, spec)
    }

    fn of(work: Work, spec: &Spec) -> Self {
        let limits = &spec.limits;
        let existing =
            Self::of_existing(spec.driver(), limits.pids.value(), limits.memory_bytes.value());
        Self { work, ..existing }
    }

    /// A box that exists already, with these limits. The processes in a machine are not processes
    /// of the host.
    pub fn of_existing(driver: Driver, pids: u32, memory_bytes: u64) -> Self {
        let pids = if driver == Driver::Vm { monitor_pids() } else { pids };
        Self { work: Work::Box, driver, pids, memory_bytes }
    }
}

#[derive(Debug)]
pub struct Admission {
    runs: RunQueue,
    pub pressure: Pressure,
    pub quotas: Quotas,
    pub machines: Machines,
    pub bodies: Bodies,
}

/// The right to have one box, until it is dropped.
#[derive(Debug)]
pub struct Admitted {
    /// When the request asked for it.
    pub asked_at: Instant,
    /// `None` for a box that lives on.
    run: Option<Permit>,
    place: Place,
    quota: Option<QuotaHold>,
    /// `None` for a native box.
    machine: Option<MachineHold>,
    /// The place that its box has in a pool while it is being ended.
    in_pool: Option<Arc<()>>,
}

/// What counts for one box.
#[derive(Debug, Clone, Copy)]
pub struct CountedLimits {
    promise: Promise,
    /// For the quota of its key.
    memory_bytes: u64,
}

/// What counted before an update, and what counts after it.
#[derive(Debug, Clone, Copy)]
pub struct LimitChange {
    pub before: CountedLimits,
    pub after: CountedLimits,
}

impl Admitted {
    /// Marks the box as made: from now on, the gauges measure what it uses.
    pub fn box_is_made(&mut self, id: &BoxId) {
        self.place.made(id);
    }

    /// Counts the larger of the old and the new limits, before a box gets the new ones.
    pub fn reserve(
        &mut self,
        config: &Config,
        (pressure, measured): (&Pressure, &Measurement),
        new: &Changes,
    ) -> Result<LimitChange, ServiceError> {
        let driver = if self.machine.is_some() { Driver::Vm } else { Driver::Native };
        let (pids, memory_bytes) = (new.pids.unwrap_or(0), new.memory_bytes.unwrap_or(0));
        let promise =
            Promise::new(&config.admission, Need::of_existing(driver, pids, memory_bytes));
        let memory_bytes = self.quota.as_ref().map_or(0, QuotaHold::memory_bytes);
        let before = CountedLimits { promise: self.place.promise(), memory_bytes };
        let after = CountedLimits {
            promise: Promise {
                pids: new.pids.map_or(before.promise.pids, |_| promise.pids),
                memory_bytes: new
                    .memory_bytes
                    .map_or(before.promise.memory_bytes, |_| promise.memory_bytes),
            },
            memory_bytes: new.memory_bytes.unwrap_or(memory_bytes),
        };
        if let Some(quota) = &mut self.quota {
            quota.resize(config, memory_bytes.max(after.memory_bytes))?;
        }
        let more = before.promise.max(after.promise);
        if let Err(error) = pressure.promise_more(&self.place, measured, more) {
            self.count(before);
            return Err(error);
        }
        Ok(LimitChange { before, after })
    }

    /// Counts these limits, which are at most what is reserved.
    pub fn count(&mut self, limits: CountedLimits) {
        self.place.set_promise(limits.promise);
        if let Some(quota) = &mut self.quota {
            quota.observe(limits.memory_bytes);
        }
    }

    /// Counts the limits that the box has. Another process may have changed them, and asks no
    /// server whether there is room.
    pub fn observe(&mut self, config: &Config, need: Need) {
        let promise = Promise::new(&config.admission, need);
        self.count(CountedLimits { promise, memory_bytes: need.memory_bytes });
    }

    /// Holds a place in a pool too.
    pub fn keep_place(&mut self, in_pool: Option<Arc<()>>) {
        self.in_pool = in_pool;
    }

    /// Lets the next run begin, because the box of this one is stuck and outlives it.
    pub fn without_run(mut self) -> Self {
        self.run = None;
        self
    }
}

impl Admission {
    pub fn new(limits: &Limits, pressure: Pressure) -> Self {
        Self {
            runs: RunQueue::new(limits),
            pressure,
            quotas: Quotas::default(),
            machines: Machines::default(),
            bodies: Bodies::default(),
        }
    }

    /// Waits for the turn of a run, unless too many runs wait already. Then checks whether the
    /// host has room for its box. A run waits for the room that other runs take.
    pub async fn admit(
        &self,
        config: &Config,
        caller: &Caller,
        need: Need,
    ) -> Result<Admitted, ServiceError> {
        let asked_at = Instant::now();
        let quota = self.quotas.hold(config, caller, need)?;
        match self.admit_to_host(config, need).await {
            Ok((run, place, machine)) => {
                Ok(Admitted { asked_at, run, place, quota, machine, in_pool: None })
            }
            Err(error) => {
                if let Some(quota) = quota {
                    quota.refund();
                }
                Err(error)
            }
        }
    }

    async fn admit_to_host(
        &self,
        config: &Config,
        need: Need,
    ) -> Result<(Option<Permit>, Place, Option<MachineHold>), ServiceError> {
        let machine = match need.driver {
            Driver::Native => None,
            Driver::Vm => Some(self.machines.hold(config.vm.boxes)?),
        };
        let run = match need.work {
            Work::Run => Some(self.runs.next().await?),
            Work::Box => None,
        };
        let promise = Promise::new(&config.admission, need);
        let place = self.pressure.place(need.work, promise).await?;
        Ok((run, place, machine))
    }

    /// Admits a box that waits in a pool: it counts with what it uses, and is promised nothing.
    pub async fn admit_waiting(&self) -> Result<Admitted, ServiceError> {
        let place = self.pressure.place(Work::Box, Promise::default()).await?;
        let asked_at = Instant::now();
        Ok(Admitted { asked_at, run: None, place, quota: None, machine: None, in_pool: None })
    }

    /// The guard of a box that exists already.
    pub fn of_existing(
        &self,
        config: &Config,
        key: Option<&str>,
        id: &BoxId,
        need: Need,
    ) -> Admitted {
        let quota = key.map(|key| self.quotas.of_existing(key, need.memory_bytes));
        let place = self.pressure.place_of_existing(id, Promise::new(&config.admission, need));
        let machine = (need.driver == Driver::Vm).then(|| self.machines.hold_existing());
        Admitted { asked_at: Instant::now(), run: None, place, quota, machine, in_pool: None }
    }

    /// Returns when no run is active.
    pub async fn idle(&self) {
        self.runs.active.all_free().await;
    }

    pub fn running(&self) -> usize {
        self.runs.active.taken().saturating_sub(self.pressure.runs_waiting())
    }

    /// Runs that wait for their turn or for room.
    pub fn waiting(&self) -> usize {
        self.runs.waiting.taken() + self.pressure.runs_waiting()
    }
}

/// Runs that are active, and those that wait for their turn.
#[derive(Debug)]
struct RunQueue {
    active: Permits,
    waiting: Permits,
}

impl RunQueue {
    fn new(limits: &Limits) -> Self {
        Self { active: Permits::new(limits.runs), waiting: Permits::new(limits.runs_waiting) }
    }

    async fn next(&self) -> Result<Permit, ServiceError> {
        if let Some(one) = self.active.take() {
            return Ok(one);
        }
        let Some(_waiting) = self.waiting.take() else {
            let (active, waiting) = (self.active.most(), self.waiting.most());
            let message = format!(
                "server busy: {active} runs are active and {waiting} wait, the limits set by \
                 [limits] runs and runs_waiting"
            );
            return Err(ServiceError::unavailable("busy", message).with_hint("try again later"));
        };
        Ok(self.active.next().await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(runs: usize, runs_waiting: usize) -> RunQueue {
        RunQueue::new(&Limits { runs, runs_waiting, ..Limits::default() })
    }

    #[tokio::test]
    async fn a_run_is_refused_when_too_many_wait() {
        let runs = queue(1, 0);
        let first = runs.next().await.expect("none is active");
        let refused = runs.next().await.expect_err("one is active");
        assert_eq!(refused.code, "busy");
        drop(first);
        drop(runs.next().await.expect("none is active"));
    }

    /// A client that disconnects while it waits leaves the queue.
    #[tokio::test]
    async fn a_run_that_gives_up_leaves_the_queue() {
        let runs = queue(1, 1);
        let _first = runs.next().await.expect("none is active");
        for _attempt in 0..3 {
            let waiting = runs.next();
            let gave_up = tokio::time::timeout(std::time::Duration::from_millis(1), waiting).await;
            assert!(gave_up.is_err(), "it waits");
        }
        assert_eq!(runs.waiting.taken(), 0);
    }
}
