//! How many may be served at once. Whoever comes when too many wait already is told
//! so, and not kept waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Limits;
use crate::error::ApiError;
use crate::pressure::{Place, Pressure};
use crate::quota::Charge;

#[derive(Debug)]
pub struct Admission {
    turns: Turns,
    pressure: Pressure,
}

/// The right to run one command in a box of its own; it ends with this.
#[derive(Debug)]
pub struct Permit {
    _turn: OwnedSemaphorePermit,
    place: Place,
    _charge: Option<Charge>,
}

impl Permit {
    /// Who has to answer for it, as long as it runs.
    pub fn on_account_of(self, charge: Option<Charge>) -> Self {
        Self {
            _charge: charge,
            ..self
        }
    }

    /// Its box is made.
    pub fn made(&mut self) {
        self.place.made();
    }
}

impl Admission {
    pub fn new(limits: &Limits, pressure: Pressure) -> Self {
        Self {
            turns: Turns::new(limits),
            pressure,
        }
    }

    /// Waits for its turn, unless too many do; when it comes, there is room for its
    /// box or not.
    pub async fn run(&self) -> Result<Permit, ApiError> {
        let turn = self.turns.next().await?;
        let place = self.pressure.place().await?;
        Ok(Permit {
            _turn: turn,
            place,
            _charge: None,
        })
    }

    /// Returns when nobody runs any more.
    pub async fn idle(&self) {
        self.turns.all().await;
    }

    pub fn running(&self) -> usize {
        let free = self.turns.free.available_permits();
        self.turns.most.saturating_sub(free)
    }

    pub fn waiting(&self) -> usize {
        self.turns.waiting.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Turns {
    free: Arc<Semaphore>,
    most: usize,
    waiting: AtomicUsize,
    waiting_max: usize,
}

impl Turns {
    fn new(limits: &Limits) -> Self {
        Self {
            free: Arc::new(Semaphore::new(limits.runs)),
            most: limits.runs,
            waiting: AtomicUsize::new(0),
            waiting_max: limits.runs_waiting,
        }
    }

    async fn next(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if let Ok(one) = Arc::clone(&self.free).try_acquire_owned() {
            return Ok(one);
        }
        let _waits = Waits::begin(self)?;
        let one = Arc::clone(&self.free).acquire_owned().await;
        Ok(one.expect("the semaphore is never closed"))
    }

    async fn all(&self) {
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        let all = self.free.acquire_many(all).await;
        drop(all.expect("the semaphore is never closed"));
    }
}

/// One of those who wait, for as long as this lives.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(turns: &'a Turns) -> Result<Self, ApiError> {
        let before = turns.waiting.fetch_add(1, Ordering::Relaxed);
        let waits = Self(&turns.waiting);
        match before < turns.waiting_max {
            true => Ok(waits),
            false => Err(
                ApiError::unavailable("busy", "as many commands run and wait as may")
                    .with_hint("try again, or raise [limits] runs in the configuration"),
            ),
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
        Turns::new(&Limits {
            runs,
            runs_waiting,
            ..Limits::default()
        })
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
