//! Threads that make boxes, and never end.
//!
//! A keeper asks the kernel to be killed when the thread that bore it ends
//! (`PR_SET_PDEATHSIG` follows the thread, prctl(2)). A pool that lets idle threads
//! go, as the runtime's own does, would end boxes.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

type Job = Box<dyn FnOnce() + Send>;

/// Making a box is mostly the kernel's work, and it waits there a little: for memory
/// of namespaces, for a grace period. More than this gains nothing.
const THREADS_PER_CPU: usize = 2;
/// A keeper waits in the kernel too, more than a maker does.
const BENCHES_PER_THREAD: usize = 2;

#[derive(Debug, Clone)]
pub struct Makers {
    jobs: SyncSender<Job>,
    benches: Arc<Semaphore>,
}

/// The right to have a box in the making, until its command runs. A maker is done long
/// before the keeper that it bore. With any number of keepers at work each would take
/// as long as all of them: as it is, who came first is served first.
pub type Bench = OwnedSemaphorePermit;

/// As many boxes wait to be made as may.
#[derive(Debug)]
pub struct Busy;

impl Makers {
    /// `waiting_max`: how many boxes may wait for a thread.
    pub fn start(waiting_max: usize) -> io::Result<Self> {
        let (jobs, waiting) = sync_channel::<Job>(waiting_max);
        let waiting = Arc::new(Mutex::new(waiting));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = cpus * THREADS_PER_CPU;
        for number in 0..threads {
            let waiting = Arc::clone(&waiting);
            std::thread::Builder::new().name(format!("maker-{number}")).spawn(move || {
                while let Some(job) = next(&waiting) {
                    job()
                }
            })?;
        }
        Ok(Self { jobs, benches: Arc::new(Semaphore::new(threads * BENCHES_PER_THREAD)) })
    }

    /// Waits for its turn, in the order of asking.
    pub async fn bench(&self) -> Bench {
        let bench = Arc::clone(&self.benches).acquire_owned().await;
        bench.expect("nobody closes it")
    }

    /// Does it in one of the threads. What comes of it is handed over in any case:
    /// whoever asked must not give up before.
    pub async fn make<T: Send + 'static>(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Busy> {
        let (done, result) = oneshot::channel();
        let job: Job = Box::new(move || drop(done.send(make())));
        match self.jobs.try_send(job) {
            Ok(()) => result.await.map_err(|_| Busy),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(Busy),
        }
    }
}

fn next(waiting: &Mutex<Receiver<Job>>) -> Option<Job> {
    let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.recv().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
    }

    #[test]
    fn what_was_made_is_handed_over() {
        let makers = Makers::start(1).expect("threads");
        let thread = runtime().block_on(makers.make(|| std::thread::current().id()));
        assert_ne!(thread.expect("not busy"), std::thread::current().id());
    }

    #[test]
    fn who_asks_for_a_bench_first_has_it_first() {
        let makers = Makers::start(1).expect("threads");
        let order = Arc::new(Mutex::new(Vec::new()));
        runtime().block_on(async {
            let mut held = Vec::new();
            while makers.benches.available_permits() > 0 {
                held.push(makers.bench().await);
            }
            let wait = |number: usize| {
                let (makers, order) = (makers.clone(), Arc::clone(&order));
                tokio::spawn(async move {
                    let _bench = makers.bench().await;
                    order.lock().expect("nobody panicked").push(number);
                })
            };
            let waiting = [1, 2, 3].map(wait);
            tokio::task::yield_now().await;
            assert!(order.lock().expect("nobody panicked").is_empty());
            drop(held.pop());
            for one in waiting {
                one.await.expect("it had its turn");
            }
        });
        assert_eq!(*order.lock().expect("nobody panicked"), [1, 2, 3]);
    }

    #[test]
    fn more_than_may_wait_are_refused() {
        let makers = Makers::start(1).expect("threads");
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().expect("nobody panicked");
        let (begun, beginnings) = std::sync::mpsc::channel();
        let wait = || {
            let (gate, begun) = (Arc::clone(&gate), begun.clone());
            makers.jobs.try_send(Box::new(move || {
                begun.send(()).expect("the test listens");
                drop(gate.lock());
            }))
        };
        for _busy in 0..cpus * THREADS_PER_CPU {
            wait().expect("a thread is free");
            beginnings.recv().expect("it begins");
        }
        wait().expect("one may wait");
        let refused = runtime().block_on(makers.make(|| ()));
        assert!(refused.is_err());
        drop(closed);
    }
}
