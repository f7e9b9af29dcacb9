//! Measures the memory of an idle box, with its keeper and its command, in two ways.
//!
//! `MemAvailable` is what a user misses, and moves with whatever else the host does. A memory cgroup
//! is charged only for what its own processes asked for.

use super::anatomy::Anatomy;
use super::report::Goal;
use super::tare::Tare;
use crate::failure::{Context, Failure};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

const ROUNDS: usize = 3;

/// The host is idle if its memory changes by less than this between two measurements.
const REST_BYTES: f64 = 256.0 * 1024.0;
const REST_PAUSE: Duration = Duration::from_millis(200);
const REST_LOOKS_MAX: u32 = 50;

const IDLE_MB_MAX: f64 = 0.6;

/// The medians for one box.
#[derive(Debug, Serialize)]
pub struct Memory {
    pub boxes: usize,
    pub rounds: usize,
    pub available_bytes: f64,
    /// `None` if no memory controller is available.
    pub cgroup_bytes: Option<f64>,
    pub goals: Vec<Goal>,
}

pub fn measure(tare: &mut Tare, boxes: usize) -> Result<Memory, Failure> {
    let (mut available, mut charged) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        eprintln!("memory: {boxes} boxes, round {round} of {ROUNDS}");
        let before = available_at_rest()?;
        let mut ids = Vec::new();
        for _ in 0..boxes {
            ids.push(tare.run_detached()?.0);
        }
        available.push((before - available_at_rest()?) / boxes as f64);
        for id in &ids {
            charged.extend(Anatomy::observe(id)?.cgroup_bytes.map(|it| it as f64));
        }
        tare.remove_all()?;
        tare.expect_gone(&ids)?;
    }
    Ok(Memory::new(boxes, available, charged))
}

/// Waits until what ended before is gone: the kernel frees a network namespace
/// some time after its last process, and there is no event for it.
fn available_at_rest() -> Result<f64, Failure> {
    let mut last = available_bytes()?;
    for _ in 0..REST_LOOKS_MAX {
        #[expect(clippy::disallowed_methods, reason = "bounded by REST_LOOKS_MAX")]
        std::thread::sleep(REST_PAUSE);
        let now = available_bytes()?;
        let moved = (now - last).abs();
        last = now;
        if moved < REST_BYTES {
            break;
        }
    }
    Ok(last)
}

fn available_bytes() -> Result<f64, Failure> {
    let text = fs::read_to_string("/proc/meminfo").context(|| "cannot read meminfo".into())?;
    let line = text.lines().find_map(|it| it.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|it| it.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.map(|it| it * 1024.0).ok_or_else(|| Failure::new("/proc/meminfo has no MemAvailable"))
}

impl Memory {
    fn new(boxes: usize, available: Vec<f64>, charged: Vec<f64>) -> Self {
        let rounds = available.len();
        let available_bytes = median(available).unwrap_or(f64::NAN);
        let what = "MemAvailable less per box, MB";
        let goals = vec![Goal::new(what, IDLE_MB_MAX, Some(available_bytes / 1e6))];
        Self { boxes, rounds, available_bytes, cgroup_bytes: median(charged), goals }
    }

    pub fn table(&self) -> String {
        let mut text = format!(
            "memory of one idle box of {}, its keeper and its sleep included; KB, median of {} rounds\n",
            self.boxes, self.rounds
        );
        let _ =
            writeln!(text, "  {:<26}{:>10.1}", "MemAvailable, less", self.available_bytes / 1e3);
        if let Some(bytes) = self.cgroup_bytes {
            let _ = writeln!(text, "  {:<26}{:>10.1}", "memory cgroup", bytes / 1e3);
        }
        text.extend(self.goals.iter().map(Goal::line));
        text
    }
}

/// The median by nearest rank.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_memory_available() {
        assert!(available_bytes().unwrap() > 0.0);
    }

    #[test]
    fn the_table_shows_the_medians_and_the_goal() {
        let memory = Memory::new(200, vec![9e6, 500e3, 400e3], vec![300e3; 3]);
        let expected = "\
memory of one idle box of 200, its keeper and its sleep included; KB, median of 3 rounds
  MemAvailable, less             500.0
  memory cgroup                  300.0
  goal: MemAvailable less per box, MB <= 0.6: 0.50 met
";
        assert_eq!(memory.table(), expected);
        assert!(!Memory::new(200, vec![1.0], Vec::new()).table().contains("cgroup"));
    }

    #[test]
    fn the_median_is_one_that_was_measured() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(1.0));
        assert_eq!(median(Vec::new()), None);
    }
}
