//! What is counted, under names that stay: `GET /metrics`, as Prometheus reads it.
//!
//! What happens is counted where it is noted ([`crate::telemetry::journal`]), what is measured is
//! asked for at each scrape. A label has a value of a set that is known ahead: nothing
//! that a client sends makes a series.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge as Value;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tare_engine::{Gauge, Level};

use crate::admission::pressure::Found;
use crate::app::App;
use crate::telemetry::journal::Happening;

const PREFIX: &str = "tare";
/// From half a millisecond, doubling, to four minutes.
const BUCKETS: (f64, f64, u16) = (0.0005, 2.0, 20);

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Histograms<RequestLabels>,
    phases: Histograms<PhaseLabels>,
    runs: Family<ResultLabels, Counter>,
    created: Counter,
    ended: Counter,
    removed: Counter,
    reclaimed: Counter,
    stuck: Counter,
    refused: Family<ReasonLabels, Counter>,
    changes: Family<ChangeLabels, Counter>,
}

/// A part of the life of a one-shot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lap {
    /// Until its box is there.
    Create,
    /// Until its command runs.
    Start,
    Run,
    /// Until nothing is left.
    Teardown,
}

/// What came of a one-shot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunEnd {
    Ok,
    /// Its command said so.
    Failed,
    TimedOut,
    Oom,
    /// Its client went away.
    Disconnected,
    /// It could not be run.
    Error,
}

macro_rules! label_values {
    ($type:ty, $($variant:ident => $name:literal),+) => {
        impl $type {
            const ALL: &[Self] = &[$(Self::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl EncodeLabelValue for $type {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
                EncodeLabelValue::encode(&self.as_str(), encoder)
            }
        }
    };
}

label_values!(Lap, Create => "create", Start => "start", Run => "run", Teardown => "teardown");
label_values!(
    RunEnd, Ok => "ok", Failed => "failed", TimedOut => "timed_out", Oom => "oom",
    Disconnected => "disconnected", Error => "error"
);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: String,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: Lap,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: RunEnd,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GaugeLabels {
    gauge: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChangeLabels {
    gauge: &'static str,
    to: &'static str,
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
            runs: Family::default(),
            created: Counter::default(),
            ended: Counter::default(),
            removed: Counter::default(),
            reclaimed: Counter::default(),
            stuck: Counter::default(),
            refused: Family::default(),
            changes: Family::default(),
        };
        metrics.begin();
        metrics.registered()
    }
}

/// Reasons that are no gauge.
const REASONS: [&str; 11] = [
    "busy",
    "bodies_full",
    "connections_full",
    "exhausted",
    "stopping",
    "streams_full",
    "quota_boxes",
    "quota_memory_bytes",
    "quota_runs_per_second",
    "quota_stops",
    "quota_streams",
];

impl Metrics {
    /// What has not happened yet is 0, and not absent: an alert can be on it.
    fn begin(&self) {
        for phase in Lap::ALL {
            drop(self.phases.get_or_create(&PhaseLabels { phase: *phase }));
        }
        for result in RunEnd::ALL {
            drop(self.runs.get_or_create(&ResultLabels { result: *result }));
        }
        for reason in REASONS.into_iter().chain(Gauge::all().map(Gauge::as_str)) {
            drop(self.refused.get_or_create(&ReasonLabels { reason }));
        }
        for gauge in Gauge::all().map(Gauge::as_str) {
            for to in Level::ALL.map(Level::as_str) {
                drop(self.changes.get_or_create(&ChangeLabels { gauge, to }));
            }
        }
    }

    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        let help = "How long requests took until their answer began";
        registry.register("request_seconds", help, self.requests.clone());
        let help = "How long the phases of one-shots took";
        registry.register("run_phase_seconds", help, self.phases.clone());
        let help = "One-shots by what came of them";
        registry.register("runs", help, self.runs.clone());
        let help = "Boxes that were created";
        registry.register("boxes_created", help, self.created.clone());
        let help = "Boxes that were seen to end by themselves";
        registry.register("boxes_ended", help, self.ended.clone());
        let help = "Boxes that were removed";
        registry.register("boxes_removed", help, self.removed.clone());
        let help = "Leftovers that a sweep found and ended";
        registry.register("boxes_reclaimed", help, self.reclaimed.clone());
        let help = "Boxes that could not be ended in time";
        registry.register("teardowns_stuck", help, self.stuck.clone());
        let help = "Refusals for want of something, by gauge, quota or reason";
        registry.register("refused", help, self.refused.clone());
        let help = "Changes of the levels of gauges";
        registry.register("gauge_changes", help, self.changes.clone());
        self
    }

    pub fn lap(&self, phase: Lap, took: Duration) {
        let labels = PhaseLabels { phase };
        self.phases.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// What is noted is counted.
    pub fn count(&self, happening: &Happening<'_>) {
        match happening {
            Happening::Request { method, route, status, duration, error, .. } => {
                let labels = RequestLabels {
                    method: known_method(method),
                    route: (*route).to_owned(),
                    status: status_class(*status),
                };
                self.requests.get_or_create(&labels).observe(duration.as_secs_f64());
                if let Some(reason) = error.and_then(|error| error.refused_for) {
                    self.refused.get_or_create(&ReasonLabels { reason }).inc();
                }
            }
            Happening::RunEnded(run) => {
                let labels = ResultLabels { result: run.result };
                self.runs.get_or_create(&labels).inc();
            }
            Happening::BoxCreated { .. } => {
                self.created.inc();
            }
            Happening::BoxRemoved { .. } => {
                self.removed.inc();
            }
            Happening::BoxEnded { .. } => {
                self.ended.inc();
            }
            Happening::TeardownStuck { .. } | Happening::CgroupStillPopulated { .. } => {
                self.stuck.inc();
            }
            Happening::OrphanReclaimed { .. } => {
                self.reclaimed.inc();
            }
            Happening::GaugeChanged { change } => {
                let labels = ChangeLabels { gauge: change.gauge.as_str(), to: change.to.as_str() };
                self.changes.get_or_create(&labels).inc();
            }
            Happening::Listening { .. }
            | Happening::LimitsLowered { .. }
            | Happening::Recovered { .. }
            | Happening::BoxPaused { .. }
            | Happening::BoxResumed { .. }
            | Happening::BoxLeaseChanged { .. }
            | Happening::HookFailed { .. }
            | Happening::Reloaded
            | Happening::FilesNotSwept { .. }
            | Happening::KeysNotRead { .. }
            | Happening::BoxNote { .. }
            | Happening::ReloadRefused { .. }
            | Happening::Draining
            | Happening::Drained { .. } => {}
        }
    }

    /// Everything, as text.
    pub fn text(&self, app: &App) -> String {
        let mut text = String::new();
        let written = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &measured(app)))
            .and_then(|()| encode_eof(&mut text));
        // A text takes whatever is written to it.
        written.ok();
        text
    }
}

/// What is as it is now.
fn measured(app: &App) -> Registry {
    let mut registry = Registry::with_prefix(PREFIX);
    let found = app.admission.pressure.found();
    let (used, limit) = (Family::<GaugeLabels, Value>::default(), Family::default());
    let level = Family::default();
    for (reading, at) in &found.readings {
        let labels = GaugeLabels { gauge: reading.gauge.as_str() };
        set(&used, &labels, reading.used);
        set(&limit, &labels, reading.limit);
        set(&level, &labels, rank(*at));
    }
    registry.register("gauge_used", "What is used of a limit", used);
    registry.register("gauge_limit", "A limit that boxes may meet", limit);
    let help = "How near a limit is: 0 normal, 1 warn, 2 alert, 3 full";
    registry.register("gauge_level", help, level);
    for (name, help, now) in plain(app, &found) {
        let value: Value = Value::default();
        value.set(shown(now));
        registry.register(name, help, value);
    }
    registry
}

/// Those without labels: a name, what it is, and its value.
fn plain(app: &App, found: &Found) -> [(&'static str, &'static str, u64); 12] {
    let descriptors = found.of(Gauge::DescriptorsProcess).map_or(0, |it| it.used);
    [
        ("process_descriptors", "Descriptors that the server has open", descriptors),
        ("process_threads", "Threads of the server", found.threads),
        ("process_resident_bytes", "Memory of the server that is resident", found.resident_bytes),
        (
            "boxes_live",
            "Boxes that live, with those of one-shots",
            app.admission.pressure.boxes_live(),
        ),
        ("runs_running", "One-shots that run", app.admission.running() as u64),
        ("runs_waiting", "One-shots that wait for their turn", app.admission.waiting() as u64),
        ("streams_open", "Clients that only listen", app.streams.count() as u64),
        ("bodies_bytes", "Memory that request bodies hold", app.bodies.used_bytes()),
        ("files_bytes", "What the files of clients take on the disk", app.files.used_bytes()),
        (
            "executions_waiting",
            "Executions whose client is asked to call tools",
            app.waiting.count() as u64,
        ),
        (
            "log_lines_dropped",
            "Lines of the log that found no room, because nobody took them",
            app.journal.dropped(),
        ),
        ("uptime_seconds", "How long the server is there", app.started.elapsed().as_secs()),
    ]
}

fn set(family: &Family<GaugeLabels, Value>, labels: &GaugeLabels, value: u64) {
    family.get_or_create(labels).set(shown(value));
}

fn shown(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn rank(level: Level) -> u64 {
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
