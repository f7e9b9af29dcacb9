//! Threads that call the engine, which waits for the kernel and for other tares.
//!
//! A few are there from the beginning and stay: when no more threads are to be had,
//! they list, stop and remove boxes. Others come when all are busy, and go when nobody
//! has needed them for a while. Who waits for a thread waits as a task: no more calls
//! are queued than there may be threads, and one whose client is gone is not made.
//!
//! A call that panics ends the server: the release is built with `panic = "abort"`,
//! because unwinding would make the binary 22 % larger.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

type Call = Box<dyn FnOnce() + Send>;

/// So many are there from the beginning.
const STAYING: usize = 4;
/// Another one goes when it has had nothing to do for so long.
const GOES_AFTER: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Callers {
    /// One for each call that is queued or being made.
    turns: Arc<Semaphore>,
    desk: Arc<Desk>,
}

/// Where calls wait for threads, and threads for calls.
#[derive(Debug)]
struct Desk {
    threads_max: usize,
    waiting: Mutex<Waiting>,
    /// Whoever stays is called first, so that others can go.
    staying: Condvar,
    others: Condvar,
}

#[derive(Default)]
struct Waiting {
    calls: VecDeque<Call>,
    threads: usize,
    idle_staying: usize,
    idle_others: usize,
    is_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Staying,
    Other,
}

impl Callers {
    /// At most `threads_max`, and those that stay in any case.
    pub fn start(threads_max: usize) -> io::Result<Self> {
        let threads_max = threads_max.max(STAYING);
        let desk = Arc::new(Desk {
            threads_max,
            waiting: Mutex::default(),
            staying: Condvar::new(),
            others: Condvar::new(),
        });
        let callers = Self { turns: Arc::new(Semaphore::new(threads_max)), desk };
        for _each in 0..STAYING {
            let mut waiting = callers.desk.lock();
            waiting.threads += 1;
            // It is about to be.
            waiting.idle_staying += 1;
            drop(waiting);
            callers.desk.start_thread(Kind::Staying)?;
        }
        Ok(callers)
    }

    /// How many threads there may be.
    pub fn threads_max(&self) -> usize {
        self.desk.threads_max
    }

    /// Does it in one of the threads, whether or not anybody still waits for it then.
    pub async fn call<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.expect("the semaphore is never closed");
        let (done, result) = oneshot::channel();
        self.desk.queue(Box::new(move || {
            let _turn = turn;
            // Who has gone does not want it.
            done.send(call()).ok();
        }));
        result.await.expect("a call that panics ends the process")
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.desk.lock().is_over = true;
        self.desk.staying.notify_all();
        self.desk.others.notify_all();
    }
}

impl Desk {
    /// Nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(self: &Arc<Self>, call: Call) {
        let mut waiting = self.lock();
        waiting.calls.push_back(call);
        let calls = waiting.calls.len();
        if calls <= waiting.idle_staying {
            self.staying.notify_one();
        } else if calls <= waiting.idle_staying + waiting.idle_others {
            self.others.notify_one();
        } else if waiting.threads < self.threads_max {
            waiting.threads += 1;
            drop(waiting);
            // Where none is to be had, the next one that is free takes the call.
            self.start_thread(Kind::Other).ok();
        }
    }

    /// One that was counted before.
    fn start_thread(self: &Arc<Self>, kind: Kind) -> io::Result<()> {
        let desk = Arc::clone(self);
        let name = thread::Builder::new().name("caller".to_owned());
        match name.spawn(move || desk.serve(kind)) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.lock().threads -= 1;
                Err(error)
            }
        }
    }

    fn serve(&self, kind: Kind) {
        let mut waiting = self.lock();
        if kind == Kind::Staying {
            waiting.idle_staying -= 1;
        }
        loop {
            while let Some(call) = waiting.calls.pop_front() {
                drop(waiting);
                call();
                waiting = self.lock();
            }
            if waiting.is_over {
                return;
            }
            let is_wanted;
            (waiting, is_wanted) = self.idle(waiting, kind);
            if !is_wanted && waiting.calls.is_empty() {
                waiting.threads -= 1;
                return;
            }
        }
    }

    /// Waits to be called; whether it was, or may be at any time.
    fn idle<'a>(
        &'a self,
        mut waiting: MutexGuard<'a, Waiting>,
        kind: Kind,
    ) -> (MutexGuard<'a, Waiting>, bool) {
        match kind {
            Kind::Staying => {
                waiting.idle_staying += 1;
                let woken = self.staying.wait(waiting);
                let mut waiting = woken.unwrap_or_else(PoisonError::into_inner);
                waiting.idle_staying -= 1;
                (waiting, true)
            }
            Kind::Other => {
                waiting.idle_others += 1;
                let woken = self.others.wait_timeout(waiting, GOES_AFTER);
                let (mut waiting, late) = woken.unwrap_or_else(PoisonError::into_inner);
                waiting.idle_others -= 1;
                (waiting, !late.timed_out())
            }
        }
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting")
            .field("calls", &self.calls.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::ThreadId;

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).build().expect("a runtime")
    }

    fn callers(threads_max: usize) -> Arc<Callers> {
        Arc::new(Callers::start(threads_max).expect("threads"))
    }

    /// Occupies a thread for as long as the sender is there; returns when it does.
    fn occupy(runtime: &tokio::runtime::Runtime, callers: &Arc<Callers>) -> Sender<()> {
        let (hold, until) = channel::<()>();
        let (begun, beginning) = channel();
        let callers = Arc::clone(callers);
        runtime.spawn(async move {
            let call = move || {
                begun.send(()).expect("the test listens");
                until.recv().ok();
            };
            callers.call(call).await
        });
        beginning.recv().expect("it begins");
        hold
    }

    #[test]
    fn as_many_calls_are_made_at_once_as_there_may_be_threads() {
        const MANY: usize = STAYING + 3;
        let (runtime, callers) = (runtime(), callers(MANY));
        let all_are_there = Arc::new(Barrier::new(MANY));
        let tasks: Vec<_> = (0..MANY)
            .map(|_| {
                let (callers, all) = (Arc::clone(&callers), Arc::clone(&all_are_there));
                let call = move || {
                    all.wait();
                    thread::current().id()
                };
                runtime.spawn(async move { callers.call(call).await })
            })
            .collect();
        let joined = tasks.into_iter().map(|task| runtime.block_on(task));
        let threads: std::collections::HashSet<ThreadId> =
            joined.map(|thread| thread.expect("it ends")).collect();
        assert_eq!(threads.len(), MANY);
    }

    #[test]
    fn whoever_is_not_needed_goes_and_a_few_stay() {
        let (runtime, callers) = (runtime(), callers(STAYING + 3));
        let held: Vec<_> = (0..STAYING + 3).map(|_| occupy(&runtime, &callers)).collect();
        assert_eq!(callers.desk.lock().threads, STAYING + 3);
        drop(held);
        let start = std::time::Instant::now();
        while callers.desk.lock().threads > STAYING {
            assert!(start.elapsed() < GOES_AFTER * 10, "they do not go");
            #[expect(clippy::disallowed_methods, reason = "bounded by the assertion above")]
            thread::sleep(Duration::from_millis(10));
        }
        runtime.block_on(callers.call(|| ()));
        assert_eq!(callers.desk.lock().threads, STAYING);
    }

    #[test]
    fn who_gives_up_before_its_turn_leaves_nothing_in_the_queue() {
        let (runtime, callers) = (runtime(), callers(STAYING));
        let held: Vec<_> = (0..STAYING).map(|_| occupy(&runtime, &callers)).collect();
        for _each in 0..100 {
            let call = callers.call(|| panic!("nobody waits for this"));
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = call => panic!("all threads are busy"),
                    () = std::future::ready(()) => {}
                }
            });
        }
        assert_eq!(callers.desk.lock().calls.len(), 0);
        drop(held);
        runtime.block_on(callers.call(|| ()));
    }

    /// As when the host has no thread left: those that there are do it all.
    #[test]
    fn where_no_more_threads_are_to_be_had_calls_wait_for_those_that_there_are() {
        let (runtime, callers) = (runtime(), callers(STAYING + 1));
        let held: Vec<_> = (0..STAYING).map(|_| occupy(&runtime, &callers)).collect();
        // Whoever comes believes that all are there.
        callers.desk.lock().threads += 1;
        let (begun, beginning) = channel();
        let task = {
            let callers = Arc::clone(&callers);
            runtime.spawn(async move { callers.call(move || begun.send(()).is_ok()).await })
        };
        let start = std::time::Instant::now();
        while callers.desk.lock().calls.is_empty() {
            assert!(start.elapsed() < GOES_AFTER * 10, "it is not queued");
            #[expect(clippy::disallowed_methods, reason = "bounded by the assertion above")]
            thread::sleep(Duration::from_millis(1));
        }
        drop(held);
        let made = runtime.block_on(task).expect("it ends");
        assert!(made);
        beginning.recv().expect("it was made");
    }
}
