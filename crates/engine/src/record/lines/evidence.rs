//! What the kernel counted about a box, read before its cgroups are removed.

use serde::{Deserialize, Serialize};
use tare_control::Pressure;

/// The kernel's own numbers at the end of a box. `None`: the kernel does not count it here, or tare
/// could not read it in time.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// How often the box reached its memory limit: `max` in memory.events, or memory.failcnt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_reached: Option<u64>,
    /// How many processes the kernel killed for memory: `oom_kill` in memory.events or
    /// memory.oom_control.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    /// The host or a cgroup above the box ran out of memory, and not the box.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub oom_above: bool,
    /// The processes that the kernel killed for memory, as far as its log names them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub oom_killed: Vec<String>,
    /// When the kernel killed the first of them, on the boot clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_killed_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_limit: Option<u64>,
    /// The most processes at once, or the last number that was seen. The keeper does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_peak: Option<u64>,
    /// How many new processes the kernel refused: `max` in pids.events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_refused: Option<u64>,
    /// The box never had as many processes as its limit allows: a cgroup above it has the limit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pids_refused_above: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<u64>,
    /// How long the limit on processor time kept the box from running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_throttled_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch_limit_bytes: Option<u64>,
    /// Whether the scratch space was full at the end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub scratch_full: bool,
    /// The timeout of a command whose box has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The limit on the output that the box's creator enforces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_limit_bytes: Option<u64>,
    /// The last part of what the command wrote to stderr.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

impl Evidence {
    /// The limits that the box had reached.
    pub fn pressure(&self) -> Pressure {
        Pressure {
            oom: self.oom_kills.is_some_and(|kills| kills > 0),
            pids: self.pids_refused.is_some_and(|refused| refused > 0),
            scratch_full: self.scratch_full,
        }
    }
}
