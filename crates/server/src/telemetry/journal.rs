//! Records events: counts each one, writes it to the log, and sends it to subscribers.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};
use tare_engine::Timestamp;
use tare_engine::spec::shown::{escaped, escaped_json};
use tokio::sync::broadcast;

use crate::config::LogFormat;
use crate::telemetry::event::LogEvent;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::writer::Writer;
use crate::workers::locked;

/// Longer values are cut, so that no client can write a long line.
const FIELD_CHARACTERS_MAX: usize = 1000;

/// How many events a subscriber can fall behind. It then misses events, and learns how many.
const RECORDS_WAITING: usize = 1024;

#[derive(Debug)]
pub struct Journal {
    format: LogFormat,
    metrics: Arc<Metrics>,
    log: Writer,
    /// Notes on boxes that are in the log already. The engine has only a few different ones.
    box_notes: Mutex<BTreeSet<String>>,
    subscribers: broadcast::Sender<Arc<LogRecord>>,
}

/// An event as the log and subscribers see it.
#[derive(Debug, Clone, PartialEq)]
pub struct LogRecord {
    at: Timestamp,
    /// With the name as `event`, and without fields that have no value.
    fields: Map<String, Value>,
}

impl Journal {
    pub fn start(format: LogFormat, metrics: Arc<Metrics>) -> io::Result<Self> {
        Ok(Self {
            format,
            metrics,
            log: Writer::start(io::stderr())?,
            box_notes: Mutex::default(),
            subscribers: broadcast::Sender::new(RECORDS_WAITING),
        })
    }

    pub fn record(&self, event: &LogEvent<'_>) -> Arc<LogRecord> {
        self.metrics.count(event);
        let record = Arc::new(LogRecord::of(event, Timestamp::now()));
        self.log.write(record.line(self.format));
        // This fails if there are no subscribers.
        self.subscribers.send(Arc::clone(&record)).ok();
        record
    }

    /// Records each of the engine's notes once, however many boxes have it.
    pub fn record_box_notes(&self, notes: &[String]) {
        let mut known = locked(&self.box_notes);
        for note in notes {
            if known.insert(note.clone()) {
                self.record(&LogEvent::BoxNote { note });
            }
        }
    }

    /// The number of lines that the log had no room for.
    pub fn dropped(&self) -> u64 {
        self.log.dropped()
    }

    /// Waits until every line is written, for a bounded time.
    pub fn flush(&self) {
        self.log.flush();
    }

    /// Receives every event from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<LogRecord>> {
        self.subscribers.subscribe()
    }
}

impl LogRecord {
    fn of(event: &LogEvent<'_>, at: Timestamp) -> Self {
        let fields = match serde_json::to_value(event) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) | Err(_) => Map::new(),
        };
        let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
        Self { at, fields: fields.map(|(key, value)| (key, cut(value))).collect() }
    }

    /// The stable name of the event.
    pub fn event(&self) -> &str {
        self.fields.get("event").and_then(Value::as_str).unwrap_or_default()
    }

    /// The API key that the event is about.
    pub fn key(&self) -> Option<&str> {
        self.fields.get("key").and_then(Value::as_str)
    }

    /// One object: time, name and fields.
    pub fn to_json(&self) -> Value {
        let mut fields = self.fields.clone();
        fields.insert("time".to_owned(), self.at.to_string().into());
        Value::Object(fields)
    }

    fn line(&self, format: LogFormat) -> String {
        match format {
            LogFormat::Json => format!("{}\n", escaped_json(&self.to_json().to_string())),
            LogFormat::Human => {
                let fields = self.fields.iter().filter(|(key, _)| *key != "event");
                let fields: String = fields.map(|(key, value)| format!(" {key}={value}")).collect();
                format!("{} {}{}\n", self.at, self.event(), escaped(&fields))
            }
        }
    }
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
    use std::time::Duration;

    use tare_engine::STILL_POPULATED;

    use super::*;
    use crate::telemetry::OfBox;

    fn request(path: &str) -> LogEvent<'_> {
        LogEvent::Request {
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
        LogRecord::of(&request(path), Timestamp::from_ms(0)).line(format)
    }

    /// A request must not be able to forge a line of the log, or to fill the disk with one.
    #[test]
    fn a_request_cannot_write_a_second_line_or_a_long_one() {
        let hostile = "/a\nfake line \u{1b}[2J \u{9b}2J \u{7f} \u{202e}";
        let path = format!("{hostile}{}", "x".repeat(1 << 20));
        for format in [LogFormat::Human, LogFormat::Json] {
            let line = line(format, &path);
            assert_eq!(line.lines().count(), 1, "{line:.100}");
            assert!(line.len() < 2000);
            for character in hostile.chars().filter(|it| !it.is_ascii_graphic() && *it != ' ') {
                assert!(!line.trim_end().contains(character), "{character:?} in {line:.100}");
            }
        }
    }

    #[test]
    fn a_json_line_has_a_time_a_name_and_the_fields_that_have_values() {
        let line = line(LogFormat::Json, "/v1/boxes");
        let text = r#"{"duration_ms":1.5,"event":"request","method":"GET","path":"/v1/boxes","#;
        let rest = r#""request_id":"abc","status":404,"time":"1970-01-01T00:00:00.000Z"}"#;
        assert_eq!(line, format!("{text}{rest}\n"));
    }

    #[test]
    fn a_human_line_begins_with_the_time_and_the_name() {
        let line = line(LogFormat::Human, "/v1/boxes");
        let fields = r#"duration_ms=1.5 method="GET" path="/v1/boxes" request_id="abc" status=404"#;
        assert_eq!(line, format!("1970-01-01T00:00:00.000Z request {fields}\n"));
    }

    #[test]
    fn a_subscriber_gets_events_and_a_slow_one_the_number_it_missed() {
        let journal = Journal::start(LogFormat::Json, Arc::default()).expect("a thread");
        journal.record(&LogEvent::Reloaded);
        let mut subscriber = journal.subscribe();
        journal.record(&request("/health"));
        let received = subscriber.try_recv().expect("it was recorded");
        assert_eq!(received.event(), "request");
        assert_eq!(received.to_json()["path"], "/health");
        for _more in 0..=RECORDS_WAITING {
            journal.record(&LogEvent::Reloaded);
        }
        let missed = broadcast::error::TryRecvError::Lagged(1);
        assert_eq!(subscriber.try_recv().err(), Some(missed));
        assert!(subscriber.try_recv().is_ok());
    }

    #[test]
    fn a_box_whose_processes_do_not_die_causes_its_own_event() {
        let name = |why: &str| {
            let of = OfBox { box_id: "abc", key: None, request_id: None };
            let event = LogEvent::stuck(of, why);
            LogRecord::of(&event, Timestamp::from_ms(0)).event().to_owned()
        };
        let populated = format!("cannot empty cgroup /x: {STILL_POPULATED}");
        assert_eq!(name(&populated), "cgroup_still_populated");
        assert_eq!(name("its keeper does not die"), "teardown_stuck");
    }
}
