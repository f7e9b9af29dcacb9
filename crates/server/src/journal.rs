//! What happens, told once: a line each on stderr, with stable names that can be
//! queried, and the same to whoever listens.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tare_engine::Timestamp;
use tokio::sync::broadcast;

use crate::config::LogFormat;
use crate::error::ApiError;

/// What a field is cut to: nothing that a client sends makes a line long.
const FIELD_CHARACTERS_MAX: usize = 1000;

/// How far a listener may fall behind. One who does is told how much he missed, and
/// keeps nobody waiting.
const NOTED_WAITING: usize = 1024;

#[derive(Debug)]
pub struct Journal {
    format: LogFormat,
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
    Recovered {
        boxes: usize,
        duration: Duration,
    },
    Request {
        request_id: &'a str,
        method: &'a str,
        path: &'a str,
        status: u16,
        duration: Duration,
        error: Option<&'a ApiError>,
    },
    BoxCreated {
        box_id: &'a str,
        request_id: &'a str,
    },
    BoxRemoved {
        box_id: &'a str,
        request_id: &'a str,
    },
    BoxEnded {
        box_id: &'a str,
        exit_code: Option<u8>,
    },
    TeardownStuck {
        box_id: &'a str,
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

impl Happening<'_> {
    /// Stable.
    fn name(&self) -> &'static str {
        match self {
            Self::Listening { .. } => "listening",
            Self::Recovered { .. } => "recovered",
            Self::Request { .. } => "request",
            Self::BoxCreated { .. } => "box_created",
            Self::BoxRemoved { .. } => "box_removed",
            Self::BoxEnded { .. } => "box_ended",
            Self::TeardownStuck { .. } => "teardown_stuck",
            Self::Reloaded => "reloaded",
            Self::ReloadRefused { .. } => "reload_refused",
            Self::Draining => "draining",
            Self::Drained { .. } => "drained",
        }
    }

    fn fields(&self) -> Value {
        match self {
            Self::Listening { on } => json!({ "on": on }),
            Self::Recovered { boxes, duration } => {
                json!({ "boxes": boxes, "duration_ms": ms(*duration) })
            }
            Self::Request {
                request_id,
                method,
                path,
                status,
                duration,
                error,
            } => json!({
                "request_id": request_id,
                "method": method,
                "path": path,
                "status": status,
                "duration_ms": ms(*duration),
                "code": error.map(|error| error.code),
                "detail": error.and_then(|error| error.detail.as_deref()),
            }),
            Self::BoxCreated { box_id, request_id } | Self::BoxRemoved { box_id, request_id } => {
                json!({ "box_id": box_id, "request_id": request_id })
            }
            Self::BoxEnded { box_id, exit_code } => {
                json!({ "box_id": box_id, "exit_code": exit_code })
            }
            Self::TeardownStuck { box_id, why } => json!({ "box_id": box_id, "why": why }),
            Self::ReloadRefused { why } => json!({ "why": why }),
            Self::Reloaded | Self::Draining => json!({}),
            Self::Drained { ended } => json!({ "ended": ended }),
        }
    }
}

impl Journal {
    pub fn new(format: LogFormat) -> Self {
        Self {
            format,
            listeners: broadcast::Sender::new(NOTED_WAITING),
        }
    }

    pub fn note(&self, happening: Happening<'_>) {
        let noted = Noted::of(&happening, Timestamp::now());
        let line = noted.line(self.format);
        // A log that cannot be written is no reason to serve nobody.
        std::io::stderr().lock().write_all(line.as_bytes()).ok();
        // Nobody needs to listen.
        self.listeners.send(Arc::new(noted)).ok();
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
            method: "GET",
            path,
            status: 404,
            duration: Duration::from_micros(1500),
            error: None,
        }
    }

    fn line(format: LogFormat, path: &str) -> String {
        Noted::of(&request(path), Timestamp::from_ms(0)).line(format)
    }

    /// B091
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
    fn a_listener_hears_what_is_noted_and_one_who_is_late_what_he_missed() {
        let journal = Journal::new(LogFormat::Json);
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
}
