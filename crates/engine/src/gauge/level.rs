//! The level of a gauge, and when it changes. Nothing here measures.
//!
//! ```text
//!           ≥ warn            ≥ alert           ≥ full
//!         ─────────▶        ─────────▶        ─────────▶
//!  normal            warn              alert             full
//!         ◀─────────        ◀─────────        ◀─────────
//!      < warn - margin   < alert - margin   < full - margin
//! ```
//!
//! One measurement can move a gauge by several levels. Between a threshold and its margin, a gauge
//! keeps its level: a gauge that swings around a threshold changes its level once, not at every
//! swing.

use std::fmt;

use crate::error::Error;

/// How full something is, from empty to full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    Normal,
    /// The operator should know.
    Warn,
    /// The operator should act. tare removes everything that it may remove.
    Alert,
    /// No new box is made.
    Full,
}

impl Level {
    pub const ALL: [Self; 4] = [Self::Normal, Self::Warn, Self::Alert, Self::Full];

    /// The name in metrics, events and hooks; it never changes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Warn => "warn",
            Self::Alert => "alert",
            Self::Full => "full",
        }
    }

    /// Returns the level that follows this one when `fraction` of the limit is used.
    pub fn next(self, fraction: f64, thresholds: &Thresholds) -> Self {
        self.clamp(thresholds.level_going_up(fraction), thresholds.level_going_down(fraction))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where the levels begin, in percent of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    warn: u8,
    alert: u8,
    full: u8,
    /// How far below its threshold the levels warn and alert end.
    margin: u8,
    /// How far below its threshold the level full ends.
    full_margin: u8,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { warn: 60, alert: 80, full: 95, margin: 5, full_margin: 5 }
    }
}

impl Thresholds {
    /// Checks that each level can be reached and left.
    pub fn new(warn: u8, alert: u8, full: u8, margin: u8) -> Result<Self, Error> {
        if warn < alert && alert < full && full <= 100 && margin < warn {
            return Ok(Self { warn, alert, full, margin, full_margin: margin });
        }
        let message = format!("cannot use the levels warn {warn}, alert {alert}, full {full}");
        Err(Error::bad_request(message).caused_by(format!(
            "each must be above the one before, warn above {margin}, and full at most 100"
        )))
    }

    /// Returns the thresholds for a maximum that the operator chose. It is full exactly when it is
    /// reached, and not full one below. It needs no margin, because nothing fails at it.
    pub(crate) fn for_chosen_maximum(self) -> Self {
        Self { full: 100, full_margin: 0, ..self }
    }

    /// Returns the highest level whose threshold is reached.
    fn level_going_up(&self, fraction: f64) -> Level {
        level_at(fraction, [self.warn, self.alert, self.full])
    }

    /// Returns the highest level that has not ended.
    fn level_going_down(&self, fraction: f64) -> Level {
        let (warn, alert) = (self.warn - self.margin, self.alert - self.margin);
        level_at(fraction, [warn, alert, self.full - self.full_margin])
    }
}

fn level_at(fraction: f64, [warn, alert, full]: [u8; 3]) -> Level {
    let is_reached = |percent: u8| fraction >= f64::from(percent) / 100.0;
    if is_reached(full) {
        Level::Full
    } else if is_reached(alert) {
        Level::Alert
    } else if is_reached(warn) {
        Level::Warn
    } else {
        Level::Normal
    }
}

#[cfg(test)]
mod tests {
    use super::Level::{Alert, Full, Normal, Warn};
    use super::*;

    /// From a percentage on: what becomes of normal, warn, alert and full.
    const TABLE: [(u8, [Level; 4]); 7] = [
        (0, [Normal, Normal, Normal, Normal]),
        (55, [Normal, Warn, Warn, Warn]),
        (60, [Warn, Warn, Warn, Warn]),
        (75, [Warn, Warn, Alert, Alert]),
        (80, [Alert, Alert, Alert, Alert]),
        (90, [Alert, Alert, Alert, Full]),
        (95, [Full, Full, Full, Full]),
    ];

    fn expected(percent: u8) -> [Level; 4] {
        let row = TABLE.iter().rev().find(|(from, _)| *from <= percent);
        row.unwrap().1
    }

    #[test]
    fn every_level_at_every_percent_follows_the_table() {
        for percent in 0..=120 {
            let fraction = f64::from(percent) / 100.0;
            let next = Level::ALL.map(|old| old.next(fraction, &Thresholds::default()));
            assert_eq!(next, expected(percent), "at {percent} %");
        }
    }

    /// Thirds and sevenths have no exact value; a limit is a number of things.
    #[test]
    fn a_threshold_is_reached_exactly_where_the_numbers_reach_it() {
        let thresholds = Thresholds::default();
        for limit in 1..=700_u32 {
            for used in 0..=limit {
                let next = Normal.next(f64::from(used) / f64::from(limit), &thresholds);
                let reached = |percent: u32| used * 100 >= limit * percent;
                let count = [60, 80, 95].into_iter().filter(|it| reached(*it)).count();
                assert_eq!(next, Level::ALL[count], "{used} of {limit}");
            }
        }
    }

    #[test]
    fn use_that_oscillates_around_a_threshold_changes_the_level_once() {
        let thresholds = Thresholds::default();
        let mut level = Normal;
        let mut changes = 0;
        for swing in 0..100 {
            let fraction = if swing % 2 == 0 { 0.81 } else { 0.76 };
            let next = level.next(fraction, &thresholds);
            changes += usize::from(next != level);
            level = next;
        }
        assert_eq!((level, changes), (Alert, 1));
    }

    #[test]
    fn no_next_level_has_another_next_level() {
        for permille in 0..=1100 {
            let fraction = f64::from(permille) / 1000.0;
            for old in Level::ALL {
                let next = old.next(fraction, &Thresholds::default());
                assert_eq!(next, next.next(fraction, &Thresholds::default()));
            }
        }
    }

    #[test]
    fn more_than_the_limit_is_full() {
        for fraction in [1.0, 7.5, f64::INFINITY] {
            assert_eq!(Normal.next(fraction, &Thresholds::default()), Full);
        }
    }

    #[test]
    fn a_chosen_maximum_is_full_where_it_is_reached_and_nowhere_else() {
        let thresholds = Thresholds::default().for_chosen_maximum();
        let mut level = Normal;
        let mut next = |used: u32| {
            level = level.next(f64::from(used) / 1000.0, &thresholds);
            level
        };
        let levels = [599, 600, 599, 999, 1000, 999, 749].map(&mut next);
        assert_eq!(levels, [Normal, Warn, Warn, Alert, Full, Alert, Warn]);
    }

    #[test]
    fn equal_or_unreachable_thresholds_are_refused() {
        assert!(Thresholds::new(60, 80, 95, 5).is_ok());
        assert!(Thresholds::new(10, 20, 100, 0).is_ok());
        for (warn, alert, full, margin) in
            [(80, 80, 95, 5), (60, 96, 95, 5), (60, 80, 101, 5), (5, 80, 95, 5), (0, 80, 95, 0)]
        {
            let refused = Thresholds::new(warn, alert, full, margin);
            assert!(refused.is_err(), "{warn} {alert} {full} {margin}");
        }
    }
}
