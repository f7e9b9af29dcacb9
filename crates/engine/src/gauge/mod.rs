//! Gauges: how near this host and this process are to the end of what they have, and
//! what follows from it for new boxes.
//!
//! [`Gauges`] finds limits by itself, at each measurement: what an operator changes
//! counts at once. Everything that it reads is open ahead of time, because the moment
//! in which nothing can be opened is the one it is for. It changes nothing, remembers
//! levels only, and refuses nothing but new boxes: whoever stops or removes one, or
//! works in one that runs, does not ask here.
//!
//! One file for each kind of thing that is measured; [`level`] decides what the
//! numbers mean, and has the diagram.

mod descriptors;
mod entries;
mod held;
mod level;
mod membership;
mod memory;
mod pids;
mod reading;
mod spare;
mod state_root;

use std::collections::BTreeMap;
use std::fmt;

pub use crate::gauge::level::{Level, Thresholds};
pub use crate::gauge::reading::{Gauge, Reading, Unit};

use crate::engine::Engine;
use crate::error::{Context, Error};
use crate::gauge::descriptors::{HostDescriptors, OwnDescriptors};
use crate::gauge::membership::Membership;
use crate::gauge::memory::Memory;
use crate::gauge::pids::{HostPids, UserPids};
use crate::gauge::state_root::StateRoot;
use crate::record;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GaugeSettings {
    pub thresholds: Thresholds,
    /// `None`: as many boxes as there is room for.
    pub boxes_max: Option<u64>,
    /// Descriptors of this process that are not for new boxes.
    pub descriptors_reserved: u64,
}

#[derive(Debug)]
pub struct Gauges {
    sources: Sources,
    levels: Levels,
}

/// A gauge that has come to another level. Each change is told once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub gauge: Gauge,
    pub from: Level,
    pub to: Level,
    /// `None`: there is nothing to measure any more, as when a limit was lifted.
    pub reading: Option<Reading>,
}

/// Why there is no new box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reading: Reading,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no room for a new box: {}", self.reading)
    }
}

impl std::error::Error for Refusal {}

impl Engine {
    /// Opens everything that gauges of this process and this state root need, and
    /// measures nothing yet.
    pub fn gauges(&self, settings: GaugeSettings) -> Result<Gauges, Error> {
        let root = self.root.layout.root().display();
        let boxes = record::open_all(&self.root.layout)
            .context(|| format!("cannot open the boxes of {root} to measure them"))?;
        let state_root = StateRoot { boxes, boxes_max: None, boxes_live: None };
        let mut gauges = Gauges {
            sources: Sources::open(state_root, self.root.host.is_in_first_user_namespace()),
            levels: Levels::new(settings.thresholds),
        };
        gauges.configure(settings);
        Ok(gauges)
    }
}

impl Gauges {
    /// From the next measurement on; what is known stays known.
    pub fn configure(&mut self, settings: GaugeSettings) {
        self.levels.thresholds = settings.thresholds;
        self.sources.state_root.boxes_max = settings.boxes_max;
        if let Some(own) = &mut self.sources.own_descriptors {
            own.reserved = settings.descriptors_reserved;
        }
    }

    /// How many boxes live, from somebody who knows: without it every record counts,
    /// also those of boxes that have ended.
    pub fn count_live(&mut self, boxes: u64) {
        self.sources.state_root.boxes_live = Some(boxes);
    }

    /// Measures everything that there is, and returns what has changed.
    pub fn measure(&mut self) -> Vec<Change> {
        let readings = self.sources.read();
        self.levels.update(readings)
    }

    /// What was measured last, with what that means.
    pub fn readings(&self) -> impl Iterator<Item = (&Reading, Level)> {
        self.levels.known.values().map(|(it, level)| (it, *level))
    }

    pub fn reading(&self, gauge: Gauge) -> Option<&Reading> {
        self.levels.known.get(&gauge).map(|(reading, _)| reading)
    }

    /// The highest of all.
    pub fn level(&self) -> Level {
        let levels = self.readings().map(|(_, level)| level);
        levels.max().unwrap_or(Level::Normal)
    }

    /// Whether a new box may be made, by what was measured last.
    pub fn admits(&self) -> Result<(), Refusal> {
        self.levels.admits()
    }
}

/// Everything that is read, open. What this host does not have is absent.
#[derive(Debug)]
struct Sources {
    membership: Membership,
    host_pids: Option<HostPids>,
    user_pids: Option<UserPids>,
    own_descriptors: Option<OwnDescriptors>,
    host_descriptors: Option<HostDescriptors>,
    memory: Option<Memory>,
    state_root: StateRoot,
}

impl Sources {
    fn open(state_root: StateRoot, in_first_user_namespace: bool) -> Self {
        Self {
            membership: Membership::open(),
            host_pids: HostPids::open(),
            user_pids: UserPids::open(in_first_user_namespace),
            own_descriptors: OwnDescriptors::open(),
            host_descriptors: HostDescriptors::open(),
            memory: Memory::open(),
            state_root,
        }
    }

    fn read(&mut self) -> Vec<Reading> {
        self.membership.follow();
        let mut readings = Vec::with_capacity(Gauge::ALL.len());
        readings.extend(pids::of_cgroup(&self.membership));
        readings.extend(self.user_pids.as_mut().and_then(UserPids::read));
        readings.extend(self.host_pids.as_ref().and_then(HostPids::read));
        readings.extend(self.own_descriptors.as_ref().and_then(OwnDescriptors::read));
        readings.extend(self.host_descriptors.as_ref().and_then(HostDescriptors::read));
        if let Some(memory) = &self.memory {
            memory.read(&self.membership, &mut readings);
        }
        self.state_root.read(&mut readings);
        readings
    }
}

/// What was measured last of each gauge, and the level that it is at. Pure.
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
        match gauge {
            Gauge::Boxes => self.thresholds.for_chosen_maximum(),
            Gauge::PidsCgroup
            | Gauge::PidsUser
            | Gauge::PidsHost
            | Gauge::DescriptorsProcess
            | Gauge::DescriptorsHost
            | Gauge::MemoryCgroup
            | Gauge::MemoryHost
            | Gauge::MemoryPressureCgroup
            | Gauge::MemoryPressureHost
            | Gauge::DiskBytes
            | Gauge::DiskInodes
            | Gauge::Scratch => self.thresholds,
        }
    }

    /// The fullest gauge is the reason.
    fn admits(&self) -> Result<(), Refusal> {
        let full = self.known.values().filter(|(_, level)| *level == Level::Full);
        let readings = full.map(|(reading, _)| reading);
        let fullest = readings.max_by(|one, other| one.fraction().total_cmp(&other.fraction()));
        match fullest {
            None => Ok(()),
            Some(reading) => Err(Refusal { reading: reading.clone() }),
        }
    }
}

/// What is not measured any more is in nobody's way.
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
    fn a_change_is_told_once() {
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
        assert!(levels.admits().is_err());
        let changes = levels.update(Vec::new());
        assert_eq!(steps(&changes), [(Gauge::PidsCgroup, Level::Full, Level::Normal)]);
        assert_eq!(changes[0].reading, None);
        assert_eq!(levels.admits(), Ok(()));
    }

    #[test]
    fn only_a_full_gauge_refuses_a_box_and_the_fullest_is_the_reason() {
        let mut levels = Levels::new(Thresholds::default());
        levels.update(vec![at(Gauge::PidsHost, 94), at(Gauge::DiskBytes, 80)]);
        assert_eq!(levels.admits(), Ok(()));
        levels.update(vec![at(Gauge::PidsHost, 95), at(Gauge::DiskBytes, 99)]);
        let refusal = levels.admits().unwrap_err();
        assert_eq!(refusal.reading, at(Gauge::DiskBytes, 99));
        assert_eq!(
            refusal.to_string(),
            "no room for a new box: disk_bytes: 99 of 100 bytes (a limit)"
        );
    }

    /// Boxes are made again when there is room, and not at the first that ends.
    #[test]
    fn a_refusal_lasts_until_the_margin_is_passed() {
        let mut levels = Levels::new(Thresholds::default());
        let mut admitted = |percent| {
            levels.update(vec![at(Gauge::PidsHost, percent)]);
            levels.admits().is_ok()
        };
        let seen = [94, 95, 94, 90, 89, 94].map(&mut admitted);
        assert_eq!(seen, [true, false, false, false, true, true]);
    }
}
