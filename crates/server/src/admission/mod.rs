//! How many may be served at once. Whoever comes when too many wait already is told
//! so, and not kept waiting.

pub mod bodies;
pub mod descriptors;
pub mod pressure;
pub mod quota;
pub mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::admission::pressure::{Place, Pressure};
use crate::admission::quota::Charge;
use crate::config::Limits;
use crate::error::ServiceError;

#[derive(Debug)]
pub struct Admission {
    turns: Turns,
    pressure: Pressure,
}

/// The right to run one command in a box of its own; it ends with this.
#[derive(Debug)]
pub struct Permit {
    _turn: Turn,
    place: Place,
    _charge: Option<Charge>,
}

impl Permit {
    /// Who has to answer for it, as long as it runs.
    pub fn on_account_of(self, charge: Option<Charge>) -> Self {
        Self { _charge: charge, ..self }
    }

    /// Its box is made.
    pub fn made(&mut self) {
        self.place.made();
    }
}

impl Admission {
    pub fn new(limits: &Limits, pressure: Pressure) -> Self {
        Self { turns: Turns::new(limits), pressure }
    }

    /// Waits for its turn, unless too many do; when it comes, there is room for its
    /// box or not.
    pub async fn run(&self) -> Result<Permit, ServiceError> {
        let turn = self.turns.next().await?;
        let place = self.pressure.place().await?;
        Ok(Permit { _turn: turn, place, _charge: None })
    }

    /// Returns when nobody runs any more.
    pub async fn idle(&self) {
        self.turns.turns.all().await;
    }

    pub fn running(&self) -> usize {
        self.turns.turns.taken()
    }

    pub fn waiting(&self) -> usize {
        self.turns.waiting.load(Ordering::Relaxed)
    }
}

/// So many of something at once, counted. A semaphore alone cannot be asked how many are
/// taken: while [`Self::all`] waits it holds every free permit itself.
#[derive(Debug)]
pub struct Counted {
    free: Arc<Semaphore>,
    most: usize,
    taken: Arc<AtomicUsize>,
}

/// One of them, for as long as this lives.
#[derive(Debug)]
pub struct Turn {
    _permit: OwnedSemaphorePermit,
    taken: Arc<AtomicUsize>,
}

impl Counted {
    pub fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), most, taken: Arc::default() }
    }

    /// One that is free now.
    pub fn take(&self) -> Option<Turn> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(self.turn(permit))
    }

    /// Waits for one, in the order of asking.
    pub async fn next(&self) -> Turn {
        let permit = Arc::clone(&self.free).acquire_owned().await;
        self.turn(permit.expect("the semaphore is never closed"))
    }

    fn turn(&self, permit: OwnedSemaphorePermit) -> Turn {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Turn { _permit: permit, taken: Arc::clone(&self.taken) }
    }

    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns when none is taken.
    pub async fn all(&self) {
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        let all = self.free.acquire_many(all).await;
        drop(all.expect("the semaphore is never closed"));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Turns {
    turns: Counted,
    waiting: AtomicUsize,
    waiting_max: usize,
}

impl Turns {
    fn new(limits: &Limits) -> Self {
        Self {
            turns: Counted::new(limits.runs),
            waiting: AtomicUsize::new(0),
            waiting_max: limits.runs_waiting,
        }
    }

    async fn next(&self) -> Result<Turn, ServiceError> {
        if let Some(one) = self.turns.take() {
            return Ok(one);
        }
        let _waits = Waits::begin(self)?;
        Ok(self.turns.next().await)
    }
}

/// One of those who wait, for as long as this lives.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(turns: &'a Turns) -> Result<Self, ServiceError> {
        let before = turns.waiting.fetch_add(1, Ordering::Relaxed);
        let waits = Self(&turns.waiting);
        if before < turns.waiting_max {
            Ok(waits)
        } else {
            Err(ServiceError::unavailable(
                "busy",
                "server busy: as many runs are active and waiting as it allows",
            )
            .with_hint("try again, or raise [limits] runs in the configuration"))
        }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(runs: usize, runs_waiting: usize) -> Turns {
        Turns::new(&Limits { runs, runs_waiting, ..Limits::default() })
    }

    #[tokio::test]
    async fn who_comes_when_too_many_wait_is_told_so() {
        let turns = turns(1, 0);
        let first = turns.next().await.expect("nobody is there");
        let refused = turns.next().await.expect_err("one is there");
        assert_eq!(refused.code, "busy");
        drop(first);
        drop(turns.next().await.expect("nobody is there any more"));
    }

    /// The log said `drained ended=64` for one run.
    #[tokio::test]
    async fn runs_are_counted_while_a_drain_waits_for_them() {
        let turns = turns(64, 0);
        let one = turns.next().await.expect("nobody is there");
        let idle = turns.turns.all();
        tokio::pin!(idle);
        let soon = tokio::time::timeout(std::time::Duration::from_millis(1), &mut idle).await;
        assert!(soon.is_err(), "one is there");
        assert_eq!(turns.turns.taken(), 1);
        drop(one);
        idle.await;
        assert_eq!(turns.turns.taken(), 0);
    }

    /// A client that goes away while it waits takes its place along.
    #[tokio::test]
    async fn who_gives_up_waiting_waits_no_more() {
        let turns = turns(1, 1);
        let _first = turns.next().await.expect("nobody is there");
        for _attempt in 0..3 {
            let waiting = turns.next();
            let gave_up = tokio::time::timeout(std::time::Duration::from_millis(1), waiting).await;
            assert!(gave_up.is_err(), "it waits");
        }
        assert_eq!(turns.waiting.load(Ordering::Relaxed), 0);
    }
}
