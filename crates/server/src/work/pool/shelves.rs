//! The shelves of the pools: which boxes wait, which are made next, and which are of no use any
//! more. This file makes and ends nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tare_engine::BoxId;
use tare_engine::spec::Tenant;

use crate::config::pool::{PoolsConfig, PythonConfig};
use crate::work::pool::member::Member;
use crate::work::pool::shape::{PoolName, Shape};
use crate::work::pool::template::{Death, Template, TemplateBox};

/// The most kinds of boxes in all pools. A request of another kind gets a box of its own, and may
/// replace one of these kinds.
const SHELVES_MAX: usize = 8;
/// How long a kind is unused before another kind of the same key can replace it. So a key cannot
/// make the server end waiting boxes more often.
const REPLACED_AFTER: Duration = Duration::from_secs(10);
/// The pause after a box could not be made. It doubles with each failure.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// All shelves and templates of a server.
#[derive(Debug, Default)]
pub struct Shelves {
    pub all: Vec<Shelf>,
    /// The boxes of all templates, also of those that no shelf uses any more.
    pub templates: Vec<TemplateBox>,
    /// Delays new templates.
    template_back_off: BackOff,
    /// How many clones are being made for requests that found none.
    pub cloning: usize,
    /// How many tasks end boxes.
    pub ending: usize,
    /// One for each pool. Each box that is being ended or is stuck has a reference.
    places: [Arc<()>; PoolName::ALL.len()],
    /// The keeper of a box has died since the last look.
    pub has_death: bool,
    pub next: u64,
    /// No box is made ahead before this time.
    pub relief_until: Option<Instant>,
    pub is_closed: bool,
    /// When a thread last looked at the packages of templates.
    pub looked_at: Option<Instant>,
    pub is_looking: bool,
    /// The log already says that this server makes no clones.
    pub is_off_noted: bool,
}

/// The waiting boxes of one shape.
#[derive(Debug)]
pub struct Shelf {
    pub number: u64,
    pub shape: Shape,
    /// The tenant of the first request for boxes of this shape.
    pub tenant: Tenant,
    pub waiting: VecDeque<Member>,
    pub making: usize,
    pub used: Instant,
    pub back_off: BackOff,
    /// The log says why boxes fail. Reset when a request gets one.
    pub is_failure_noted: bool,
    pub source: Source,
}

/// When the next attempt may be made after failures.
#[derive(Debug, Default)]
pub struct BackOff {
    failures: u32,
    retry_at: Option<Instant>,
}

impl BackOff {
    /// Begins a pause, which is longer after each failure.
    pub fn count_failure(&mut self) {
        self.retry_at = Some(Instant::now() + pause_after(self.failures));
        self.failures = self.failures.saturating_add(1);
    }

    /// Counts deaths that were seen together as one failure. During a pause it counts none: when a
    /// template dies, its clones die a little earlier or later.
    fn count_deaths(&mut self) {
        if self.is_over() {
            self.count_failure();
        }
    }

    fn is_over(&self) -> bool {
        self.retry_at.is_none_or(|at| at <= Instant::now())
    }
}

/// Where the interpreters of a shelf come from.
#[derive(Debug, Clone, Default)]
pub enum Source {
    /// They are started one by one.
    #[default]
    Started,
    /// They are copies of a template, which is made with the first of them.
    TemplateToMake,
    Template(Arc<Template>),
}

impl Source {
    pub fn of(shape: &Shape) -> Self {
        match &shape.interpreter {
            Some(interpreter) if interpreter.template.is_some() => Self::TemplateToMake,
            Some(_) | None => Self::Started,
        }
    }

    fn is(&self, template: &Arc<Template>) -> bool {
        matches!(self, Self::Template(it) if Arc::ptr_eq(it, template))
    }
}

/// Returns the pause after a failure that follows `failures` others.
fn pause_after(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.min(10)).min(RETRY_MAX)
}

impl Shelf {
    /// Takes the box that has waited longest, and those before it that have died.
    pub fn take(&mut self) -> (Option<Member>, Vec<Member>) {
        let mut dead = Vec::new();
        while let Some(mut member) = self.waiting.pop_front() {
            if !member.waiting.is_dead() {
                return (Some(member), dead);
            }
            self.back_off.count_deaths();
            dead.push(member);
        }
        (None, dead)
    }

    pub fn is_idle(&self, pools: &PoolsConfig) -> bool {
        let config = self.shape.pool.config(pools);
        config.warm == 0 || self.used.elapsed() >= config.idle.0 || !self.shape.is_of(pools)
    }
}

impl Shelves {
    pub fn find(&mut self, shape: &Shape) -> Option<&mut Shelf> {
        self.all.iter_mut().find(|shelf| shelf.shape == *shape)
    }

    pub fn by_number(&mut self, number: u64) -> Option<&mut Shelf> {
        self.all.iter_mut().find(|shelf| shelf.number == number)
    }

    /// Returns where the interpreters of a shelf come from now. Shelves share templates.
    pub fn source(&mut self, number: u64, config: &PythonConfig) -> Source {
        let Some(shelf) = self.all.iter_mut().find(|shelf| shelf.number == number) else {
            return Source::Started;
        };
        if matches!(shelf.source, Source::TemplateToMake)
            && let Some(made) = self.templates.iter().find(|it| it.serves(&shelf.shape, config))
        {
            shelf.source = Source::Template(Arc::clone(&made.template));
        }
        shelf.source.clone()
    }

    /// Adds a shelf for boxes of this shape, if there is room for one. Returns the boxes of a shelf
    /// that it replaces.
    pub fn add(&mut self, shape: Shape, tenant: &Tenant) -> VecDeque<Member> {
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
            let (making, source) = (0, Source::of(&shape));
            let tenant = tenant.clone();
            let (back_off, is_failure_noted) = (BackOff::default(), false);
            self.all.push(Shelf {
                number,
                shape,
                tenant,
                waiting,
                making,
                used,
                back_off,
                is_failure_noted,
                source,
            });
        }
        replaced
    }

    /// Chooses the shelf that makes room for one of this tenant: the least recently used of the
    /// tenant that has the most. So no key can take the shelves of all others.
    pub fn replaceable(&self, tenant: &Tenant) -> Option<u64> {
        let count = |of: &Tenant| self.all.iter().filter(|shelf| shelf.tenant == *of).count();
        let most = self.all.iter().map(|shelf| count(&shelf.tenant)).max()?;
        let is_own = count(tenant) == most;
        let of_largest = self.all.iter().filter(|shelf| {
            if is_own {
                shelf.tenant == *tenant && shelf.used.elapsed() >= REPLACED_AFTER
            } else {
                count(&shelf.tenant) == most
            }
        });
        of_largest.min_by_key(|shelf| shelf.used).map(|shelf| shelf.number)
    }

    /// Adds a shelf, and counts the first box that is made for it from now on. `None` if the shelf
    /// exists.
    pub fn begin(&mut self, shape: &Shape) -> Option<u64> {
        if self.find(shape).is_some() {
            return None;
        }
        // At the start of a server there is room.
        self.add(shape.clone(), &Tenant::default());
        let shelf = self.find(shape)?;
        shelf.making += 1;
        Some(shelf.number)
    }

    /// Returns the template that can make a clone for a request, and counts the clone.
    pub fn begin_clone(
        &mut self,
        number: u64,
        config: &PythonConfig,
    ) -> Option<(Arc<Template>, Shape)> {
        let Source::Template(template) = self.source(number, config) else { return None };
        let chosen = (template, self.by_number(number)?.shape.clone());
        let is_prompt = chosen.0.is_prompt();
        self.cloning += usize::from(is_prompt);
        is_prompt.then_some(chosen)
    }

    /// Takes boxes that wait, this many at most: first those of the least recently used shelf, and of
    /// a shelf first those that have waited longest, so that an old template soon has no clones.
    pub fn take_least_wanted(&mut self, most: usize) -> Vec<Member> {
        let mut shelves: Vec<&mut Shelf> = self.all.iter_mut().collect();
        shelves.sort_by_key(|shelf| shelf.used);
        let mut taken = Vec::new();
        for shelf in shelves {
            let count = shelf.waiting.len().min(most - taken.len());
            taken.extend(shelf.waiting.drain(..count));
        }
        taken
    }

    /// Takes boxes that have died. A look takes some system calls for each box that waits.
    pub fn take_dead(&mut self) -> Vec<Member> {
        let mut dead = Vec::new();
        for shelf in &mut self.all {
            let before = dead.len();
            for mut member in std::mem::take(&mut shelf.waiting) {
                if member.waiting.is_dead() {
                    dead.push(member);
                } else {
                    shelf.waiting.push_back(member);
                }
            }
            if dead.len() > before {
                shelf.back_off.count_deaths();
            }
        }
        dead
    }

    /// Takes boxes that no request wanted for long, and their shelves.
    pub fn take_idle(&mut self, pools: &PoolsConfig) -> Vec<Member> {
        let idle = self.all.iter_mut().filter(|shelf| shelf.is_idle(pools));
        let members = idle.flat_map(|shelf| std::mem::take(&mut shelf.waiting)).collect();
        self.all.retain(|shelf| shelf.making > 0 || !shelf.is_idle(pools));
        members
    }

    /// Returns a place in a pool. While it is held, the pool has one place less.
    pub fn place_of(&self, pool: PoolName) -> Arc<()> {
        Arc::clone(&self.places[pool as usize])
    }

    /// Returns all templates if no thread has looked at their packages for this time. Returns none
    /// while a thread looks at them.
    pub fn take_due(&mut self, every: Duration) -> Vec<Arc<Template>> {
        let is_due = self.looked_at.is_none_or(|at| at.elapsed() >= every);
        if !is_due || self.is_looking || self.templates.is_empty() {
            return Vec::new();
        }
        self.is_looking = true;
        self.templates.iter().map(|it| Arc::clone(&it.template)).collect()
    }

    /// Returns the boxes of templates that have died or failed since the last look.
    pub fn take_deaths_of_templates(&mut self) -> Vec<BoxId> {
        let mut died = Vec::new();
        for made in &mut self.templates {
            let Some(death) = made.death() else { continue };
            died.push(made.session.id().clone());
            // A command that removes a box is no failure.
            if death == Death::ByItself {
                if made.template.age() >= RETRY_MAX {
                    self.template_back_off = BackOff::default();
                }
                self.template_back_off.count_deaths();
            }
        }
        died
    }

    /// Lets shelves make another template in the place of one that is old or dead.
    pub fn renew(&mut self, pools: &PoolsConfig) {
        for made in &self.templates {
            let of_it = self.all.iter_mut().filter(|shelf| shelf.source.is(&made.template));
            if made.is_useless(&pools.python) {
                of_it.for_each(|shelf| shelf.source = Source::TemplateToMake);
            }
        }
    }

    /// Takes the boxes of templates that have no clones, also of those that shelves would use.
    pub fn take_templates(&mut self) -> Vec<TemplateBox> {
        for made in &self.templates {
            let of_it = self.all.iter().filter(|shelf| shelf.source.is(&made.template)).count();
            // The box of the template has one reference, and each shelf that uses it has one.
            if Arc::strong_count(&made.template) == of_it + 1 {
                let of_it = self.all.iter_mut().filter(|shelf| shelf.source.is(&made.template));
                of_it.for_each(|shelf| shelf.source = Source::TemplateToMake);
            }
        }
        self.take_unused_templates()
    }

    /// Takes the boxes of templates that nothing uses.
    pub fn take_unused_templates(&mut self) -> Vec<TemplateBox> {
        self.templates.extract_if(.., |it| it.is_unused()).collect()
    }

    /// Chooses shelves that lack a box, and counts the boxes that are made for them from now on.
    pub fn choose(&mut self, pools: &PoolsConfig, most: usize) -> Vec<(u64, Shape)> {
        let now = Instant::now();
        if self.is_closed || self.relief_until.is_some_and(|until| now < until) {
            return Vec::new();
        }
        let mut chosen = Vec::new();
        loop {
            let blocked = self.blocked(pools);
            let making: usize = self.all.iter().map(|shelf| shelf.making).sum();
            let of_pool = PoolName::ALL.map(|pool| {
                let shelves = self.all.iter().filter(|shelf| shelf.shape.pool == pool);
                let on_shelves: usize = shelves.map(|it| it.waiting.len() + it.making).sum();
                let ending = Arc::strong_count(&self.places[pool as usize]) - 1;
                (pool, on_shelves + ending)
            });
            let lacks = |shelf: &&mut Shelf| {
                let config = shelf.shape.pool.config(pools);
                let total = of_pool.iter().find(|(pool, _)| *pool == shelf.shape.pool);
                shelf.waiting.len() + shelf.making < config.warm
                    && total.is_some_and(|(_, count)| *count < config.max)
                    && shelf.back_off.is_over()
                    && !blocked.contains(&shelf.number)
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

impl Shelves {
    /// Returns the shelves that wait for a template: another shelf makes one of the same kind, or
    /// templates have died too often.
    fn blocked(&self, pools: &PoolsConfig) -> Vec<u64> {
        let to_make = || self.all.iter().filter(|it| matches!(it.source, Source::TemplateToMake));
        let begun = to_make().filter(|it| it.making > 0).map(|it| it.shape.of_template());
        let begun: Vec<Shape> = begun.collect();
        let is_made =
            |it: &Shelf| self.templates.iter().any(|made| made.serves(&it.shape, &pools.python));
        let must_wait = |it: &&Shelf| {
            begun.contains(&it.shape.of_template())
                || !self.template_back_off.is_over() && !is_made(it)
        };
        to_make().filter(must_wait).map(|it| it.number).collect()
    }
}

#[cfg(test)]
mod tests {
    use tare_engine::Stdin;
    use tare_engine::spec::{Name, Spec};

    use super::*;
    use crate::work::pool::shape::{Interpreter, Life};

    fn shape(nofile: u32) -> Shape {
        let mut spec = Spec::of(Vec::new());
        spec.limits.nofile = nofile;
        Shape { pool: PoolName::Box, spec, life: Life::Run(Stdin::Empty), interpreter: None }
    }

    /// A kind of box with a template.
    fn cloned(nofile: u32) -> Shape {
        let template = Some(vec!["python3".into()]);
        let (command, preload, env) = (vec!["python3".into()], Vec::new(), Vec::new());
        let interpreter = Some(Interpreter { command, preload, env, template });
        Shape { pool: PoolName::Python, interpreter, ..shape(nofile) }
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
    fn shelves_that_share_a_template_wait_for_the_one_that_makes_it() {
        let mut shelves = Shelves::default();
        (100..103).for_each(|kind| drop(shelves.add(cloned(kind), &tenant("key"))));
        let pools = PoolsConfig::default();
        let chosen = shelves.choose(&pools, 4);
        assert_eq!(chosen.len(), 1, "one makes the template: {chosen:?}");
        assert!(shelves.choose(&pools, 4).is_empty());
        shelves.all[0].source = Source::Started;
        assert_eq!(
            shelves.choose(&pools, 4).len(),
            2,
            "the next makes a template, the first a box"
        );
    }

    #[test]
    fn boxes_that_die_together_count_as_one_failure() {
        let mut back_off = BackOff::default();
        (0..8).for_each(|_| back_off.count_deaths());
        assert_eq!(back_off.failures, 1);
        let long_ago = Instant::now().checked_sub(REPLACED_AFTER).expect("the host is up");
        back_off.retry_at = Some(long_ago);
        back_off.count_deaths();
        assert_eq!(back_off.failures, 2);
    }

    #[test]
    fn boxes_that_fail_are_made_again_after_longer_and_longer_pauses() {
        let pauses: Vec<u64> = (0..8).map(|failures| pause_after(failures).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        let mut shelves = Shelves::default();
        shelves.add(shape(100), &tenant("key"));
        let shelf = shelves.find(&shape(100)).expect("a shelf");
        let before = Instant::now();
        (0..8).for_each(|_| shelf.back_off.count_failure());
        assert!(shelf.back_off.retry_at >= Some(before + RETRY_MAX));
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
