//! Benches: measure subjects side by side, and report the ratios.
//!
//! A figure from one machine means little and a ratio from one run means much,
//! so every bench goes round-robin over its subjects and reports ratios. The
//! order is shuffled anew each round, from a fixed seed: what one subject leaves
//! for the next to pay (a network namespace is destroyed some 50 ms after its
//! last process) is spread over all of them. No bench fails because of a time.
//!
//! Here are the parts that all benches share: the arguments, the interleaving,
//! the percentiles. [`report`] makes the table and the JSON of them.

mod boxes;
mod crun;
pub mod footprint;
pub mod launch;
mod librechat;
pub mod peers;
pub mod report;
mod run;
mod serve;

use crate::failure::{Context, Failure};
use crate::workspace::cargo;
use clap::Subcommand;
use serde::Serialize;
use std::time::Duration;

/// Rounds that fill caches and are not counted.
const WARM_UP_ROUNDS: usize = 5;

/// Any fixed number will do: the order differs between rounds, not between runs.
const SHUFFLE_SEED: u64 = 0x7461_7265;

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Whole life of one command: plain, in tare, in bwrap, unshare and crun
    Run(run::RunOptions),
    /// Detached boxes: exec into one, the memory of one, thousands of them
    Boxes(boxes::BoxesOptions),
    /// Executions over HTTP: tare serve, and FastAPI with bwrap
    Serve(serve::ServeOptions),
    /// Executions of LibreChat: tare serve, and FastAPI with bwrap
    Librechat(librechat::LibrechatOptions),
    /// (internal) start commands on behalf of a bench, inside what it was put in
    #[command(hide = true)]
    Starter,
    /// (internal) hold a bench's directory, and remove it when the bench is gone
    #[command(hide = true)]
    Janitor(footprint::FootprintPlace),
}

pub fn perform(bench: Bench) -> Result<(), Failure> {
    match bench {
        Bench::Run(options) => run::perform(&options),
        Bench::Boxes(options) => boxes::perform(&options),
        Bench::Serve(options) => serve::perform(&options),
        Bench::Librechat(options) => librechat::perform(&options),
        Bench::Starter => launch::serve_as_starter(),
        Bench::Janitor(place) => footprint::serve_as_janitor(&place),
    }
}

/// The binary that is measured, in its place under target/.
pub fn build() -> Result<(), Failure> {
    let status = cargo()
        .args(["build", "--release", "--package", "tare"])
        .status()
        .context(|| "cannot start cargo build".into())?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::new(format!("cargo build --release: {status}")))
    }
}

/// Runs a subject once. Returns how long that took, or why it failed.
pub type RunOnce<'a> = Box<dyn FnMut() -> Result<Duration, String> + 'a>;

/// The result of a subject.
#[derive(Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Outcome {
    Measured(Percentiles),
    /// Why there is no number.
    Absent {
        reason: String,
    },
}

impl Outcome {
    pub fn p50_us(&self) -> Option<f64> {
        match self {
            Self::Measured(percentiles) => Some(percentiles.p50_us),
            Self::Absent { .. } => None,
        }
    }
}

/// Runs all subjects `rounds` times in turn. A subject that fails once is left
/// out from then on: half a series is not compared with whole ones.
pub fn interleave(subjects: &mut [RunOnce<'_>], rounds: usize) -> Vec<Outcome> {
    let mut series: Vec<Result<Vec<Duration>, String>> =
        subjects.iter().map(|_| Ok(Vec::with_capacity(rounds))).collect();
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    let mut random = Random(SHUFFLE_SEED);
    for round in 0..WARM_UP_ROUNDS + rounds {
        random.shuffle(&mut order);
        for &index in &order {
            let Ok(samples) = &mut series[index] else {
                continue;
            };
            match subjects[index]() {
                Ok(_) if round < WARM_UP_ROUNDS => {}
                Ok(duration) => samples.push(duration),
                Err(why) => series[index] = Err(format!("round {round}: {why}")),
            }
        }
    }
    series.into_iter().map(outcome).collect()
}

fn outcome(series: Result<Vec<Duration>, String>) -> Outcome {
    match series.map(Percentiles::of) {
        Ok(Some(percentiles)) => Outcome::Measured(percentiles),
        Ok(None) => Outcome::Absent { reason: "no rounds were asked for".into() },
        Err(reason) => Outcome::Absent { reason },
    }
}

/// The percentiles of a series, by nearest rank: each number was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    pub samples: usize,
    pub min_us: f64,
    pub p10_us: f64,
    pub p25_us: f64,
    pub p50_us: f64,
    pub p75_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    pub mean_us: f64,
}

impl Percentiles {
    /// `None` for an empty series.
    pub fn of(mut samples: Vec<Duration>) -> Option<Self> {
        samples.sort_unstable();
        let at = |percent: usize| {
            let rank = (samples.len() * percent).div_ceil(100).max(1);
            samples.get(rank - 1).copied().map(micros)
        };
        let total: Duration = samples.iter().sum();
        Some(Self {
            samples: samples.len(),
            min_us: at(0)?,
            p10_us: at(10)?,
            p25_us: at(25)?,
            p50_us: at(50)?,
            p75_us: at(75)?,
            p90_us: at(90)?,
            p99_us: at(99)?,
            max_us: at(100)?,
            mean_us: (micros(total) / samples.len() as f64).round(),
        })
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}

/// SplitMix64: good enough for an order of subjects.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn shuffle(&mut self, order: &mut [usize]) {
        for last in (1..order.len()).rev() {
            let other = (self.next() % (last as u64 + 1)) as usize;
            order.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn subject<'a>(run_once: impl FnMut() -> Result<Duration, String> + 'a) -> RunOnce<'a> {
        Box::new(run_once)
    }

    #[test]
    fn each_round_runs_each_subject_once_in_changing_order() {
        let calls = RefCell::new(Vec::new());
        let note = |index: usize| {
            calls.borrow_mut().push(index);
            Ok(Duration::from_micros(1))
        };
        let mut subjects = [subject(|| note(0)), subject(|| note(1)), subject(|| note(2))];
        let outcomes = interleave(&mut subjects, 40);
        drop(subjects);

        let calls = calls.into_inner();
        assert_eq!(calls.len(), 3 * (40 + WARM_UP_ROUNDS));
        for round in calls.chunks(3) {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2], "a round must hold each subject once");
        }
        assert!(calls.chunks(3).any(|round| round != &calls[..3]), "never shuffled");
        for outcome in outcomes {
            assert!(matches!(outcome, Outcome::Measured(it) if it.samples == 40));
        }
    }

    #[test]
    fn warm_up_rounds_are_not_counted() {
        let mut calls = 0;
        let mut subjects = [subject(|| {
            calls += 1;
            Ok(Duration::from_secs(if calls <= WARM_UP_ROUNDS { 100 } else { 1 }))
        })];
        let outcomes = interleave(&mut subjects, 10);
        assert!(matches!(outcomes[0], Outcome::Measured(it) if it.max_us == 1e6));
    }

    #[test]
    fn a_subject_that_fails_once_is_left_out_with_its_reason() {
        let mut calls = 0;
        let mut subjects = [
            subject(|| {
                calls += 1;
                if calls == 8 { Err("exit code 125".into()) } else { Ok(Duration::ZERO) }
            }),
            subject(|| Ok(Duration::ZERO)),
        ];
        let outcomes = interleave(&mut subjects, 10);
        drop(subjects);
        assert_eq!(calls, 8);
        assert!(matches!(&outcomes[0], Outcome::Absent { reason } if reason.contains("125")));
        assert!(matches!(outcomes[1], Outcome::Measured(it) if it.samples == 10));
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let samples = (1..=200).rev().map(Duration::from_micros).collect();
        let percentiles = Percentiles::of(samples).unwrap();
        let rounded = |us: f64| us.round() as u64;
        assert_eq!(rounded(percentiles.min_us), 1);
        assert_eq!(rounded(percentiles.p50_us), 100);
        assert_eq!(rounded(percentiles.p99_us), 198);
        assert_eq!(rounded(percentiles.max_us), 200);
        assert_eq!(percentiles.samples, 200);
    }

    #[test]
    fn percentiles_of_one_sample_are_that_sample_and_of_none_nothing() {
        let one = Percentiles::of(vec![Duration::from_millis(3)]).unwrap();
        assert_eq!((one.min_us, one.p50_us, one.p99_us), (3e3, 3e3, 3e3));
        assert_eq!(Percentiles::of(Vec::new()), None);
    }
}
