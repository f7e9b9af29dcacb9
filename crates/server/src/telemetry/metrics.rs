//! Counters and histograms: `GET /metrics`, in the format of Prometheus. Names and labels are
//! stable.
//!
//! The journal counts events when it records them. The caller passes in what is measured at each
//! scrape. The values of every label are known in advance, except for those of single boxes, whose
//! number the operator bounds: no client can create series without end.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge as Value;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tare_engine::{BootFailure, Cause, Gauge, Level, Reading, version};

use crate::telemetry::event::LogEvent;
use crate::telemetry::pool_metrics::PoolMetrics;

const PREFIX: &str = "tare";
/// From half a millisecond, doubling, to four minutes.
const BUCKETS: (f64, f64, u16) = (0.0005, 2.0, 20);

/// Names and values of labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];
type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Histograms<[(&'static str, String); 3]>,
    phases: Histograms<Labels<1>>,
    ends: Family<Labels<1>, Counter>,
    created: Counter,
    ended: Counter,
    removed: Counter,
    reclaimed: Counter,
    stuck: Counter,
    refused: Family<Labels<1>, Counter>,
    changes: Family<Labels<2>, Counter>,
    boots: Histogram,
    boots_failed: Family<Labels<1>, Counter>,
    /// Set by LibreChat's API.
    pub executions_waiting: Value,
    pub session_calls_waiting: Value,
    pub session_wait: Histogram,
    pub pools: PoolMetrics,
}

/// The phases of a run, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Create,
    Start,
    Run,
    Teardown,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Create, Self::Start, Self::Run, Self::Teardown];

    fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Start => "start",
            Self::Run => "run",
            Self::Teardown => "teardown",
        }
    }
}

/// What is measured at each scrape.
#[derive(Debug)]
pub struct Scrape<'a> {
    pub readings: &'a [(Reading, Level)],
    /// What boxes were promised of the limit in each reading.
    pub promised: &'a [u64],
    pub threads: u64,
    pub resident_bytes: u64,
    pub boxes_live: u64,
    pub machines_live: u64,
    pub runs_running: u64,
    pub runs_waiting: u64,
    pub streams_open: u64,
    pub bodies_bytes: u64,
    pub files_bytes: u64,
    pub log_lines_dropped: u64,
    pub uptime: Duration,
    pub boxes: &'a BoxesMeasured,
}

/// Boxes that have metrics of their own. The operator bounds their number.
#[derive(Debug, Default)]
pub struct BoxesMeasured {
    pub boxes: Vec<BoxMeasured>,
    /// How many boxes there are beyond the bound.
    pub omitted: usize,
}

#[derive(Debug)]
pub struct BoxMeasured {
    pub id: String,
    pub name: String,
    pub key: String,
    pub memory_bytes: u64,
    pub pids: u64,
    pub cpu_us: u64,
}

fn histogram() -> Histogram {
    let (first, factor, count) = BUCKETS;
    Histogram::new(exponential_buckets(first, factor, count))
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Registry::with_prefix(PREFIX),
            requests: Family::new_with_constructor(histogram),
            phases: Family::new_with_constructor(histogram),
            ends: Family::default(),
            created: Counter::default(),
            ended: Counter::default(),
            removed: Counter::default(),
            reclaimed: Counter::default(),
            stuck: Counter::default(),
            refused: Family::default(),
            changes: Family::default(),
            boots: histogram(),
            boots_failed: Family::default(),
            executions_waiting: Value::default(),
            session_calls_waiting: Value::default(),
            session_wait: histogram(),
            pools: PoolMetrics::default(),
        };
        metrics.start_at_zero();
        metrics.registered()
    }
}

/// Reasons for a refusal other than gauges.
const REASONS: [&str; 16] = [
    "busy",
    "bodies_full",
    "connections_full",
    "exhausted",
    "machines_full",
    "session_busy",
    "stopping",
    "streams_full",
    "quota_bodies",
    "quota_boxes",
    "quota_executions",
    "quota_memory_bytes",
    "quota_runs_per_second",
    "quota_session_queue",
    "quota_stops",
    "quota_streams",
];

impl Metrics {
    /// Events that have not happened yet are 0 and not absent, so that alerts can use them.
    fn start_at_zero(&self) {
        for phase in Phase::ALL {
            drop(self.phases.get_or_create(&[("phase", phase.as_str())]));
        }
        for cause in Cause::ALL {
            drop(self.ends.get_or_create(&[("cause", cause.as_str())]));
        }
        for reason in REASONS.into_iter().chain(Gauge::all().map(Gauge::as_str)) {
            drop(self.refused.get_or_create(&[("reason", reason)]));
        }
        for failure in BootFailure::ALL {
            drop(self.boots_failed.get_or_create(&[("reason", failure.as_str())]));
        }
        for gauge in Gauge::all().map(Gauge::as_str) {
            for to in Level::ALL.map(Level::as_str) {
                drop(self.changes.get_or_create(&[("gauge", gauge), ("to", to)]));
            }
        }
    }

    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        let help = "Time until the response to a request began";
        registry.register("request_seconds", help, self.requests.clone());
        let help = "Time of each phase of a run";
        registry.register("run_phase_seconds", help, self.phases.clone());
        let help = "Ends of runs, execs and boxes, by cause";
        registry.register("ends", help, self.ends.clone());
        let help = "Boxes that were created";
        registry.register("boxes_created", help, self.created.clone());
        let help = "Boxes that ended by themselves";
        registry.register("boxes_ended", help, self.ended.clone());
        let help = "Boxes that were removed";
        registry.register("boxes_removed", help, self.removed.clone());
        let help = "Leftovers that were removed";
        registry.register("boxes_reclaimed", help, self.reclaimed.clone());
        let help = "Boxes that could not be ended in time";
        registry.register("teardowns_stuck", help, self.stuck.clone());
        let help = "Refused requests, by gauge, quota or reason";
        registry.register("refused", help, self.refused.clone());
        let help = "Level changes of gauges";
        registry.register("gauge_changes", help, self.changes.clone());
        let help = "Time until the machine of a box had booted";
        registry.register("machine_boot_seconds", help, self.boots.clone());
        let help = "Machines that did not start, by reason";
        registry.register("machine_boots_failed", help, self.boots_failed.clone());
        let help = "Programmatic executions whose client has to call tools";
        registry.register("executions_waiting", help, self.executions_waiting.clone());
        let help = "Calls that wait for their session";
        registry.register("session_calls_waiting", help, self.session_calls_waiting.clone());
        let help = "How long calls waited for their session";
        registry.register("session_wait_seconds", help, self.session_wait.clone());
        self.pools.register(registry);
        let build = Family::<Labels<2>, Value>::default();
        let labels = [("version", version::NUMBER), ("commit", version::COMMIT)];
        build.get_or_create(&labels).set(1);
        registry.register("build_info", "The version of this server, and its commit", build);
        self
    }

    pub fn observe(&self, phase: Phase, took: Duration) {
        self.phases.get_or_create(&[("phase", phase.as_str())]).observe(took.as_secs_f64());
    }

    /// Counts a machine that has booted, or that did not start.
    pub fn count_boot(&self, booted: Result<Duration, BootFailure>) {
        match booted {
            Ok(took) => self.boots.observe(took.as_secs_f64()),
            Err(failure) => {
                self.boots_failed.get_or_create(&[("reason", failure.as_str())]).inc();
            }
        }
    }

    /// Counts the end of a run, an exec or a box.
    pub fn count_end(&self, cause: Cause) {
        self.ends.get_or_create(&[("cause", cause.as_str())]).inc();
    }

    /// Counts an event. Most events are not counted.
    pub fn count(&self, event: &LogEvent<'_>) {
        let count = |counter: &Counter| {
            counter.inc();
        };
        match event {
            LogEvent::Request { method, route, status, duration, error, .. } => {
                let method = known_method(method).to_owned();
                let status = status_class(*status).to_owned();
                let route = (*route).to_owned();
                let labels = [("method", method), ("route", route), ("status", status)];
                self.requests.get_or_create(&labels).observe(duration.as_secs_f64());
                if let Some(reason) = error.and_then(|error| error.refused_for) {
                    count(&self.refused.get_or_create(&[("reason", reason)]));
                }
            }
            LogEvent::RunEnded { cause, .. } => self.count_end(*cause),
            LogEvent::BoxCreated(_) => count(&self.created),
            LogEvent::BoxRemoved(_) => count(&self.removed),
            LogEvent::BoxEnded { cause, .. } => {
                count(&self.ended);
                cause.iter().for_each(|cause| self.count_end(*cause));
            }
            LogEvent::TeardownStuck { .. } | LogEvent::CgroupStillPopulated { .. } => {
                count(&self.stuck);
            }
            LogEvent::OrphanReclaimed { .. } => count(&self.reclaimed),
            LogEvent::GaugeChanged { gauge, to, .. } => {
                count(&self.changes.get_or_create(&[("gauge", *gauge), ("to", *to)]));
            }
            LogEvent::Listening { .. }
            | LogEvent::LimitsLowered { .. }
            | LogEvent::NoAdmin { .. }
            | LogEvent::Recovered { .. }
            | LogEvent::BoxPaused(_)
            | LogEvent::BoxResumed(_)
            | LogEvent::BoxLeaseChanged { .. }
            | LogEvent::BoxLimitsChanged(_)
            | LogEvent::BoxRenamed { .. }
            | LogEvent::BoxNote { .. }
            | LogEvent::StartSlow { .. }
            | LogEvent::PoolFailed { .. }
            | LogEvent::PoolOff { .. }
            | LogEvent::PoolSlow { .. }
            | LogEvent::PoolMemberLost { .. }
            | LogEvent::HookFailed { .. }
            | LogEvent::FilesNotSwept { .. }
            | LogEvent::KeysNotRead { .. }
            | LogEvent::Reloaded
            | LogEvent::ReloadRefused { .. }
            | LogEvent::Draining
            | LogEvent::Drained { .. } => {}
        }
    }

    /// Everything that is counted and measured, as text.
    pub fn text(&self, scrape: &Scrape<'_>) -> String {
        let mut text = String::new();
        let written = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &measured(scrape)))
            .and_then(|()| encode_eof(&mut text));
        // Writing to a string does not fail.
        written.ok();
        text
    }
}

fn measured(scrape: &Scrape<'_>) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    let family = Family::<Labels<1>, Value>::default;
    let (used, limit, level, promised) = (family(), family(), family(), family());
    for ((reading, at), to_boxes) in scrape.readings.iter().zip(scrape.promised) {
        let labels = [("gauge", reading.gauge.as_str())];
        promised.get_or_create(&labels).set(signed(*to_boxes));
        used.get_or_create(&labels).set(signed(reading.used));
        limit.get_or_create(&labels).set(signed(reading.limit));
        level.get_or_create(&labels).set(rank(*at));
    }
    registry.register("gauge_used", "Use of a limit", used);
    let help = "Part of a limit that live boxes were promised, used or not";
    registry.register("gauge_promised", help, promised);
    registry.register("gauge_limit", "A limit that applies to boxes", limit);
    let help = "Level of a gauge: 0 normal, 1 warn, 2 alert, 3 full";
    registry.register("gauge_level", help, level);
    for (name, help, now) in without_labels(scrape) {
        let value: Value = Value::default();
        value.set(signed(now));
        registry.register(name, help, value);
    }
    of_boxes(&mut registry, scrape.boxes);
    registry
}

/// Adds the metrics of single boxes. They are new at each scrape, so a box that is gone leaves no
/// series.
fn of_boxes(registry: &mut Registry, measured: &BoxesMeasured) {
    let family = Family::<[(&'static str, String); 3], Value>::default;
    let (memory, pids) = (family(), family());
    let cpu = Family::<_, Counter<f64, AtomicU64>>::default();
    for one in &measured.boxes {
        let labels = [("id", one.id.clone()), ("name", one.name.clone()), ("key", one.key.clone())];
        memory.get_or_create(&labels).set(signed(one.memory_bytes));
        pids.get_or_create(&labels).set(signed(one.pids));
        cpu.get_or_create(&labels).inc_by(one.cpu_us as f64 / 1e6);
    }
    registry.register("box_memory_bytes", "Memory of a box", memory);
    registry.register("box_pids", "Processes and threads of a box", pids);
    registry.register("box_cpu_seconds", "Processor time of a box", cpu);
    let omitted: Value = Value::default();
    omitted.set(signed(measured.omitted as u64));
    let help = "Boxes without metrics of their own, beyond [metrics] boxes";
    registry.register("boxes_unmeasured", help, omitted);
}

/// Name, help and value of each metric without labels.
fn without_labels(scrape: &Scrape<'_>) -> [(&'static str, &'static str, u64); 12] {
    let of_process = |(reading, _): &&(Reading, Level)| reading.gauge == Gauge::DescriptorsProcess;
    let descriptors =
        scrape.readings.iter().find(of_process).map_or(0, |(reading, _)| reading.used);
    [
        ("process_descriptors", "Open descriptors of the server", descriptors),
        ("process_threads", "Threads of the server", scrape.threads),
        ("process_resident_bytes", "Resident memory of the server", scrape.resident_bytes),
        ("boxes_live", "Live boxes, including those of runs", scrape.boxes_live),
        (
            "machines_live",
            "Live boxes in virtual machines, also while they boot",
            scrape.machines_live,
        ),
        ("runs_running", "Active runs", scrape.runs_running),
        ("runs_waiting", "Runs that wait", scrape.runs_waiting),
        ("streams_open", "Clients that only listen", scrape.streams_open),
        ("bodies_bytes", "Memory that requests and responses hold", scrape.bodies_bytes),
        ("files_bytes", "Disk space of the files of clients", scrape.files_bytes),
        (
            "log_lines_dropped",
            "Log lines dropped because the reader was too slow",
            scrape.log_lines_dropped,
        ),
        ("uptime_seconds", "Seconds since the server started", scrape.uptime.as_secs()),
    ]
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn rank(level: Level) -> i64 {
    match level {
        Level::Normal => 0,
        Level::Warn => 1,
        Level::Alert => 2,
        Level::Full => 3,
    }
}

fn known_method(method: &str) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
    known.into_iter().find(|one| *one == method).unwrap_or("other")
}

fn status_class(status: u16) -> &'static str {
    match status / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}
