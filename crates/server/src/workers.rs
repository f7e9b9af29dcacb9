//! Fixed threads for blocking calls, and the slots for boxes that are being created.
//!
//! The threads start with the server and live as long as it does. So the server can list, stop and
//! remove boxes when the host has no thread left. And keepers survive: the kernel kills a keeper
//! when the *thread* that created it exits (`PR_SET_PDEATHSIG`, prctl(2)). Tokio's own pool for
//! blocking calls panics if it cannot create a thread, and lets idle threads exit.
//!
//! A caller waits for a free thread as a task. So the queue never has more calls than there are
//! threads, and a call whose client disconnects while it waits is not made.
//!
//! A call that panics ends the server: the release is built with `panic = "abort"`, because
//! unwinding would make the binary 22 % larger.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use crate::permits::{Permit, Permits};

type BlockingCall = Box<dyn FnOnce() + Send>;

/// Most of the time of a creation passes in the kernel, which allocates namespaces and waits for
/// grace periods of RCU. More threads than this gain nothing.
const CREATORS_PER_CPU: usize = 2;
/// A keeper waits in the kernel longer than its creator.
const SLOTS_PER_CREATOR: usize = 2;

/// Returns how many processors the server may use. Asked once, because the answer reads six files.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// Threads for calls that may block. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Workers {
    queue: SyncSender<BlockingCall>,
    /// One for each thread.
    threads: Permits,
}

impl Workers {
    pub fn start(name: &str, threads: usize) -> io::Result<Self> {
        let (queue, calls) = sync_channel(threads);
        let calls = Arc::new(Mutex::new(calls));
        for number in 0..threads {
            let calls = Arc::clone(&calls);
            let thread = thread::Builder::new().name(format!("{name}-{number}"));
            thread.spawn(move || work(&calls))?;
        }
        Ok(Self { queue, threads: Permits::new(threads) })
    }

    pub fn threads(&self) -> usize {
        self.threads.most()
    }

    /// Makes a call on one of the threads. Once it has begun, it runs to its end, even if this
    /// future is dropped.
    pub async fn call<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = self.threads.next().await;
        let (done, result) = oneshot::channel();
        let call = Box::new(move || {
            let _thread = thread;
            // This fails if the caller no longer waits.
            done.send(call()).ok();
        });
        // Does not wait: there is one place in the queue for each permit.
        self.queue.send(call).expect("the threads live as long as their queue");
        result.await.expect("a call that panics ends the process")
    }
}

fn work(calls: &Mutex<Receiver<BlockingCall>>) {
    loop {
        let call = locked(calls).recv();
        match call {
            Ok(call) => call(),
            Err(_no_workers_left) => return,
        }
    }
}

/// Locks a mutex. A thread that panicked with the lock does not make the value unusable.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads that create boxes.
#[derive(Debug, Clone)]
pub struct Creators {
    workers: Workers,
    /// Each is held until the command of the box runs: the keeper still works when its creator is
    /// done. So few keepers work at once, and the first box is ready early instead of all late.
    slots: Permits,
}

impl Creators {
    pub fn start() -> io::Result<Self> {
        let threads = processors() * CREATORS_PER_CPU;
        let slots = Permits::new(threads * SLOTS_PER_CREATOR);
        Ok(Self { workers: Workers::start("creator", threads)?, slots })
    }

    /// Waits for a slot. The first to ask gets the first slot.
    pub async fn slot(&self) -> Permit {
        self.slots.next().await
    }

    /// Creates a box on one of the threads. The caller must not drop the future: the result
    /// may be a box that it has to end.
    pub async fn call<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        self.workers.call(call).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).build().expect("a runtime")
    }

    /// Occupies a thread while the sender exists. Returns when the thread is occupied.
    fn occupy(runtime: &tokio::runtime::Runtime, workers: &Workers) -> Sender<()> {
        let (hold, until) = channel::<()>();
        let (begun, beginning) = channel();
        let workers = workers.clone();
        runtime.spawn(async move {
            let call = move || {
                begun.send(()).expect("the test waits");
                until.recv().ok();
            };
            workers.call(call).await
        });
        beginning.recv().expect("it begins");
        hold
    }

    #[test]
    fn as_many_calls_run_at_once_as_there_are_threads() {
        const THREADS: usize = 5;
        let (runtime, workers) = (runtime(), Workers::start("test", THREADS).expect("threads"));
        let all = Arc::new(Barrier::new(THREADS));
        let start = |_| {
            let (workers, all) = (workers.clone(), Arc::clone(&all));
            let call = move || {
                all.wait();
                thread::current().id()
            };
            runtime.spawn(async move { workers.call(call).await })
        };
        let tasks: Vec<_> = (0..THREADS).map(start).collect();
        let joined = tasks.into_iter().map(|task| runtime.block_on(task).expect("it ends"));
        assert_eq!(joined.collect::<HashSet<_>>().len(), THREADS);
    }

    #[test]
    fn a_call_that_is_given_up_before_it_begins_is_not_made() {
        let (runtime, workers) = (runtime(), Workers::start("test", 2).expect("threads"));
        let held: Vec<_> = (0..2).map(|_| occupy(&runtime, &workers)).collect();
        for _each in 0..100 {
            let call = workers.call(|| panic!("the caller is gone"));
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = call => panic!("all threads are busy"),
                    () = std::future::ready(()) => {}
                }
            });
        }
        drop(held);
        runtime.block_on(workers.call(|| ()));
    }

    #[test]
    fn a_call_waits_for_a_thread_that_is_busy() {
        let (runtime, workers) = (runtime(), Workers::start("test", 1).expect("a thread"));
        let held = occupy(&runtime, &workers);
        let waiting = {
            let workers = workers.clone();
            runtime.spawn(async move { workers.call(|| 7).await })
        };
        drop(held);
        assert_eq!(runtime.block_on(waiting).expect("it ends"), 7);
    }

    #[test]
    fn the_first_to_ask_for_a_slot_gets_the_first_slot() {
        let creators = Creators::start().expect("threads");
        let order = Arc::new(Mutex::new(Vec::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut held = Vec::new();
            while let Some(slot) = creators.slots.take() {
                held.push(slot);
            }
            let wait = |number: usize| {
                let (creators, order) = (creators.clone(), Arc::clone(&order));
                tokio::spawn(async move {
                    let _slot = creators.slot().await;
                    order.lock().expect("no panic").push(number);
                })
            };
            let waiting = [1, 2, 3].map(wait);
            tokio::task::yield_now().await;
            assert!(order.lock().expect("no panic").is_empty());
            drop(held.pop());
            for one in waiting {
                one.await.expect("it had its slot");
            }
        });
        assert_eq!(*order.lock().expect("no panic"), [1, 2, 3]);
    }
}
