//! Judges one measure: how far it moved, how fast, and how certain that is.

use super::measure::{Demand, Measure};
use super::series::Series;
use serde::Serialize;

/// The first part of the boxes only fills caches. Growth is measured in the rest.
const WARM_UP_SHARE: f64 = 0.1;

/// A slope counts if it is this many times its standard error.
const SURE: f64 = 3.0;

/// Growth of the whole run that no measurement of memory can show: each CPU may hold up to 64 pages
/// that are charged to a cgroup and not used (mm/memcontrol.c).
const CHARGE_BYTES_UNSEEN: f64 = 1024.0 * 1024.0;

/// How much a measure grows per 1,000 boxes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Slope {
    pub per_thousand: f64,
    /// The standard error of the slope.
    pub noise: f64,
}

#[derive(Debug, Serialize)]
pub struct Drift {
    pub measure: Measure,
    pub before: f64,
    pub after: f64,
    pub slope: Option<Slope>,
    /// Why the soak fails, if it does.
    pub complaint: Option<String>,
}

impl Drift {
    /// `None` if the kernel does not show this measure.
    pub fn of(measure: Measure, series: &Series) -> Option<Self> {
        let before = *series.before.as_ref()?.values.get(&measure)?;
        let after = *series.samples.last()?.values.get(&measure)?;
        let slope = slope(&points(measure, series));
        let complaint = match measure.demand() {
            Demand::Equal => unequal(measure, series, before),
            Demand::NoSlope => slope.and_then(|it| growing(measure, series, it)),
            Demand::AtMost(bound) => above(measure, series, bound),
            Demand::None => None,
        };
        Some(Self { measure, before, after, slope, complaint })
    }
}

/// The number of boxes and the value of each sample. Samples in which caches fill are left out, except
/// for counts.
fn points(measure: Measure, series: &Series) -> Vec<(f64, f64)> {
    let boxes = series.samples.last().map_or(0, |it| it.boxes);
    let first = match measure.demand() {
        Demand::Equal => 0.0,
        Demand::NoSlope | Demand::AtMost(_) | Demand::None => boxes as f64 * WARM_UP_SHARE,
    };
    let samples = series.before.iter().chain(&series.samples);
    let counted = samples.filter(|it| it.boxes as f64 >= first);
    let point = |value: &f64, boxes: u64| (boxes as f64, *value);
    counted.filter_map(|it| Some(point(it.values.get(&measure)?, it.boxes))).collect()
}

/// Compares every sample, not only the last one: each had enough time to settle.
fn unequal(measure: Measure, series: &Series, before: f64) -> Option<String> {
    let title = measure.title();
    let differs = |it: &&super::sample::Sample| it.values.get(&measure) != Some(&before);
    if let Some(sample) = series.samples.iter().find(differs) {
        let value = sample.values.get(&measure)?;
        let boxes = sample.boxes;
        return Some(format!("{title}: {value} after {boxes} boxes, {before} before"));
    }
    let empty = series.empty.as_ref()?.values.get(&measure)?;
    let emptied = series.emptied.as_ref()?.values.get(&measure)?;
    (empty != emptied).then(|| {
        format!("{title}: {emptied} when every box was removed, {empty} before there was one")
    })
}

fn above(measure: Measure, series: &Series, bound: u64) -> Option<String> {
    let values = series.samples.iter().filter_map(|it| it.values.get(&measure));
    let most = values.copied().fold(0.0, f64::max);
    (most > bound as f64).then(|| format!("{}: {most} bytes, not {bound}", measure.title()))
}

fn growing(measure: Measure, series: &Series, slope: Slope) -> Option<String> {
    let boxes = series.samples.last()?.boxes as f64;
    let growth = slope.per_thousand * boxes / 1_000.0;
    let is_sure = slope.per_thousand > SURE * slope.noise && growth > CHARGE_BYTES_UNSEEN;
    is_sure.then(|| {
        format!(
            "{}: grows by {:.0} bytes (+- {:.0}) per 1,000 boxes",
            measure.title(),
            slope.per_thousand,
            slope.noise
        )
    })
}

/// Fits a line by least squares. Neighbouring samples of memory are correlated, so there are fewer
/// independent samples than samples. The error is widened accordingly, because otherwise noise would
/// look like a slope.
pub fn slope(points: &[(f64, f64)]) -> Option<Slope> {
    if points.len() < 3 {
        return None;
    }
    let count = points.len() as f64;
    let mean_x = points.iter().map(|it| it.0).sum::<f64>() / count;
    let mean_y = points.iter().map(|it| it.1).sum::<f64>() / count;
    let spread: f64 = points.iter().map(|it| (it.0 - mean_x).powi(2)).sum();
    if spread == 0.0 {
        return None;
    }
    let moved = |it: &(f64, f64)| (it.0 - mean_x) * (it.1 - mean_y);
    let per_box = points.iter().map(moved).sum::<f64>() / spread;
    let left: Vec<f64> =
        points.iter().map(|it| it.1 - mean_y - per_box * (it.0 - mean_x)).collect();
    let variance = left.iter().map(|it| it * it).sum::<f64>() / (count - 2.0);
    let noise = (variance / spread * inflation(&left)).sqrt();
    Some(Slope { per_thousand: per_box * 1_000.0, noise: noise * 1_000.0 })
}

/// The factor by which correlated neighbours widen the variance.
fn inflation(left: &[f64]) -> f64 {
    let all: f64 = left.iter().map(|it| it * it).sum();
    if all == 0.0 {
        return 1.0;
    }
    let neighbours: f64 = left.windows(2).map(|it| it[0] * it[1]).sum();
    let correlation = (neighbours / all).clamp(0.0, 0.95);
    (1.0 + correlation) / (1.0 - correlation)
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, Values};
    use super::super::subject::Kind;
    use super::*;

    fn line(value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..50).map(|it| f64::from(it) * 400.0).map(|x| (x, value(x))).collect()
    }

    /// Noise that is the same every time.
    fn noise(x: f64) -> f64 {
        (x * 12.9898).sin() * 43_758.545_3 % 1.0
    }

    #[test]
    fn what_does_not_move_has_no_slope_and_no_noise() {
        let flat = slope(&line(|_| 8.0)).unwrap();
        assert_eq!((flat.per_thousand, flat.noise), (0.0, 0.0));
    }

    #[test]
    fn a_leak_of_one_in_a_hundred_boxes_is_ten_in_a_thousand() {
        let leak = slope(&line(|x| 8.0 + x / 100.0)).unwrap();
        assert!((leak.per_thousand - 10.0).abs() < 1e-9, "{leak:?}");
        assert!(leak.noise < 1e-9, "{leak:?}");
    }

    #[test]
    fn noise_alone_is_not_a_slope_and_a_slope_in_noise_is() {
        let still = slope(&line(|x| 1e6 * noise(x))).unwrap();
        assert!(still.per_thousand.abs() < SURE * still.noise, "{still:?}");
        let leak = slope(&line(|x| 1e6 * noise(x) + 200.0 * x)).unwrap();
        assert!(leak.per_thousand > SURE * leak.noise, "{leak:?}");
        assert!((leak.per_thousand - 2e5).abs() < SURE * leak.noise);
    }

    #[test]
    fn neighbours_that_resemble_each_other_widen_the_noise() {
        assert!(inflation(&[1.0, -1.0, 1.0, -1.0]) < 1.001);
        assert!(inflation(&[-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]) > 2.0);
    }

    #[test]
    fn two_points_or_one_place_have_no_slope() {
        assert_eq!(slope(&[(1.0, 1.0), (2.0, 2.0)]), None);
        assert_eq!(slope(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]), None);
    }

    fn series(measure: Measure, values: &[f64]) -> Series {
        let sample = |boxes: usize, value: f64| Sample {
            boxes: boxes as u64 * 1_000,
            seconds: 0.0,
            settled_after_seconds: 0.0,
            values: Values::from([(measure, value)]),
        };
        let samples = values.iter().enumerate();
        Series {
            subject: Kind::Tare,
            wanted: 0,
            empty: Some(sample(0, 0.0)),
            before: Some(sample(0, values[0])),
            samples: samples.skip(1).map(|(at, it)| sample(at, *it)).collect(),
            emptied: Some(sample(9, 0.0)),
            done: None,
        }
    }

    #[test]
    fn one_process_that_is_left_is_a_complaint_even_if_it_goes_later() {
        let drift = |values: &[f64]| {
            let series = series(Measure::Processes, values);
            Drift::of(Measure::Processes, &series).unwrap()
        };
        assert_eq!(drift(&[8.0, 8.0, 8.0, 8.0]).complaint, None);
        let left = drift(&[8.0, 8.0, 8.0, 9.0]);
        assert_eq!(left.after - left.before, 1.0);
        let complaint = left.complaint.unwrap();
        assert_eq!(complaint, "processes: 9 after 3000 boxes, 8 before");
        assert!(drift(&[8.0, 9.0, 8.0, 8.0]).complaint.is_some());
    }

    #[test]
    fn what_is_left_when_every_box_was_removed_is_a_complaint() {
        let mut series = series(Measure::Cgroups, &[8.0, 8.0]);
        series.emptied.as_mut().unwrap().values.insert(Measure::Cgroups, 1.0);
        let drift = Drift::of(Measure::Cgroups, &series).unwrap();
        assert!(drift.complaint.unwrap().contains("every box was removed"));
    }

    #[test]
    fn what_is_kept_on_purpose_may_grow_up_to_its_bound() {
        let drift = |values: &[f64]| {
            let series = series(Measure::HistoryBytes, values);
            Drift::of(Measure::HistoryBytes, &series).unwrap()
        };
        assert_eq!(drift(&[0.0, 5e6, 67_108_864.0]).complaint, None);
        assert!(drift(&[0.0, 2e8, 5e5]).complaint.is_some());
    }

    #[test]
    fn memory_may_move_but_not_grow() {
        let drift = |values: &[f64]| {
            let series = series(Measure::ChargedBytes, values);
            Drift::of(Measure::ChargedBytes, &series).unwrap()
        };
        let moving: Vec<f64> = (0..40).map(|it| 5e6 + 2e5 * noise(f64::from(it))).collect();
        assert_eq!(drift(&moving).complaint, None);
        let growing: Vec<f64> = (0..40).map(|it| 5e6 + 1e6 * f64::from(it)).collect();
        assert!(drift(&growing).complaint.unwrap().contains("grows by"));
    }
}
