//! Descriptors: how many this process has, and what it gives them to.
//!
//! ```text
//! |—— the server itself, boxes and runs ——|—— connections, calls of the engine ——|
//! 0                                5/8 of the limit                          limit
//! ```
//!
//! The right part is the reserve: however many boxes there are, somebody can still
//! connect, list, stop and remove them. What is asked for beyond the room there is, in
//! the configuration or by its defaults, is lowered to it, and said in the log.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Limits;

/// More than this nobody needs: with it all defaults fit many times.
const DESCRIPTORS_WANTED: u64 = 1 << 16;
/// What the server has open for itself: streams, the runtime, gauges, sockets.
const OWN: u64 = 40;
/// What a run has open while its command runs: its connection, the keeper, the
/// control sockets, pipes, cgroups, and what is reserved for its end.
const PER_RUN: u64 = 20;
/// One process in a box that is looked after for as many descriptors: it has a few.
const PER_EXEC: u64 = 32;
/// The number of threads that call the engine, unless there are few descriptors.
const CALLS_MAX: u64 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    descriptors: u64,
}

impl Room {
    /// After the soft limit was raised: programs that cannot bear many descriptors
    /// (select(2)) are why it is low, and none of them is here. A box has a limit of
    /// its own.
    pub fn make() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let most = limit.maximum.unwrap_or(DESCRIPTORS_WANTED);
        let wanted = most.min(DESCRIPTORS_WANTED);
        if limit.current.is_some_and(|current| current < wanted) {
            let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
            // What cannot be had is not counted on below.
            setrlimit(Resource::Nofile, raised).ok();
        }
        Self::found()
    }

    pub fn found() -> Self {
        let current = getrlimit(Resource::Nofile).current;
        Self::of(current.unwrap_or(DESCRIPTORS_WANTED))
    }

    fn of(descriptors: u64) -> Self {
        Self { descriptors }
    }

    /// What is not for boxes.
    pub fn reserved(self) -> u64 {
        self.descriptors * 3 / 8
    }

    /// Threads that call the engine, each of which opens a few files.
    pub fn calls(self) -> usize {
        as_count((self.descriptors / 16).clamp(4, CALLS_MAX))
    }

    fn connections(self) -> usize {
        as_count((self.descriptors / 8).max(4))
    }

    fn runs(self) -> usize {
        let left = self.descriptors.saturating_sub(self.reserved() + OWN);
        as_count((left / PER_RUN).max(1))
    }

    fn execs(self) -> usize {
        as_count((self.descriptors / PER_EXEC).max(2))
    }

    /// Lowers what there is no room for; returns which.
    pub fn fit(self, limits: &mut Limits) -> Vec<&'static str> {
        let mut lowered = Vec::new();
        let mut lower = |name, value: &mut usize, most: usize| {
            if *value > most {
                *value = most;
                lowered.push(name);
            }
        };
        lower("connections", &mut limits.connections, self.connections());
        if let Some(streams) = &mut limits.streams {
            lower("streams", streams, limits.connections);
        }
        lower("runs", &mut limits.runs, self.runs());
        lower("execs", &mut limits.execs, self.execs());
        // Those who wait have a connection each, and leave half of them to others.
        let waiting = limits.connections / 2;
        lower("runs_waiting", &mut limits.runs_waiting, waiting);
        lowered
    }
}

fn as_count(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::listen::RESERVE;

    #[test]
    fn with_many_descriptors_nothing_is_lowered() {
        let mut limits = Limits::default();
        assert_eq!(Room::of(8192).fit(&mut limits), Vec::<&str>::new());
        assert_eq!(limits, Limits::default());
    }

    #[test]
    fn shares_of_descriptors_stay_below_the_limit() {
        for descriptors in [128, 256, 1024, 4096] {
            let room = Room::of(descriptors);
            let mut limits = Limits::default();
            let lowered = room.fit(&mut limits);
            assert!(lowered.contains(&"connections"), "{descriptors}");
            assert!(limits.runs >= 1 && limits.runs_waiting < limits.connections);
            let runs = OWN + limits.runs as u64 * PER_RUN;
            let others = (limits.connections + RESERVE + room.calls()) as u64;
            assert!(runs + room.reserved() <= descriptors, "{descriptors}");
            assert!(others <= room.reserved(), "{descriptors}");
        }
    }
}
