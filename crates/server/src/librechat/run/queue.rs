//! The queue of each session. One call at a time runs in a session, and the others wait in the order
//! in which they came.
//!
//! ```text
//! enter ─▶ waits ─▶ its turn: the call runs until this is dropped
//!   │        ├─ session_wait has passed ─▶ 409 runtime_session_busy
//!   │        └─ the client hangs up, or the server stops
//!   └─ session_queue calls wait already ─▶ 429 rate_limited
//! ```
//!
//! The name of a queue is made of the user and of the hint, so no user waits for another one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use prometheus_client::metrics::gauge::Gauge;

use crate::error::ServiceError;
use crate::permits::{Permit, Permits};
use crate::work::Service;
use crate::workers::locked;

/// When a client may send a call again that found a full queue.
const RETRY_AFTER_S: u32 = 5;

/// The queues of the sessions that have any call, by the name of the session.
#[derive(Debug, Clone, Default)]
pub struct Queues(Arc<Mutex<HashMap<String, Queue>>>);

#[derive(Debug)]
struct Queue {
    /// One permit.
    turn: Permits,
    /// Calls that wait, and the one that has its turn.
    calls: usize,
}

/// A call in the queue of its session, until this is dropped.
#[derive(Debug)]
pub struct QueuedCall {
    pub session: String,
    queues: Queues,
    turn: Permits,
    /// Held when the call may use the session.
    permit: Option<Permit>,
}

impl Queues {
    /// Enters the queue of a session, which `waiting_max` calls may wait in.
    pub fn enter(&self, session: String, waiting_max: usize) -> Result<QueuedCall, ServiceError> {
        let mut queues = self.lock();
        let new = || Queue { turn: Permits::new(1), calls: 0 };
        let queue = queues.entry(session.clone()).or_insert_with(new);
        if queue.calls > waiting_max {
            let message = format!("limit reached: {waiting_max} calls wait for this session");
            return Err(ServiceError::limited("quota_session_queue", message, RETRY_AFTER_S));
        }
        queue.calls += 1;
        let turn = queue.turn.clone();
        Ok(QueuedCall { session, queues: self.clone(), turn, permit: None })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Queue>> {
        locked(&self.0)
    }
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get_mut(&self.session) {
            queue.calls -= 1;
            if queue.calls == 0 {
                queues.remove(&self.session);
            }
        }
    }
}

impl QueuedCall {
    /// Waits for the turn of the call, for at most `[librechat] session_wait`.
    pub async fn turn(self, service: &Service) -> Result<Self, ServiceError> {
        let within = service.config().librechat.session_wait.0;
        let metrics = &service.metrics;
        let (began, _waiting) =
            (Instant::now(), WaitingCall::begin(&metrics.session_calls_waiting));
        let turn = tokio::select! {
            biased;
            () = service.shutdown.draining() => Err(ServiceError::stopping()),
            turn = self.next() => Ok(turn),
            () = tokio::time::sleep(within) => Err(busy()),
        };
        metrics.session_wait.observe(began.elapsed().as_secs_f64());
        turn
    }

    async fn next(mut self) -> Self {
        self.permit = Some(self.turn.next().await);
        self
    }
}

fn busy() -> ServiceError {
    let busy = ServiceError::conflict(
        "runtime_session_busy",
        "the session was busy with other code for as long as a call may wait ([librechat] session_wait)",
    );
    ServiceError { refused_for: Some("session_busy"), ..busy }
}

/// A call that waits, until this is dropped.
struct WaitingCall<'a>(&'a Gauge);

impl<'a> WaitingCall<'a> {
    fn begin(count: &'a Gauge) -> Self {
        count.inc();
        Self(count)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_full_queue_refuses_a_call_and_tells_when_to_try_again() {
        let queues = Queues::default();
        let enter = |session: &str| queues.enter(session.to_owned(), 1);
        let (runs, _waits) = (enter("a"), enter("a"));
        let refused = enter("a").expect_err("the queue is full");
        assert_eq!((refused.code, refused.retry_after_s), ("quota_session_queue", Some(5)));
        assert!(enter("b").is_ok(), "another session has its own queue");
        drop(runs);
        assert!(enter("a").is_ok());
    }

    #[tokio::test]
    async fn calls_get_their_turn_in_order_and_a_call_that_gives_up_leaves_the_queue() {
        let queues = Queues::default();
        let enter = || queues.enter("a".to_owned(), 3).expect("there is room");
        let first = enter().next().await;
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(enter().next())).collect();
        for one in &mut waiting {
            let soon = tokio::time::timeout(Duration::from_millis(1), one).await;
            assert!(soon.is_err(), "it waits");
        }
        drop(waiting.remove(1));
        let third = waiting.pop().expect("it waits");
        let second = waiting.pop().expect("it waits");
        drop(first);
        let turn = tokio::select! {
            biased;
            _ = third => panic!("it came last"),
            turn = second => turn,
        };
        assert_eq!(queues.lock()["a"].calls, 1, "the others have left");
        drop(turn);
        assert!(queues.lock().is_empty(), "a queue without calls is forgotten");
    }
}
