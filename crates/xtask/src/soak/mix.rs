//! The mix: the purpose of each box, which depends only on the seed and the box's number. So the
//! same seed gives the same boxes in any order, and the same boxes to each subject.

use crate::bench::statistics::Random;
use std::time::Duration;

/// Starts sleepers in sessions of their own, ignores all signals that can be ignored, and does
/// not end.
pub const STUBBORN: &str = "trap '' TERM HUP INT; \
    for i in 1 2; do (setsid sleep 1000000 &); done; sleep 1000000";

/// Starts sleepers in sessions of their own and ends, so that they have no parent.
pub const DAEMONS: &str = "trap '' TERM HUP INT; \
    for i in 1 2 3; do (setsid sleep 1000000 &); done; exit 0";

/// A fork bomb: each process starts two more.
pub const BOMB: &str = "f() { f | f & }; f; sleep 1000000";

/// A fork bomb of five generations, for a subject that does not end one.
pub const BOMB_WITH_A_FUSE: &str = "f() { [ $1 = 0 ] && exec sleep 1000000; \
    f $(($1 - 1)) & f $(($1 - 1)) & wait; }; f 4";

/// Commands that end, and their exit codes.
pub const SHORT: [(&[&str], i32); 4] = [
    (&["true"], 0),
    (&["sh", "-c", "echo hello; exit 3"], 3),
    (&["sh", "-c", "head -c 200000 /dev/zero > /tmp/file"], 0),
    (&["sh", "-c", DAEMONS], 0),
];

/// Allocates memory until there is none.
pub const GREEDY: [&str; 2] = ["tail", "/dev/zero"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    Short,
    TimedOut,
    OutOfMemory,
    ForkBomb,
    /// The command that started the box is killed.
    CommandKilled,
    /// The first process of the box is killed.
    KeeperKilled,
    /// Detached, has execs, is ended.
    Detached,
    /// Detached; one of its commands or its keeper is killed.
    DetachedKilled,
    /// Detached and never ended; it has a lease.
    Forgotten,
}

/// How many of a hundred boxes have each purpose.
const WEIGHTS: [(Purpose, u64); 9] = [
    (Purpose::Short, 62),
    (Purpose::TimedOut, 10),
    (Purpose::OutOfMemory, 2),
    (Purpose::ForkBomb, 1),
    (Purpose::CommandKilled, 10),
    (Purpose::KeeperKilled, 4),
    (Purpose::Detached, 5),
    (Purpose::DetachedKilled, 4),
    (Purpose::Forgotten, 2),
];

impl Purpose {
    pub fn name(self) -> &'static str {
        match self {
            Self::Short => "short runs",
            Self::TimedOut => "timeouts",
            Self::OutOfMemory => "out of memory",
            Self::ForkBomb => "fork bombs",
            Self::CommandKilled => "command killed",
            Self::KeeperKilled => "keeper killed",
            Self::Detached => "detached, with execs",
            Self::DetachedKilled => "detached, something killed",
            Self::Forgotten => "detached, forgotten",
        }
    }
}

/// An exec into one of the residents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exec {
    Short,
    TimedOut,
    CommandKilled,
}

/// One box, before it is made.
#[derive(Debug)]
pub struct Job {
    pub number: u64,
    pub purpose: Purpose,
    /// An exec to run after it.
    pub exec: Option<Exec>,
    random: Random,
}

/// Timeouts are long enough for a box to exist on a busy host.
const TIMEOUT_MS: std::ops::Range<u64> = 50..100;

/// A box lives for a few milliseconds. Crashes happen at any moment of it, and after it.
const CRASH_US: std::ops::Range<u64> = 0..12_000;

impl Job {
    pub fn new(seed: u64, number: u64) -> Self {
        let mut random = Random(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let purpose = purpose(random.next() % 100);
        let exec = match random.next() % 40 {
            0..6 => Some(Exec::Short),
            6 => Some(Exec::TimedOut),
            7 => Some(Exec::CommandKilled),
            _ => None,
        };
        Self { number, purpose, exec, random }
    }

    /// Picks one of `count`.
    pub fn pick(&mut self, count: usize) -> usize {
        (self.random.next() % count as u64) as usize
    }

    pub fn timeout(&mut self) -> Duration {
        Duration::from_millis(self.within(&TIMEOUT_MS))
    }

    pub fn crash_moment(&mut self) -> Duration {
        Duration::from_micros(self.within(&CRASH_US))
    }

    fn within(&mut self, range: &std::ops::Range<u64>) -> u64 {
        range.start + self.random.next() % (range.end - range.start)
    }
}

fn purpose(mut percent: u64) -> Purpose {
    for (purpose, weight) in WEIGHTS {
        match percent.checked_sub(weight) {
            Some(rest) => percent = rest,
            None => return purpose,
        }
    }
    Purpose::Short
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn weights_are_of_a_hundred() {
        assert_eq!(WEIGHTS.iter().map(|it| it.1).sum::<u64>(), 100);
    }

    #[test]
    fn a_seed_and_a_number_are_the_same_box_every_time() {
        for number in 0..200 {
            let [mut one, mut other] = [0; 2].map(|_| Job::new(7, number));
            assert_eq!((one.purpose, one.exec), (other.purpose, other.exec));
            assert_eq!(one.crash_moment(), other.crash_moment());
        }
    }

    #[test]
    fn every_purpose_comes_about_as_often_as_it_should() {
        let mut counts: BTreeMap<Purpose, u64> = BTreeMap::new();
        for number in 0..10_000 {
            *counts.entry(Job::new(1, number).purpose).or_default() += 1;
        }
        for (purpose, weight) in WEIGHTS {
            let share = counts[&purpose] as f64 / 100.0;
            let expected = weight as f64;
            assert!((share - expected).abs() < 1.5, "{purpose:?}: {share} %");
        }
    }

    #[test]
    fn moments_are_within_their_ranges() {
        let mut job = Job::new(3, 5);
        for _ in 0..100 {
            assert!(job.timeout() >= Duration::from_millis(TIMEOUT_MS.start));
            assert!(job.crash_moment() < Duration::from_micros(CRASH_US.end));
            assert!(job.pick(3) < 3);
        }
    }
}
