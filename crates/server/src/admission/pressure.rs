//! The gauge thread and its last measurement: whether a new box may begin.
//!
//! | level | what follows |
//! |---|---|
//! | warn | an event, once |
//! | alert | the same, and cleanup begins at once |
//! | full | the same, and new boxes are refused |
//!
//! A full gauge refuses only new boxes, and so does a limit that a new box would not fit into
//! beside what other boxes were promised (`promise`). The thread starts with the server and keeps every file
//! open, so that it can measure when no descriptor is left.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tare_engine::{BoxId, Change, Context, Engine, Error, Gauge, GaugeSettings, GaugedUse, Gauges};
use tare_engine::{Level, Reading, Thresholds};
use tokio::sync::{Notify, mpsc, watch};

use crate::admission::Work;
use crate::admission::promise::{self, NoFit, Party, Promise, check_fit};
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
    /// Held by the run that is next to get room.
    next_run: tokio::sync::Mutex<()>,
    /// Runs that wait for room.
    runs_waiting: AtomicUsize,
    /// Told when a place is free again.
    released: Notify,
}

#[derive(Debug, Default)]
struct Places {
    /// Boxes that exist or are being created.
    taken: BTreeMap<PlaceNumber, Taken>,
    next: PlaceNumber,
}

type PlaceNumber = u64;

#[derive(Debug)]
struct Taken {
    work: Work,
    promise: Promise,
    /// `None` while the box is being created.
    id: Option<BoxId>,
}

impl Places {
    fn take(&mut self, taken: Taken) -> PlaceNumber {
        let number = self.next;
        self.next += 1;
        self.taken.insert(number, taken);
        number
    }

    fn making(&self) -> u64 {
        self.taken.values().filter(|it| it.id.is_none()).count() as u64
    }

    fn parties(&self, used: &BTreeMap<PlaceNumber, GaugedUse>) -> Vec<Party> {
        let party = |(number, it): (&PlaceNumber, &Taken)| Party {
            work: it.work,
            promise: it.promise,
            used: used.get(number).copied().unwrap_or_default(),
        };
        self.taken.iter().map(party).collect()
    }
}

/// The last measurement.
#[derive(Debug)]
pub struct Found {
    pub at: Instant,
    pub readings: Vec<(Reading, Level)>,
    pub threads: u64,
    pub resident_bytes: u64,
    /// Every limit. A gauge may have several.
    limits: Vec<Reading>,
    /// What boxes use. Empty if promises and use together are far from every limit.
    used: BTreeMap<PlaceNumber, GaugedUse>,
}

/// Why a box gets no place.
#[derive(Debug)]
enum NoRoom {
    /// Runs that end make room.
    UntilRunsEnd(ServiceError),
    Refused(ServiceError),
}

impl From<NoRoom> for ServiceError {
    fn from(why: NoRoom) -> Self {
        match why {
            NoRoom::UntilRunsEnd(error) | NoRoom::Refused(error) => error,
        }
    }
}

impl Pressure {
    /// Starts the thread. `changes` receives each level change once.
    pub fn start(
        engine: Arc<Engine>,
        settings: GaugeSettings,
        changes: mpsc::Sender<Change>,
    ) -> Result<Self, Error> {
        let no_thread = || "cannot start the thread of the gauges".to_owned();
        // One waiting request is enough for all.
        let (wanted, asked) = sync_channel(1);
        let status = File::open("/proc/self/status").context(no_thread)?;
        let mut meter = Meter { gauges: engine.gauges(settings)?, engine, status };
        meter.gauges.count_live(0);
        meter.gauges.measure();
        let pressure = Self(Arc::new(Shared {
            found: watch::Sender::new(Arc::new(meter.found(BTreeMap::new()))),
            wanted,
            settings: Mutex::new(settings),
            places: Mutex::default(),
            next_run: tokio::sync::Mutex::default(),
            runs_waiting: AtomicUsize::new(0),
            released: Notify::new(),
        }));
        let shared = Arc::clone(&pressure.0);
        let thread = std::thread::Builder::new().name("gauges".into());
        thread.spawn(move || shared.measure_again(meter, &asked, &changes)).context(no_thread)?;
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
        lock(&self.0.places).taken.len() as u64
    }

    /// What live boxes were promised of the limit in each of these readings.
    pub fn promised(&self, readings: &[(Reading, Level)]) -> Vec<u64> {
        let parties = lock(&self.0.places).parties(&BTreeMap::new());
        readings.iter().map(|(reading, _)| promise::promised(reading, &parties)).collect()
    }

    /// The place of a box that exists already.
    pub fn place_of_existing(&self, id: &BoxId, promise: Promise) -> Place {
        let taken = Taken { work: Work::Box, promise, id: Some(id.clone()) };
        let number = lock(&self.0.places).take(taken);
        Place { of: self.clone(), number }
    }

    /// Runs that wait for room that other runs take.
    pub fn runs_waiting(&self) -> usize {
        self.0.runs_waiting.load(Ordering::Relaxed)
    }

    /// Returns a place for one more box, or the reason why there is none. A run waits for room that
    /// other runs take: they end by themselves.
    pub async fn place(&self, work: Work, promise: Promise) -> Result<Place, ServiceError> {
        let is_final = |why: &NoRoom| work == Work::Box || !why.ends_with_runs();
        let check = |found: &Found| {
            let places = lock(&self.0.places);
            self.check_room(&places, found, work, promise).err().filter(is_final)
        };
        let mut found = self.fresh().await;
        if check(&found).is_some() {
            // The measurement may not contain that a box has just ended.
            tokio::time::sleep(FRESH_FOR).await;
            found = self.fresh().await;
            if let Some(why) = check(&found) {
                return Err(why.into());
            }
        }
        match work {
            Work::Box => Ok(self.take_place(&found, work, promise)?),
            Work::Run => self.place_run(found, promise).await,
        }
    }

    /// Waits for the room of a run, in the order of calls.
    async fn place_run(
        &self,
        mut found: Arc<Found>,
        promise: Promise,
    ) -> Result<Place, ServiceError> {
        let _waiting = WaitingRun::begin(&self.0.runs_waiting);
        let _next = self.0.next_run.lock().await;
        loop {
            match self.take_place(&found, Work::Run, promise) {
                Ok(place) => return Ok(place),
                Err(NoRoom::Refused(error)) => return Err(error),
                Err(NoRoom::UntilRunsEnd(_)) => {}
            }
            let released = self.0.released.notified();
            tokio::time::timeout(MEASURE_EVERY, released).await.ok();
            found = self.measured_since(Instant::now()).await;
        }
    }

    fn take_place(&self, found: &Found, work: Work, promise: Promise) -> Result<Place, NoRoom> {
        let mut places = lock(&self.0.places);
        self.check_room(&places, found, work, promise)?;
        let number = places.take(Taken { work, promise, id: None });
        Ok(Place { of: self.clone(), number })
    }

    /// Checks the maximum of boxes, which is exact, then the measured levels, then promises.
    fn check_room(
        &self,
        places: &Places,
        found: &Found,
        work: Work,
        promise: Promise,
    ) -> Result<(), NoRoom> {
        let settings = *lock(&self.0.settings);
        let used = places.taken.len() as u64;
        if let Some(limit) = settings.boxes_max.filter(|most| used >= *most) {
            let limit_is = "the configured maximum of boxes";
            let reading = Reading::new(Gauge::Boxes, used, limit, limit_is);
            return Err(NoRoom::Refused(refused(&reading)));
        }
        found.admits(places.making()).map_err(NoRoom::Refused)?;
        let new = Party { work, promise, used: GaugedUse::default() };
        let boxes = places.parties(&found.used);
        check_fit(&found.limits, &settings.thresholds, &boxes, &new).map_err(|why| {
            let error = does_not_fit(&why);
            if why.fits_without_runs { NoRoom::UntilRunsEnd(error) } else { NoRoom::Refused(error) }
        })
    }

    async fn fresh(&self) -> Arc<Found> {
        let now = Instant::now();
        self.measured_since(now.checked_sub(FRESH_FOR).unwrap_or(now)).await
    }

    /// Returns the last measurement if it is not older than this, otherwise the next one.
    async fn measured_since(&self, earliest: Instant) -> Arc<Found> {
        let mut newest = self.0.found.subscribe();
        let known = Arc::clone(&newest.borrow_and_update());
        if known.at >= earliest {
            return known;
        }
        self.0.wanted.try_send(()).ok();
        let newer = tokio::time::timeout(FRESH_WITHIN, newest.changed());
        newer.await.ok();
        let newest = newest.borrow();
        Arc::clone(&newest)
    }
}

/// A run that waits for room, until it is dropped.
struct WaitingRun<'a>(&'a AtomicUsize);

impl<'a> WaitingRun<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitingRun<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn measure_again(&self, mut meter: Meter, asked: &Receiver<()>, told: &mpsc::Sender<Change>) {
        loop {
            match asked.recv_timeout(MEASURE_EVERY) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let settings = *lock(&self.settings);
            meter.gauges.configure(settings);
            let (changes, used) = self.measure(&mut meter, &settings.thresholds);
            self.found.send_replace(Arc::new(meter.found(used)));
            for change in changes {
                // The receiver is gone when the server ends.
                told.blocking_send(change).ok();
            }
        }
    }

    /// Measures, and reads what each box uses if that can decide whether a new box fits. The
    /// numbers of a moment cannot be read together, so each box is read before and after the
    /// gauges, and the smaller use counts.
    fn measure(
        &self,
        meter: &mut Meter,
        thresholds: &Thresholds,
    ) -> (Vec<Change>, BTreeMap<PlaceNumber, GaugedUse>) {
        let boxes = lock(&self.places).taken.len() as u64;
        meter.gauges.count_live(boxes);
        let mut changes = meter.gauges.measure();
        if !self.is_tight(&meter.gauges, thresholds) {
            return (changes, BTreeMap::new());
        }
        let before = self.use_of_boxes(&meter.engine);
        changes.extend(meter.gauges.measure());
        let mut used = self.use_of_boxes(&meter.engine);
        for (number, after) in &mut used {
            let before = before.get(number).copied().unwrap_or_default();
            after.pids = after.pids.min(before.pids);
            after.memory_bytes = after.memory_bytes.min(before.memory_bytes);
        }
        (changes, used)
    }

    /// Whether a copy of the largest box would not fit if no box used any of its promise.
    fn is_tight(&self, gauges: &Gauges, thresholds: &Thresholds) -> bool {
        let parties = lock(&self.places).parties(&BTreeMap::new());
        let largest = |part: fn(&Promise) -> u64| {
            parties.iter().map(|it| part(&it.promise)).max().unwrap_or(0)
        };
        let promise =
            Promise { pids: largest(|it| it.pids), memory_bytes: largest(|it| it.memory_bytes) };
        let new = |work| Party { work, promise, used: GaugedUse::default() };
        let fits = |work| check_fit(gauges.limits(), thresholds, &parties, &new(work)).is_ok();
        let has_room = parties.is_empty() || (fits(Work::Run) && fits(Work::Box));
        !has_room
    }

    fn use_of_boxes(&self, engine: &Engine) -> BTreeMap<PlaceNumber, GaugedUse> {
        let places = lock(&self.places);
        let ids = places.taken.iter().filter_map(|(number, it)| Some((*number, it.id.clone()?)));
        let ids: Vec<(PlaceNumber, BoxId)> = ids.collect();
        drop(places);
        ids.into_iter().map(|(number, id)| (number, engine.gauged_use(&id))).collect()
    }
}

impl NoRoom {
    fn ends_with_runs(&self) -> bool {
        match self {
            Self::UntilRunsEnd(_) => true,
            Self::Refused(_) => false,
        }
    }
}

/// A box that counts until this is dropped.
#[derive(Debug)]
pub struct Place {
    of: Pressure,
    number: PlaceNumber,
}

impl Place {
    /// The box is created: from now on, measurements contain its descriptors and what it uses.
    pub fn made(&mut self, id: &BoxId) {
        if let Some(taken) = lock(&self.of.0.places).taken.get_mut(&self.number) {
            taken.id.get_or_insert_with(|| id.clone());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.of.0.places).taken.remove(&self.number);
        self.of.0.released.notify_one();
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
    let message = format!("no room for a new box: {used} of {limit} {gauge} in use");
    let mut error = ServiceError::unavailable("pressure", message)
        .with_hint("try again later; boxes that end or are removed make room");
    error.refused_for = Some(gauge.as_str());
    error.detail = Some(reading.to_string());
    error
}

/// The error for a box that does not fit beside what other boxes were promised.
fn does_not_fit(why: &NoFit<'_>) -> ServiceError {
    let NoFit { reading, wanted, promised, .. } = why;
    let mut error = refused(reading);
    error.message = format!(
        "{}, {promised} more are promised to boxes, and this one needs {wanted}",
        error.message
    );
    error
}

struct Meter {
    engine: Arc<Engine>,
    gauges: Gauges,
    status: File,
}

impl Meter {
    fn found(&self, used: BTreeMap<PlaceNumber, GaugedUse>) -> Found {
        let readings = self.gauges.readings();
        let readings = readings.map(|(reading, level)| (reading.clone(), level));
        let mut buffer = [0; 4096];
        let length = self.status.read_at(&mut buffer, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&buffer[..length]);
        let (threads, resident_bytes) = own_size(&text).unwrap_or_default();
        Found {
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(gauge: Gauge, used: u64, level: Level) -> (Reading, Level) {
        (Reading::new(gauge, used, 100, "/secret/path"), level)
    }

    fn found(readings: Vec<(Reading, Level)>) -> Found {
        Found {
            at: Instant::now(),
            readings,
            threads: 0,
            resident_bytes: 0,
            limits: Vec::new(),
            used: BTreeMap::new(),
        }
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
        assert!(refusal.message.ends_with("99 of 100 disk_bytes in use"));
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
