//! How many may be served at once. Whoever comes when too many wait already is told
//! so, and not kept waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Limits;
use crate::error::ApiError;

#[derive(Debug)]
pub struct Admission {
    runs: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
}

/// The right to run one command in a box of its own; it ends with this.
#[derive(Debug)]
pub struct Permit {
    _one: OwnedSemaphorePermit,
}

impl Admission {
    pub fn new(limits: &Limits) -> Self {
        Self {
            runs: Arc::new(Semaphore::new(limits.runs)),
            waiting: AtomicUsize::new(0),
            waiting_max: limits.runs_waiting,
        }
    }

    /// Waits for its turn, unless too many do.
    pub async fn run(&self) -> Result<Permit, ApiError> {
        if let Ok(one) = Arc::clone(&self.runs).try_acquire_owned() {
            return Ok(Permit { _one: one });
        }
        let _waits = Waits::begin(self)?;
        let one = Arc::clone(&self.runs).acquire_owned().await;
        let one = one.expect("the semaphore is never closed");
        Ok(Permit { _one: one })
    }
}

impl Admission {
    /// Returns when nobody runs any more.
    pub async fn idle(&self, runs: usize) {
        let all = u32::try_from(runs).unwrap_or(u32::MAX);
        let all = self.runs.acquire_many(all).await;
        drop(all.expect("the semaphore is never closed"));
    }

    pub fn running(&self, runs: usize) -> usize {
        runs.saturating_sub(self.runs.available_permits())
    }
}

/// One of those who wait, for as long as this lives.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(admission: &'a Admission) -> Result<Self, ApiError> {
        let before = admission.waiting.fetch_add(1, Ordering::Relaxed);
        let waits = Self(&admission.waiting);
        match before < admission.waiting_max {
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

    fn admission(runs: usize, runs_waiting: usize) -> Admission {
        Admission::new(&Limits {
            runs,
            runs_waiting,
            ..Limits::default()
        })
    }

    #[tokio::test]
    async fn who_comes_when_too_many_wait_is_told_so() {
        let admission = admission(1, 0);
        let first = admission.run().await.expect("nobody is there");
        let refused = admission.run().await.expect_err("one is there");
        assert_eq!(refused.code, "busy");
        drop(first);
        admission.run().await.expect("nobody is there any more");
    }

    /// A client that goes away while it waits takes its place along.
    #[tokio::test]
    async fn who_gives_up_waiting_waits_no_more() {
        let admission = admission(1, 1);
        let _first = admission.run().await.expect("nobody is there");
        for _attempt in 0..3 {
            let waiting = admission.run();
            let gave_up = tokio::time::timeout(std::time::Duration::from_millis(1), waiting).await;
            assert!(gave_up.is_err(), "it waits");
        }
        assert_eq!(admission.waiting.load(Ordering::Relaxed), 0);
    }
}
