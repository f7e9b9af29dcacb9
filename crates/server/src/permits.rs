//! Permits: how many of one thing may happen at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A number of permits. It knows how many are taken, which a semaphore does not: while
/// [`Self::all_free`] waits, it holds every free permit itself. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Permits {
    free: Arc<Semaphore>,
    most: usize,
    taken: Arc<AtomicUsize>,
}

/// The right to do one of the things, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    taken: Arc<AtomicUsize>,
    /// Free again after `taken` is lower: when [`Permits::all_free`] returns, none counts as taken.
    _permit: OwnedSemaphorePermit,
}

impl Permits {
    pub fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), most, taken: Arc::default() }
    }

    /// Returns a permit if one is free.
    pub fn take(&self) -> Option<Permit> {
        Some(self.taken_one(Arc::clone(&self.free).try_acquire_owned().ok()?))
    }

    /// Waits for a permit, in the order of calls.
    pub async fn next(&self) -> Permit {
        let permit = Arc::clone(&self.free).acquire_owned().await;
        self.taken_one(permit.expect("the semaphore is never closed"))
    }

    fn taken_one(&self, permit: OwnedSemaphorePermit) -> Permit {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Permit { taken: Arc::clone(&self.taken), _permit: permit }
    }

    pub fn most(&self) -> usize {
        self.most
    }

    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns when no permit is taken.
    pub async fn all_free(&self) {
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        let all = self.free.acquire_many(all).await;
        drop(all.expect("the semaphore is never closed"));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The log said `drained ended=64` for one run.
    #[tokio::test]
    async fn runs_are_counted_while_a_drain_waits_for_them() {
        let permits = Permits::new(64);
        let one = permits.next().await;
        let idle = permits.all_free();
        tokio::pin!(idle);
        let soon = tokio::time::timeout(Duration::from_millis(1), &mut idle).await;
        assert!(soon.is_err(), "one is active");
        assert_eq!(permits.taken(), 1);
        drop(one);
        idle.await;
        assert_eq!(permits.taken(), 0);
    }
}
