//! What live boxes were promised, and whether one more box fits beside them. Nothing here
//! measures or waits.
//!
//! A box is promised a share of its own limits. tare adds up what everything outside of boxes uses
//! and, for each box, the larger of its promise and its use. The sum must stay below each limit of
//! the host.

use tare_engine::spec::Driver;
use tare_engine::{Gauge, GaugedUse, Level, Reading, Thresholds};

use crate::admission::{Need, Work};
use crate::config::PromisedShares;

/// How much of each gauge a box is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Promise {
    pub pids: u64,
    pub memory_bytes: u64,
}

impl Promise {
    /// The keeper is one more process, which the user does not count. A machine is promised its
    /// whole memory: its kernel uses memory that is free for files, and gives little of it back.
    pub fn new(shares: &PromisedShares, need: Need) -> Self {
        let share_of = |share: f64, whole: u64| (share * whole as f64).ceil() as u64;
        let memory_share = match need.driver {
            Driver::Native => shares.memory_share,
            Driver::Vm => 1.0,
        };
        Self {
            pids: share_of(shares.pids_share, u64::from(need.pids) + 1),
            memory_bytes: share_of(memory_share, need.memory_bytes),
        }
    }

    /// The larger of two promises, for each gauge.
    pub fn max(self, other: Self) -> Self {
        Self {
            pids: self.pids.max(other.pids),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }

    fn of_gauge(self, gauge: Gauge) -> u64 {
        amount_for(gauge, self.pids, self.memory_bytes)
    }
}

/// Returns the amount that a gauge counts.
fn amount_for(gauge: Gauge, pids: u64, memory_bytes: u64) -> u64 {
    match gauge {
        Gauge::PidsCgroup | Gauge::PidsUser | Gauge::PidsHost => pids,
        Gauge::MemoryCgroup | Gauge::MemoryHost => memory_bytes,
        Gauge::DescriptorsProcess
        | Gauge::DescriptorsHost
        | Gauge::MemoryPressureCgroup
        | Gauge::MemoryPressureHost
        | Gauge::DiskBytes
        | Gauge::DiskInodes
        | Gauge::Scratch
        | Gauge::Boxes => 0,
    }
}

/// A live box, or one that is being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveBox {
    pub work: Work,
    pub promise: Promise,
    /// What it used when the gauges were measured; nothing if that is not known.
    pub used: GaugedUse,
}

impl LiveBox {
    /// Returns what a new promise adds to the claim of this box, as one more box.
    pub fn growth(&self, promise: Promise) -> Self {
        let more = |new: u64, old: u64, used: u64| new.saturating_sub(old.max(used));
        let growth = Promise {
            pids: more(promise.pids, self.promise.pids, self.used.pids),
            memory_bytes: more(
                promise.memory_bytes,
                self.promise.memory_bytes,
                self.used.memory_bytes,
            ),
        };
        Self { work: self.work, promise: growth, used: GaugedUse::default() }
    }

    fn used(&self, gauge: Gauge) -> u64 {
        amount_for(gauge, self.used.pids, self.used.memory_bytes)
    }

    /// The larger of its promise and its use.
    fn claim(&self, gauge: Gauge) -> u64 {
        self.promise.of_gauge(gauge).max(self.used(gauge))
    }

    fn is_counted_by(&self, reading: &Reading) -> bool {
        match self.work {
            Work::Run => reading.counts.attached,
            Work::Box => reading.counts.detached,
        }
    }
}

/// Why a box does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoFit<'a> {
    pub reading: &'a Reading,
    pub wanted: u64,
    /// What boxes were promised and do not use yet.
    pub promised: u64,
    /// Whether it fits when the runs have ended.
    pub fits_without_runs: bool,
}

/// Checks one more box against every limit. If several limits refuse the box, returns one that ending
/// runs would not free: there, waiting does not help.
pub fn check_fit<'a>(
    limits: &'a [Reading],
    thresholds: &Thresholds,
    boxes: &[LiveBox],
    new: &LiveBox,
) -> Result<(), NoFit<'a>> {
    let misfits = limits.iter().filter_map(|reading| misfit(reading, thresholds, boxes, new));
    match misfits.min_by_key(|it| it.fits_without_runs) {
        None => Ok(()),
        Some(reason) => Err(reason),
    }
}

fn misfit<'a>(
    reading: &'a Reading,
    thresholds: &Thresholds,
    boxes: &[LiveBox],
    new: &LiveBox,
) -> Option<NoFit<'a>> {
    let gauge = reading.gauge;
    let wanted = new.promise.of_gauge(gauge);
    if wanted == 0 || !new.is_counted_by(reading) {
        return None;
    }
    let counted = || boxes.iter().filter(|it| it.is_counted_by(reading));
    let used: u64 = counted().map(|it| it.used(gauge)).sum();
    let others = reading.used.saturating_sub(used);
    let taken = |claims: u64| others.saturating_add(claims).saturating_add(wanted);
    let is_full = |used: u64| {
        let then = Reading { used, ..reading.clone() };
        Level::Normal.next(then.fraction(), thresholds) == Level::Full
    };
    let all: u64 = counted().map(|it| it.claim(gauge)).sum();
    let lasting = counted().filter(|it| it.work == Work::Box);
    let lasting: u64 = lasting.map(|it| it.claim(gauge)).sum();
    is_full(taken(all)).then(|| NoFit {
        reading,
        wanted,
        promised: all - used,
        fits_without_runs: !is_full(taken(lasting)),
    })
}

/// Returns everything that boxes were promised of this limit, used or not.
pub fn promised(reading: &Reading, boxes: &[LiveBox]) -> u64 {
    let counted = boxes.iter().filter(|it| it.is_counted_by(reading));
    counted.map(|it| it.promise.of_gauge(reading.gauge)).sum()
}

#[cfg(test)]
mod tests {
    use tare_engine::Counts;

    use super::*;

    fn limit(used: u64) -> Reading {
        Reading::new(Gauge::PidsCgroup, used, 300, "a limit")
    }

    fn live_box(work: Work, pids: u64, used: u64) -> LiveBox {
        LiveBox {
            work,
            promise: Promise { pids, memory_bytes: 0 },
            used: GaugedUse { pids: used, memory_bytes: 0 },
        }
    }

    fn check(reading: &Reading, boxes: &[LiveBox], new: &LiveBox) -> Option<bool> {
        let limits = std::slice::from_ref(reading);
        let checked = check_fit(limits, &Thresholds::default(), boxes, new);
        checked.err().map(|it| it.fits_without_runs)
    }

    #[test]
    fn a_machine_is_promised_its_whole_memory() {
        let shares = PromisedShares { pids_share: 0.0, memory_share: 0.0 };
        let promise = Promise::new(&shares, Need::of_existing(Driver::Vm, 256, 1000));
        assert_eq!(promise, Promise { pids: 0, memory_bytes: 1000 });
    }

    #[test]
    fn a_box_is_promised_its_share_and_that_of_its_keeper() {
        let shares = PromisedShares { pids_share: 0.125, memory_share: 0.5 };
        let need = Need::of_existing(Driver::Native, 256, 1000);
        let promise = Promise::new(&shares, need);
        assert_eq!(promise, Promise { pids: 33, memory_bytes: 500 });
        let none = PromisedShares { pids_share: 0.0, memory_share: 0.0 };
        assert_eq!(Promise::new(&none, need), Promise::default());
    }

    /// 300 processes are full at 285: 20 of others, and boxes of 25.
    #[test]
    fn a_promise_counts_even_if_it_is_not_used() {
        let new = live_box(Work::Run, 25, 0);
        for used in [0, 10, 25] {
            let boxes = |count| vec![live_box(Work::Run, 25, used); count];
            let reading = |count: u64| limit(20 + count * used);
            assert_eq!(check(&reading(9), &boxes(9), &new), None, "{used}");
            assert_eq!(check(&reading(10), &boxes(10), &new), Some(true), "{used}");
        }
    }

    #[test]
    fn use_beyond_a_promise_counts_too() {
        let boxes = [live_box(Work::Run, 25, 240)];
        assert_eq!(check(&limit(260), &boxes, &live_box(Work::Run, 25, 0)), Some(true));
    }

    #[test]
    fn waiting_helps_only_if_runs_take_the_room() {
        let new = live_box(Work::Run, 25, 0);
        assert_eq!(check(&limit(270), &[], &new), Some(false));
        let lasting = vec![live_box(Work::Box, 25, 0); 11];
        assert_eq!(check(&limit(20), &lasting, &new), Some(false));
        assert_eq!(check(&limit(20), &[], &live_box(Work::Run, 300, 0)), Some(false));
    }

    /// 300 processes are full at 285.
    #[test]
    fn a_larger_promise_counts_only_beyond_what_the_box_has() {
        let one = live_box(Work::Box, 50, 30);
        let grown = |pids| one.growth(Promise { pids, memory_bytes: 0 });
        let boxes = [one, live_box(Work::Box, 200, 0)];
        assert_eq!(grown(40).promise, Promise::default());
        assert_eq!(check(&limit(30), &boxes, &grown(84)), None);
        assert_eq!(check(&limit(30), &boxes, &grown(85)), Some(false));
        let above = live_box(Work::Box, 50, 70).growth(Promise { pids: 75, memory_bytes: 0 });
        assert_eq!(above.promise.pids, 5);
    }

    #[test]
    fn a_limit_that_does_not_apply_to_a_box_does_not_refuse_it() {
        let counts = Counts { attached: true, detached: false };
        let reading = Reading { counts, ..limit(290) };
        assert_eq!(check(&reading, &[], &live_box(Work::Box, 25, 0)), None);
        assert_eq!(check(&reading, &[], &live_box(Work::Run, 25, 0)), Some(false));
        assert_eq!(check(&limit(290), &[], &live_box(Work::Run, 0, 0)), None);
        assert_eq!(promised(&reading, &[live_box(Work::Box, 25, 0)]), 0);
        assert_eq!(promised(&reading, &[live_box(Work::Run, 25, 20)]), 25);
    }
}
