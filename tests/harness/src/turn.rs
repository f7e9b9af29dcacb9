//! One test at a time on this host.
//!
//! The oracle looks at the whole host, so a box of another test would be a leak
//! to this one. Threads of one test binary take turns by a mutex, processes by a
//! lock on the directory `/tmp` itself: it is there on every host and nothing has
//! to be made, so nothing is left. The kernel releases it with the process.

use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::wait::poll;

const LOCKED: &str = "/tmp";

/// Longer than the longest test binary: past it somebody hangs.
const WAIT_MAX: Duration = Duration::from_secs(900);

static THREADS: Mutex<()> = Mutex::new(());

/// Held for the whole test.
#[derive(Debug)]
pub struct Turn {
    // Fields are dropped in this order: first the processes, then the threads.
    _processes: File,
    _threads: MutexGuard<'static, ()>,
}

impl Turn {
    pub fn take() -> Self {
        // A failed test before this one says nothing about the host.
        let threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        let processes = File::open(LOCKED).expect("/tmp can be opened");
        assert!(
            poll(WAIT_MAX, || {
                flock(&processes, FlockOperation::NonBlockingLockExclusive).is_ok()
            }),
            "another test holds the lock on {LOCKED} for more than {WAIT_MAX:?}"
        );
        Self {
            _processes: processes,
            _threads: threads,
        }
    }
}
