//! Turns for calls into boxes. Such a call holds a worker thread until the keeper of its box, or a
//! program of ours in the box, answers. The user of the box can delay that. So these calls get a
//! part of the threads, each box few of them, and each key half of those that other keys leave. A
//! call that waits for its turn holds no thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tare_engine::BoxId;
use tokio::sync::oneshot;

use crate::admission::Caller;
use crate::admission::share::share_of_a_key;
use crate::error::ServiceError;
use crate::workers::locked;

/// How many calls into one box may be made at once.
const CALLS_OF_A_BOX: usize = 3;
/// How many calls of one key, or into one box, may wait.
const WAITING_MAX: usize = 128;

/// The queue of calls into boxes. The first call within its limits runs next. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BoxCalls(Arc<CallQueue>);

#[derive(Debug)]
struct CallQueue {
    /// How many calls may be made at once.
    most: usize,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    running: Vec<BoxCall>,
    /// The first came first.
    waiting: VecDeque<(BoxCall, oneshot::Sender<CallTurn>)>,
    /// How many keys share the turns.
    keys: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct BoxCall {
    into: BoxId,
    /// `None` on a server without keys.
    key: Option<String>,
}

/// The right to make one call, until it is dropped.
#[derive(Debug)]
pub struct CallTurn {
    queue: BoxCalls,
    call: BoxCall,
}

impl BoxCalls {
    pub fn new(most: usize) -> Self {
        Self(Arc::new(CallQueue { most, calls: Mutex::default() }))
    }

    /// Waits for a turn. `keys` is the number of keys that share the turns now.
    pub async fn turn(
        &self,
        caller: &Caller,
        into: &BoxId,
        keys: usize,
    ) -> Result<CallTurn, ServiceError> {
        let key = caller.tenant.key().map(str::to_owned);
        let (sender, turn) = oneshot::channel();
        self.enter(BoxCall { into: into.clone(), key }, sender, keys)?;
        self.give_turns();
        Ok(turn.await.expect("a call in the queue gets its turn"))
    }

    fn enter(
        &self,
        call: BoxCall,
        turn: oneshot::Sender<CallTurn>,
        keys: usize,
    ) -> Result<(), ServiceError> {
        let mut calls = locked(&self.0.calls);
        calls.keys = keys;
        calls.forget_gone();
        let waiting = || calls.waiting.iter().map(|(other, _)| other);
        let of_key = waiting().filter(|other| call.key.is_some() && other.key == call.key);
        let of_box = waiting().filter(|other| other.into == call.into);
        if of_key.count().max(of_box.count()) >= WAITING_MAX {
            let message = format!(
                "server busy: {WAITING_MAX} calls into this box, or into boxes of this key, wait"
            );
            return Err(ServiceError::unavailable("busy", message));
        }
        calls.waiting.push_back((call, turn));
        Ok(())
    }

    /// Gives a turn to every waiting call that may have one.
    fn give_turns(&self) {
        let mut given = Vec::new();
        let mut calls = locked(&self.0.calls);
        calls.forget_gone();
        let mut place = 0;
        while let Some((call, _)) = calls.waiting.get(place) {
            if !calls.may_run(call, self.0.most) {
                place += 1;
            } else if let Some((call, sender)) = calls.waiting.remove(place) {
                calls.running.push(call.clone());
                given.push((sender, CallTurn { queue: self.clone(), call }));
            }
        }
        // A client may be gone by now. Its turn is then dropped, which takes the lock.
        drop(calls);
        for (sender, turn) in given {
            sender.send(turn).ok();
        }
    }
}

impl Calls {
    fn may_run(&self, call: &BoxCall, most: usize) -> bool {
        let of_box = self.running.iter().filter(|other| other.into == call.into).count();
        let of_key = self.running.iter().filter(|other| other.key == call.key).count();
        let of_others = self.running.len() - of_key;
        let share = share_of_a_key(most as u64, of_others as u64, self.keys);
        of_box < CALLS_OF_A_BOX && (of_key as u64) < share
    }

    /// Removes waiting calls whose client is gone.
    fn forget_gone(&mut self) {
        self.waiting.retain(|(_, sender)| !sender.is_closed());
    }
}

impl Drop for CallTurn {
    fn drop(&mut self) {
        let mut calls = locked(&self.queue.0.calls);
        if let Some(place) = calls.running.iter().position(|call| *call == self.call) {
            calls.running.swap_remove(place);
        }
        drop(calls);
        self.queue.give_turns();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tare_engine::spec::Tenant;

    use super::*;

    fn caller(key: &str) -> Caller {
        Caller::of(Tenant::parse(key).expect("a key"))
    }

    /// Begins as many calls of a key as get a turn at once, each into another box.
    async fn take_all(calls: &BoxCalls, key: &str) -> Vec<CallTurn> {
        let mut turns = Vec::new();
        loop {
            let (caller, into) = (caller(key), BoxId::random());
            let turn = calls.turn(&caller, &into, 4);
            match tokio::time::timeout(Duration::from_millis(1), turn).await {
                Ok(turn) => turns.push(turn.expect("a turn")),
                Err(_waits) => return turns,
            }
        }
    }

    #[tokio::test]
    async fn two_keys_together_leave_threads_to_others() {
        let calls = BoxCalls::new(8);
        let (first, second) = (take_all(&calls, "a").await, take_all(&calls, "b").await);
        assert_eq!((first.len(), second.len()), (4, 2));
        assert_eq!(take_all(&calls, "c").await.len(), 1);
        drop(first);
        assert_eq!(take_all(&calls, "c").await.len(), 3);
        drop(second);
        assert_eq!(locked(&calls.0.calls).running, []);
    }

    #[tokio::test]
    async fn a_box_without_turns_left_delays_no_other_box() {
        let calls = BoxCalls::new(8);
        let (caller, slow) = (Caller::without_keys(), BoxId::random());
        let mut held = Vec::new();
        for _call in 0..CALLS_OF_A_BOX {
            held.push(calls.turn(&caller, &slow, 0).await.expect("a turn"));
        }
        let next = calls.turn(&caller, &slow, 0);
        tokio::pin!(next);
        let soon = tokio::time::timeout(Duration::from_millis(1), &mut next).await;
        assert!(soon.is_err(), "it waits");
        drop(calls.turn(&caller, &BoxId::random(), 0).await.expect("another box"));
        held.pop();
        drop(next.await.expect("its turn"));
    }

    #[tokio::test]
    async fn calls_beyond_the_bound_are_refused_and_those_of_gone_clients_do_not_count() {
        let calls = BoxCalls::new(1);
        let (caller, slow) = (Caller::without_keys(), BoxId::random());
        let held = calls.turn(&caller, &slow, 0).await.expect("a turn");
        let enter = || {
            let (sender, turn) = oneshot::channel();
            let call = BoxCall { into: slow.clone(), key: None };
            calls.enter(call, sender, 0).map(|()| turn)
        };
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| enter().expect("room")).collect();
        assert_eq!(enter().expect_err("it is full").code, "busy");
        waiting.pop();
        drop(enter().expect("one is gone"));
        drop(waiting);
        drop(held);
        drop(calls.turn(&caller, &slow, 0).await.expect("all others are gone"));
    }
}
