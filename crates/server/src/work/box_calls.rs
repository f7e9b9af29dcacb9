//! Permits for calls into boxes. Such a call holds a worker thread until the keeper of its box, or a
//! program of ours in the box, answers. The user of the box can delay that. So these calls get a
//! part of the threads, each box few of them, and each key, or each user of a key, half of those that
//! others leave. A call that waits holds no thread.

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
    waiting: VecDeque<(BoxCall, oneshot::Sender<CallPermit>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct BoxCall {
    into: BoxId,
    /// Its key or user; `None` on a server without either.
    sharer: Option<String>,
    /// How many share the permits.
    sharers: usize,
}

/// The right to make one call, until it is dropped.
#[derive(Debug)]
pub struct CallPermit {
    queue: BoxCalls,
    call: BoxCall,
}

impl BoxCalls {
    pub fn new(most: usize) -> Self {
        Self(Arc::new(CallQueue { most, calls: Mutex::default() }))
    }

    /// Waits for a permit. `keys` is the number of keys that share them now.
    pub async fn next(
        &self,
        caller: &Caller,
        into: &BoxId,
        keys: usize,
    ) -> Result<CallPermit, ServiceError> {
        // How many users a key has is not known: there is always another one.
        let sharers = if caller.user.is_some() { keys.max(2) } else { keys };
        let (sender, permit) = oneshot::channel();
        self.enter(BoxCall { into: into.clone(), sharer: caller.sharer(), sharers }, sender)?;
        self.give_permits();
        Ok(permit.await.expect("a call in the queue gets its permit"))
    }

    fn enter(
        &self,
        call: BoxCall,
        permit: oneshot::Sender<CallPermit>,
    ) -> Result<(), ServiceError> {
        let mut calls = locked(&self.0.calls);
        calls.forget_gone();
        let waiting = || calls.waiting.iter().map(|(other, _)| other);
        let of_sharer =
            waiting().filter(|other| call.sharer.is_some() && other.sharer == call.sharer);
        let of_box = waiting().filter(|other| other.into == call.into);
        if of_sharer.count().max(of_box.count()) >= WAITING_MAX {
            let message = format!(
                "server busy: {WAITING_MAX} calls into this box, or into boxes of this key, wait"
            );
            return Err(ServiceError::unavailable("busy", message));
        }
        calls.waiting.push_back((call, permit));
        Ok(())
    }

    /// Gives a permit to every waiting call that may have one.
    fn give_permits(&self) {
        let mut given = Vec::new();
        let mut calls = locked(&self.0.calls);
        calls.forget_gone();
        let mut place = 0;
        while let Some((call, _)) = calls.waiting.get(place) {
            if !calls.may_run(call, self.0.most) {
                place += 1;
            } else if let Some((call, sender)) = calls.waiting.remove(place) {
                calls.running.push(call.clone());
                given.push((sender, CallPermit { queue: self.clone(), call }));
            }
        }
        // A client may be gone by now. Its permit is then dropped, which takes the lock.
        drop(calls);
        for (sender, permit) in given {
            sender.send(permit).ok();
        }
    }
}

impl Calls {
    fn may_run(&self, call: &BoxCall, most: usize) -> bool {
        let of_box = self.running.iter().filter(|other| other.into == call.into).count();
        let own = self.running.iter().filter(|other| other.sharer == call.sharer).count();
        let of_others = self.running.len() - own;
        let share = share_of_a_key(most as u64, of_others as u64, call.sharers);
        of_box < CALLS_OF_A_BOX && (own as u64) < share
    }

    /// Removes waiting calls whose client is gone.
    fn forget_gone(&mut self) {
        self.waiting.retain(|(_, sender)| !sender.is_closed());
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut calls = locked(&self.queue.0.calls);
        if let Some(place) = calls.running.iter().position(|call| *call == self.call) {
            calls.running.swap_remove(place);
        }
        drop(calls);
        self.queue.give_permits();
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

    /// Begins as many calls of a key as get a permit at once, each into another box.
    async fn take_all(calls: &BoxCalls, key: &str) -> Vec<CallPermit> {
        take_all_of(calls, &caller(key), 4).await
    }

    async fn take_all_of(calls: &BoxCalls, caller: &Caller, keys: usize) -> Vec<CallPermit> {
        let mut permits = Vec::new();
        loop {
            let into = BoxId::random();
            let permit = calls.next(caller, &into, keys);
            match tokio::time::timeout(Duration::from_millis(1), permit).await {
                Ok(permit) => permits.push(permit.expect("a permit")),
                Err(_waits) => return permits,
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

    /// Sessions of one user that stopped tare's copy processes delayed the first call of another.
    #[test]
    fn users_of_one_key_leave_threads_to_each_other() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        for tenant in [Tenant::default(), Tenant::parse("librechat").expect("a key")] {
            let calls = BoxCalls::new(8);
            let take_all = |user: &str| {
                let user = Some(user.to_owned());
                let caller = Caller { user, ..Caller::of(tenant.clone()) };
                runtime.block_on(take_all_of(&calls, &caller, 1))
            };
            let first = take_all("mallory");
            assert_eq!((first.len(), take_all("alice").len()), (4, 2));
        }
    }

    #[tokio::test]
    async fn a_box_without_permits_left_delays_no_other_box() {
        let calls = BoxCalls::new(8);
        let (caller, slow) = (Caller::without_keys(), BoxId::random());
        let mut held = Vec::new();
        for _call in 0..CALLS_OF_A_BOX {
            held.push(calls.next(&caller, &slow, 0).await.expect("a permit"));
        }
        let next = calls.next(&caller, &slow, 0);
        tokio::pin!(next);
        let soon = tokio::time::timeout(Duration::from_millis(1), &mut next).await;
        assert!(soon.is_err(), "it waits");
        drop(calls.next(&caller, &BoxId::random(), 0).await.expect("another box"));
        held.pop();
        drop(next.await.expect("its permit"));
    }

    #[tokio::test]
    async fn calls_beyond_the_bound_are_refused_and_those_of_gone_clients_do_not_count() {
        let calls = BoxCalls::new(1);
        let (caller, slow) = (Caller::without_keys(), BoxId::random());
        let held = calls.next(&caller, &slow, 0).await.expect("a permit");
        let enter = || {
            let (sender, permit) = oneshot::channel();
            let call = BoxCall { into: slow.clone(), sharer: None, sharers: 0 };
            calls.enter(call, sender).map(|()| permit)
        };
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| enter().expect("room")).collect();
        assert_eq!(enter().expect_err("it is full").code, "busy");
        waiting.pop();
        drop(enter().expect("one is gone"));
        drop(waiting);
        drop(held);
        drop(calls.next(&caller, &slow, 0).await.expect("all others are gone"));
    }
}
