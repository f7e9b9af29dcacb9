//! Percentiles, the exponent of growth, and the order of subjects.

/// Returns a percentile by nearest rank, so it is a value that was measured. `None` without values.
pub fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

pub fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 50)
}

/// Fits `y = a * x^e` by least squares on logarithms, and returns `e`: 1 is linear growth.
pub fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logs.len() as f64;
    let mean_x = logs.iter().map(|it| it.0).sum::<f64>() / count;
    let mean_y = logs.iter().map(|it| it.1).sum::<f64>() / count;
    let together: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let alone: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (alone > 0.0).then(|| together / alone).filter(|it| it.is_finite())
}

/// SplitMix64: good enough for the order of subjects and for the mix of a soak.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn shuffle(&mut self, order: &mut [usize]) {
        for last in (1..order.len()).rev() {
            let other = (self.next() % (last as u64 + 1)) as usize;
            order.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 0), Some(1.0));
        assert_eq!(percentile(&values, 50), Some(100.0));
        assert_eq!(percentile(&values, 99), Some(198.0));
        assert_eq!(percentile(&values, 100), Some(200.0));
        assert_eq!(median(&[4.0, 1.0]), Some(1.0));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn the_exponent_of_a_power_is_found() {
        let points = |of: fn(f64) -> f64| [10.0, 100.0, 5_000.0].map(|x| (x, of(x)));
        let close = |found: Option<f64>, expected: f64| {
            assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?}, not {expected}");
        };
        close(exponent(&points(|x| 3.0 * x)), 1.0);
        close(exponent(&points(|x| 0.5 * x * x)), 2.0);
        close(exponent(&points(|_| 7.0)), 0.0);
    }

    #[test]
    fn one_point_and_a_time_of_zero_have_no_exponent() {
        assert_eq!(exponent(&[(10.0, 1.0)]), None);
        assert_eq!(exponent(&[]), None);
        assert_eq!(exponent(&[(10.0, 0.0), (100.0, 1.0)]), None);
    }

    #[test]
    fn a_shuffle_keeps_each_subject_and_changes_the_order() {
        let mut random = Random(1);
        let mut order = [0, 1, 2, 3];
        let mut changed = false;
        for _ in 0..20 {
            random.shuffle(&mut order);
            changed |= order != [0, 1, 2, 3];
            let mut sorted = order;
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
        }
        assert!(changed);
    }
}
