//! Turns to call into boxes. Such a call waits for the keeper of its box, which the user of the box
//! can slow down. Each box and each key has few turns at once, so that there is always a thread for
//! the others. A call that waits for its turn holds no thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ServiceError;

/// How many calls may be in one lane, those with a turn included.
const CALLS_MAX: usize = 128;

/// The lanes that have any call, by the id of their box or the name of their key.
#[derive(Debug, Clone, Default)]
pub struct Lanes(Arc<Mutex<HashMap<String, Lane>>>);

#[derive(Debug)]
struct Lane {
    turns: Arc<Semaphore>,
    calls: usize,
}

/// The right to make one call, until it is dropped.
#[derive(Debug)]
pub struct LaneTurn {
    _permit: OwnedSemaphorePermit,
    _place: LanePlace,
}

/// One call in a lane, waiting or not, until it is dropped.
#[derive(Debug)]
struct LanePlace {
    lanes: Lanes,
    name: String,
}

impl Lanes {
    /// Waits for a turn in the lane of this name, which has `at_once` of them.
    pub async fn turn(&self, name: &str, at_once: usize) -> Result<LaneTurn, ServiceError> {
        let (place, turns) = self.enter(name, at_once)?;
        let permit = turns.acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        Ok(LaneTurn { _permit: permit, _place: place })
    }

    fn enter(
        &self,
        name: &str,
        at_once: usize,
    ) -> Result<(LanePlace, Arc<Semaphore>), ServiceError> {
        let mut lanes = self.lock();
        let new = || Lane { turns: Arc::new(Semaphore::new(at_once)), calls: 0 };
        let lane = lanes.entry(name.to_owned()).or_insert_with(new);
        if lane.calls >= CALLS_MAX {
            let message = format!("server busy: {CALLS_MAX} calls wait for {name}");
            return Err(ServiceError::unavailable("busy", message));
        }
        lane.calls += 1;
        let place = LanePlace { lanes: self.clone(), name: name.to_owned() };
        Ok((place, Arc::clone(&lane.turns)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Lane>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LanePlace {
    fn drop(&mut self) {
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.get_mut(&self.name) {
            lane.calls -= 1;
            if lane.calls == 0 {
                lanes.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_lane_that_is_full_does_not_delay_another() {
        let lanes = Lanes::default();
        let first = lanes.turn("a", 1).await.expect("it is free");
        let second = lanes.turn("a", 1);
        tokio::pin!(second);
        let soon = tokio::time::timeout(Duration::from_millis(1), &mut second).await;
        assert!(soon.is_err(), "it waits");
        drop(lanes.turn("b", 1).await.expect("it is free"));
        drop(first);
        drop(second.await.expect("its turn"));
        assert!(lanes.lock().is_empty(), "a lane without calls is forgotten");
    }

    #[tokio::test]
    async fn calls_beyond_the_bound_are_refused() {
        let lanes = Lanes::default();
        let mut places: Vec<_> =
            (0..CALLS_MAX).map(|_| lanes.enter("a", 1).expect("there is room")).collect();
        assert_eq!(lanes.turn("a", 1).await.expect_err("it is full").code, "busy");
        drop(lanes.turn("b", 1).await.expect("it is free"));
        places.pop();
        assert!(lanes.turn("a", 1).await.is_ok());
        drop(places);
        assert!(lanes.lock().is_empty());
    }
}
