//! A measurement of all gauges, and whether it leaves room for a new box.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use tare_engine::{Change, Context, Engine, Error, Gauge, GaugeSettings, GaugedUse, Gauges};
use tare_engine::{Level, Reading, Thresholds};

use crate::admission::Work;
use crate::admission::places::{Places, UseOfBoxes};
use crate::admission::promise::{LiveBox, NoFit, Promise, check_fit};
use crate::error::{PRESSURE, ServiceError};

/// The most descriptors that a box takes during its creation.
const DESCRIPTORS_TO_MAKE: u64 = 24;

#[derive(Debug)]
pub struct Measurement {
    pub at: Instant,
    pub readings: Vec<(Reading, Level)>,
    pub threads: u64,
    pub resident_bytes: u64,
    /// Every limit. A gauge may have several.
    pub limits: Vec<Reading>,
    /// What boxes use. Empty if promises and use together are far from every limit.
    pub used: UseOfBoxes,
}

impl Measurement {
    /// Checks that no gauge is full, and that there are descriptors for one more box beside those
    /// that are being created. The gauge `boxes` is checked elsewhere.
    pub fn check(&self, in_creation: u64) -> Result<(), ServiceError> {
        let full = self.readings.iter().filter(|(_, level)| *level == Level::Full);
        let full = full.map(|(reading, _)| reading);
        let full = full.filter(|reading| reading.gauge != Gauge::Boxes);
        let fullest = full.max_by(|one, other| one.fraction().total_cmp(&other.fraction()));
        match fullest {
            Some(reading) => Err(refused(reading)),
            None => self.check_descriptors(in_creation + 1),
        }
    }

    /// Checks that the descriptors beyond the reserve are enough to create so many boxes.
    fn check_descriptors(&self, boxes: u64) -> Result<(), ServiceError> {
        let mut readings = self.readings.iter().map(|(reading, _)| reading);
        let Some(own) = readings.find(|reading| reading.gauge == Gauge::DescriptorsProcess) else {
            return Ok(());
        };
        let needed = boxes.saturating_mul(DESCRIPTORS_TO_MAKE);
        if own.used.saturating_add(needed) <= own.limit {
            return Ok(());
        }
        let mut error = refused(own);
        error.message = format!("{}, and more are needed", error.message);
        Err(error)
    }
}

/// The error for a full gauge. It does not say where the limit is set, because that names paths of
/// the host.
pub fn refused(reading: &Reading) -> ServiceError {
    let Reading { gauge, used, limit, .. } = reading;
    let message = format!("no room for a new box: {used} of {limit} {gauge} in use");
    let mut error = ServiceError::unavailable(PRESSURE, message)
        .with_hint("try again later; boxes that end or are removed make room");
    error.refused_for = Some(gauge.as_str());
    error.detail = Some(reading.to_string().into());
    error
}

/// The error for a box that does not fit beside what other boxes were promised.
pub fn does_not_fit(why: &NoFit<'_>) -> ServiceError {
    let NoFit { reading, wanted, promised, .. } = why;
    let mut error = refused(reading);
    error.message = format!(
        "{}, {promised} more are promised to boxes, and this one needs {wanted}",
        error.message
    );
    error
}

/// Measures. It keeps every file open, so that it works when no descriptor is left.
pub struct Meter {
    engine: Arc<Engine>,
    gauges: Gauges,
    /// `/proc/self/status`.
    status: File,
}

impl Meter {
    pub fn open(engine: Arc<Engine>, settings: GaugeSettings) -> Result<Self, Error> {
        let status = File::open("/proc/self/status");
        let status = status.context(|| "cannot open /proc/self/status".to_owned())?;
        Ok(Self { gauges: engine.gauges(settings)?, engine, status })
    }

    /// Measures, and returns each change of a level. Reads the use of each box only when space is
    /// short. Gauges and boxes cannot be read at the same instant, so each box is read before and
    /// after the gauges, and the smaller number counts.
    pub fn measure(
        &mut self,
        places: &Places,
        settings: GaugeSettings,
    ) -> (Measurement, Vec<Change>) {
        self.gauges.configure(settings);
        self.gauges.count_live(places.lock().count());
        let mut changes = self.gauges.measure();
        if !self.is_tight(places, &settings.thresholds) {
            return (self.measurement(UseOfBoxes::new()), changes);
        }
        let before = places.measure_use(&self.engine);
        changes.extend(self.gauges.measure());
        let mut used = places.measure_use(&self.engine);
        for (number, after) in &mut used {
            let before = before.get(number).copied().unwrap_or_default();
            after.pids = after.pids.min(before.pids);
            after.memory_bytes = after.memory_bytes.min(before.memory_bytes);
        }
        (self.measurement(used), changes)
    }

    /// Returns whether it matters what each box uses: one more box, as large as the largest, would
    /// not fit if all promises were added to what is used.
    fn is_tight(&self, places: &Places, thresholds: &Thresholds) -> bool {
        let boxes = places.lock().live_boxes(&UseOfBoxes::new());
        let largest =
            |part: fn(&Promise) -> u64| boxes.iter().map(|it| part(&it.promise)).max().unwrap_or(0);
        let promise =
            Promise { pids: largest(|it| it.pids), memory_bytes: largest(|it| it.memory_bytes) };
        let fits = |work| {
            let new = LiveBox { work, promise, used: GaugedUse::default() };
            check_fit(self.gauges.limits(), thresholds, &boxes, &new).is_ok()
        };
        !(boxes.is_empty() || (fits(Work::Run) && fits(Work::Box)))
    }

    fn measurement(&self, used: UseOfBoxes) -> Measurement {
        let readings = self.gauges.readings();
        let readings = readings.map(|(reading, level)| (reading.clone(), level));
        let mut buffer = [0; 4096];
        let length = self.status.read_at(&mut buffer, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..length]);
        let (threads, resident_bytes) = own_size(&text).unwrap_or_default();
        Measurement {
            at: Instant::now(),
            readings: readings.collect(),
            threads,
            resident_bytes,
            limits: self.gauges.limits().to_vec(),
            used,
        }
    }
}

/// Threads and resident memory (proc_pid_status(5)).
fn own_size(status: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some((field("Threads:")?, field("VmRSS:")? << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(gauge: Gauge, used: u64, level: Level) -> (Reading, Level) {
        (Reading::new(gauge, used, 100, "/secret/path"), level)
    }

    fn measurement(readings: Vec<(Reading, Level)>) -> Measurement {
        Measurement {
            at: Instant::now(),
            readings,
            threads: 0,
            resident_bytes: 0,
            limits: Vec::new(),
            used: UseOfBoxes::new(),
        }
    }

    #[test]
    fn a_refusal_names_the_fullest_gauge_and_no_path_of_the_host() {
        let measurement = measurement(vec![
            at(Gauge::PidsHost, 95, Level::Full),
            at(Gauge::DiskBytes, 99, Level::Full),
            at(Gauge::Boxes, 100, Level::Full),
            at(Gauge::MemoryHost, 94, Level::Alert),
        ]);
        let refusal = measurement.check(0).expect_err("two are full");
        assert_eq!(refusal.code, "pressure");
        assert!(refusal.message.ends_with("99 of 100 disk_bytes in use"));
        assert!(!refusal.message.contains("secret") && refusal.retry_after_s.is_some());
    }

    #[test]
    fn boxes_that_are_being_made_need_descriptors_too() {
        let measurement = measurement(vec![at(Gauge::DescriptorsProcess, 50, Level::Normal)]);
        assert!(measurement.check(1).is_ok());
        assert!(measurement.check(2).is_err());
    }

    #[test]
    fn a_process_knows_its_own_size() {
        let status = std::fs::read_to_string("/proc/self/status").expect("proc");
        let (threads, resident_bytes) = own_size(&status).expect("a size");
        assert!(threads >= 1 && resident_bytes > 1 << 16);
    }
}
