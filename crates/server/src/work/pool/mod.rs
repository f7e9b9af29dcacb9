//! Boxes ahead of requests. Each waits on a *shelf* with others of its [`Shape`], and is used once.
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

mod member;
mod order;
mod shape;
mod template;

use std::collections::VecDeque;
use std::io::PipeWriter;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tare_engine::spec::{Spec, Tenant};
use tare_engine::{BoxId, Error, Gauge, Level, Session, reason};
use tokio::sync::Notify;

use crate::admission::Admitted;
use crate::config::pool::PoolsConfig;
use crate::error::ServiceError;
use crate::fd;
use crate::telemetry::pool_metrics::PoolMetrics;
use crate::telemetry::{LogEvent, OfBox};
use crate::work::Service;
pub use crate::work::pool::member::Claimed;
use crate::work::pool::member::{DeathWatch, Maker, Member, Waiting};
pub use crate::work::pool::order::{Order, are_inline};
use crate::work::pool::shape::PoolName;
pub use crate::work::pool::shape::Shape;
pub use crate::work::pool::template::Template;
use crate::work::pool::template::TemplateBox;
use crate::work::run_request::{RunRequest, Warm};
use crate::workers::{Workers, locked};

/// Kinds of boxes in all pools. A request of another kind gets a box of its own, and may replace one
/// of these.
const SHELVES_MAX: usize = 8;
/// How long no request has used a kind before another kind of the same key replaces it. A key cannot
/// make the server throw away boxes more often.
const REPLACED_AFTER: Duration = Duration::from_secs(10);
/// How often the server looks at boxes that wait.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause after a box could not be made. It doubles with each failure.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How long a server that stops waits for boxes that are being made ahead.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);
/// How long no box is made ahead after the last one was given back under pressure.
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
    maker: Maker,
    /// Until the server stops.
    open: Mutex<Option<PipeWriter>>,
}

#[derive(Debug, Default)]
struct Shelves {
    all: Vec<Shelf>,
    /// The boxes of all templates, also of those that no shelf uses any more.
    templates: Vec<TemplateBox>,
    next: u64,
    /// No box is made ahead before this time.
    relief_until: Option<Instant>,
    is_closed: bool,
}

/// The waiting boxes of one shape.
#[derive(Debug)]
struct Shelf {
    number: u64,
    shape: Shape,
    /// Whose request was the first for boxes of this shape.
    tenant: Tenant,
    waiting: VecDeque<Member>,
    making: usize,
    used: Instant,
    failures: u32,
    retry_at: Option<Instant>,
    source: Source,
}

/// Where the interpreters of a shelf come from.
#[derive(Debug, Default)]
enum Source {
    /// They are started one by one.
    #[default]
    Started,
    /// They are copies of a template, which is made with the first of them.
    TemplateToMake,
    Template(Arc<Template>),
}

impl Source {
    fn of(shape: &Shape) -> Self {
        match &shape.interpreter {
            Some(interpreter) if interpreter.template.is_some() => Self::TemplateToMake,
            Some(_) | None => Self::Started,
        }
    }
}

impl Shelf {
    /// Counts a box that could not be made, or died while it waited. The next one is made after a pause.
    fn count_failure(&mut self) {
        let pause = RETRY_FIRST.saturating_mul(1 << self.failures.min(10)).min(RETRY_MAX);
        self.retry_at = Some(Instant::now() + pause);
        self.failures = self.failures.saturating_add(1);
    }

    fn is_idle(&self, pools: &PoolsConfig) -> bool {
        let config = self.shape.pool.config(pools);
        config.warm == 0 || self.used.elapsed() >= config.idle.0
    }
}

impl Shelves {
    fn find(&mut self, shape: &Shape) -> Option<&mut Shelf> {
        self.all.iter_mut().find(|shelf| shelf.shape == *shape)
    }

    fn by_number(&mut self, number: u64) -> Option<&mut Shelf> {
        self.all.iter_mut().find(|shelf| shelf.number == number)
    }

    /// Adds a shelf for boxes of this shape, if there is room for one. Returns the boxes of a shelf
    /// that it replaces.
    fn add(&mut self, shape: Shape, tenant: &Tenant) -> VecDeque<Member> {
        let mut replaced = VecDeque::new();
        if self.all.len() >= SHELVES_MAX
            && let Some(number) = self.replaceable(tenant)
            && let Some(at) = self.all.iter().position(|shelf| shelf.number == number)
        {
            replaced = self.all.remove(at).waiting;
        }
        if self.all.len() < SHELVES_MAX && !self.is_closed {
            let (number, used) = (self.next, Instant::now());
            self.next += 1;
            let waiting = VecDeque::new();
            let (making, failures, retry_at, source) = (0, 0, None, Source::of(&shape));
            let tenant = tenant.clone();
            self.all.push(Shelf {
                number,
                shape,
                tenant,
                waiting,
                making,
                used,
                failures,
                retry_at,
                source,
            });
        }
        replaced
    }

    /// Chooses the shelf that makes room for one of this tenant: the least recently used of the
    /// tenant that has the most. So no key can take the shelves of all others.
    fn replaceable(&self, tenant: &Tenant) -> Option<u64> {
        let count = |of: &Tenant| self.all.iter().filter(|shelf| shelf.tenant == *of).count();
        let most = self.all.iter().map(|shelf| count(&shelf.tenant)).max()?;
        let is_own = count(tenant) == most;
        let of_largest = self.all.iter().filter(|shelf| match is_own {
            true => shelf.tenant == *tenant && shelf.used.elapsed() >= REPLACED_AFTER,
            false => count(&shelf.tenant) == most,
        });
        of_largest.min_by_key(|shelf| shelf.used).map(|shelf| shelf.number)
    }

    /// Adds a shelf, and counts the first box that is made for it from now on. `None` if the shelf
    /// exists.
    fn begin(&mut self, shape: &Shape) -> Option<u64> {
        if self.find(shape).is_some() {
            return None;
        }
        // At the start of a server there is room.
        self.add(shape.clone(), &Tenant::default());
        let shelf = self.find(shape)?;
        shelf.making += 1;
        Some(shelf.number)
    }

    /// Takes all boxes that wait.
    fn empty(&mut self) -> Vec<Member> {
        self.all.iter_mut().flat_map(|shelf| shelf.waiting.drain(..)).collect()
    }

    /// Takes boxes that have died, and those that no request wanted for long.
    fn take_useless(&mut self, pools: &PoolsConfig) -> (Vec<Member>, Vec<Member>) {
        let (mut dead, mut idle) = (Vec::new(), Vec::new());
        for shelf in &mut self.all {
            for mut member in std::mem::take(&mut shelf.waiting) {
                if !member.waiting.is_alive() {
                    shelf.count_failure();
                    dead.push(member);
                } else if shelf.is_idle(pools) {
                    idle.push(member);
                } else {
                    shelf.waiting.push_back(member);
                }
            }
        }
        self.all.retain(|shelf| shelf.making > 0 || !shelf.is_idle(pools));
        (dead, idle)
    }

    /// Lets shelves make another template in the place of one that is old or dead. Returns the boxes
    /// of those that have died.
    fn renew(&mut self, pools: &PoolsConfig) -> Vec<BoxId> {
        let mut died = Vec::new();
        for made in &mut self.templates {
            if made.has_died() {
                died.push(made.session.id().clone());
            }
            let has_it =
                |it: &Source| matches!(it, Source::Template(it) if Arc::ptr_eq(it, &made.template));
            let of_it = self.all.iter_mut().filter(|shelf| has_it(&shelf.source));
            if made.is_useless(&pools.python) {
                of_it.for_each(|shelf| shelf.source = Source::TemplateToMake);
            }
        }
        died
    }

    /// Takes the boxes of templates that nothing uses.
    fn take_unused_templates(&mut self) -> Vec<TemplateBox> {
        self.templates.extract_if(.., |it| it.is_unused()).collect()
    }

    /// Chooses shelves that lack a box, and counts the boxes that are made for them from now on.
    fn choose(&mut self, pools: &PoolsConfig, most: usize) -> Vec<(u64, Shape)> {
        let now = Instant::now();
        if self.is_closed || self.relief_until.is_some_and(|until| now < until) {
            return Vec::new();
        }
        let mut chosen = Vec::new();
        loop {
            let making: usize = self.all.iter().map(|shelf| shelf.making).sum();
            let of_pool = PoolName::ALL.map(|pool| {
                let shelves = self.all.iter().filter(|shelf| shelf.shape.pool == pool);
                (pool, shelves.map(|shelf| shelf.waiting.len() + shelf.making).sum::<usize>())
            });
            let lacks = |shelf: &&mut Shelf| {
                let config = shelf.shape.pool.config(pools);
                let total = of_pool.iter().find(|(pool, _)| *pool == shelf.shape.pool);
                shelf.waiting.len() + shelf.making < config.warm
                    && total.is_some_and(|(_, count)| *count < config.max)
                    && shelf.retry_at.is_none_or(|at| at <= now)
                    && (shelf.making == 0 || !matches!(shelf.source, Source::TemplateToMake))
            };
            match self.all.iter_mut().filter(lacks).min_by_key(|shelf| shelf.making) {
                Some(shelf) if making < most => {
                    shelf.making += 1;
                    chosen.push((shelf.number, shelf.shape.clone()));
                }
                Some(_) | None => return chosen,
            }
        }
    }
}

/// Counts every pool from 0 on, with what a request gets from it.
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
        Shape::of(request, &self.config())
    }

    /// Claims a box that waits, and starts its command if it has one. `None` if none waits: the next
    /// request may find one.
    pub async fn claim(&self, shape: Shape, spec: &Spec) -> Option<(Claimed, Warm)> {
        let pool = shape.pool;
        let (number, member, is_last, replaced) = {
            let mut shelves = locked(&self.pools.shelves);
            match shelves.find(&shape) {
                Some(shelf) => {
                    shelf.used = Instant::now();
                    let member = shelf.waiting.pop_front();
                    (Some(shelf.number), member, shelf.waiting.is_empty(), VecDeque::new())
                }
                None => (None, None, true, shelves.add(shape, &spec.tenant)),
            }
        };
        if !replaced.is_empty() {
            let service = self.clone();
            tokio::spawn(async move { service.end_members(replaced.into(), Why::Unwanted).await });
        }
        if is_last {
            self.refill_pools();
        }
        self.count_pools();
        let Some(mut member) = member else {
            self.metrics.pools.miss(pool.as_str());
            return None;
        };
        let spec = spec.clone();
        let claim = move || {
            if !member.waiting.is_alive() {
                return Err(member);
            }
            let Member { waiting, admitted, .. } = member;
            let kind = waiting.kind();
            // A claim that fails has ended the box.
            let claimed = waiting.claim(&spec);
            drop(admitted);
            Ok(claimed.map(|claimed| (claimed, kind)))
        };
        match self.creators.call(claim).await {
            Ok(Ok((claimed, kind))) => {
                self.count_success(number);
                self.metrics.pools.claim(pool.as_str(), kind.as_str());
                Some((claimed, kind))
            }
            Ok(Err(_)) => None,
            Err(dead) => {
                let service = self.clone();
                tokio::spawn(async move { service.end_members(vec![dead], Why::Died).await });
                None
            }
        }
    }

    /// Makes boxes in the place of those that were claimed. While others wait, this is done after the
    /// run: a clone that enters its cgroup makes the end of every other box wait for a grace period of
    /// RCU, 10 ms and more.
    pub fn refill_pools(&self) {
        self.pools.changed.notify_one();
    }

    /// Ends all boxes that wait, because a request needs their room. Returns whether there were any.
    pub async fn give_back(&self) -> bool {
        let members = {
            let mut shelves = locked(&self.pools.shelves);
            shelves.relief_until = Some(Instant::now() + RELIEF);
            shelves.empty()
        };
        self.count_pools();
        let were_any = !members.is_empty();
        self.end_members(members, Why::Unwanted).await;
        were_any
    }

    /// Makes the first box of each pool that starts with the server. `keep_pools` makes the others.
    pub async fn start_pools<T>(&self, usual: &[RunRequest<T>]) -> Result<(), Error> {
        let config = self.config();
        for request in usual {
            let Some(shape) = Shape::of(request, &config) else { continue };
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
        loop {
            let is_empty = locked(&self.pools.shelves).all.is_empty();
            let look = async {
                if is_empty {
                    std::future::pending().await
                } else {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            };
            tokio::select! {
                () = self.pools.changed.notified() => {}
                () = look => {}
                () = self.shutdown.draining() => return,
            }
            self.tend_pools().await;
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
            let (members, making) = {
                let mut shelves = locked(&self.pools.shelves);
                shelves.all.iter_mut().for_each(|shelf| shelf.source = Source::Started);
                let making: usize = shelves.all.iter().map(|shelf| shelf.making).sum();
                (shelves.empty(), making)
            };
            self.end_members(members, Why::Unwanted).await;
            self.end_templates().await;
            let changed = tokio::time::timeout_at(until, self.pools.changed.notified());
            if making == 0 || changed.await.is_err() {
                return;
            }
        }
    }

    async fn tend_pools(&self) {
        let config = self.config();
        let (dead, idle) = locked(&self.pools.shelves).take_useless(&config.pool);
        self.end_members(dead, Why::Died).await;
        self.end_members(idle, Why::Unwanted).await;
        for id in locked(&self.pools.shelves).renew(&config.pool) {
            self.journal.record(&LogEvent::PoolMemberLost { box_id: id.as_str() });
            self.metrics.pools.template_died();
        }
        self.end_templates().await;
        if self.is_under_pressure() {
            self.give_back().await;
            return;
        }
        let most = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
        for (number, shape) in locked(&self.pools.shelves).choose(&config.pool, most) {
            let service = self.clone();
            tokio::spawn(async move { service.make_member(number, shape).await });
        }
        self.count_pools();
    }

    /// The gauge of boxes does not count: it is exact, and a request that needs the room gets it.
    fn is_under_pressure(&self) -> bool {
        let measured = self.admission.pressure.measured();
        let others = measured.readings.iter().filter(|(it, _)| it.gauge != Gauge::Boxes);
        others.into_iter().any(|(_, level)| *level >= Level::Alert)
    }

    /// Makes one box that was counted as being made.
    async fn make_member(&self, number: u64, shape: Shape) -> Result<(), Error> {
        let pool = shape.pool;
        let made = match self.admission.admit_waiting().await {
            Ok(admitted) => self.make_admitted(number, shape, admitted).await,
            Err(error) => Err(Error::failed(error.message)),
        };
        let made = made.map(|member| self.shelve(number, member));
        let outcome = match made {
            Ok(None) => Ok(()),
            Ok(Some(unwanted)) => {
                self.end_members(vec![unwanted], Why::Unwanted).await;
                self.count_not_made(number);
                Ok(())
            }
            Err(error) => {
                if self.count_failure(number) == 1 {
                    let why = whole(&error);
                    self.journal.record(&LogEvent::PoolFailed { pool: pool.as_str(), why: &why });
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
        let waiting = self.make_waiting(number, shape).await?;
        admitted.box_is_made(waiting.id());
        let keeper = match waiting.keeper() {
            Ok(keeper) => keeper,
            Err(error) => {
                // No descriptor is left to watch it. If it cannot be ended, it is stuck on record.
                self.end_session(waiting.into_session()).await.1.ok();
                return Err(error);
            }
        };
        let service = self.clone();
        let watch = tokio::spawn(async move {
            fd::readable(keeper.as_fd()).await.ok();
            service.pools.changed.notify_one();
        });
        Ok(Member { waiting, admitted, _watch: DeathWatch(watch.abort_handle()) })
    }

    /// Makes a box from the shelf's template. If that template has never made one, this host or this
    /// interpreter cannot do it, and the shelf goes on without a template.
    async fn make_waiting(&self, number: u64, shape: Shape) -> Result<Waiting, Error> {
        let Makers { threads, maker, .. } = self.makers()?;
        let make = |template: Option<Arc<Template>>| {
            let (maker, shape) = (maker.clone(), shape.clone());
            threads.call(move || Waiting::make(&maker, &shape, template))
        };
        let error = match self.template(number, &shape).await {
            Ok(None) => return make(None).await,
            Ok(Some(template)) => match make(Some(Arc::clone(&template))).await {
                Ok(made) => return Ok(made),
                Err(error) => {
                    self.set_source(number, Source::TemplateToMake);
                    if template.is_proven() {
                        return Err(error);
                    }
                    error
                }
            },
            Err(error) => error,
        };
        self.set_source(number, Source::Started);
        if self.is_first_failure(number) {
            let why = format!("{}; each Python is started in its box instead", whole(&error));
            self.journal.record(&LogEvent::PoolFailed { pool: shape.pool.as_str(), why: &why });
        }
        make(None).await
    }

    /// Returns the template of a shelf, and makes it if there is none yet.
    async fn template(&self, number: u64, shape: &Shape) -> Result<Option<Arc<Template>>, Error> {
        match locked(&self.pools.shelves).by_number(number).map(|shelf| &shelf.source) {
            Some(Source::Template(template)) => return Ok(Some(Arc::clone(template))),
            Some(Source::TemplateToMake) => {}
            Some(Source::Started) | None => return Ok(None),
        }
        let admitted = self.admission.admit_waiting().await;
        let admitted = admitted.map_err(|error| Error::failed(error.message))?;
        let Makers { threads, maker, .. } = self.makers()?;
        let (maker, shape) = (maker.clone(), shape.clone());
        let made = threads.call(move || TemplateBox::make(&maker, &shape, admitted)).await?;
        let template = Arc::clone(&made.template);
        locked(&self.pools.shelves).templates.push(made);
        self.set_source(number, Source::Template(Arc::clone(&template)));
        Ok(Some(template))
    }

    fn makers(&self) -> Result<&Makers, Error> {
        if let Some(makers) = self.pools.makers.get() {
            return Ok(makers);
        }
        let count = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2);
        let started = Workers::start("pool", count).and_then(|it| Ok((it, std::io::pipe()?)));
        let (threads, (closing, open)) = started
            .map_err(|why| Error::failed("cannot start the threads of the pools").caused_by(why))?;
        let maker = Maker { engine: Arc::clone(&self.engine), closing: Arc::new(closing) };
        let makers = Makers { threads, maker, open: Mutex::new(Some(open)) };
        Ok(self.pools.makers.get_or_init(|| makers))
    }

    fn set_source(&self, number: u64, source: Source) {
        let mut shelves = locked(&self.pools.shelves);
        let is_closed = shelves.is_closed;
        if let Some(shelf) = shelves.by_number(number).filter(|_| !is_closed) {
            shelf.source = source;
        }
    }

    /// Ends the boxes of templates that nothing uses any more.
    async fn end_templates(&self) {
        let unused = locked(&self.pools.shelves).take_unused_templates();
        for TemplateBox { session, admitted, .. } in unused {
            self.end_box(session, admitted, Why::Unwanted).await;
        }
    }

    /// Puts a box on its shelf. Returns it if the shelf is gone.
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

    /// Counts a box that was made, and that its shelf does not want, as not being made any more.
    fn count_not_made(&self, number: u64) {
        if let Some(shelf) = locked(&self.pools.shelves).by_number(number) {
            shelf.making -= 1;
        }
    }

    /// Counts the failure of a template, which does not delay its shelf. Returns whether it is the
    /// first one since a request got a box.
    fn is_first_failure(&self, number: u64) -> bool {
        let mut shelves = locked(&self.pools.shelves);
        let is_closed = shelves.is_closed;
        let Some(shelf) = shelves.by_number(number).filter(|_| !is_closed) else { return false };
        shelf.failures += 1;
        shelf.failures == 1
    }

    fn count_success(&self, number: Option<u64>) {
        let mut shelves = locked(&self.pools.shelves);
        if let Some(shelf) = number.and_then(|number| shelves.by_number(number)) {
            (shelf.failures, shelf.retry_at) = (0, None);
        }
    }

    /// Returns how often boxes of this shelf failed since a request got one. A server that stops
    /// counts none.
    fn count_failure(&self, number: u64) -> u32 {
        let mut shelves = locked(&self.pools.shelves);
        let is_closed = shelves.is_closed;
        let Some(shelf) = shelves.by_number(number) else { return 0 };
        shelf.making -= 1;
        shelf.count_failure();
        if is_closed { 0 } else { shelf.failures }
    }

    /// Ends boxes of a pool. They count as boxes until they are gone.
    async fn end_members(&self, members: Vec<Member>, why: Why) {
        for Member { waiting, admitted, .. } in members {
            self.end_box(waiting.into_session(), admitted, why).await;
        }
    }

    async fn end_box(&self, session: Session, admitted: Admitted, why: Why) {
        let (session, ended) = self.end_session(session).await;
        let id = session.id();
        if why == Why::Died {
            self.journal.record(&LogEvent::PoolMemberLost { box_id: id.as_str() });
        }
        if let Err(error) = ended {
            let error = ServiceError::from(error);
            if let Ok(keeper) = session.keeper() {
                self.watch.add(id.clone(), keeper, Some(admitted));
            }
            let of_box = OfBox { box_id: id.as_str(), key: None, request_id: None };
            self.note_stuck(id, of_box, &error);
        }
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

/// Why a box of a pool is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Died,
    Unwanted,
}

#[cfg(test)]
mod tests {
    use tare_engine::Stdin;
    use tare_engine::spec::Name;

    use super::*;

    fn shape(nofile: u32) -> Shape {
        let mut spec = Spec::of(Vec::new());
        spec.limits.nofile = nofile;
        Shape { pool: PoolName::Box, spec, stdin: Stdin::Empty, interpreter: None }
    }

    fn tenant(name: &str) -> Tenant {
        Name::parse(name).expect("a name").into()
    }

    fn count(shelves: &Shelves, of: &Tenant) -> usize {
        shelves.all.iter().filter(|shelf| shelf.tenant == *of).count()
    }

    #[test]
    fn no_key_takes_the_shelves_of_all_others() {
        let (greedy, other) = (tenant("greedy"), tenant("other"));
        let mut shelves = Shelves::default();
        (100..120).for_each(|kind| drop(shelves.add(shape(kind), &greedy)));
        assert_eq!(count(&shelves, &greedy), SHELVES_MAX);
        assert!(shelves.find(&shape(100)).is_some(), "its kinds are in use");
        (200..220).for_each(|kind| drop(shelves.add(shape(kind), &other)));
        assert_eq!(count(&shelves, &other), SHELVES_MAX / 2);
        (300..320).for_each(|kind| drop(shelves.add(shape(kind), &greedy)));
        assert_eq!(count(&shelves, &other), SHELVES_MAX / 2);
        assert_eq!(shelves.all.len(), SHELVES_MAX);
    }

    #[test]
    fn boxes_that_fail_are_made_again_after_longer_and_longer_pauses() {
        let mut shelves = Shelves::default();
        shelves.add(shape(100), &tenant("key"));
        let shelf = shelves.find(&shape(100)).expect("a shelf");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            shelf.count_failure();
            pauses.push(shelf.retry_at.map(|at| at.saturating_duration_since(Instant::now())));
        }
        assert!(pauses.is_sorted(), "{pauses:?}");
        assert!(pauses[0] <= Some(RETRY_FIRST) && pauses[7] <= Some(RETRY_MAX), "{pauses:?}");
    }

    #[test]
    fn a_kind_that_is_no_longer_used_makes_room_for_another_of_its_key() {
        let key = tenant("key");
        let mut shelves = Shelves::default();
        (100..108).for_each(|kind| drop(shelves.add(shape(kind), &key)));
        let long_ago = Instant::now().checked_sub(REPLACED_AFTER).expect("the host is up");
        shelves.find(&shape(103)).expect("a shelf").used = long_ago;
        (200..210).for_each(|kind| drop(shelves.add(shape(kind), &key)));
        assert!(shelves.find(&shape(103)).is_none());
        assert!(shelves.find(&shape(200)).is_some() && shelves.find(&shape(201)).is_none());
    }
}
