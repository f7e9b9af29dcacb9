//! Creates a box that lives on, once for each idempotency key.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tare_engine::spec::Spec;
use tare_engine::{
    BoxId, Changes, DetachOptions, Engine, Error, ErrorKind, Scope, Started, State, Status,
};

use crate::admission::{Admitted, Caller, Need};
use crate::error::{Kind, ServiceError};
use crate::telemetry::{LogEvent, OfBox};
use crate::work::Service;
use crate::work::request::idempotency::{Keyed, REQUEST_LABEL, check_same};
use crate::work::request::run::Warm;
use crate::workers::locked;

/// How long a request waits for a box that another request with the same key is making: 60 s for
/// the box to start, and 60 s more for its machine to boot.
const MADE_WITHIN: Duration = Duration::from_secs(120);
/// The pause between two looks at such a box.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct CreateRequest {
    pub spec: Spec,
    pub options: DetachOptions,
    /// Whether a box that waits in a pool may be used.
    pub may_be_warm: bool,
    /// The box and the hash that belong to the idempotency key, if the request has one.
    pub keyed: Option<Keyed>,
}

#[derive(Debug)]
pub struct Created {
    pub status: Status,
    /// An earlier request with the same key has created the box.
    pub existed: bool,
    /// What was made before the request.
    pub warm: Warm,
}

impl Created {
    fn existing(status: Status) -> Self {
        Self { status, existed: true, warm: Warm::Off }
    }

    fn new(status: Status, warm: Warm) -> Self {
        Self { status, existed: false, warm }
    }
}

/// The boxes of idempotency keys that requests of this server are making.
#[derive(Debug, Default)]
pub struct KeyedInMaking(Mutex<HashSet<BoxId>>);

/// The making of such a box, by one request.
#[derive(Debug)]
struct Making {
    service: Service,
    id: BoxId,
}

impl Making {
    /// `None` if another request is making the box.
    fn begin(service: &Service, id: &BoxId) -> Option<Self> {
        let is_first = locked(&service.keyed_in_making.0).insert(id.clone());
        is_first.then(|| Self { service: service.clone(), id: id.clone() })
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        locked(&self.service.keyed_in_making.0).remove(&self.id);
    }
}

impl Service {
    pub async fn create(
        &self,
        caller: &Caller,
        request: CreateRequest,
    ) -> Result<Created, ServiceError> {
        self.shutdown.check_serving()?;
        let CreateRequest { mut spec, options, may_be_warm, keyed } = request;
        spec.tenant = caller.tenant.clone();
        if let Some(Keyed { box_id, request }) = keyed {
            spec.labels.insert(REQUEST_LABEL.to_owned(), request);
            return self.create_once(caller, box_id, spec, options).await;
        }
        let need = Need::lasting_box(&spec);
        let mut admitted = self.admit(caller, need).await?;
        let taken = if may_be_warm { self.take_detached(&spec, &options) } else { None };
        if let Some(taken) = taken {
            let (service, by, of) = (self.clone(), caller.clone(), spec.clone());
            let began = Instant::now();
            let watch = move |started| service.watch_new(&by, (started, began), &of, admitted);
            let request = (spec.clone(), options.clone());
            if let Some(status) = self.claim_detached(taken, request, watch).await? {
                return Ok(Created::new(status, Warm::Box));
            }
            // A new box fails for the same reason, and says so, or succeeds.
            admitted = self.admit(caller, need).await?;
        }
        let (service, caller) = (self.clone(), caller.clone());
        let boots = spec.machine.is_some();
        let start = move |engine: &Engine| {
            let began = Instant::now();
            let started = engine.start(&spec, &options)?;
            service.watch_new(&caller, (started, began), &spec, admitted)
        };
        let status = self.create_on_thread(boots, start).await?;
        Ok(Created::new(status, Warm::Off))
    }

    /// Returns the running box that has the name of the spec, with the lease of the request, or
    /// creates it. A box of this name that cannot be used is removed first.
    pub async fn reuse_or_create(
        &self,
        caller: &Caller,
        request: CreateRequest,
    ) -> Result<Created, ServiceError> {
        // Not the scope of the caller: an admin sees boxes of other tenants with this name.
        let own = Scope::Tenant(caller.tenant.clone());
        let until = Instant::now() + MADE_WITHIN;
        loop {
            let (own, wanted) = (own.clone(), request.spec.clone());
            let lease = request.options.lease;
            let found = self.call(move |engine| find_named(engine, &own, &wanted, lease));
            match found.await? {
                Some(NamedBox::Usable(status)) => {
                    return Ok(Created::existing(*status));
                }
                // An earlier request makes it. If its machine does not boot, it is gone.
                Some(NamedBox::Starting) if Instant::now() < until => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                Some(NamedBox::Starting) => {
                    let message = "the box of this name is still being created";
                    return Err(ServiceError::unavailable("still_starting", message));
                }
                Some(NamedBox::Unusable(id)) => {
                    match self.remove(caller, id.to_string(), true).await {
                        Err(error) if error.kind != Kind::NotFound => return Err(error),
                        Ok(_) | Err(_) => break,
                    }
                }
                None => break,
            }
        }
        self.create(caller, request).await
    }

    /// Creates the box, or finds it. Waits for another request that is making it. Only a new box
    /// needs to be admitted: a request that is sent again is never refused for lack of room.
    async fn create_once(
        &self,
        caller: &Caller,
        id: BoxId,
        spec: Spec,
        options: DetachOptions,
    ) -> Result<Created, ServiceError> {
        let until = Instant::now() + MADE_WITHIN;
        loop {
            let box_id = id.clone();
            match self.call(move |engine| find_keyed(engine, &box_id)).await? {
                KeyedBox::Complete(status) => {
                    check_same(&status, &spec)?;
                    return Ok(Created::existing(caller.shown_status(*status)));
                }
                KeyedBox::Unfinished => {}
                KeyedBox::Absent => {
                    if let Some(status) = self.make_once(caller, &id, &spec, &options).await? {
                        return Ok(Created::new(status, Warm::Off));
                    }
                }
            }
            if Instant::now() >= until {
                let message = "the box of this Idempotency-Key is still being created";
                return Err(ServiceError::unavailable("still_starting", message));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Creates the box, unless another request has made it or is making it.
    async fn make_once(
        &self,
        caller: &Caller,
        id: &BoxId,
        spec: &Spec,
        options: &DetachOptions,
    ) -> Result<Option<Status>, ServiceError> {
        // A request of this server that has the last place may not have its box on record yet.
        let Some(making) = Making::begin(self, id) else {
            return Ok(None);
        };
        let admitted = match self.admit(caller, Need::lasting_box(spec)).await {
            Ok(admitted) => admitted,
            Err(error) if self.is_absent(id).await? => return Err(error),
            Err(_) => return Ok(None),
        };
        let (spec, options) = (spec.clone(), options.clone());
        let (service, caller) = (self.clone(), caller.clone());
        let boots = spec.machine.is_some();
        let start = move |engine: &Engine| {
            let began = Instant::now();
            let started = engine.start_as(&making.id, &spec, &options)?;
            let watch = |it| service.watch_new(&caller, (it, began), &spec, admitted);
            started.map(watch).transpose()
        };
        self.create_on_thread(boots, start).await
    }

    async fn is_absent(&self, id: &BoxId) -> Result<bool, ServiceError> {
        let id = id.clone();
        let found = self.call(move |engine| find_keyed(engine, &id)).await?;
        Ok(matches!(found, KeyedBox::Absent))
    }

    /// Creates a box on a thread. Machines, which boot for seconds, leave threads to native boxes.
    async fn create_on_thread<T: Send + 'static>(
        &self,
        boots: bool,
        start: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let creating = &self.shares.creating;
        if !boots {
            return self.reporting_slow(self.call_in_share(creating, start)).await;
        }
        let permits = (self.shares.booting.next().await, creating.next().await);
        let created = self.call_with(permits, start).await;
        created.inspect_err(|error| self.count_failed_boot(error))
    }

    /// Counts the machine of a box that did not start, if that is why the box could not be made.
    pub fn count_failed_boot(&self, error: &ServiceError) {
        error.boot_failure.into_iter().for_each(|why| self.metrics.count_boot(Err(why)));
    }

    /// Starts the lease of a box in use again. This is not an event, as a changed lease is.
    pub async fn renew(&self, id: &BoxId, lease: Duration) -> Result<(), ServiceError> {
        let id = id.clone();
        self.call(move |engine| renew(engine, &id, Some(lease))).await
    }

    /// Logs and watches a new box. Runs on the thread that created the box, because the task of the
    /// request may be gone.
    fn watch_new(
        &self,
        caller: &Caller,
        (started, began): (Started, Instant),
        spec: &Spec,
        mut admitted: Admitted,
    ) -> Result<Status, Error> {
        if spec.machine.is_some() {
            self.metrics.count_boot(Ok(began.elapsed()));
        }
        admitted.box_is_made(&started.id);
        let (box_id, key) = (started.id.as_str(), caller.tenant.key());
        let event = OfBox { box_id, key, request_id: caller.request_id() };
        // Before the keeper is watched: the log has the creation of a box before its end.
        self.journal.record(&LogEvent::BoxCreated(event));
        self.journal.record_box_notes(&started.notes);
        self.watch.add(started.id.clone(), started.keeper, Some(admitted));
        self.engine.status_of_new(&started.id, spec)
    }
}

/// The box that has the name of a request.
enum NamedBox {
    /// It runs, with the lease of the request from now on.
    Usable(Box<Status>),
    /// Another process makes it, or its machine boots.
    Starting,
    Unusable(BoxId),
}

/// Finds the box that has the name of this spec. A box that is not in a machine cannot be used for
/// one that has to be, and the other way round.
fn find_named(
    engine: &Engine,
    scope: &Scope,
    wanted: &Spec,
    lease: Option<Duration>,
) -> Result<Option<NamedBox>, Error> {
    let Some(name) = &wanted.name else { return Ok(None) };
    let status = engine.find_in(scope, name.as_str()).and_then(|id| engine.status(&id));
    match status {
        Ok(status) if status.state == State::Starting => Ok(Some(NamedBox::Starting)),
        Ok(status) => {
            let runs = status.state == State::Running
                && status.driver == Some(wanted.driver())
                && renew(engine, &status.id, lease).is_ok();
            Ok(Some(if runs {
                NamedBox::Usable(Box::new(status))
            } else {
                NamedBox::Unusable(status.id)
            }))
        }
        Err(error) if error.kind() == ErrorKind::NoSuchBox => Ok(None),
        Err(error) => Err(error),
    }
}

fn renew(engine: &Engine, id: &BoxId, lease: Option<Duration>) -> Result<(), Error> {
    engine.update(id, &Changes { lease: Some(lease), ..Changes::default() })
}

/// The box that belongs to an idempotency key.
enum KeyedBox {
    Complete(Box<Status>),
    /// Another process is creating the box, or removing one that was never finished.
    Unfinished,
    Absent,
}

fn find_keyed(engine: &Engine, id: &BoxId) -> Result<KeyedBox, Error> {
    match engine.announced(id) {
        Ok(Some(status)) => Ok(KeyedBox::Complete(Box::new(status))),
        Ok(None) => Ok(KeyedBox::Unfinished),
        Err(error) if error.kind() == ErrorKind::NoSuchBox => Ok(KeyedBox::Absent),
        Err(error) => Err(error),
    }
}
