//! Gauges: how near this host and this process are to their limits.
//!
//! [`Gauges`] finds the limits at each measurement, so a limit that an operator changes counts at
//! once. It opens everything that it reads ahead of time, because it must work when nothing more can
//! be opened. It changes nothing on the host and remembers only levels. Only new boxes need room:
//! stopping and removing a box, and working in a box that runs, never ask a gauge.
//!
//! `sources` and `cgroups` measure, `reading` has the table of gauges, `level` decides what the
//! numbers mean.

mod cgroups;
mod level;
mod reading;
mod reserve;
mod sources;

use std::collections::BTreeMap;

pub use crate::gauge::level::{Level, Thresholds};
pub use crate::gauge::reading::{Counts, Gauge, Reading, Unit};

use std::os::fd::OwnedFd;

use crate::gauge::cgroups::OwnCgroups;
use crate::gauge::sources::{HostFiles, OwnDescriptors, StateRootGauges, UserPids};
use crate::host::layout::StateRoot;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GaugeSettings {
    pub thresholds: Thresholds,
    /// The largest number of boxes; `None`: as many as there is room for.
    pub boxes_max: Option<u64>,
    /// Descriptors of this process that are not for new boxes.
    pub descriptors_reserved: u64,
}

#[derive(Debug)]
pub struct Gauges {
    sources: GaugeSources,
    levels: Levels,
    /// The last measurement of every limit. A gauge may have several.
    limits: Vec<Reading>,
}

/// A gauge whose level changed. Each change is reported once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub gauge: Gauge,
    pub from: Level,
    pub to: Level,
    /// `None`: there is nothing to measure any more, for example because a limit was removed.
    pub reading: Option<Reading>,
}

impl Gauges {
    /// Opens everything that the gauges of this process and of one state root need, and measures
    /// nothing yet. `boxes` is the directory of the records.
    pub(crate) fn open(boxes: OwnedFd, root: &StateRoot, settings: GaugeSettings) -> Self {
        let sources = GaugeSources {
            cgroups: OwnCgroups::open(root),
            host: HostFiles::open(),
            user_pids: UserPids::open(root.host.is_in_first_user_namespace()),
            own_descriptors: OwnDescriptors::open(),
            state_root: StateRootGauges { boxes, boxes_max: None, boxes_live: None },
        };
        let levels = Levels::new(settings.thresholds);
        let mut gauges = Self { sources, levels, limits: Vec::new() };
        gauges.configure(settings);
        gauges
    }

    /// Changes the settings from the next measurement on. The known readings stay.
    pub fn configure(&mut self, settings: GaugeSettings) {
        self.levels.thresholds = settings.thresholds;
        self.sources.state_root.boxes_max = settings.boxes_max;
        if let Some(own) = &mut self.sources.own_descriptors {
            own.reserved = settings.descriptors_reserved;
        }
    }

    /// Sets the number of live boxes. Without it every record counts, also those of ended boxes.
    pub fn count_live(&mut self, boxes: u64) {
        self.sources.state_root.boxes_live = Some(boxes);
    }

    /// Measures everything, and returns the levels that changed.
    pub fn measure(&mut self) -> Vec<Change> {
        self.limits = self.sources.read();
        self.levels.update(fullest_of_each(&self.limits))
    }

    /// Returns the last measurement of every limit. Each cgroup around this process has a limit;
    /// [`Self::readings`] has only the fullest of them.
    pub fn limits(&self) -> &[Reading] {
        &self.limits
    }

    /// Returns the last measurement of each gauge, with its level.
    pub fn readings(&self) -> impl Iterator<Item = (&Reading, Level)> {
        self.levels.known.values().map(|(it, level)| (it, *level))
    }
}

/// Returns the fullest reading of each gauge.
fn fullest_of_each(readings: &[Reading]) -> Vec<Reading> {
    let mut fullest: BTreeMap<Gauge, &Reading> = BTreeMap::new();
    for reading in readings {
        let known = fullest.entry(reading.gauge).or_insert(reading);
        if reading.fraction() > known.fraction() {
            *known = reading;
        }
    }
    fullest.into_values().cloned().collect()
}

/// Everything that is read, open. A source that this host does not have is absent.
#[derive(Debug)]
struct GaugeSources {
    cgroups: OwnCgroups,
    host: HostFiles,
    user_pids: Option<UserPids>,
    own_descriptors: Option<OwnDescriptors>,
    state_root: StateRootGauges,
}

impl GaugeSources {
    fn read(&mut self) -> Vec<Reading> {
        let mut readings: Vec<Reading> = self.host.read().collect();
        let mut of_host = readings.iter().filter(|it| it.gauge == Gauge::MemoryHost);
        let host_bytes = of_host.next().map(|reading| reading.limit);
        readings.extend(self.cgroups.read(host_bytes));
        readings.extend(self.user_pids.as_mut().and_then(UserPids::read));
        readings.extend(self.own_descriptors.as_ref().and_then(OwnDescriptors::read));
        readings.extend(self.state_root.read());
        readings
    }
}

/// The last measurement and the level of each gauge. It measures nothing itself.
#[derive(Debug)]
struct Levels {
    thresholds: Thresholds,
    known: BTreeMap<Gauge, (Reading, Level)>,
}

impl Levels {
    fn new(thresholds: Thresholds) -> Self {
        let known = BTreeMap::new();
        Self { thresholds, known }
    }

    fn update(&mut self, readings: Vec<Reading>) -> Vec<Change> {
        let mut before = std::mem::take(&mut self.known);
        let mut changes = Vec::new();
        for reading in readings {
            let gauge = reading.gauge;
            let from = before.remove(&gauge).map_or(Level::Normal, |it| it.1);
            let to = from.next(reading.fraction(), &self.thresholds_of(gauge));
            if from != to {
                let reading = Some(reading.clone());
                changes.push(Change { gauge, from, to, reading });
            }
            self.known.insert(gauge, (reading, to));
        }
        changes.extend(before.into_iter().filter_map(|(gauge, (_, from))| gone(gauge, from)));
        changes
    }

    fn thresholds_of(&self, gauge: Gauge) -> Thresholds {
        if gauge == Gauge::Boxes { self.thresholds.for_chosen_maximum() } else { self.thresholds }
    }
}

/// A gauge that is no longer measured returns to normal.
fn gone(gauge: Gauge, from: Level) -> Option<Change> {
    let change = Change { gauge, from, to: Level::Normal, reading: None };
    (from != Level::Normal).then_some(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(gauge: Gauge, percent: u64) -> Reading {
        Reading::new(gauge, percent, 100, "a limit")
    }

    fn steps(changes: &[Change]) -> Vec<(Gauge, Level, Level)> {
        let step = |it: &Change| (it.gauge, it.from, it.to);
        changes.iter().map(step).collect()
    }

    #[test]
    fn a_level_change_is_reported_once() {
        let mut levels = Levels::new(Thresholds::default());
        let full = || vec![at(Gauge::PidsHost, 96), at(Gauge::Boxes, 10)];
        let changes = levels.update(full());
        assert_eq!(steps(&changes), [(Gauge::PidsHost, Level::Normal, Level::Full)]);
        assert_eq!(changes[0].reading, Some(at(Gauge::PidsHost, 96)));
        assert_eq!(levels.update(full()), []);
    }

    #[test]
    fn a_gauge_that_is_gone_is_normal_again() {
        let mut levels = Levels::new(Thresholds::default());
        levels.update(vec![at(Gauge::PidsCgroup, 97), at(Gauge::Boxes, 10)]);
        let changes = levels.update(Vec::new());
        assert_eq!(steps(&changes), [(Gauge::PidsCgroup, Level::Full, Level::Normal)]);
        assert_eq!(changes[0].reading, None);
    }
}
