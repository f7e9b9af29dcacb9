//! The status of a box for people and programs. The field names are those of `tare ls --json` and
//! are stable.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
pub use tare_control::{Cause, End, Pressure};

use crate::error::{Error, ErrorKind, Hint};
use crate::spec::shown::quoted;
use crate::spec::{BoxId, Driver};
use crate::time::Timestamp;

#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its creator is making it.
    Starting,
    /// It waits in a pool of a server for a request.
    Warm,
    Running,
    /// Its processes do not run; its deadlines do.
    Paused,
    /// It was asked to stop, or is ending.
    Stopping,
    /// Only its record is left.
    Exited,
    /// tare could not end it, and tries again.
    Stuck,
}

impl State {
    pub const ALL: [Self; 7] = [
        Self::Starting,
        Self::Warm,
        Self::Running,
        Self::Paused,
        Self::Stopping,
        Self::Exited,
        Self::Stuck,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Warm => "warm",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Exited => "exited",
            Self::Stuck => "stuck",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for State {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut known = Self::ALL.into_iter();
        known.find(|state| state.as_str() == text).ok_or_else(|| {
            Error::bad_request(format!("{} is not a state", quoted(text)))
                .with_hint("a box is starting, warm, running, paused, stopping, exited or stuck")
        })
    }
}

#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: BoxId,
    pub name: Option<String>,
    /// The API key that the box belongs to. `None` for a box of the command line or of a server
    /// without keys, and if the record is damaged.
    pub key: Option<String>,
    pub state: State,
    /// `None` if the record is damaged.
    pub driver: Option<Driver>,
    /// Its machine boots.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub booting: bool,
    /// The pool of a server in which the box waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub created_at: Timestamp,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub lease_ends_at: Option<Timestamp>,
    pub command: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// The keeper does not count.
    pub pids: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub exit_code: Option<u8>,
    /// Whether it ends with the `tare run` that started it.
    pub attached: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub ended_at: Option<Timestamp>,
    /// The last sign of life, if the keeper was killed: the box ended between this time and
    /// `ended_at`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub ended_after: Option<Timestamp>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub cause: Option<Cause>,
    /// Whether the kernel killed one of its processes for the memory limit.
    pub oom: bool,
    pub stuck_on: Option<String>,
}

impl Status {
    /// The status of a box of which only the id is known.
    pub fn unknown(id: BoxId) -> Self {
        Self {
            id,
            name: None,
            key: None,
            state: State::Stuck,
            driver: None,
            booting: false,
            pool: None,
            created_at: Timestamp::from_ms(0),
            lease_ends_at: None,
            command: Vec::new(),
            labels: BTreeMap::new(),
            pids: None,
            memory_bytes: None,
            exit_code: None,
            attached: false,
            ended_at: None,
            ended_after: None,
            cause: None,
            oom: false,
            stuck_on: None,
        }
    }

    /// Drops what describes the host: the reason why a box is stuck names processes and paths. What
    /// a box waits for while it starts does not.
    pub fn without_host(mut self) -> Self {
        self.stuck_on = self.stuck_on.filter(|_| self.state == State::Starting);
        self
    }
}

/// What a box uses now, and its limits. `None`: tare does not know it here.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Default, Serialize)]
pub struct Usage {
    pub memory_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    pub cpu_us: Option<u64>,
    pub pids: Option<u64>,
    pub pids_limit: Option<u64>,
    pub scratch_bytes: Option<u64>,
    pub scratch_limit_bytes: Option<u64>,
    pub output_bytes: Option<u64>,
    pub output_dropped_bytes: Option<u64>,
}

/// What a box uses of the gauges of processes and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GaugedUse {
    /// Includes the keeper.
    pub pids: u64,
    /// Without what the kernel can reclaim at once.
    pub memory_bytes: u64,
}

/// One object of the host that a box holds now.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldObject {
    pub kind: &'static str,
    pub what: String,
}

/// An interpreter that makes boxes, each with a copy of itself.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TemplateDetails {
    /// The modules that it imported before it made its first clone.
    pub imported: Vec<String>,
    /// The clones that it has made.
    pub clones: u64,
    pub age_ms: u64,
}

/// The machine of a box.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct MachineDetails {
    /// The name of its kernel, or the path of a file that the user named.
    pub kernel: String,
    /// The version of its monitor.
    pub monitor: String,
    /// The memory that it was started with.
    pub memory_bytes: u64,
    /// The process of its monitor, while it runs.
    pub pid: Option<i32>,
}

#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Serialize)]
pub struct Details {
    #[serde(flatten)]
    pub status: Status,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub spec: serde_json::Value,
    pub usage: Option<Usage>,
    /// What a template has done. Other boxes do not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateDetails>,
    /// The machine that the box runs in. Native boxes do not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<MachineDetails>,
    /// The cgroups below which it was made, one in each hierarchy.
    pub cgroup_parents: Vec<String>,
    pub holdings: Vec<HeldObject>,
}

impl Details {
    /// Drops what describes the host: holdings, the monitor's pid, cgroups, the directories behind volumes and root, and
    /// why the box is stuck.
    pub fn without_host(mut self) -> Self {
        self.status = self.status.without_host();
        self.holdings.clear();
        self.vm.iter_mut().for_each(|vm| vm.pid = None);
        self.cgroup_parents.clear();
        if let Some(rootfs) = self.spec.get_mut("rootfs") {
            rootfs.take();
        }
        let volumes = self.spec.get_mut("volumes").and_then(serde_json::Value::as_array_mut);
        for host in volumes.into_iter().flatten().filter_map(|volume| volume.get_mut("host")) {
            host.take();
        }
        self
    }
}

/// The error for a reference to a box that does not exist.
pub fn no_box(reference: &str) -> Error {
    let message = format!("there is no box {}", quoted(reference));
    Error::new(ErrorKind::NoSuchBox, message).with_hint(Hint::ListBoxes)
}

/// The error for a request that a box in a pool does not take.
pub fn is_waiting(id: &BoxId) -> Error {
    Error::new(ErrorKind::Warm, format!("box {id} waits in a pool of a server"))
        .caused_by("it takes only the request that the server chooses for it")
        .with_hint(Hint::EndWaiting)
}

/// The error for a request that needs a live box.
pub fn has_ended(id: &BoxId) -> Error {
    Error::conflict(format!("box {id} has ended")).with_hint(Hint::SeeHowItEnded)
}
