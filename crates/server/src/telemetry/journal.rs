//! What happens, told once: a line each on stderr, with stable names that can be
//! queried, and the same to whoever listens.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tare_engine::{Change, STILL_POPULATED, Timestamp};
use tokio::sync::broadcast;

use crate::config::LogFormat;
use crate::error::ServiceError;
use crate::telemetry::metrics::{Metrics, RunEnd};
use crate::telemetry::writer::Writer;

/// What a field is cut to: nothing that a client sends makes a line long.
const FIELD_CHARACTERS_MAX: usize = 1000;

/// How far a listener may fall behind. One who does is told how much he missed, and
/// keeps nobody waiting.
const NOTED_WAITING: usize = 1024;

pub const GAUGE_CHANGED: &str = "gauge_changed";

#[derive(Debug)]
pub struct Journal {
    format: LogFormat,
    metrics: Arc<Metrics>,
    log: Writer,
    /// Notes on boxes that are in the log already: the engine has a handful of them.
    box_notes: Mutex<BTreeSet<String>>,
    listeners: broadcast::Sender<Arc<Noted>>,
}

/// Something that happened, for those who listen.
#[derive(Debug, Clone, PartialEq)]
pub struct Noted {
    pub at: Timestamp,
    /// Stable.
    pub event: &'static str,
    /// Without those that are not there; none of them is long.
    pub fields: Map<String, Value>,
}

#[derive(Debug)]
pub enum Happening<'a> {
    Listening {
        on: &'a str,
    },
    /// There are too few descriptors for what is configured.
    LimitsLowered {
        limits: &'a [&'static str],
    },
    Recovered {
        boxes: usize,
        duration: Duration,
    },
    Request {
        request_id: &'a str,
        /// The name of the key that it came with.
        key: Option<&'a str>,
        method: &'a str,
        path: &'a str,
        /// One of those that there are.
        route: &'a str,
        status: u16,
        duration: Duration,
        code: Option<&'a str>,
        error: Option<&'a ServiceError>,
    },
    RunEnded(RunEnded<'a>),
    BoxCreated {
        box_id: &'a str,
        request_id: &'a str,
    },
    BoxRemoved {
        box_id: &'a str,
        request_id: &'a str,
    },
    BoxPaused {
        box_id: &'a str,
        request_id: &'a str,
    },
    BoxResumed {
        box_id: &'a str,
        request_id: &'a str,
    },
    BoxLeaseChanged {
        box_id: &'a str,
        request_id: &'a str,
        /// `None`: never.
        lease_ends_at: Option<Timestamp>,
    },
    BoxEnded {
        box_id: &'a str,
        exit_code: Option<u8>,
    },
    /// What boxes of this host do without, such as the enforcement of a default limit.
    BoxNote {
        note: &'a str,
    },
    /// A box could not be ended in time. It stays on record, and is tried again.
    TeardownStuck {
        box_id: &'a str,
        request_id: Option<&'a str>,
        why: &'a str,
    },
    /// The same, because somebody in it does not die.
    CgroupStillPopulated {
        box_id: &'a str,
        request_id: Option<&'a str>,
        why: &'a str,
    },
    /// Something was left of a box that nobody looks after, and is gone now.
    OrphanReclaimed {
        box_id: &'a str,
        found: &'a [String],
    },
    GaugeChanged {
        change: &'a Change,
    },
    HookFailed {
        hook: &'a str,
        why: &'a str,
    },
    /// Files that are over their time are still there. It is tried again.
    FilesNotSwept {
        why: &'a str,
    },
    /// A token names an unknown key, and the files with keys cannot be used. The keys that
    /// were known stay.
    KeysNotRead {
        why: &'a str,
    },
    Reloaded,
    ReloadRefused {
        why: &'a str,
    },
    Draining,
    Drained {
        ended: usize,
    },
}

/// A one-shot, whoever still waited for it.
#[derive(Debug)]
pub struct RunEnded<'a> {
    /// `None`: it had none yet, or none could be made.
    pub box_id: Option<&'a str>,
    pub request_id: Option<&'a str>,
    pub result: RunEnd,
    pub exit_code: Option<u8>,
    /// Why it could not be run.
    pub code: Option<&'a str>,
    pub duration: Duration,
}

impl RunEnded<'_> {
    fn fields(&self) -> Value {
        json!({
            "box_id": self.box_id,
            "request_id": self.request_id,
            "result": self.result.as_str(),
            "exit_code": self.exit_code,
            "code": self.code,
            "duration_ms": ms(self.duration),
        })
    }
}

/// As the log, the events and the hooks have it.
pub fn changed(change: &Change) -> Value {
    let reading = change.reading.as_ref();
    json!({
        "gauge": change.gauge.as_str(),
        "from": change.from.as_str(),
        "to": change.to.as_str(),
        "used": reading.map(|reading| reading.used),
        "limit": reading.map(|reading| reading.limit),
        "limit_is": reading.map(|reading| &reading.limit_is),
    })
}

impl<'a> Happening<'a> {
    /// By what the engine says of it.
    pub fn stuck(box_id: &'a str, request_id: Option<&'a str>, why: &'a str) -> Self {
        if why.contains(STILL_POPULATED) {
            Self::CgroupStillPopulated { box_id, request_id, why }
        } else {
            Self::TeardownStuck { box_id, request_id, why }
        }
    }

    /// Stable.
    fn name(&self) -> &'static str {
        match self {
            Self::Listening { .. } => "listening",
            Self::LimitsLowered { .. } => "limits_lowered",
            Self::Recovered { .. } => "recovered",
            Self::Request { .. } => "request",
            Self::RunEnded(_) => "run_ended",
            Self::BoxCreated { .. } => "box_created",
            Self::BoxRemoved { .. } => "box_removed",
            Self::BoxPaused { .. } => "box_paused",
            Self::BoxResumed { .. } => "box_resumed",
            Self::BoxLeaseChanged { .. } => "box_lease_changed",
            Self::BoxEnded { .. } => "box_ended",
            Self::BoxNote { .. } => "box_note",
            Self::TeardownStuck { .. } => "teardown_stuck",
            Self::CgroupStillPopulated { .. } => "cgroup_still_populated",
            Self::OrphanReclaimed { .. } => "orphan_reclaimed",
            Self::GaugeChanged { .. } => GAUGE_CHANGED,
            Self::HookFailed { .. } => "hook_failed",
            Self::FilesNotSwept { .. } => "files_not_swept",
            Self::KeysNotRead { .. } => "keys_not_read",
            Self::Reloaded => "reloaded",
            Self::ReloadRefused { .. } => "reload_refused",
            Self::Draining => "draining",
            Self::Drained { .. } => "drained",
        }
    }

    fn fields(&self) -> Value {
        match self {
            Self::Listening { on } => json!({ "on": on }),
            Self::LimitsLowered { limits } => json!({ "limits": limits }),
            Self::Recovered { boxes, duration } => {
                json!({ "boxes": boxes, "duration_ms": ms(*duration) })
            }
            Self::Request {
                request_id,
                key,
                method,
                path,
                status,
                duration,
                code,
                error,
                route: _,
            } => json!({
                "request_id": request_id,
                "key": key,
                "method": method,
                "path": path,
                "status": status,
                "duration_ms": ms(*duration),
                "code": code,
                "detail": error.and_then(|error| error.detail.as_deref()),
            }),
            Self::RunEnded(run) => run.fields(),
            Self::BoxCreated { box_id, request_id }
            | Self::BoxRemoved { box_id, request_id }
            | Self::BoxPaused { box_id, request_id }
            | Self::BoxResumed { box_id, request_id } => {
                json!({ "box_id": box_id, "request_id": request_id })
            }
            Self::BoxLeaseChanged { box_id, request_id, lease_ends_at } => json!({
                "box_id": box_id,
                "request_id": request_id,
                "lease_ends_at": lease_ends_at,
            }),
            Self::BoxEnded { box_id, exit_code } => {
                json!({ "box_id": box_id, "exit_code": exit_code })
            }
            Self::BoxNote { note } => json!({ "note": note }),
            Self::TeardownStuck { box_id, request_id, why }
            | Self::CgroupStillPopulated { box_id, request_id, why } => {
                json!({ "box_id": box_id, "request_id": request_id, "why": why })
            }
            Self::OrphanReclaimed { box_id, found } => {
                json!({ "box_id": box_id, "found": found.join("; ") })
            }
            Self::GaugeChanged { change } => changed(change),
            Self::HookFailed { hook, why } => json!({ "hook": hook, "why": why }),
            Self::FilesNotSwept { why }
            | Self::KeysNotRead { why }
            | Self::ReloadRefused { why } => json!({ "why": why }),
            Self::Reloaded | Self::Draining => json!({}),
            Self::Drained { ended } => json!({ "ended": ended }),
        }
    }
}

impl Journal {
    pub fn start(format: LogFormat, metrics: Arc<Metrics>) -> io::Result<Self> {
        Ok(Self {
            format,
            metrics,
            log: Writer::start(io::stderr())?,
            box_notes: Mutex::default(),
            listeners: broadcast::Sender::new(NOTED_WAITING),
        })
    }

    pub fn note(&self, happening: Happening<'_>) {
        self.metrics.count(&happening);
        let noted = Noted::of(&happening, Timestamp::now());
        self.log.write(noted.line(self.format));
        // Nobody needs to listen.
        self.listeners.send(Arc::new(noted)).ok();
    }

    /// Writes each of the engine's notes on a box once, however many boxes have it.
    pub fn note_box(&self, notes: &[String]) {
        let mut known = self.box_notes.lock().unwrap_or_else(PoisonError::into_inner);
        for note in notes {
            if known.insert(note.clone()) {
                self.note(Happening::BoxNote { note });
            }
        }
    }

    /// Lines that found no room in the log.
    pub fn dropped(&self) -> u64 {
        self.log.dropped()
    }

    /// Returns when the log has all of it.
    pub fn flush(&self) {
        self.log.flush();
    }

    /// Everything that is noted from now on.
    pub fn listen(&self) -> broadcast::Receiver<Arc<Noted>> {
        self.listeners.subscribe()
    }
}

impl Noted {
    fn of(happening: &Happening<'_>, at: Timestamp) -> Self {
        let fields = happening.fields();
        let fields = fields.as_object().cloned().unwrap_or_default();
        let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
        Self {
            at,
            event: happening.name(),
            fields: fields.map(|(key, value)| (key, cut(value))).collect(),
        }
    }

    /// One object: its time, its name, its fields.
    pub fn to_json(&self) -> Value {
        let head = [("time", self.at.to_string()), ("event", self.event.into())];
        let head = head.map(|(key, value)| (key.to_owned(), Value::String(value)));
        let fields = self.fields.clone();
        Value::Object(head.into_iter().chain(fields).collect())
    }

    fn line(&self, format: LogFormat) -> String {
        match format {
            LogFormat::Json => format!("{}\n", self.to_json()),
            LogFormat::Human => {
                let fields = self.fields.iter();
                let fields = fields.map(|(key, value)| format!(" {key}={value}"));
                format!("{} {}{}\n", self.at, self.event, fields.collect::<String>())
            }
        }
    }
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn cut(value: Value) -> Value {
    match value.as_str() {
        Some(text) if text.chars().count() > FIELD_CHARACTERS_MAX => {
            let kept: String = text.chars().take(FIELD_CHARACTERS_MAX).collect();
            Value::String(format!("{kept}..."))
        }
        Some(_) | None => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str) -> Happening<'_> {
        Happening::Request {
            request_id: "abc",
            key: None,
            method: "GET",
            path,
            route: "other",
            status: 404,
            duration: Duration::from_micros(1500),
            code: None,
            error: None,
        }
    }

    fn line(format: LogFormat, path: &str) -> String {
        Noted::of(&request(path), Timestamp::from_ms(0)).line(format)
    }

    #[test]
    fn nothing_that_a_client_sends_makes_a_second_line_or_a_long_one() {
        let path = format!("/a\nfake line \u{1b}[2J \u{9b}2J{}", "x".repeat(1 << 20));
        for format in [LogFormat::Human, LogFormat::Json] {
            let line = line(format, &path);
            assert_eq!(line.lines().count(), 1, "{line:.100}");
            assert!(line.len() < 2000);
            assert!(!line.contains('\u{1b}'));
        }
    }

    #[test]
    fn a_line_is_an_object_with_a_time_and_a_name() {
        let line = line(LogFormat::Json, "/v1/boxes");
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["event"], "request");
        assert_eq!(value["time"], "1970-01-01T00:00:00.000Z");
        assert_eq!(value["duration_ms"], 1.5);
        assert!(value.get("code").is_none(), "what is not there is not said");
    }

    #[test]
    fn a_subscriber_gets_events_and_a_slow_one_the_number_it_missed() {
        let journal = Journal::start(LogFormat::Json, Arc::default()).expect("a thread");
        journal.note(Happening::Reloaded);
        let mut listener = journal.listen();
        journal.note(request("/health"));
        let heard = listener.try_recv().expect("it was noted");
        assert_eq!(heard.event, "request");
        assert_eq!(heard.to_json()["path"], "/health");
        for _more in 0..=NOTED_WAITING {
            journal.note(Happening::Reloaded);
        }
        let missed = broadcast::error::TryRecvError::Lagged(1);
        assert_eq!(listener.try_recv().err(), Some(missed));
        assert!(listener.try_recv().is_ok());
    }

    #[test]
    fn a_box_whose_processes_do_not_die_causes_its_own_event() {
        let name = |why: &str| Happening::stuck("abc", None, why).name();
        let populated = format!("cannot empty cgroup /x: {STILL_POPULATED}");
        assert_eq!(name(&populated), "cgroup_still_populated");
        assert_eq!(name("its keeper does not die"), "teardown_stuck");
    }
}
