//! The report of a soak: JSON for programs, a table for people, and why the soak has failed.

use super::drift::Drift;
use super::measure::{Demand, Measure};
use super::series::Series;
use super::subject::Kind;
use crate::bench::answer::Machine;
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Debug, Serialize)]
pub struct SoakReport {
    machine: Machine,
    seed: u64,
    subjects: Vec<SubjectReport>,
}

#[derive(Debug, Serialize)]
struct SubjectReport {
    series: Series,
    drifts: Vec<Drift>,
}

impl SoakReport {
    pub fn new(seed: u64, all: Vec<Series>) -> Self {
        let subject = |series: Series| {
            let drifts = Measure::all().filter_map(|it| Drift::of(it, &series)).collect();
            SubjectReport { drifts, series }
        };
        Self { machine: Machine::observe(), seed, subjects: all.into_iter().map(subject).collect() }
    }

    /// Returns why the soak has failed. The peer is not judged.
    pub fn complaints(&self) -> Vec<String> {
        self.subjects
            .iter()
            .filter(|it| it.is_judged())
            .flat_map(SubjectReport::complaints)
            .collect()
    }

    pub fn text(&self) -> String {
        let mut text: String = self.subjects.iter().map(SubjectReport::text).collect();
        let _ = writeln!(text, "seed {}; {}", self.seed, self.machine);
        text
    }
}

impl SubjectReport {
    fn is_judged(&self) -> bool {
        match self.series.subject {
            Kind::Tare | Kind::LibreChat => true,
            Kind::Bwrap => false,
        }
    }

    fn complaints(&self) -> Vec<String> {
        let drifts = self.drifts.iter().filter_map(|it| it.complaint.clone());
        let surprises = self.series.done.iter().filter(|it| it.surprises > 0);
        let surprises = surprises.map(|it| {
            let first = it.first_surprises.first().map_or("", String::as_str);
            format!("{} commands ended in another way than expected, first: {first}", it.surprises)
        });
        drifts.chain(surprises).collect()
    }

    fn text(&self) -> String {
        let mut text = format!("{}: ", self.series.subject.name());
        if let Some(done) = &self.series.done {
            let _ = write!(text, "{} boxes and {} execs", done.boxes, done.execs);
            let _ = write!(text, " in {:.0} s", done.seconds);
            if let Some(stopped) = &done.stopped {
                let _ = write!(text, ", stopped because {stopped}");
            }
            for (name, count) in &done.kinds {
                let _ = write!(text, "\n  {name:<28}{count:>9}");
            }
        }
        let (before, after, drift, slope) = ("before", "after", "drift", "per 1,000 boxes");
        let _ = writeln!(text, "\n\n  {:<33}{before:>16}{after:>16}{drift:>14}   {slope}", "");
        for Drift { measure, before, after, slope, complaint } in &self.drifts {
            let (title, drift) = (measure.title(), after - before);
            let _ = write!(text, "  {title:<33}{before:>16.0}{after:>16.0}{drift:>14.0}");
            if let Some(slope) = slope {
                let _ = write!(text, "   {:.2} +- {:.2}", slope.per_thousand, slope.noise);
            }
            let is_failure = self.is_judged() && measure.demand() != Demand::None;
            text.push_str(if is_failure && complaint.is_some() { "   FAILED\n" } else { "\n" });
        }
        for surprise in self.series.done.iter().flat_map(|it| &it.first_surprises) {
            let _ = writeln!(text, "  surprise: {surprise}");
        }
        text + "\n"
    }
}
