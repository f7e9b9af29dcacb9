//! Every event with its fields. Names and fields are an API: the log, `GET /v1/events` and the
//! hook show them, and `docs/serve.md` lists them.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tare_engine::{Cause, Change, End, STILL_POPULATED, Timestamp};

use crate::error::ServiceError;

/// The box that an event is about.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct OfBox<'a> {
    pub box_id: &'a str,
    /// The API key that the box belongs to. A client with a plain key gets the events with its own.
    pub key: Option<&'a str>,
    /// The request that caused the event, if one did.
    pub request_id: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum LogEvent<'a> {
    Listening {
        on: &'a str,
    },
    /// The host has too few descriptors for the configured limits.
    LimitsLowered {
        limits: &'a [&'static str],
    },
    /// No key is an admin, so that no client can use the routes for operators.
    NoAdmin {
        hint: &'a str,
    },
    Recovered {
        boxes: usize,
        #[serde(rename = "duration_ms", serialize_with = "ms")]
        duration: Duration,
    },
    Request {
        request_id: &'a str,
        /// The name of the key that the client sent.
        key: Option<&'a str>,
        method: &'a str,
        path: &'a str,
        /// The pattern of the route, for the metrics.
        #[serde(skip)]
        route: &'a str,
        status: u16,
        #[serde(rename = "duration_ms", serialize_with = "ms")]
        duration: Duration,
        code: Option<&'a str>,
        #[serde(rename = "detail", serialize_with = "detail")]
        error: Option<&'a ServiceError>,
    },
    RunEnded {
        /// `None` if no box was made.
        box_id: Option<&'a str>,
        key: Option<&'a str>,
        request_id: Option<&'a str>,
        cause: Cause,
        exit_code: Option<u8>,
        /// The code of the error that kept the run from finishing.
        code: Option<&'a str>,
        #[serde(rename = "duration_ms", serialize_with = "ms")]
        duration: Duration,
    },
    BoxCreated(OfBox<'a>),
    /// Without a request, the box was removed because it had ended.
    BoxRemoved(OfBox<'a>),
    BoxPaused(OfBox<'a>),
    BoxResumed(OfBox<'a>),
    BoxLeaseChanged {
        #[serde(flatten)]
        of_box: OfBox<'a>,
        /// `None` if the box has no lease.
        lease_ends_at: Option<Timestamp>,
    },
    BoxLimitsChanged(OfBox<'a>),
    BoxRenamed {
        #[serde(flatten)]
        of_box: OfBox<'a>,
        name: Option<&'a str>,
    },
    BoxEnded {
        #[serde(flatten)]
        of_box: OfBox<'a>,
        exit_code: Option<u8>,
        /// `None` if the box is stuck, and has not ended yet.
        cause: Option<Cause>,
    },
    /// What boxes of this host lack, such as the enforcement of a default limit.
    BoxNote {
        note: &'a str,
    },
    /// A box could not be ended in time. Its record stays, and the server tries again.
    TeardownStuck {
        #[serde(flatten)]
        of_box: OfBox<'a>,
        why: &'a str,
    },
    /// A box could not be ended in time, because a process in it does not die.
    CgroupStillPopulated {
        #[serde(flatten)]
        of_box: OfBox<'a>,
        why: &'a str,
    },
    /// A box is still being made. `why` says at which step.
    StartSlow {
        #[serde(flatten)]
        of_box: OfBox<'a>,
        why: &'a str,
    },
    /// tare removed the leftovers of a box that no process looked after.
    OrphanReclaimed {
        box_id: &'a str,
        #[serde(serialize_with = "joined")]
        found: &'a [String],
    },
    GaugeChanged {
        gauge: &'static str,
        from: &'static str,
        to: &'static str,
        used: Option<u64>,
        limit: Option<u64>,
        limit_is: Option<&'a str>,
    },
    /// A box could not be made ahead. Requests make their own, and the server tries again.
    PoolFailed {
        pool: &'static str,
        why: &'a str,
    },
    /// No clones can be made, and no pool is configured. Requests make their own boxes.
    PoolOff {
        pool: &'static str,
        why: &'a str,
    },
    /// An interpreter of a pool takes long to start.
    PoolSlow {
        box_id: &'a str,
        why: &'a str,
    },
    /// A box that waited in a pool has died. The server replaces it.
    PoolMemberLost {
        box_id: &'a str,
    },
    HookFailed {
        hook: &'a str,
        why: &'a str,
    },
    /// Expired files could not be removed. The server tries again.
    FilesNotSwept {
        why: &'a str,
    },
    /// A token names an unknown key, and the key files cannot be read. The server keeps the
    /// keys that it has.
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

impl<'a> LogEvent<'a> {
    pub fn box_ended(of_box: OfBox<'a>, end: Option<End>) -> Self {
        let (exit_code, cause) = (end.map(End::code), end.map(|end| end.cause));
        Self::BoxEnded { of_box, exit_code, cause }
    }

    pub fn gauge_changed(change: &'a Change) -> Self {
        let reading = change.reading.as_ref();
        Self::GaugeChanged {
            gauge: change.gauge.as_str(),
            from: change.from.as_str(),
            to: change.to.as_str(),
            used: reading.map(|reading| reading.used),
            limit: reading.map(|reading| reading.limit),
            limit_is: reading.map(|reading| reading.limit_is.as_str()),
        }
    }

    /// The event for a box that could not be ended; `why` is the engine's message.
    pub fn stuck(of_box: OfBox<'a>, why: &'a str) -> Self {
        if why.contains(STILL_POPULATED) {
            Self::CgroupStillPopulated { of_box, why }
        } else {
            Self::TeardownStuck { of_box, why }
        }
    }
}

fn ms<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((duration.as_secs_f64() * 1e6).round() / 1e3)
}

fn detail<S: Serializer>(error: &Option<&ServiceError>, serializer: S) -> Result<S::Ok, S::Error> {
    error.and_then(|error| error.detail.as_deref()).serialize(serializer)
}

fn joined<S: Serializer>(found: &&[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&found.join("; "))
}
