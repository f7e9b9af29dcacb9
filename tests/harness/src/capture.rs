//! Collects the output of a descriptor in its own thread, so that a test can wait for a line and no
//! stream can block another.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const CHUNK_BYTES: usize = 64 * 1024;

/// More than tare passes on by default (64 MiB), and less than the memory of the host.
const CAPTURED_BYTES_MAX: usize = 128 << 20;

#[derive(Debug, Default)]
struct Collected {
    bytes: Vec<u8>,
    /// How many bytes came after the limit. They are read and dropped.
    surplus_bytes: usize,
    ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    collected: Mutex<Collected>,
    changed: Condvar,
}

#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
}

impl Capture {
    pub fn of(descriptor: OwnedFd) -> Self {
        let shared = Arc::new(Shared::default());
        let writer = Arc::clone(&shared);
        std::thread::spawn(move || collect(File::from(descriptor), &writer));
        Self { shared }
    }

    /// Waits until the output contains `needle`. Returns `false` if the output ends or the deadline
    /// passes before.
    pub fn contains_by(&self, needle: &[u8], deadline: Instant) -> bool {
        let found = |collected: &Collected| {
            collected.bytes.windows(needle.len()).any(|window| window == needle)
        };
        let collected = self.wait(deadline, |state| state.ended || found(state));
        found(&collected)
    }

    /// Everything up to the end of the stream; `None` if the stream is still open at the deadline.
    pub fn all_by(&self, deadline: Instant) -> Option<Vec<u8>> {
        let mut collected = self.wait(deadline, |state| state.ended);
        assert_eq!(collected.surplus_bytes, 0, "bytes came past the first {CAPTURED_BYTES_MAX}");
        collected.ended.then(|| std::mem::take(&mut collected.bytes))
    }

    /// The output so far.
    pub fn text_so_far(&self) -> String {
        String::from_utf8_lossy(&self.lock().bytes).into_owned()
    }

    fn lock(&self) -> MutexGuard<'_, Collected> {
        self.shared.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(
        &self,
        deadline: Instant,
        done: impl Fn(&Collected) -> bool,
    ) -> MutexGuard<'_, Collected> {
        let mut collected = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if done(&collected) || left == Duration::ZERO {
                return collected;
            }
            collected = self
                .shared
                .changed
                .wait_timeout(collected, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

fn collect(mut source: File, shared: &Shared) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = match source.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // A pseudo-terminal ends with EIO where a pipe ends with 0.
            Err(_) => 0,
        };
        let mut collected = shared.collected.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = count.min(CAPTURED_BYTES_MAX - collected.bytes.len());
        collected.bytes.extend_from_slice(&chunk[..kept]);
        collected.surplus_bytes += count - kept;
        collected.ended = count == 0;
        shared.changed.notify_all();
        if count == 0 {
            return;
        }
    }
}
