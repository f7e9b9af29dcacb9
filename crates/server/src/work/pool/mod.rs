//! Makes boxes before requests need them. Each waits on a *shelf* with others of its [`Shape`], and
//! is used once.
//!
//! ```text
//!            ┌ miss: the request makes its own box, and the shelf is filled
//! request ───┤
//!            └ hit: `claimed` on record ─▶ go or order ─▶ as any other run
//!
//! shelf: making ─▶ waiting ─▶ claimed
//!           │         ├──▶ dead, idle, under pressure, server stops: ended
//!           └ failed: tried again after a pause
//! ```
//!
//! A box that is ending or stuck counts until it is gone. Waiting boxes end with the server.

mod ending;
mod member;
mod order;
mod origins;
mod shape;
mod shelves;
mod start;
mod template;
mod usual;

use std::io::PipeWriter;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tare_engine::spec::{Spec, Tenant};
use tare_engine::{DetachOptions, Engine, Error, Gauge, Level, Prepared, Started, reason};
use tokio::sync::{Notify, oneshot};

use crate::admission::Admitted;
use crate::error::ServiceError;
use crate::fd;
use crate::telemetry::LogEvent;
use crate::telemetry::pool_metrics::PoolMetrics;
use crate::work::Service;
use crate::work::pool::ending::{Ending, Why};
pub use crate::work::pool::member::Claimed;
use crate::work::pool::member::{DeathWatch, Member, Waiting};
pub use crate::work::pool::order::{Order, are_inline};
use crate::work::pool::origins::Origins;
use crate::work::pool::shape::PoolName;
pub use crate::work::pool::shape::Shape;
use crate::work::pool::shelves::{BackOff, Shelves, Source};
use crate::work::pool::start::Maker;
pub use crate::work::pool::template::Template;
use crate::work::pool::template::TemplateBox;
use crate::work::pool::usual::usual_runs;
use crate::work::request::run::{RunRequest, Warm};
use crate::workers::{Workers, locked, processors};

/// How often the server looks at boxes that wait.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the server looks whether packages have changed.
const LOOK_AT_ORIGINS_EVERY: Duration = Duration::from_secs(2);
/// How long a request waits for a template that makes a clone, before it makes its own box.
const CLONED_WITHIN: Duration = Duration::from_secs(2);
/// How long a file system with packages may take to answer, before no template is made from them.
const LOOKED_WITHIN: Duration = Duration::from_secs(10);
/// How long a server that stops waits for boxes that are being made ahead.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);
/// How long the server makes no box ahead after it has ended waiting boxes under pressure.
const RELIEF: Duration = Duration::from_secs(5);

/// All pools of a server.
#[derive(Debug, Default)]
pub struct Pools {
    shelves: Mutex<Shelves>,
    /// Notified when something changed that may need care.
    changed: Notify,
    makers: OnceLock<Makers>,
}

/// Threads that make boxes. They live as long as the server, because a waiting box ends with the
/// thread that made it. Few, so that boxes for requests come first.
#[derive(Debug)]
struct Makers {
    threads: Workers,
    /// Looks at packages. Their file system may not answer.
    looker: Workers,
    maker: Maker,
    /// `None` after the server began to stop.
    open: Mutex<Option<PipeWriter>>,
}

/// A box that was taken from its shelf, to become a detached box.
#[derive(Debug)]
pub struct TakenBox {
    shelf: u64,
    prepared: Box<Prepared>,
    admitted: Admitted,
}

/// Starts the metrics of every pool at 0, for everything that a request can get from it.
pub fn count_from_zero(metrics: &PoolMetrics) {
    for pool in PoolName::ALL {
        for kind in pool.gives() {
            metrics.start_at_zero(pool.as_str(), kind.as_str());
        }
    }
}

impl Service {
    /// Returns the kind of box in a pool that a request can use, if there is one.
    pub fn shape_for<T>(&self, request: &RunRequest<T>) -> Option<Shape> {
        let config = self.config();
        if let Some(why) = shape::missing_room_for(request, &config) {
            self.note_failure(PoolName::Python, &why);
        }
        Shape::of(request, &config)
    }

    /// Claims a box that waits, or that a template makes now, and starts its command if it has one.
    /// `None` if there is none: the next request may find one.
    pub async fn claim(&self, shape: Shape, spec: &Spec) -> Option<(Claimed, Warm)> {
        let pool = shape.pool;
        let (number, member) = self.take_member(shape, &spec.tenant);
        let claimed = match (member, number) {
            (Some(member), _) => self.claim_member(member, spec.clone()).await,
            (None, Some(number)) => self.claim_clone((number, pool), spec.clone()).await,
            (None, None) => None,
        };
        self.count_claim(pool, number, claimed.as_ref().map(|(_, kind)| *kind));
        claimed
    }

    /// Takes a waiting box for a request that asks for a detached box. The caller claims it at once.
    pub fn take_detached(&self, spec: &Spec, options: &DetachOptions) -> Option<TakenBox> {
        let shape = Shape::of_detached(spec, options, &self.config())?;
        match self.take_member(shape, &spec.tenant) {
            (Some(shelf), Some(Member { waiting: Waiting::Box(prepared), admitted, .. })) => {
                Some(TakenBox { shelf, prepared, admitted })
            }
            (_, _) => {
                self.metrics.pools.miss(PoolName::Box.as_str());
                None
            }
        }
    }

    /// Claims a box for a request for a detached box, and starts its command. `None` if that failed: then
    /// nothing of the box is left. `watch` gets the detached box, even if the client is gone by then.
    pub async fn claim_detached<T: Send + 'static>(
        &self,
        TakenBox { shelf, prepared, admitted }: TakenBox,
        (spec, options): (Spec, DetachOptions),
        watch: impl FnOnce(Started) -> Result<T, Error> + Send + 'static,
    ) -> Result<Option<T>, ServiceError> {
        let claim = move |engine: &Engine| {
            let started = engine.claim_detached(*prepared, &spec, &options);
            drop(admitted);
            started.ok().map(watch).transpose()
        };
        let service = self.clone();
        // A task of its own: a box that was taken must not be dropped with its request.
        let claiming = tokio::spawn(async move {
            let claimed = service.call_in_share(&service.shares.creating, claim).await;
            service.refill_pools();
            let kind = matches!(claimed, Ok(Some(_))).then_some(Warm::Box);
            service.count_claim(PoolName::Box, Some(shelf), kind);
            claimed
        });
        claiming.await.map_err(ServiceError::internal)?
    }

    /// Takes a waiting box of this shape that lives. If the shape is new, it gets a shelf. Returns the
    /// number of the shelf.
    fn take_member(&self, shape: Shape, tenant: &Tenant) -> (Option<u64>, Option<Member>) {
        let mut useless = Vec::new();
        let (number, member, is_last) = {
            let mut shelves = locked(&self.pools.shelves);
            if shelves.find(&shape).is_none() {
                let replaced = shelves.add(shape.clone(), tenant).into_iter();
                useless.extend(replaced.map(|it| Ending::of_member(it, Why::Unwanted)));
            }
            match shelves.find(&shape) {
                Some(shelf) => {
                    shelf.used = Instant::now();
                    let (member, dead) = shelf.take();
                    useless.extend(dead.into_iter().map(|it| Ending::of_member(it, Why::Died)));
                    (Some(shelf.number), member, shelf.waiting.is_empty())
                }
                None => (None, None, true),
            }
        };
        self.end_apart(useless);
        if is_last {
            self.refill_pools();
        }
        self.count_pools();
        (number, member)
    }

    /// Counts a request for a box of a pool, and what it got.
    fn count_claim(&self, pool: PoolName, number: Option<u64>, kind: Option<Warm>) {
        let Some(kind) = kind else { return self.metrics.pools.miss(pool.as_str()) };
        let mut shelves = locked(&self.pools.shelves);
        if let Some(shelf) = number.and_then(|number| shelves.by_number(number)) {
            (shelf.back_off, shelf.is_failure_noted) = (BackOff::default(), false);
        }
        drop(shelves);
        self.metrics.pools.claim(pool.as_str(), kind.as_str());
    }

    async fn claim_member(&self, member: Member, spec: Spec) -> Option<(Claimed, Warm)> {
        let Member { waiting, admitted, pool, .. } = member;
        let kind = waiting.kind();
        let claimed = self.claim_waiting(waiting, pool, spec).await;
        // The request counts for the box from now on.
        drop(admitted);
        claimed.map(|claimed| (claimed, kind))
    }

    async fn claim_waiting(&self, waiting: Waiting, pool: PoolName, spec: Spec) -> Option<Claimed> {
        // Not behind boxes that are being made: the box is, and its keeper does not end with this thread.
        let claimed = self.workers.call(move || waiting.claim(&spec)).await;
        claimed.map_err(|failed| self.why_not_started(pool, failed)).ok()
    }

    /// Makes a clone for a request that found none. A clone takes less time than a new interpreter.
    async fn claim_clone(
        &self,
        (number, pool): (u64, PoolName),
        spec: Spec,
    ) -> Option<(Claimed, Warm)> {
        let maker = self.makers().ok()?.maker.clone();
        let config = self.config();
        let chosen = locked(&self.pools.shelves).begin_clone(number, &config.pool.python);
        let (template, shape) = chosen?;
        let (service, from) = (self.clone(), Arc::clone(&template));
        let (begins, begun) = oneshot::channel();
        let make = move || {
            if !from.is_prompt() {
                return Err(Error::failed("the template is slow").into());
            }
            // This fails if the request no longer waits.
            begins.send(()).ok();
            Waiting::make(&maker, &shape, Some(from))
        };
        let mut making = tokio::spawn(async move {
            let _slot = service.creators.slot().await;
            let made = service.creators.call(make).await;
            made.map_err(|failed| service.why_not_started(pool, failed))
        });
        // Before, the request waits for its turn, as it would for a box of its own.
        begun.await.ok();
        match tokio::time::timeout(CLONED_WITHIN, &mut making).await {
            Ok(made) => {
                self.count_cloned();
                let waiting = made.ok()?.ok()?;
                let kind = waiting.kind();
                let claimed = self.claim_waiting(waiting, pool, spec).await?;
                self.metrics.pools.made_on_demand();
                Some((claimed, kind))
            }
            Err(_elapsed) => {
                template.was_slow();
                let service = self.clone();
                tokio::spawn(async move {
                    if let Ok(Ok(late)) = making.await {
                        service.end_uncounted(late.into_session(), pool);
                    }
                    service.count_cloned();
                });
                None
            }
        }
    }

    /// Counts a clone for a request as made, or as given up.
    fn count_cloned(&self) {
        locked(&self.pools.shelves).cloning -= 1;
        self.pools.changed.notify_one();
    }

    /// Asks for boxes in the place of those that were claimed. While other boxes wait, the caller
    /// does this after the run: so the making of a box takes no processor time from the run.
    pub fn refill_pools(&self) {
        self.pools.changed.notify_one();
    }

    /// Ends boxes that wait, this many at most, because their room is needed. If there are none, ends
    /// the templates that have no clones. Returns whether it ended anything.
    pub async fn give_back(&self, most: usize) -> bool {
        let (members, templates) = {
            let mut shelves = locked(&self.pools.shelves);
            shelves.relief_until = Some(Instant::now() + RELIEF);
            let members = shelves.take_least_wanted(most);
            let templates = if members.is_empty() { shelves.take_templates() } else { Vec::new() };
            (members, templates)
        };
        self.count_pools();
        let were_any = !members.is_empty() || !templates.is_empty();
        self.end_pooled(unwanted(members, templates)).await;
        were_any
    }

    /// Makes the first box of each pool that starts with the server. `keep_pools` makes the others.
    pub async fn start_pools(&self) -> Result<(), Error> {
        let config = self.config();
        for request in usual_runs(&config) {
            let Some(shape) = Shape::of(&request, &config) else { continue };
            let is_required = shape.pool.is_required(&config.pool);
            if shape.interpreter.is_some() && !is_required {
                continue;
            }
            let Some(number) = locked(&self.pools.shelves).begin(&shape) else { continue };
            match self.make_member(number, shape).await {
                Err(error) if is_required => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Keeps the pools filled until the server begins to stop. `close_pools` empties them.
    pub async fn keep_pools(self) {
        let mut looked_at = tokio::time::Instant::now();
        loop {
            let is_empty = {
                let shelves = locked(&self.pools.shelves);
                shelves.all.is_empty() && shelves.templates.is_empty()
            };
            let look = async {
                if is_empty {
                    std::future::pending().await
                } else {
                    tokio::time::sleep_until(looked_at + LOOK_EVERY).await;
                }
            };
            tokio::select! {
                () = self.pools.changed.notified() => {}
                () = look => {}
                () = self.shutdown.draining() => return,
            }
            let is_due = looked_at.elapsed() >= LOOK_EVERY;
            if is_due {
                looked_at = tokio::time::Instant::now();
            }
            self.tend_pools(is_due).await;
        }
    }

    /// Ends all boxes that wait, and those that are being made. No more are made.
    pub async fn close_pools(&self) {
        let until = tokio::time::Instant::now() + CLOSED_WITHIN;
        locked(&self.pools.shelves).is_closed = true;
        if let Some(makers) = self.pools.makers.get() {
            locked(&makers.open).take();
        }
        loop {
            let (boxes, pending) = {
                let mut shelves = locked(&self.pools.shelves);
                shelves.all.iter_mut().for_each(|shelf| shelf.source = Source::Started);
                let making: usize = shelves.all.iter().map(|shelf| shelf.making).sum();
                let pending = making + shelves.cloning + shelves.ending;
                let members = shelves.take_least_wanted(usize::MAX);
                // No run is left. A template that does not answer delays the threads that wait for it.
                (unwanted(members, std::mem::take(&mut shelves.templates)), pending)
            };
            self.end_pooled(boxes).await;
            let changed = tokio::time::timeout_at(until, self.pools.changed.notified());
            if pending == 0 || changed.await.is_err() {
                return;
            }
        }
    }

    /// Has all templates replaced, because the configuration was read again.
    pub fn renew_pools(&self) {
        let shelves = locked(&self.pools.shelves);
        shelves.templates.iter().for_each(|it| it.template.renew());
        self.pools.changed.notify_one();
    }

    /// Looks whether packages of templates have changed, on a thread of its own, because a file system
    /// may not answer.
    fn look_at_origins(&self) {
        let templates = locked(&self.pools.shelves).take_due(LOOK_AT_ORIGINS_EVERY);
        if templates.is_empty() {
            return;
        }
        let service = self.clone();
        tokio::spawn(async move {
            if let Ok(makers) = service.makers() {
                let look = move || templates.iter().for_each(|it| it.look_at_origins());
                makers.looker.call(look).await;
            }
            let mut shelves = locked(&service.pools.shelves);
            (shelves.looked_at, shelves.is_looking) = (Some(Instant::now()), false);
        });
    }

    /// Replaces what is dead, old or unwanted, and fills the pools. Looks for deaths if that is due or
    /// one was reported.
    async fn tend_pools(&self, is_due: bool) {
        let config = self.config();
        self.look_at_origins();
        let (dead, idle, templates) = {
            let mut shelves = locked(&self.pools.shelves);
            let looks = std::mem::take(&mut shelves.has_death) || is_due;
            let dead = if looks { shelves.take_dead() } else { Vec::new() };
            for id in shelves.take_deaths_of_templates() {
                self.journal.record(&LogEvent::PoolMemberLost { box_id: id.as_str() });
                self.metrics.pools.template_died();
            }
            let idle = shelves.take_idle(&config.pool);
            shelves.renew(&config.pool);
            (dead, idle, shelves.take_unused_templates())
        };
        let dead = dead.into_iter().map(|it| Ending::of_member(it, Why::Died));
        self.end_apart(dead.chain(unwanted(idle, templates)).collect());
        if self.is_under_pressure() {
            self.give_back(usize::MAX).await;
            return;
        }
        let most = processors().div_ceil(2);
        for (number, shape) in locked(&self.pools.shelves).choose(&config.pool, most) {
            let service = self.clone();
            tokio::spawn(async move { service.make_member(number, shape).await });
        }
        self.count_pools();
    }

    /// Returns whether the host has little of something that waiting boxes take. Disks do not
    /// count: waiting boxes take almost nothing of them. The gauge of boxes does not count: a
    /// request that needs the place of a waiting box gets it.
    fn is_under_pressure(&self) -> bool {
        let measured = self.admission.pressure.measured();
        let others = measured.readings.iter().filter(|(it, _)| {
            !matches!(
                it.gauge,
                Gauge::Boxes | Gauge::DiskBytes | Gauge::DiskInodes | Gauge::Scratch
            )
        });
        others.into_iter().any(|(_, level)| *level >= Level::Alert)
    }

    /// Makes one box, which its shelf already counts as being made.
    async fn make_member(&self, number: u64, shape: Shape) -> Result<(), Error> {
        let pool = shape.pool;
        let made = match self.admit_ahead().await {
            Ok(admitted) => self.make_admitted(number, shape, admitted).await,
            Err(error) => Err(error),
        };
        let made = made.map(|member| self.shelve(number, member));
        let outcome = match made {
            Ok(None) => Ok(()),
            Ok(Some(unwanted)) => {
                self.end_pooled(vec![Ending::of_member(unwanted, Why::Unwanted)]).await;
                self.count_not_made(number);
                Ok(())
            }
            Err(error) => {
                if self.count_failure(number) {
                    self.note_failure(pool, &whole(&error));
                }
                Err(error)
            }
        };
        self.count_pools();
        self.pools.changed.notify_one();
        outcome
    }

    async fn make_admitted(
        &self,
        number: u64,
        shape: Shape,
        mut admitted: Admitted,
    ) -> Result<Member, Error> {
        let pool = shape.pool;
        let waiting = self.make_waiting(number, shape).await?;
        admitted.box_is_made(waiting.id());
        let keeper = match waiting.keeper() {
            Ok(keeper) => keeper,
            Err(error) => {
                // No descriptor is left to watch the box.
                self.end_uncounted(waiting.into_session(), pool);
                return Err(error);
            }
        };
        let service = self.clone();
        let watch = tokio::spawn(async move {
            fd::readable(keeper.as_fd()).await.ok();
            locked(&service.pools.shelves).has_death = true;
            service.pools.changed.notify_one();
        });
        Ok(Member { waiting, pool, admitted, _watch: DeathWatch(watch.abort_handle()) })
    }

    /// Makes a box from the shelf's template. If the first box of a template fails, this host or
    /// this interpreter cannot make clones. If the operator asked for the pool, the shelf then
    /// starts interpreters one by one. Otherwise this is an error.
    async fn make_waiting(&self, number: u64, shape: Shape) -> Result<Waiting, Error> {
        let Makers { threads, maker, .. } = self.makers()?;
        let make = async |template: Option<Arc<Template>>| {
            let (maker, made_as) = (maker.clone(), shape.clone());
            let made = threads.call(move || Waiting::make(&maker, &made_as, template)).await;
            made.map_err(|failed| self.why_not_started(shape.pool, failed))
        };
        let config = self.config();
        let source = locked(&self.pools.shelves).source(number, &config.pool.python);
        let template = match source {
            Source::Template(template) => Ok(template),
            Source::TemplateToMake => {
                let admitted = self.admit_ahead().await?;
                self.make_template(number, &shape, admitted).await
            }
            Source::Started => return make(None).await,
        };
        let error = match template {
            Ok(template) => match make(Some(Arc::clone(&template))).await {
                Ok(made) => return Ok(made),
                Err(error) if template.is_proven() => return Err(error),
                Err(error) => error,
            },
            Err(error) => error,
        };
        if !config.pool.python.is_asked {
            return Err(error);
        }
        self.set_source(number, Source::Started);
        // If both fail, the template says more: which module it could not import.
        let Ok(made) = make(None).await else { return Err(error) };
        if self.is_first_failure(number) {
            let why = format!("{}; each Python is started in its box instead", whole(&error));
            self.note_failure(shape.pool, &why);
        }
        Ok(made)
    }

    /// Logs why boxes cannot be made ahead. If the operator has not asked for the pool, this is not
    /// a failure, and the server logs it once.
    fn note_failure(&self, pool: PoolName, why: &str) {
        let pool_name = pool.as_str();
        if pool != PoolName::Python || self.config().pool.python.is_asked {
            self.journal.record(&LogEvent::PoolFailed { pool: pool_name, why });
        } else if !std::mem::replace(&mut locked(&self.pools.shelves).is_off_noted, true) {
            self.journal.record(&LogEvent::PoolOff { pool: pool_name, why });
        }
    }

    async fn make_template(
        &self,
        number: u64,
        shape: &Shape,
        admitted: Admitted,
    ) -> Result<Arc<Template>, Error> {
        let Makers { threads, looker, maker, .. } = self.makers()?;
        let (maker, of) = (maker.clone(), shape.of_template());
        let (spec, modules) = (of.spec.clone(), of.preload().to_vec());
        let look = looker.call(move || Origins::look(&spec, &modules));
        let origins = tokio::time::timeout(LOOKED_WITHIN, look).await.map_err(|_elapsed| {
            Error::failed("cannot look at the packages of a template")
                .caused_by("their file system does not answer")
        })?;
        let made = threads.call(move || TemplateBox::make(&maker, of, origins, admitted)).await;
        let made = made.map_err(|failed| self.why_not_started(shape.pool, failed))?;
        let template = Arc::clone(&made.template);
        locked(&self.pools.shelves).templates.push(made);
        self.set_source(number, Source::Template(Arc::clone(&template)));
        Ok(template)
    }

    async fn admit_ahead(&self) -> Result<Admitted, Error> {
        let admitted = self.admission.admit_waiting().await;
        admitted.map_err(|error| Error::failed(error.message))
    }

    fn makers(&self) -> Result<&Makers, Error> {
        if let Some(makers) = self.pools.makers.get() {
            return Ok(makers);
        }
        let start = || {
            let threads = Workers::start("pool", processors().div_ceil(2))?;
            Ok((threads, Workers::start("pool-look", 1)?, std::io::pipe()?))
        };
        let (threads, looker, (closing, open)) = start().map_err(|why: std::io::Error| {
            Error::failed("cannot start the threads of the pools").caused_by(why)
        })?;
        let (engine, journal) = (Arc::clone(&self.engine), Arc::clone(&self.journal));
        let maker = Maker { engine, journal, closing: Arc::new(closing) };
        let makers = Makers { threads, looker, maker, open: Mutex::new(Some(open)) };
        Ok(self.pools.makers.get_or_init(|| makers))
    }

    fn set_source(&self, number: u64, source: Source) {
        let mut shelves = locked(&self.pools.shelves);
        let is_closed = shelves.is_closed;
        if let Some(shelf) = shelves.by_number(number).filter(|_| !is_closed) {
            shelf.source = source;
        }
    }

    /// Puts a box on its shelf. Returns the box if the shelf is gone or the pools are closed.
    fn shelve(&self, number: u64, member: Member) -> Option<Member> {
        let mut shelves = locked(&self.pools.shelves);
        let is_closed = shelves.is_closed;
        let Some(shelf) = shelves.by_number(number) else { return Some(member) };
        if is_closed {
            return Some(member);
        }
        shelf.making -= 1;
        shelf.waiting.push_back(member);
        None
    }

    /// Notes on its shelf that an unwanted box is no longer being made.
    fn count_not_made(&self, number: u64) {
        if let Some(shelf) = locked(&self.pools.shelves).by_number(number) {
            shelf.making -= 1;
        }
    }

    /// Returns whether this failure of a shelf is the first one since a request got a box. A server
    /// that stops counts none.
    fn is_first_failure(&self, number: u64) -> bool {
        let mut shelves = locked(&self.pools.shelves);
        let is_closed = shelves.is_closed;
        let shelf = shelves.by_number(number).filter(|_| !is_closed);
        shelf.is_some_and(|shelf| !std::mem::replace(&mut shelf.is_failure_noted, true))
    }

    /// Counts a box that could not be made. Returns whether this failure of the shelf is the first one.
    fn count_failure(&self, number: u64) -> bool {
        if let Some(shelf) = locked(&self.pools.shelves).by_number(number) {
            shelf.making -= 1;
            shelf.back_off.count_failure();
        }
        self.is_first_failure(number)
    }

    fn count_pools(&self) {
        let shelves = locked(&self.pools.shelves);
        for pool in PoolName::ALL {
            let of_pool = shelves.all.iter().filter(|shelf| shelf.shape.pool == pool);
            let (waiting, making) = of_pool.fold((0, 0), |(waiting, making), shelf| {
                (waiting + shelf.waiting.len(), making + shelf.making)
            });
            self.metrics.pools.members(pool.as_str(), waiting, making);
        }
        let ages = shelves.templates.iter().map(|it| it.template.age());
        self.metrics.pools.template_age(ages.max().unwrap_or_default());
    }
}

/// Returns an error with its reason.
fn whole(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(why) => format!("{error}: {}", reason(why)),
        None => error.to_string(),
    }
}

/// Boxes that no request needs.
fn unwanted(members: Vec<Member>, templates: Vec<TemplateBox>) -> Vec<Ending> {
    let members = members.into_iter().map(|it| Ending::of_member(it, Why::Unwanted));
    members.chain(templates.into_iter().map(Ending::of_template)).collect()
}
