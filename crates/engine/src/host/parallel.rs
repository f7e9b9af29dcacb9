//! Maps over many items with a few threads. The work is system calls, which the kernel runs in
//! parallel on all processors.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// More threads gain little: they wait for the kernel's own locks.
const THREADS_MAX: usize = 8;
/// For fewer items, starting another thread costs more than it saves.
const EACH_MIN: usize = 64;
/// How many items a thread takes at a time, so that a slow item delays only a few others.
const CHUNK: usize = 16;

/// Returns what `look` returns for each item, in their order. If no other thread can be started,
/// the calling thread does all of it.
pub fn map<T: Sync, R: Send>(all: &[T], look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let others = threads_for(all.len()).saturating_sub(1);
    if others == 0 {
        return all.iter().map(look).collect();
    }
    let chunks: Vec<&[T]> = all.chunks(CHUNK).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = chunks.get(number) else {
                return done;
            };
            done.push((number, chunk.iter().map(&look).collect::<Vec<R>>()));
        }
    };
    let mut done = thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (0..others).map_while(start).collect();
        let mut done = work();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().flat_map(|(_, found)| found).collect()
}

fn threads_for(count: usize) -> usize {
    let wanted = (count / EACH_MIN).min(THREADS_MAX);
    match wanted {
        0 | 1 => 1,
        some => thread::available_parallelism().map_or(1, |cpus| some.min(cpus.get())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::{Condvar, Mutex};

    #[test]
    fn results_come_in_the_order_of_the_items() {
        for count in [0, 1, EACH_MIN, 1000, CHUNK * 100 + 1] {
            let all: Vec<usize> = (0..count).collect();
            let doubled = map(&all, |number| number * 2);
            assert_eq!(doubled, all.iter().map(|it| it * 2).collect::<Vec<_>>());
        }
    }

    /// Each waits for the other: one thread alone would wait forever.
    #[test]
    fn many_are_looked_at_by_more_than_one_thread() {
        if threads_for(1000) < 2 {
            return;
        }
        let (seen, more) = (Mutex::new(HashSet::new()), Condvar::new());
        map(&[(); 1000], |()| {
            let mut seen = seen.lock().unwrap();
            seen.insert(thread::current().id());
            more.notify_all();
            drop(more.wait_while(seen, |seen| seen.len() < 2).unwrap());
        });
    }

    #[test]
    fn a_few_need_no_other_thread() {
        let own = thread::current().id();
        let threads = map(&[(); EACH_MIN], |()| thread::current().id());
        assert!(threads.iter().all(|thread| *thread == own));
    }
}
