//! The gauge thread and its last measurement: whether a new box may begin.
//!
//! | level | what follows |
//! |---|---|
//! | warn | an event, once |
//! | alert | the same, and cleanup begins at once |
//! | full | the same, and new boxes are refused |
//!
//! A full gauge refuses only new boxes. The thread starts with the server and keeps every file
//! open, so that it can measure when no descriptor is left.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tare_engine::{Change, Gauge, GaugeSettings, Gauges, Level, Reading};
use tokio::sync::{mpsc, watch};

use crate::error::ServiceError;

/// How often the thread measures without a request.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// A younger measurement is used without a new one.
const FRESH_FOR: Duration = Duration::from_millis(50);
/// The time limit for a new measurement. After it, the last one counts.
const FRESH_WITHIN: Duration = Duration::from_secs(1);
/// The most descriptors that a box takes during its creation.
const DESCRIPTORS_TO_MAKE: u64 = 24;

#[derive(Debug, Clone)]
pub struct Pressure(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    found: watch::Sender<Arc<Found>>,
    wanted: SyncSender<()>,
    settings: Mutex<GaugeSettings>,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// Boxes that exist or are being created.
    taken: u64,
    /// Boxes that are being created.
    making: u64,
}

/// The last measurement.
#[derive(Debug)]
pub struct Found {
    pub at: Instant,
    pub readings: Vec<(Reading, Level)>,
    pub threads: u64,
    pub resident_bytes: u64,
}

impl Pressure {
    /// Starts the thread. `changes` receives each level change once.
    pub fn start(
        gauges: Gauges,
        settings: GaugeSettings,
        changes: mpsc::Sender<Change>,
    ) -> io::Result<Self> {
        // One waiting request is enough for all.
        let (wanted, asked) = sync_channel(1);
        let mut meter = Meter { gauges, status: File::open("/proc/self/status")? };
        meter.gauges.count_live(0);
        meter.gauges.measure();
        let pressure = Self(Arc::new(Shared {
            found: watch::Sender::new(Arc::new(meter.found())),
            wanted,
            settings: Mutex::new(settings),
            places: Mutex::default(),
        }));
        let shared = Arc::clone(&pressure.0);
        let thread = std::thread::Builder::new().name("gauges".into());
        thread.spawn(move || shared.measure_again(meter, &asked, &changes))?;
        Ok(pressure)
    }

    pub fn configure(&self, settings: GaugeSettings) {
        let mut held = lock(&self.0.settings);
        *held = settings;
        drop(held);
        self.0.wanted.try_send(()).ok();
    }

    /// The measurement of the last second.
    pub fn found(&self) -> Arc<Found> {
        Arc::clone(&self.0.found.borrow())
    }

    /// Boxes that exist or are being created.
    pub fn boxes_live(&self) -> u64 {
        lock(&self.0.places).taken
    }

    /// The place of a box that exists already.
    pub fn place_of_existing(&self) -> Place {
        lock(&self.0.places).taken += 1;
        Place { of: self.clone(), is_made: true }
    }

    /// Returns a place for one more box, or the reason why there is none.
    pub async fn place(&self) -> Result<Place, ServiceError> {
        let found = self.fresh().await;
        if let Ok(place) = self.take_place(&found) {
            return Ok(place);
        }
        // The measurement may not contain a box that has just ended.
        tokio::time::sleep(FRESH_FOR).await;
        let found = self.fresh().await;
        self.take_place(&found)
    }

    /// Takes a place. The maximum of boxes is exact, independent of measurements.
    fn take_place(&self, found: &Found) -> Result<Place, ServiceError> {
        let boxes_max = lock(&self.0.settings).boxes_max;
        let mut places = lock(&self.0.places);
        let used = places.taken;
        if let Some(limit) = boxes_max.filter(|most| used >= *most) {
            return Err(refused(&Reading {
                gauge: Gauge::Boxes,
                used,
                limit,
                limit_is: "the configured maximum of boxes".to_owned(),
            }));
        }
        found.admits(places.making)?;
        places.taken += 1;
        places.making += 1;
        Ok(Place { of: self.clone(), is_made: false })
    }

    async fn fresh(&self) -> Arc<Found> {
        let mut newest = self.0.found.subscribe();
        let known = Arc::clone(&newest.borrow_and_update());
        if known.at.elapsed() < FRESH_FOR {
            return known;
        }
        self.0.wanted.try_send(()).ok();
        let newer = tokio::time::timeout(FRESH_WITHIN, newest.changed());
        newer.await.ok();
        let newest = newest.borrow();
        Arc::clone(&newest)
    }
}

impl Shared {
    fn measure_again(&self, mut meter: Meter, asked: &Receiver<()>, told: &mpsc::Sender<Change>) {
        loop {
            match asked.recv_timeout(MEASURE_EVERY) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            meter.gauges.configure(*lock(&self.settings));
            meter.gauges.count_live(lock(&self.places).taken);
            let changes = meter.gauges.measure();
            self.found.send_replace(Arc::new(meter.found()));
            for change in changes {
                // The receiver is gone when the server ends.
                told.blocking_send(change).ok();
            }
        }
    }
}

/// A box that counts until this is dropped.
#[derive(Debug)]
pub struct Place {
    of: Pressure,
    is_made: bool,
}

impl Place {
    /// The box is created: from now on, measurements contain its descriptors.
    pub fn made(&mut self) {
        if !self.is_made {
            self.is_made = true;
            lock(&self.of.0.places).making -= 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.made();
        lock(&self.of.0.places).taken -= 1;
    }
}

impl Found {
    /// Whether there is space for one more box beside those that are being created. The gauge
    /// `boxes` is checked elsewhere.
    pub fn admits(&self, making: u64) -> Result<(), ServiceError> {
        let full = self.readings.iter().filter(|(_, level)| *level == Level::Full);
        let full = full.map(|(reading, _)| reading);
        let full = full.filter(|reading| reading.gauge != Gauge::Boxes);
        let fullest = full.max_by(|one, other| one.fraction().total_cmp(&other.fraction()));
        match fullest {
            Some(reading) => Err(refused(reading)),
            None => self.has_descriptors_for(making + 1),
        }
    }

    /// Whether the descriptors beyond the reserve are enough for the boxes that are being created.
    fn has_descriptors_for(&self, boxes: u64) -> Result<(), ServiceError> {
        let Some(own) = self.of(Gauge::DescriptorsProcess) else {
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

    pub fn of(&self, gauge: Gauge) -> Option<&Reading> {
        let mut readings = self.readings.iter().map(|(reading, _)| reading);
        readings.find(|reading| reading.gauge == gauge)
    }
}

/// The error for a full gauge. It does not say where the limit is set, because that names paths of
/// the host.
fn refused(reading: &Reading) -> ServiceError {
    let Reading { gauge, used, limit, .. } = reading;
    let message = format!("no room for a new box: {gauge} is at {used} of {limit}");
    let mut error = ServiceError::unavailable("pressure", message)
        .with_hint("try again later; boxes that end or are removed make room");
    error.refused_for = Some(gauge.as_str());
    error.detail = Some(reading.to_string());
    error
}

struct Meter {
    gauges: Gauges,
    status: File,
}

impl Meter {
    fn found(&self) -> Found {
        let readings = self.gauges.readings();
        let readings = readings.map(|(reading, level)| (reading.clone(), level));
        let mut buffer = [0; 4096];
        let length = self.status.read_at(&mut buffer, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..length]);
        let (threads, resident_bytes) = own_size(&text).unwrap_or_default();
        Found { at: Instant::now(), readings: readings.collect(), threads, resident_bytes }
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(gauge: Gauge, used: u64, level: Level) -> (Reading, Level) {
        let reading = Reading { gauge, used, limit: 100, limit_is: "/secret/path".to_owned() };
        (reading, level)
    }

    fn found(readings: Vec<(Reading, Level)>) -> Found {
        Found { at: Instant::now(), readings, threads: 0, resident_bytes: 0 }
    }

    #[test]
    fn a_refusal_names_the_fullest_gauge_and_no_path_of_the_host() {
        let found = found(vec![
            at(Gauge::PidsHost, 95, Level::Full),
            at(Gauge::DiskBytes, 99, Level::Full),
            at(Gauge::Boxes, 100, Level::Full),
            at(Gauge::MemoryHost, 94, Level::Alert),
        ]);
        let refusal = found.admits(0).expect_err("two are full");
        assert_eq!(refusal.code, "pressure");
        assert!(refusal.message.ends_with("disk_bytes is at 99 of 100"));
        assert!(!refusal.message.contains("secret") && refusal.retry_after_s.is_some());
    }

    #[test]
    fn boxes_that_are_being_made_need_descriptors_too() {
        let found = found(vec![at(Gauge::DescriptorsProcess, 50, Level::Normal)]);
        assert!(found.admits(1).is_ok());
        assert!(found.admits(2).is_err());
    }

    #[test]
    fn a_process_knows_its_own_size() {
        let status = std::fs::read_to_string("/proc/self/status").expect("proc");
        let (threads, resident_bytes) = own_size(&status).expect("a size");
        assert!(threads >= 1 && resident_bytes > 1 << 16);
    }
}
