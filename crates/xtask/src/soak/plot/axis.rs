//! Where a value lies on the page, and which values are written beside it.

use super::super::measure::Unit;
use super::super::report::{amount, byte_unit};

/// About so many marks on an axis.
const TICKS: f64 = 3.0;

/// From the first to the last value.
#[derive(Debug, Clone, Copy)]
pub enum Scale {
    Linear(f64, f64),
    Logarithmic(f64, f64),
}

#[derive(Debug)]
pub struct Axis {
    scale: Scale,
    ticks: Vec<f64>,
    page_first: f64,
    page_last: f64,
}

impl Axis {
    pub fn new(scale: Scale, page_first: f64, page_last: f64) -> Self {
        let ticks = match scale {
            Scale::Linear(first, last) => round_values(first, last, 1.0),
            Scale::Logarithmic(first, last) => {
                let decades = first.log10().floor() as i32..=last.log10().floor() as i32;
                let values = decades.map(|it| 10f64.powi(it));
                values.filter(|it| (first..=last).contains(it)).collect()
            }
        };
        Self { scale, ticks, page_first, page_last }
    }

    /// Over all these and zero. Where nothing moves, zero is at the bottom.
    pub fn over(
        values: impl Iterator<Item = f64>,
        unit: Unit,
        page_first: f64,
        page_last: f64,
    ) -> Self {
        let (least, most) =
            values.fold((0.0_f64, 0.0_f64), |(least, most), it| (least.min(it), most.max(it)));
        let one = match unit {
            Unit::Things => 1.0,
            Unit::Bytes => 1024.0,
        };
        let most = if most - least < one { least + one } else { most };
        let factor = match unit {
            Unit::Things => 1.0,
            Unit::Bytes => byte_unit(most.max(-least)).0,
        };
        Self {
            scale: Scale::Linear(least, most),
            ticks: round_values(least, most, factor),
            page_first,
            page_last,
        }
    }

    pub fn place(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear(first, last) => (value - first) / (last - first),
            Scale::Logarithmic(first, last) => (value / first).ln() / (last / first).ln(),
        };
        self.page_first + share * (self.page_last - self.page_first)
    }

    pub fn scale(&self) -> Scale {
        self.scale
    }

    pub fn ticks(&self) -> Vec<f64> {
        self.ticks.clone()
    }
}

/// Multiples of 1, 2 or 5 times a power of ten of this unit, zero among them.
fn round_values(first: f64, last: f64, unit: f64) -> Vec<f64> {
    let rough = (last - first) / unit / TICKS;
    let decade = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|it| it * decade);
    let step = steps.into_iter().find(|it| *it >= rough).unwrap_or(decade) * unit;
    let numbers = (first / step).ceil() as i64..=(last / step).floor() as i64;
    numbers.map(|it| it as f64 * step).collect()
}

pub fn tick_name(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Things => short_count(value),
        Unit::Bytes if value == 0.0 => "0".into(),
        Unit::Bytes => amount(value, unit),
    }
}

/// `500`, `20k`, `1.5k`
pub fn short_count(value: f64) -> String {
    let text = match value.abs() {
        it if it >= 1_000.0 => format!("{}k", value / 1_000.0),
        _ => format!("{value}"),
    };
    if text.len() > 6 { format!("{value:.1}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_zero_is_one_of_them() {
        let names = |axis: &Axis, unit| -> Vec<String> {
            let ticks = axis.ticks().into_iter();
            ticks.map(|it| tick_name(it, unit)).collect()
        };
        let things = Axis::over([0.0, 2_981.0].into_iter(), Unit::Things, 100.0, 0.0);
        assert_eq!(names(&things, Unit::Things), ["0", "1k", "2k"]);
        let bytes = Axis::over([-3e6, 12e6].into_iter(), Unit::Bytes, 100.0, 0.0);
        assert_eq!(names(&bytes, Unit::Bytes), ["0", "5 MiB", "10 MiB"]);
        let flat = Axis::over([0.0, 0.0].into_iter(), Unit::Things, 100.0, 0.0);
        assert_eq!(flat.ticks()[0], 0.0);
        assert!((flat.place(0.0) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn what_falls_is_below_zero() {
        let axis = Axis::over([0.0, -5e9].into_iter(), Unit::Bytes, 100.0, 0.0);
        assert!(axis.place(-5e9) > axis.place(0.0));
    }

    #[test]
    fn a_decade_is_as_wide_as_any_other() {
        let axis = Axis::new(Scale::Logarithmic(10.0, 1_000.0), 0.0, 100.0);
        assert!((axis.place(100.0) - 50.0).abs() < 1e-9);
        assert_eq!(axis.ticks(), [10.0, 100.0, 1_000.0]);
    }
}
