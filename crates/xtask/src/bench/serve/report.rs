//! The report about the two servers.

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

use crate::bench::report::Machine;

/// One result, as the script of wrk prints it.
#[derive(Debug, Clone, Deserialize)]
pub struct LoadResult {
    requests: u64,
    duration_us: u64,
    p50_us: u64,
    p99_us: u64,
    failed: u64,
}

/// Several results together: all executions over the whole time, and the median of each percentile.
#[derive(Debug, Serialize)]
pub struct Figures {
    pub per_second: f64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub failed: u64,
}

impl Figures {
    pub fn of(loads: &[LoadResult]) -> Self {
        let sum = |of: fn(&LoadResult) -> u64| loads.iter().map(of).sum::<u64>();
        let median = |of: fn(&LoadResult) -> u64| {
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
pub struct ServeRow {
    pub command: String,
    pub concurrency: u32,
    pub tare: Figures,
    pub peer: Figures,
}

impl ServeRow {
    /// The names of the columns.
    fn head() -> (String, String) {
        let columns = "    at         /s   p50 ms   p99 ms  failed     /s of peer     p50 of peer";
        ("command".to_owned(), columns.to_owned())
    }

    /// A name and the cells, for each of the two servers.
    fn lines(&self, peer_name: &str) -> [(String, String); 2] {
        let Self { command, concurrency, tare, peer } = self;
        let often = tare.per_second / peer.per_second;
        let long = tare.p50_us as f64 / peer.p50_us as f64;
        let at = |figures: &Figures| format!("{concurrency:>6}  {}", figures.columns());
        [
            (format!("{command}, tare"), format!("{}{often:>14.2}x{long:>15.2}x", at(tare))),
            (format!("{command}, {peer_name}"), at(peer)),
        ]
    }
}

#[derive(Debug, Serialize)]
pub struct ServeReport {
    bench: &'static str,
    peer: &'static str,
    machine: Machine,
    /// The load average over the last minute: how much other work there was.
    load_average: String,
    seconds: u32,
    rounds: usize,
    rows: Vec<ServeRow>,
}

impl ServeReport {
    pub fn new(
        bench: &'static str,
        peer: &'static str,
        seconds: u32,
        rounds: usize,
        rows: Vec<ServeRow>,
    ) -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            bench,
            peer,
            machine: Machine::observe(),
            load_average: load.split(' ').next().unwrap_or_default().to_owned(),
            seconds,
            rounds,
            rows,
        }
    }

    pub fn text(&self) -> String {
        let lines = self.rows.iter().flat_map(|row| row.lines(self.peer));
        let lines: Vec<(String, String)> = [ServeRow::head()].into_iter().chain(lines).collect();
        let width = lines.iter().map(|it| it.0.len()).max().unwrap_or_default();
        let mut text = String::new();
        for (name, columns) in lines {
            // Writing to a string cannot fail.
            writeln!(text, "{name:<width$}{columns}").ok();
        }
        let Self { seconds, rounds, machine, load_average, .. } = self;
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
    fn the_table_is_as_wide_as_its_names_and_compares_the_two() {
        let figures =
            |per_second, p50_us| Figures { per_second, p50_us, p99_us: 30_000, failed: 0 };
        let row = ServeRow {
            command: "print(1)".to_owned(),
            concurrency: 8,
            tare: figures(200.0, 10_000),
            peer: figures(50.0, 20_000),
        };
        let text = ServeReport::new("serve", "fastapi+bwrap", 5, 3, vec![row]).text();
        let expected = "\
command                    at         /s   p50 ms   p99 ms  failed     /s of peer     p50 of peer
print(1), tare              8        200     10.0     30.0       0          4.00x           0.50x
print(1), fastapi+bwrap     8         50     20.0     30.0       0
";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("3 times 5 s each, in turn; load "), "{text}");
    }

    #[test]
    fn loads_are_summed_up_over_all_of_the_time() {
        let load = |requests, p99_us| LoadResult {
            requests,
            duration_us: 1_000_000,
            p50_us: 1,
            p99_us,
            failed: 1,
        };
        let figures = Figures::of(&[load(10, 5), load(20, 9), load(30, 7)]);
        assert_eq!((figures.per_second, figures.p99_us, figures.failed), (20.0, 7, 3));
    }
}
