//! Gives each new box a place, if the host has room for it.
//!
//! | level of a gauge | what follows |
//! |---|---|
//! | warn | an event, once |
//! | alert | the same, and cleanup begins at once |
//! | full | the same, and new boxes are refused |
//!
//! A new box is also refused if it does not fit beside what other boxes were promised
//! (`promise`). Boxes that exist are never touched. One thread measures. It starts with the server.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tare_engine::{BoxId, Change, Context, Engine, Error, Gauge, GaugeSettings, GaugedUse};
use tare_engine::{Level, Reading};
use tokio::sync::{mpsc, watch};

use crate::admission::Work;
use crate::admission::descriptors::DescriptorBudget;
use crate::admission::measurement::{Measurement, Meter, does_not_fit, refused};
use crate::admission::places::{Place, Places, TakenPlaces, UseOfBoxes};
use crate::admission::promise::{self, LiveBox, Promise, check_fit};
use crate::config::current::CurrentConfig;
use crate::error::ServiceError;
use crate::permits::Permits;

/// How often the thread measures without a request.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// A younger measurement is used without a new one.
const FRESH_FOR: Duration = Duration::from_millis(50);
/// The time limit for a new measurement. After it, the last one counts.
const FRESH_WITHIN: Duration = Duration::from_secs(1);

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pressure(Arc<PressureState>);

#[derive(Debug)]
struct PressureState {
    measured: watch::Sender<Arc<Measurement>>,
    /// Makes the thread measure.
    wanted: SyncSender<()>,
    config: CurrentConfig,
    places: Places,
    /// Held by the run that is next to get room.
    next_run: tokio::sync::Mutex<()>,
    /// Taken by runs that wait for room.
    runs_waiting: Permits,
}

/// Why a box gets no place.
#[derive(Debug)]
enum NoRoom {
    /// Runs that end make room.
    UntilRunsEnd(ServiceError),
    Refused(ServiceError),
}

impl Pressure {
    /// Starts the thread. `changes` receives each level change once.
    pub fn start(
        engine: Arc<Engine>,
        config: CurrentConfig,
        changes: mpsc::Sender<Change>,
    ) -> Result<Self, Error> {
        // One waiting request is enough for all.
        let (wanted, requests) = sync_channel(1);
        let settings = settings(&config);
        let (mut meter, places) = (Meter::open(engine, settings)?, Places::default());
        let (first, _) = meter.measure(&places, settings);
        // Each run that waits for room has one of `[limits] runs`.
        let runs_waiting = Permits::new(config.get().limits.runs);
        let pressure = Self(Arc::new(PressureState {
            measured: watch::Sender::new(Arc::new(first)),
            wanted,
            config,
            places,
            next_run: tokio::sync::Mutex::default(),
            runs_waiting,
        }));
        let shared = Arc::clone(&pressure.0);
        let thread = std::thread::Builder::new().name("gauges".into());
        thread
            .spawn(move || shared.measure_again(meter, &requests, &changes))
            .context(|| "cannot start the thread of the gauges".to_owned())
            .map_err(|error| error.with_hint("raise the server's limit on processes"))?;
        Ok(pressure)
    }

    /// The last measurement, at most about a second old.
    pub fn measured(&self) -> Arc<Measurement> {
        Arc::clone(&self.0.measured.borrow())
    }

    /// Boxes that exist or are being created.
    pub fn boxes_live(&self) -> u64 {
        self.0.places.lock().count()
    }

    /// What live boxes were promised of the limit in each of these readings.
    pub fn promised(&self, readings: &[(Reading, Level)]) -> Vec<u64> {
        let boxes = self.0.places.lock().live_boxes(&UseOfBoxes::new());
        readings.iter().map(|(reading, _)| promise::promised(reading, &boxes)).collect()
    }

    /// Runs that wait for room that other runs take.
    pub fn runs_waiting(&self) -> usize {
        self.0.runs_waiting.taken()
    }

    /// Takes the place of a box that exists already.
    pub fn place_of_existing(&self, id: &BoxId, promise: Promise) -> Place {
        let places = &self.0.places;
        places.take(&mut places.lock(), Work::Box, promise, Some(id.clone()))
    }

    /// Returns a place for one more box, or the reason why there is none. A run waits for room that
    /// other runs take: they end by themselves.
    pub async fn place(&self, work: Work, promise: Promise) -> Result<Place, ServiceError> {
        let refusal = |measured: &Measurement| {
            let checked = self.check_room(&self.0.places.lock(), measured, work, promise);
            match (checked, work) {
                (Ok(()), _) | (Err(NoRoom::UntilRunsEnd(_)), Work::Run) => None,
                (Err(NoRoom::UntilRunsEnd(error)), Work::Box)
                | (Err(NoRoom::Refused(error)), _) => Some(error),
            }
        };
        let mut measured = self.fresh().await;
        if refusal(&measured).is_some() {
            // The measurement may not contain that a box has just ended.
            tokio::time::sleep(FRESH_FOR).await;
            measured = self.fresh().await;
            if let Some(error) = refusal(&measured) {
                return Err(error);
            }
        }
        match work {
            Work::Run => self.place_run(measured, promise).await,
            Work::Box => self.take_place(&measured, work, promise).map_err(|why| match why {
                NoRoom::UntilRunsEnd(error) | NoRoom::Refused(error) => error,
            }),
        }
    }

    /// Waits for the room of a run, in the order of calls.
    async fn place_run(
        &self,
        mut measured: Arc<Measurement>,
        promise: Promise,
    ) -> Result<Place, ServiceError> {
        let _waiting = self.0.runs_waiting.next().await;
        let _next = self.0.next_run.lock().await;
        loop {
            match self.take_place(&measured, Work::Run, promise) {
                Ok(place) => return Ok(place),
                Err(NoRoom::Refused(error)) => return Err(error),
                Err(NoRoom::UntilRunsEnd(_)) => {}
            }
            tokio::time::timeout(MEASURE_EVERY, self.0.places.released()).await.ok();
            measured = self.measured_since(Instant::now()).await;
        }
    }

    fn take_place(
        &self,
        measured: &Measurement,
        work: Work,
        promise: Promise,
    ) -> Result<Place, NoRoom> {
        let mut taken = self.0.places.lock();
        self.check_room(&taken, measured, work, promise)?;
        Ok(self.0.places.take(&mut taken, work, promise, None))
    }

    /// Checks the maximum of boxes, which is exact, then the measured levels, then promises.
    fn check_room(
        &self,
        taken: &TakenPlaces,
        measured: &Measurement,
        work: Work,
        promise: Promise,
    ) -> Result<(), NoRoom> {
        let config = self.0.config.get();
        let (used, limit) = (taken.count(), config.limits.boxes as u64);
        if used >= limit {
            let limit_is = "the configured maximum of boxes";
            let reading = Reading::new(Gauge::Boxes, used, limit, limit_is);
            return Err(NoRoom::Refused(refused(&reading)));
        }
        measured.check(taken.in_creation()).map_err(NoRoom::Refused)?;
        let new = LiveBox { work, promise, used: GaugedUse::default() };
        self.check_promise(taken, measured, &new)
    }

    fn check_promise(
        &self,
        taken: &TakenPlaces,
        measured: &Measurement,
        new: &LiveBox,
    ) -> Result<(), NoRoom> {
        let boxes = taken.live_boxes(&measured.used);
        let thresholds = self.0.config.get().gauges.thresholds().unwrap_or_default();
        check_fit(&measured.limits, &thresholds, &boxes, new).map_err(|why| {
            let error = does_not_fit(&why);
            if why.fits_without_runs { NoRoom::UntilRunsEnd(error) } else { NoRoom::Refused(error) }
        })
    }

    /// Promises an existing box more, if the host has room for that.
    pub fn promise_more(
        &self,
        place: &Place,
        measured: &Measurement,
        promise: Promise,
    ) -> Result<(), ServiceError> {
        let mut taken = self.0.places.lock();
        if let Some(live) = taken.live_box(place.number, &measured.used) {
            self.check_promise(&taken, measured, &live.growth(promise)).map_err(
                |why| match why {
                    NoRoom::UntilRunsEnd(error) | NoRoom::Refused(error) => error,
                },
            )?;
        }
        taken.set_promise(place.number, promise);
        Ok(())
    }

    /// Returns a measurement that is younger than [`FRESH_FOR`], if the thread makes one in time.
    pub async fn fresh(&self) -> Arc<Measurement> {
        let now = Instant::now();
        self.measured_since(now.checked_sub(FRESH_FOR).unwrap_or(now)).await
    }

    /// Returns the last measurement if it is not older than this, otherwise the next one.
    async fn measured_since(&self, earliest: Instant) -> Arc<Measurement> {
        let mut newest = self.0.measured.subscribe();
        let known = Arc::clone(&newest.borrow_and_update());
        if known.at >= earliest {
            return known;
        }
        self.0.wanted.try_send(()).ok();
        tokio::time::timeout(FRESH_WITHIN, newest.changed()).await.ok();
        self.measured()
    }
}

impl PressureState {
    fn measure_again(
        &self,
        mut meter: Meter,
        requests: &Receiver<()>,
        changes: &mpsc::Sender<Change>,
    ) {
        loop {
            match requests.recv_timeout(MEASURE_EVERY) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let (measured, changed) = meter.measure(&self.places, settings(&self.config));
            self.measured.send_replace(Arc::new(measured));
            for change in changed {
                // The receiver is gone when the server ends.
                changes.blocking_send(change).ok();
            }
        }
    }
}

/// What the configuration says about gauges now, and the descriptors that boxes must leave free.
fn settings(config: &CurrentConfig) -> GaugeSettings {
    config.get().gauge_settings(DescriptorBudget::found().for_requests())
}
