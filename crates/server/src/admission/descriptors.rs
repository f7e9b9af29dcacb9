//! Divides the descriptors of this process among boxes, runs, connections and calls.
//!
//! ```text
//! |—— the server itself, boxes and runs ——|—— connections, calls of the engine ——|
//! 0                                5/8 of the limit                          limit
//! ```
//!
//! The right part is the reserve: with any number of boxes, clients can still connect, list,
//! stop and remove them. If configured limits need more descriptors than there are, the server
//! lowers them and logs it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Limits;

/// The largest limit that the server asks for. It is many times what the default limits need.
const DESCRIPTORS_WANTED: u64 = 1 << 16;
/// Descriptors of the server itself: streams, the runtime, gauges, sockets.
const OWN: u64 = 40;
/// Descriptors of a run: its connection, the keeper, the control sockets, pipes, cgroups, and a
/// reserve for its end.
const PER_RUN: u64 = 20;
/// The server allows one exec for this many descriptors. An exec needs a few of them.
const PER_EXEC: u64 = 32;
/// The number of threads that call the engine, unless there are few descriptors.
const CALLS_MAX: u64 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorBudget {
    descriptors: u64,
}

impl DescriptorBudget {
    /// Raises the soft limit and returns it. The limit is low for programs that use select(2),
    /// which the server does not. Boxes have their own limit.
    pub fn make() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let most = limit.maximum.unwrap_or(DESCRIPTORS_WANTED);
        let wanted = most.min(DESCRIPTORS_WANTED);
        if limit.current.is_some_and(|current| current < wanted) {
            let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
            // If this fails, the code below uses the old limit.
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

    /// The descriptors that are kept for requests. Boxes do not use them.
    pub fn for_requests(self) -> u64 {
        self.descriptors * 3 / 8
    }

    /// The number of threads that call the engine. Each opens a few files.
    pub fn calls(self) -> usize {
        as_count((self.descriptors / 16).clamp(4, CALLS_MAX))
    }

    fn connections(self) -> usize {
        as_count((self.descriptors / 8).max(4))
    }

    fn runs(self) -> usize {
        let left = self.descriptors.saturating_sub(self.for_requests() + OWN);
        as_count((left / PER_RUN).max(1))
    }

    fn execs(self) -> usize {
        as_count((self.descriptors / PER_EXEC).max(2))
    }

    /// Lowers limits that need more descriptors than there are, and returns their names.
    pub fn lower_to_fit(self, limits: &mut Limits) -> Vec<&'static str> {
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
        // Each waiting run has a connection; half of the connections are for others.
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
    use crate::http::listen::ESSENTIAL_CONNECTIONS;

    #[test]
    fn with_many_descriptors_nothing_is_lowered() {
        let mut limits = Limits::default();
        assert_eq!(DescriptorBudget::of(8192).lower_to_fit(&mut limits), Vec::<&str>::new());
        assert_eq!(limits, Limits::default());
    }

    #[test]
    fn shares_of_descriptors_stay_below_the_limit() {
        for descriptors in [128, 256, 1024, 4096] {
            let budget = DescriptorBudget::of(descriptors);
            let mut limits = Limits::default();
            let lowered = budget.lower_to_fit(&mut limits);
            assert!(lowered.contains(&"connections"), "{descriptors}");
            assert!(limits.runs >= 1 && limits.runs_waiting < limits.connections);
            let runs = OWN + limits.runs as u64 * PER_RUN;
            let others = (limits.connections + ESSENTIAL_CONNECTIONS + budget.calls()) as u64;
            assert!(runs + budget.for_requests() <= descriptors, "{descriptors}");
            assert!(others <= budget.for_requests(), "{descriptors}");
        }
    }
}
