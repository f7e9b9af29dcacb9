//! What is said about a soak: a table for people, a sentence for each complaint.

use super::drift::{Drift, Slope};
use super::measure::{Demand, Measure, Unit};
use super::plot;
use super::series::Series;
use super::subject::Kind;
use crate::bench::report::Machine;
use serde::Serialize;
use std::fmt::Write as _;

#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    seed: u64,
    subjects: Vec<Subject>,
}

#[derive(Debug, Serialize)]
pub struct Subject {
    pub series: Series,
    pub drifts: Vec<Drift>,
}

impl Report {
    pub fn new(seed: u64, all: Vec<Series>) -> Self {
        let subject = |series: Series| {
            let drifts = Measure::ALL.into_iter();
            Subject { drifts: drifts.filter_map(|it| Drift::of(it, &series)).collect(), series }
        };
        Self { machine: Machine::observe(), seed, subjects: all.into_iter().map(subject).collect() }
    }

    /// Why the soak has failed. The peer is there to be looked at.
    pub fn complaints(&self) -> Vec<String> {
        let tare = self.subjects.iter().filter(|it| match it.series.subject {
            Kind::Tare | Kind::LibreChat => true,
            Kind::Bwrap => false,
        });
        tare.flat_map(Subject::complaints).collect()
    }

    pub fn text(&self) -> String {
        let mut text: String = self.subjects.iter().map(Subject::text).collect();
        let _ = writeln!(text, "seed {}; {}", self.seed, self.machine);
        text
    }

    pub fn plot(&self) -> String {
        plot::svg(&self.subjects)
    }
}

impl Subject {
    fn complaints(&self) -> Vec<String> {
        let drifts = self.drifts.iter().filter_map(|it| it.complaint.clone());
        let surprises = self.series.done.iter().filter(|it| it.surprises > 0);
        let surprises = surprises.map(|it| {
            let first = it.first_surprises.first().map_or("", String::as_str);
            let count = it.surprises;
            format!("{count} commands ended in another way than they should, first: {first}")
        });
        drifts.chain(surprises).collect()
    }

    /// `20,000 boxes and 4,012 execs in 251 s`, and why it were not more.
    pub fn extent(&self) -> String {
        let Some(done) = &self.series.done else {
            return String::new();
        };
        let mut text = format!(
            "{} boxes and {} execs in {:.0} s",
            grouped(done.boxes as f64),
            grouped(done.execs as f64),
            done.seconds
        );
        if let Some(stopped) = &done.stopped {
            let _ = write!(text, ", stopped because {stopped}");
        }
        text
    }

    fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.series.subject.name(), self.extent());
        for (name, count) in self.series.done.iter().flat_map(|it| &it.kinds) {
            let _ = writeln!(text, "  {:<28}{:>9}", name, grouped(*count as f64));
        }
        let _ = writeln!(
            text,
            "\n  {:<33}{:>12}{:>12}{:>12}   slope per 1,000 boxes",
            "", "before", "after", "drift"
        );
        for drift in &self.drifts {
            let unit = drift.measure.unit();
            let _ = writeln!(
                text,
                "  {:<33}{:>12}{:>12}{:>12}   {}{}",
                drift.measure.title(),
                amount(drift.before, unit),
                amount(drift.after, unit),
                change(drift.drift(), unit),
                drift.slope.map_or("-".into(), |it| slope(it, unit)),
                self.verdict(drift)
            );
        }
        for surprise in self.series.done.iter().flat_map(|it| &it.first_surprises) {
            let _ = writeln!(text, "  surprise: {surprise}");
        }
        text.push('\n');
        text
    }

    fn verdict(&self, drift: &Drift) -> &'static str {
        match (self.series.subject, drift.measure.demand()) {
            (Kind::Bwrap, _) | (_, Demand::Told) => "",
            (Kind::Tare | Kind::LibreChat, Demand::Equal | Demand::NoSlope | Demand::AtMost(_)) => {
                match drift.complaint {
                    Some(_) => "   FAILED",
                    None => "",
                }
            }
        }
    }
}

/// `+12`, `-3`, `0`.
pub fn change(value: f64, unit: Unit) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", amount(value, unit))
}

fn slope(slope: Slope, unit: Unit) -> String {
    if slope.per_thousand == 0.0 && slope.noise == 0.0 {
        return "0".into();
    }
    let noise = amount(slope.noise, unit);
    format!("{} +- {noise}", change(slope.per_thousand, unit))
}

/// `1,234`, `0.25`, `12.4 MiB`.
pub fn amount(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Things if value.abs() < 10.0 && value.fract() != 0.0 => format!("{value:.2}"),
        Unit::Things => grouped(value),
        Unit::Bytes => {
            let (factor, name) = byte_unit(value.abs());
            let scaled = value / factor;
            if scaled.abs() < 10.0 && scaled.fract() != 0.0 {
                format!("{scaled:.1} {name}")
            } else {
                format!("{} {name}", grouped(scaled))
            }
        }
    }
}

pub fn byte_unit(value: f64) -> (f64, &'static str) {
    const KIB: f64 = 1024.0;
    match value {
        it if it >= KIB * KIB * KIB => (KIB * KIB * KIB, "GiB"),
        it if it >= KIB * KIB => (KIB * KIB, "MiB"),
        it if it >= KIB => (KIB, "KiB"),
        _ => (1.0, "B"),
    }
}

/// `1,234,567`
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    if value <= -0.5 {
        text.push('-');
    }
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_as_people_write_them() {
        assert_eq!(amount(1_234_567.0, Unit::Things), "1,234,567");
        assert_eq!(amount(0.25, Unit::Things), "0.25");
        assert_eq!(amount(0.0, Unit::Bytes), "0 B");
        assert_eq!(amount(1536.0, Unit::Bytes), "1.5 KiB");
        assert_eq!(amount(-13.0 * 1024.0 * 1024.0, Unit::Bytes), "-13 MiB");
        assert_eq!(grouped(-0.2), "0");
    }

    #[test]
    fn a_change_has_its_sign_and_nothing_is_nothing() {
        assert_eq!(change(3.0, Unit::Things), "+3");
        assert_eq!(change(-3.0, Unit::Things), "-3");
        assert_eq!(change(0.0, Unit::Things), "0");
        let still = Slope { per_thousand: 0.0, noise: 0.0 };
        assert_eq!(slope(still, Unit::Things), "0");
        let noisy = Slope { per_thousand: 2048.0, noise: 512.0 };
        assert_eq!(slope(noisy, Unit::Bytes), "+2 KiB +- 512 B");
    }
}
