//! The report about boxes: three tables for people, JSON for programs.

use super::super::report::{Comparison, Machine, number};
use super::growth::Growth;
use super::memory::Memory;
use serde::Serialize;

/// The whole bench, as it is saved.
#[derive(Debug, Serialize)]
pub struct BoxesReport {
    pub bench: &'static str,
    pub machine: Machine,
    pub rounds: usize,
    pub exec: Part<Comparison>,
    pub memory: Part<Memory>,
    pub growth: Part<Growth>,
}

/// One of the three measurements.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part<T> {
    Measured(T),
    NotAsked,
}

impl<T> Part<T> {
    pub fn measured(&self) -> Option<&T> {
        match self {
            Self::Measured(it) => Some(it),
            Self::NotAsked => None,
        }
    }
}

impl BoxesReport {
    pub fn new(
        rounds: usize,
        exec: Part<Comparison>,
        memory: Part<Memory>,
        growth: Part<Growth>,
    ) -> Self {
        Self { bench: "boxes", machine: Machine::observe(), rounds, exec, memory, growth }
    }

    pub fn text(&self) -> String {
        let tables = [
            self.exec.measured().map(Comparison::table),
            self.memory.measured().map(Memory::table),
            self.growth.measured().map(Growth::table),
        ];
        let foot = format!("exec: {} rounds each, interleaved; {}\n", self.rounds, self.machine);
        let parts = tables.into_iter().flatten().chain([foot]);
        parts.collect::<Vec<_>>().join("\n")
    }
}

/// A goal with its unit. A bench does not fail if it is not met.
#[derive(Debug, Serialize)]
pub struct Goal {
    pub what: String,
    pub most: f64,
    pub reached: Option<f64>,
    pub met: Option<bool>,
}

impl Goal {
    pub fn new(what: impl Into<String>, most: f64, reached: Option<f64>) -> Self {
        let met = reached.map(|it| it <= most);
        let what = what.into();
        Self { what, most, reached, met }
    }

    pub fn line(&self) -> String {
        let verdict = match self.met {
            Some(true) => "met",
            Some(false) => "not met",
            None => "not measured",
        };
        let (what, most) = (&self.what, self.most);
        format!("  goal: {what} <= {most}: {} {verdict}\n", number(self.reached))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_were_not_asked_for_are_left_out_of_the_text() {
        let report = BoxesReport::new(3, Part::NotAsked, Part::NotAsked, Part::NotAsked);
        let text = report.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.starts_with("exec: 3 rounds each"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["memory"], "not_asked");
    }

    #[test]
    fn a_goal_is_met_not_met_or_not_measured() {
        let line = |reached| Goal::new("x, MB", 0.6, reached).line();
        assert_eq!(line(Some(0.6)), "  goal: x, MB <= 0.6: 0.60 met\n");
        assert_eq!(line(Some(0.7)), "  goal: x, MB <= 0.6: 0.70 not met\n");
        assert_eq!(line(None), "  goal: x, MB <= 0.6: - not measured\n");
    }
}
