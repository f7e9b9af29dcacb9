//! What is said about the two servers.

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

use crate::bench::report::Machine;

/// As the script of the load prints it.
#[derive(Debug, Clone, Deserialize)]
pub struct Load {
    requests: u64,
    duration_us: u64,
    p50_us: u64,
    p99_us: u64,
    failed: u64,
}

/// Of several loads: all executions over all of the time, and the median of each
/// percentile.
#[derive(Debug, Serialize)]
pub struct Figures {
    pub per_second: f64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub failed: u64,
}

impl Figures {
    pub fn of(loads: &[Load]) -> Self {
        let sum = |of: fn(&Load) -> u64| loads.iter().map(of).sum::<u64>();
        let median = |of: fn(&Load) -> u64| {
            let mut all: Vec<u64> = loads.iter().map(of).collect();
            all.sort_unstable();
            all.get(all.len() / 2).copied().unwrap_or(0)
        };
        let seconds = sum(|load| load.duration_us) as f64 / 1e6;
        Self {
            per_second: sum(|load| load.requests) as f64 / seconds.max(1e-6),
            p50_us: median(|load| load.p50_us),
            p99_us: median(|load| load.p99_us),
            failed: sum(|load| load.failed),
        }
    }

    fn columns(&self) -> String {
        let ms = |us: u64| us as f64 / 1e3;
        let (p50, p99) = (ms(self.p50_us), ms(self.p99_us));
        let failed = self.failed;
        format!("{:>9.0}{p50:>9.1}{p99:>9.1}{failed:>8}", self.per_second)
    }
}

#[derive(Debug, Serialize)]
pub struct Row {
    pub command: String,
    pub concurrency: u32,
    pub tare: Figures,
    pub fastapi_bwrap: Figures,
}

#[derive(Debug, Serialize)]
pub struct ServeReport {
    bench: &'static str,
    machine: Machine,
    /// At the end, over a minute: what else went on.
    load_average: String,
    seconds: u32,
    rounds: usize,
    rows: Vec<Row>,
}

impl ServeReport {
    pub fn new(seconds: u32, rounds: usize, rows: Vec<Row>) -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            bench: "serve",
            machine: Machine::observe(),
            load_average: load.split(' ').next().unwrap_or_default().to_owned(),
            seconds,
            rounds,
            rows,
        }
    }

    pub fn text(&self) -> String {
        let head = "       /s   p50 ms   p99 ms  failed";
        let mut text = format!(
            "{:<40}{:>4}  {head}  {:>10}\n",
            "command", "at", "of fastapi"
        );
        for row in &self.rows {
            let Row {
                command,
                concurrency,
                tare,
                fastapi_bwrap,
            } = row;
            let ratio = tare.per_second / fastapi_bwrap.per_second;
            // A text takes whatever is written to it.
            writeln!(
                text,
                "{:<40}{concurrency:>4}  {}  {ratio:>9.2}x",
                format!("{command}, tare"),
                tare.columns()
            )
            .ok();
            writeln!(
                text,
                "{:<40}{concurrency:>4}  {}",
                format!("{command}, fastapi+bwrap"),
                fastapi_bwrap.columns()
            )
            .ok();
        }
        let Self {
            seconds,
            rounds,
            machine,
            load_average,
            ..
        } = self;
        writeln!(
            text,
            "\n{rounds} times {seconds} s each, in turn; load {load_average}; {machine}"
        )
        .ok();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_summed_up_over_all_of_the_time() {
        let load = |requests, p99_us| Load {
            requests,
            duration_us: 1_000_000,
            p50_us: 1,
            p99_us,
            failed: 1,
        };
        let figures = Figures::of(&[load(10, 5), load(20, 9), load(30, 7)]);
        assert_eq!(
            (figures.per_second, figures.p99_us, figures.failed),
            (20.0, 7, 3)
        );
    }
}
