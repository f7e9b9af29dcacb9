//! The answer to one question: tables of numbers, saved as JSON and shown as Markdown.
//!
//! The terminal and docs/performance.md show the same text. A subject without numbers keeps its
//! row, with the reason in it. A goal that is not met is shown, and never fails a bench.

use super::load::Measured;
use super::statistics::{median, percentile};
use crate::failure::{Context, Failure};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Subjects that the others are compared with.
pub const PLAIN: &str = "plain fork+exec";
pub const BWRAP: &str = "bwrap";
pub const FASTAPI: &str = "FastAPI + bwrap";
pub const PLAIN_QEMU: &str = "plain QEMU";
const YARDSTICKS: [&str; 4] = [PLAIN, BWRAP, FASTAPI, PLAIN_QEMU];

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub question: String,
    pub machine: Machine,
    pub tables: Vec<Table>,
}

/// The machine and the version, which a reader needs to judge the numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub date: String,
    pub commit: String,
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
    pub memory_mib: u64,
    /// The load average over the last minute. A bench reads it before it begins: how much other work
    /// there was.
    pub load: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
    pub goals: Vec<Goal>,
    pub plot: Plot,
}

/// How a table is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Plot {
    /// The first column as bars. If the second one is a p99, it is drawn too.
    Bars,
    /// Each row as a line on logarithmic axes. The names of the first columns are x.
    Growth,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    /// What the server had made before the calls, as its answers say.
    pub warm: Option<String>,
    pub samples: usize,
    pub values: Vec<Option<f64>>,
    /// Why there are no numbers.
    pub absent: Option<String>,
}

/// A goal. A bench does not fail if it is not met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    pub what: String,
    pub bound: Bound,
    pub reached: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// A number of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    P50,
    P99,
    /// Calls per second, over all slices.
    Rate,
    /// From the begin of a slice to the end of its last call, the median of all slices.
    Last,
    /// Processor time of the whole machine for each call. Unknown if the machine was never quiet.
    Cpu,
    CpuUser,
    CpuKernel,
    /// MiB, in a series that has them in place of times.
    MemoryP50,
    MemoryMax,
}

impl Metric {
    fn title(self) -> &'static str {
        match self {
            Self::P50 => "p50 ms",
            Self::P99 => "p99 ms",
            Self::Rate => "runs/s",
            Self::Last => "last ms",
            Self::Cpu => "CPU ms",
            Self::CpuUser => "user ms",
            Self::CpuKernel => "kernel ms",
            Self::MemoryP50 => "MiB",
            Self::MemoryMax => "largest MiB",
        }
    }

    fn of(self, series: &Measured) -> Option<f64> {
        let calls = series.calls.len() as f64;
        let cpu_calls = series.cpu_calls as f64;
        let cpu = Some(series.cpu).filter(|_| series.cpu_calls > 0);
        match self {
            Self::P50 | Self::MemoryP50 => median(&series.calls),
            Self::P99 => percentile(&series.calls, 99),
            Self::MemoryMax => percentile(&series.calls, 100),
            Self::Rate => (calls > 0.0).then(|| calls / series.slices.iter().sum::<f64>() * 1e3),
            Self::Last => median(&series.slices),
            Self::Cpu => cpu.map(|it| (it.user + it.kernel) / cpu_calls),
            Self::CpuUser => cpu.map(|it| it.user / cpu_calls),
            Self::CpuKernel => cpu.map(|it| it.kernel / cpu_calls),
        }
    }
}

impl Table {
    /// A table of series that were measured in turn. The last columns are the ratios of the first
    /// metric to that of each yardstick.
    pub fn compare(title: &str, metrics: &[Metric], measured: Vec<(String, Measured)>) -> Self {
        let first = |name: &str| {
            let found = measured.iter().find(|it| it.0 == name && it.1.failed.is_none());
            found.and_then(|it| metrics[0].of(&it.1))
        };
        let yardsticks: Vec<(&str, f64)> =
            YARDSTICKS.iter().filter_map(|name| Some((*name, first(name)?))).collect();
        let titles = metrics.iter().map(|it| it.title().to_owned());
        let ratios = yardsticks.iter().map(|(name, _)| ratio_column(name));
        let row = |(name, series): &(String, Measured)| {
            let values = metrics.iter().map(|it| it.of(series));
            let ratio = |it: &(&str, f64)| metrics[0].of(series).map(|value| value / it.1);
            let all = values.chain(yardsticks.iter().map(ratio)).collect();
            Row {
                name: name.clone(),
                warm: warm_words(series),
                samples: series.calls.len(),
                values: if series.failed.is_some() { Vec::new() } else { all },
                absent: series.failed.clone(),
            }
        };
        Self {
            title: title.to_owned(),
            columns: titles.chain(ratios).collect(),
            rows: measured.iter().map(row).collect(),
            goals: Vec::new(),
            plot: Plot::Bars,
        }
    }

    pub fn value(&self, row: &str, column: &str) -> Option<f64> {
        let row = self.rows.iter().find(|it| it.name == row)?;
        let at = self.columns.iter().position(|it| it == column)?;
        *row.values.get(at)?
    }

    /// Adds a goal for the number in this row and column.
    pub fn with_goal(mut self, row: &str, column: &str, bound: Bound) -> Self {
        let reached = self.value(row, column);
        self.goals.push(Goal { what: format!("{row}, {column}"), bound, reached });
        self
    }

    /// Adds a goal for the quotient of two numbers, each named by its row and column.
    pub fn with_quotient(mut self, over: [&str; 2], under: [&str; 2], bound: Bound) -> Self {
        let [dividend, divisor] = [over, under].map(|[row, column]| self.value(row, column));
        let reached = dividend.zip(divisor).map(|(dividend, divisor)| dividend / divisor);
        let what = format!("{} / {}", over.join(", "), under.join(", "));
        self.goals.push(Goal { what, bound, reached });
        self
    }

    fn markdown(&self) -> String {
        let is_warm = self.rows.iter().any(|it| it.warm.is_some());
        let mut lines = vec![vec![String::new()]];
        lines[0].extend(is_warm.then(|| "warm".to_owned()));
        lines[0].extend(self.columns.iter().cloned());
        lines[0].push("samples".into());
        for row in &self.rows {
            let mut line = vec![row.name.clone()];
            line.extend(is_warm.then(|| row.warm.clone().unwrap_or_else(|| "-".into())));
            match &row.absent {
                Some(why) => {
                    line.push(why.lines().next().unwrap_or_default().replace('|', "/"));
                    line.resize(lines[0].len(), String::new());
                }
                None => {
                    line.extend(row.values.iter().map(|it| number(*it)));
                    line.resize(lines[0].len() - 1, "-".into());
                    line.push(row.samples.to_string());
                }
            }
            lines.push(line);
        }
        let mut text = format!("**{}**\n\n{}", self.title, aligned(&lines));
        for (index, goal) in self.goals.iter().enumerate() {
            let _ = writeln!(text, "{}- {goal}", if index == 0 { "\n" } else { "" });
        }
        text
    }
}

/// The name of the column with ratios to a subject.
pub fn ratio_column(yardstick: &str) -> String {
    format!("x {yardstick}")
}

/// The words of the server, each with its share if there are several.
fn warm_words(series: &Measured) -> Option<String> {
    let all: usize = series.warm.values().sum();
    match series.warm.len() {
        0 | 1 => series.warm.keys().next().cloned(),
        _ => {
            let share = |(word, count): (&String, &usize)| {
                format!("{word} {:.0} %", *count as f64 / all as f64 * 100.0)
            };
            Some(series.warm.iter().map(share).collect::<Vec<_>>().join(", "))
        }
    }
}

/// A Markdown table whose columns have the same width in each line.
fn aligned(lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(text, "| {cell:<width$} ");
        }
        text.push_str("|\n");
        if index == 0 {
            let rule = widths.iter().map(|width| format!("|{}", "-".repeat(width + 2)));
            text.extend(rule);
            text.push_str("|\n");
        }
    }
    text
}

/// Three significant digits, and whole numbers from 100 on.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(it) if it.abs() >= 99.95 => format!("{it:.0}"),
        Some(it) if it.abs() >= 9.995 => format!("{it:.1}"),
        Some(it) if it.abs() >= 0.0995 || it == 0.0 => format!("{it:.2}"),
        Some(it) => format!("{it:.3}"),
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, bound, is_met) = match self.bound {
            Bound::AtMost(most) => ("at most", most, self.reached.map(|it| it <= most)),
            Bound::AtLeast(least) => ("at least", least, self.reached.map(|it| it >= least)),
        };
        let verdict = match is_met {
            Some(true) => ", met",
            Some(false) => ", not met",
            None => ": not measured",
        };
        write!(f, "goal: {}: {word} {bound}", self.what)?;
        match self.reached {
            Some(reached) => write!(f, "; {}{verdict}", number(Some(reached))),
            None => f.write_str(verdict),
        }
    }
}

impl Answer {
    pub fn markdown(&self) -> String {
        let tables: Vec<String> = self.tables.iter().map(Table::markdown).collect();
        format!("{}\n{}\n", tables.join("\n"), self.machine)
    }

    pub fn load(path: &Path) -> Result<Self, Failure> {
        let doing = || format!("cannot read {}", path.display());
        let text = fs::read_to_string(path).context(doing)?;
        serde_json::from_str(&text).context(doing)
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

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { date, commit, kernel, cpu, cpus, load, .. } = self;
        write!(f, "{date}, Linux {kernel}, {cpus} x {cpu}, load {load}, commit {commit}")
    }
}

impl Machine {
    pub fn observe() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find_map(|it| it.strip_prefix(name).map(str::to_owned));
            line.map_or("unknown".to_owned(), |it| it.trim_matches([' ', '\t', ':']).to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal:");
        Self {
            date: line_of(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"])),
            commit: line_of(Command::new("git").args([
                "describe",
                "--always",
                "--dirty",
                "--exclude=*",
            ])),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cpus: std::thread::available_parallelism().map_or(0, |it| it.get()),
            memory_mib: memory.trim_end_matches(" kB").parse().unwrap_or(0) / 1024,
            load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
        }
    }
}

/// The output of a program, or `unknown` if it fails.
fn line_of(command: &mut Command) -> String {
    let output = command.output().ok().filter(|it| it.status.success());
    output.map_or("unknown".into(), |it| String::from_utf8_lossy(&it.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::load::Cpu;

    fn series(call: f64, warm: &[(&str, usize)]) -> Measured {
        let warm = warm.iter().map(|(word, count)| ((*word).to_owned(), *count)).collect();
        Measured { calls: vec![call; 4], slices: vec![call * 2.0; 2], warm, ..Measured::default() }
    }

    fn table() -> Table {
        let failed =
            Measured { failed: Some("not | installed\nat all".into()), ..series(1.0, &[]) };
        let measured = vec![
            (PLAIN.to_owned(), series(10.0, &[])),
            (BWRAP.to_owned(), series(20.0, &[])),
            ("tare serve".to_owned(), series(2.6, &[("clone", 3), ("off", 1)])),
            ("earlier".to_owned(), failed),
        ];
        Table::compare("print(1)", &[Metric::P50, Metric::P99], measured)
            .with_goal("tare serve", "x bwrap", Bound::AtMost(0.15))
            .with_quotient(["tare serve", "p99 ms"], [BWRAP, "p50 ms"], Bound::AtMost(3.0))
            .with_goal("tare serve", "x FastAPI + bwrap", Bound::AtLeast(4.5))
    }

    #[test]
    fn the_table_shows_times_ratios_words_reasons_and_goals() {
        let expected = "\
**print(1)**

|                 | warm              | p50 ms          | p99 ms | x plain fork+exec | x bwrap | samples |
|-----------------|-------------------|-----------------|--------|-------------------|---------|---------|
| plain fork+exec | -                 | 10.0            | 10.0   | 1.00              | 0.50    | 4       |
| bwrap           | -                 | 20.0            | 20.0   | 2.00              | 1.00    | 4       |
| tare serve      | clone 75 %, off 25 % | 2.60            | 2.60   | 0.26              | 0.13    | 4       |
| earlier         | -                 | not / installed |        |                   |         |         |

- goal: tare serve, x bwrap: at most 0.15; 0.13, met
- goal: tare serve, p99 ms / bwrap, p50 ms: at most 3; 0.13, met
- goal: tare serve, x FastAPI + bwrap: at least 4.5: not measured
";
        assert_eq!(squeeze(&table().markdown()), squeeze(expected));
    }

    /// The widths of columns do not matter to a reader of this test.
    fn squeeze(text: &str) -> String {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines = text.lines().filter(|line| !line.starts_with("|-"));
        lines.map(|line| words(line) + "\n").collect()
    }

    #[test]
    fn columns_have_one_width() {
        let text = table().markdown();
        let widths = text.lines().filter(|it| it.starts_with('|')).map(|it| it.chars().count());
        let widths: Vec<usize> = widths.collect();
        assert!(widths.iter().all(|it| *it == widths[0]), "{text}");
    }

    #[test]
    fn a_rate_is_over_all_slices_and_processor_time_is_for_each_call() {
        let cpu = Cpu { user: 6.0, kernel: 2.0 };
        let series = Measured { cpu, cpu_calls: 4, ..series(10.0, &[]) };
        let of = |metric: Metric| metric.of(&series);
        assert_eq!(of(Metric::Rate), Some(100.0));
        assert_eq!(of(Metric::Last), Some(20.0));
        assert_eq!(of(Metric::Cpu), Some(2.0));
        assert_eq!((of(Metric::CpuUser), of(Metric::CpuKernel)), (Some(1.5), Some(0.5)));
        assert_eq!(Metric::Rate.of(&Measured::default()), None);
    }

    #[test]
    fn numbers_have_three_digits() {
        let shown = [None, Some(0.0), Some(0.0234), Some(0.107), Some(9.999), Some(12.34)];
        assert_eq!(shown.map(number), ["-", "0.00", "0.023", "0.11", "10.0", "12.3"]);
        assert_eq!(number(Some(1234.5)), "1234");
    }

    #[test]
    fn an_answer_is_saved_with_its_machine_and_read_again() {
        let machine = Machine::observe();
        assert!(!machine.kernel.is_empty() && machine.memory_mib > 0, "{machine:?}");
        let answer = Answer { question: "python".into(), machine, tables: vec![table()] };
        let directory = std::env::temp_dir().join(format!("xtask-answer-{}", std::process::id()));
        let path = directory.join("python.json");
        save(&answer, &path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(Answer::load(&path).unwrap(), answer);
        fs::remove_dir_all(directory).unwrap();
        for key in ["date", "commit", "kernel", "cpus", "samples"] {
            assert!(text.contains(key), "{key} is missing in {text}");
        }
        assert!(answer.markdown().contains("Linux "));
    }

    #[test]
    fn an_unknown_machine_is_no_failure() {
        assert_eq!(line_of(&mut Command::new("/nonexistent/git")), "unknown");
    }
}
