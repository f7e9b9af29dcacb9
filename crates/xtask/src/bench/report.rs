//! The report of a bench: a table for people, JSON for programs.
//!
//! Times are shown in milliseconds and stored in microseconds. A subject
//! without a number keeps its row, with the reason in it.

use super::{Outcome, WARM_UP_ROUNDS};
use crate::failure::{Context, Failure};
use serde::Serialize;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A whole bench, as it is saved.
#[derive(Debug, Serialize)]
pub struct Report {
    pub bench: &'static str,
    pub machine: Machine,
    pub rounds: usize,
    pub warm_up_rounds: usize,
    pub comparisons: Vec<Comparison>,
}

impl Report {
    pub fn new(bench: &'static str, rounds: usize, comparisons: Vec<Comparison>) -> Self {
        let machine = Machine::observe();
        Self { bench, machine, rounds, warm_up_rounds: WARM_UP_ROUNDS, comparisons }
    }

    pub fn text(&self) -> String {
        let tables = self.comparisons.iter().map(Comparison::table);
        let foot = format!("{} rounds each, interleaved; {}\n", self.rounds, self.machine);
        tables.chain([foot]).collect::<Vec<_>>().join("\n")
    }
}

/// Writes a report as JSON, and makes the directory of the file.
pub fn save(report: &impl Serialize, path: &Path) -> Result<(), Failure> {
    let doing = || format!("cannot save {}", path.display());
    let json = serde_json::to_string_pretty(report).context(doing)?;
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).context(doing)?;
    }
    fs::write(path, json + "\n").context(doing)
}

/// The machine and the version, which a reader needs to judge the numbers.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub date: String,
    pub commit: String,
    pub kernel: String,
    pub cpus: usize,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, cpus, commit, .. } = self;
        write!(f, "Linux {kernel}, {cpus} CPUs, {commit}")
    }
}

impl Machine {
    pub fn observe() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            date: line_of(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"])),
            commit: line_of(Command::new("git").args([
                "describe",
                "--always",
                "--dirty",
                "--exclude=*",
            ])),
            kernel: kernel.trim().to_owned(),
            cpus: std::thread::available_parallelism().map_or(0, |it| it.get()),
        }
    }
}

/// The output of a program, or `unknown` if it fails.
fn line_of(command: &mut Command) -> String {
    let output = command.output().ok().filter(|it| it.status.success());
    output.map_or("unknown".into(), |it| String::from_utf8_lossy(&it.stdout).trim().to_owned())
}

/// Subjects that did the same work.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub command: String,
    pub rows: Vec<Row>,
    pub goals: Vec<RatioGoal>,
}

#[derive(Debug, Serialize)]
pub struct Row {
    pub subject: &'static str,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The ratios of the medians to each subject that others are compared with.
    pub ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
pub struct Ratio {
    pub to: &'static str,
    pub ratio: Option<f64>,
}

/// A goal. A bench does not fail if it is not met.
#[derive(Debug, Serialize)]
pub struct RatioGoal {
    pub subject: &'static str,
    pub to: &'static str,
    pub ratio_max: f64,
    pub ratio: Option<f64>,
    pub met: Option<bool>,
}

/// A goal before it was measured: this subject's p50 <= this much x that one's.
pub type Hope = (&'static str, f64, &'static str);

impl Comparison {
    pub fn new(
        command: String,
        outcomes: Vec<(&'static str, Outcome)>,
        yardsticks: &[&'static str],
        hopes: &[Hope],
    ) -> Self {
        let p50_us = |name: &str| outcomes.iter().find(|it| it.0 == name)?.1.p50_us();
        let ratio = |of: &str, to: &str| Some(p50_us(of)? / p50_us(to)?);
        let goals = hopes.iter().map(|&(subject, ratio_max, to)| {
            let ratio = ratio(subject, to);
            RatioGoal { subject, to, ratio_max, ratio, met: ratio.map(|it| it <= ratio_max) }
        });
        let goals = goals.collect();
        let ratios_of = |name: &str| -> Vec<Ratio> {
            let ratios = yardsticks.iter().map(|&to| Ratio { to, ratio: ratio(name, to) });
            ratios.collect()
        };
        let ratios: Vec<_> = outcomes.iter().map(|it| ratios_of(it.0)).collect();
        let rows = outcomes.into_iter().zip(ratios);
        let rows = rows.map(|((subject, outcome), ratios)| Row { subject, outcome, ratios });
        Self { command, rows: rows.collect(), goals }
    }

    pub fn table(&self) -> String {
        let mut text = format!("{}\n  {:<10}{:>10}{:>10}", self.command, "", "p50 ms", "p99 ms");
        for yardstick in self.rows.first().map_or(&[][..], |it| &it.ratios) {
            let _ = write!(text, "{:>12}", format!("x {}", yardstick.to));
        }
        text.push('\n');
        for row in &self.rows {
            text.push_str(&row.line());
        }
        for goal in &self.goals {
            text.push_str(&goal.line());
        }
        text
    }
}

impl Row {
    fn line(&self) -> String {
        let mut line = format!("  {:<10}", self.subject);
        match &self.outcome {
            Outcome::Absent { reason } => {
                let reason = reason.lines().next().unwrap_or_default();
                let _ = write!(line, "      {reason}");
            }
            Outcome::Measured(it) => {
                let _ = write!(line, "{:>10.2}{:>10.2}", it.p50_us / 1e3, it.p99_us / 1e3);
                for ratio in &self.ratios {
                    let _ = write!(line, "{:>12}", number(ratio.ratio));
                }
            }
        }
        line + "\n"
    }
}

impl RatioGoal {
    fn line(&self) -> String {
        let verdict = match self.met {
            Some(true) => "met",
            Some(false) => "not met",
            None => "not measured",
        };
        let Self { subject, to, ratio_max, ratio, .. } = self;
        format!("  goal: {subject} <= {ratio_max} x {to}: {} {verdict}\n", number(*ratio))
    }
}

pub fn number(ratio: Option<f64>) -> String {
    ratio.map_or("-".into(), |it| format!("{it:.2}"))
}

#[cfg(test)]
mod tests {
    use super::super::Percentiles;
    use super::*;
    use std::time::Duration;

    fn measured(micros: u64) -> Outcome {
        Outcome::Measured(Percentiles::of(vec![Duration::from_micros(micros)]).unwrap())
    }

    fn comparison() -> Comparison {
        let outcomes = vec![
            ("plain", measured(500)),
            ("tare", measured(1500)),
            ("bwrap", measured(3000)),
            ("crun", Outcome::Absent { reason: "not installed".into() }),
        ];
        let hopes = [("tare", 0.8, "bwrap"), ("tare", 2.5, "plain"), ("tare", 0.5, "crun")];
        Comparison::new("/bin/true".into(), outcomes, &["plain", "bwrap"], &hopes)
    }

    #[test]
    fn the_table_shows_times_ratios_reasons_and_goals() {
        let expected = "\
/bin/true
                p50 ms    p99 ms     x plain     x bwrap
  plain           0.50      0.50        1.00        0.17
  tare            1.50      1.50        3.00        0.50
  bwrap           3.00      3.00        6.00        1.00
  crun            not installed
  goal: tare <= 0.8 x bwrap: 0.50 met
  goal: tare <= 2.5 x plain: 3.00 not met
  goal: tare <= 0.5 x crun: - not measured
";
        assert_eq!(comparison().table(), expected);
    }

    #[test]
    fn the_report_is_saved_with_machine_percentiles_and_reasons() {
        let report = Report::new("run", 1, vec![comparison()]);
        let json = serde_json::to_value(&report).unwrap();
        let text = json.to_string();
        for key in ["date", "commit", "kernel", "cpus", "p99_us", "rounds", "not installed"] {
            assert!(text.contains(key), "{key} is missing in {text}");
        }
        assert_eq!(json["comparisons"][0]["rows"][1]["p50_us"], 1500.0);
        assert_eq!(json["comparisons"][0]["rows"][3]["status"], "absent");
        assert_eq!(json["comparisons"][0]["goals"][0]["met"], true);
    }

    #[test]
    fn an_unknown_machine_is_no_failure() {
        assert_eq!(line_of(&mut Command::new("/nonexistent/git")), "unknown");
    }
}
