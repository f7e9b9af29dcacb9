//! What a record says: lines, each a fact about the box. Lines are appended. Two operations rewrite
//! the file: one merges many changes into one line, the other marks the removal of the box.
//!
//! `end` has the lines about the end of a box, `held_line` what it held then, `evidence` what the
//! kernel counted by then, and `request` the requests of users. `fold` turns all lines into what they
//! say together.

mod end;
mod evidence;
mod fold;
mod held_line;
mod request;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::actor::Actor;
use crate::spec::{Cpus, DetachOptions, Name, Spec};
use crate::time::{Moment, Timestamp, from_now};

pub use end::{EndedLine, EndingLine, Failure, Reason, StuckLine};
pub use evidence::Evidence;
pub use fold::RecordLines;
pub use held_line::{HeldItem, HeldLine, NAMED_MAX, SeenGone};
pub use request::{Act, RequestLine, asked_for};

/// The version of the format. tare does not interpret a record of another version: the same words
/// may mean something else in it.
pub const VERSION: u32 = 2;

/// One line of `record.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// Files of version 2 call it `intent`.
    #[serde(rename = "intent")]
    Created(Box<Created>),
    Keeper(KeeperLine),
    Renamed {
        name: Name,
        at_ns: u64,
    },
    Updated(UpdatedLine),
    /// The removal of the box has begun. If the process that removes it is killed, the next command
    /// finishes the removal.
    Removing {
        at_ns: u64,
    },
    Stuck(StuckLine),
    Ending(EndingLine),
    Ended(Box<EndedLine>),
    /// The box waits in this pool of a server. Nothing of a client is in it.
    Warm {
        pool: String,
        at_ns: u64,
    },
    Claimed(Box<ClaimedLine>),
    /// What the box holds, before tare kills it, and once more when tare has seen it empty.
    Held(HeldLine),
    Requested(RequestLine),
    /// The keeper starts this machine.
    Machine(MachineLine),
    /// The keeper in the machine has answered, and the command runs.
    Booted {
        at_ns: u64,
    },
}

/// The first line, written before tare acquires anything for the box.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Created {
    /// The version of the whole record; see [`VERSION`].
    pub version: u32,
    pub boot_id: String,
    pub created_at: Timestamp,
    /// The creation on the boot clock, as all times of a record that end in `_ns`.
    pub created_ns: u64,
    pub cgroup_roots: Vec<PathBuf>,
    /// Without the values of the environment.
    pub spec: Spec,
    /// `None`: the box is attached.
    pub detached: Option<DetachOptions>,
    /// The process that made the box. Records of older versions do not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<Actor>,
}

impl Created {
    /// The creation on both clocks.
    pub fn moment(&self) -> Moment {
        Moment { at: self.created_at, boot_ns: self.created_ns }
    }
}

/// The keeper exists: what proves that a process is the keeper, and not another one with its pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperLine {
    pub boot_id: String,
    pub pid: i32,
    /// `None` on kernels where it would prove nothing.
    pub pidfd_inode: Option<u64>,
    pub cgroup_inode: Option<u64>,
    /// The host's id of the box's user 0, if the box has a uid range of its own.
    pub first_uid: Option<u32>,
    pub lease: Lease,
    /// When this was written. The command starts later.
    pub at_ns: u64,
}

/// The machine of a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineLine {
    /// The name of its kernel, or the path of a file that the user named.
    pub kernel: String,
    /// The version of its monitor.
    pub monitor: String,
    /// The memory that it was started with.
    pub memory_bytes: u64,
    /// How long it may boot. Records of older versions do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
    pub at_ns: u64,
}

/// A request has taken the box out of its pool. It is a box of this spec from now on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClaimedLine {
    /// Without the values of the environment.
    pub spec: Spec,
    /// The box is to be detached, with these options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached: Option<ClaimedDetached>,
    pub at_ns: u64,
}

/// What a request for a detached box decides about a box that has waited.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClaimedDetached {
    pub options: DetachOptions,
    pub lease: Lease,
}

/// What `update` changed; `None` leaves a value as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatedLine {
    pub at_ns: u64,
    pub memory_bytes: Option<u64>,
    pub pids: Option<u32>,
    pub cpus: Option<Cpus>,
    pub lease: Option<Lease>,
}

impl UpdatedLine {
    fn then(self, later: Self) -> Self {
        Self {
            at_ns: later.at_ns,
            memory_bytes: later.memory_bytes.or(self.memory_bytes),
            pids: later.pids.or(self.pids),
            cpus: later.cpus.or(self.cpus),
            lease: later.lease.or(self.lease),
        }
    }
}

/// When a box ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lease {
    Never,
    Ends {
        /// The end on the boot clock, which decides.
        at_ns: u64,
        /// The end for people, by the wall clock when the lease was given.
        at: Timestamp,
    },
}

impl Lease {
    /// A lease that begins now.
    pub fn of(duration: Option<Duration>) -> Self {
        match duration {
            None => Self::Never,
            Some(left) => Self::Ends { at_ns: from_now(left), at: Timestamp::now().after(left) },
        }
    }

    pub fn ends_ns(self) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::Ends { at_ns, .. } => Some(at_ns),
        }
    }

    pub fn ends_at(self) -> Option<Timestamp> {
        match self {
            Self::Never => None,
            Self::Ends { at, .. } => Some(at),
        }
    }
}

impl Line {
    pub fn created(&self) -> Option<&Created> {
        if let Self::Created(created) = self { Some(created) } else { None }
    }

    /// Returns the name that this line gives to the box.
    pub fn name(&self) -> Option<&Name> {
        if let Self::Renamed { name, .. } = self {
            Some(name)
        } else if let Self::Claimed(claimed) = self {
            claimed.spec.name.as_ref()
        } else {
            self.created()?.spec.name.as_ref()
        }
    }

    /// Returns when this line was written, on the boot clock.
    pub fn at_ns(&self) -> u64 {
        match self {
            Self::Created(created) => created.created_ns,
            Self::Keeper(keeper) => keeper.at_ns,
            Self::Renamed { at_ns, .. }
            | Self::Removing { at_ns }
            | Self::Warm { at_ns, .. }
            | Self::Booted { at_ns } => *at_ns,
            Self::Machine(machine) => machine.at_ns,
            Self::Claimed(claimed) => claimed.at_ns,
            Self::Updated(updated) => updated.at_ns,
            Self::Stuck(stuck) => stuck.at_ns,
            Self::Ending(ending) => ending.at_ns,
            Self::Ended(ended) => ended.at_ns,
            Self::Held(held) => held.looked.map_or(0, |looked| looked.boot_ns),
            Self::Requested(request) => request.at_ns,
        }
    }
}

/// Returns the lines that can be read.
pub fn parse(text: &str) -> impl Iterator<Item = Line> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// Returns the lines with one update in place of all updates, which has the same effect.
pub fn merge_updates(text: &str) -> serde_json::Result<String> {
    let mut merged = UpdatedLine::default();
    let mut kept = String::new();
    for line in text.lines() {
        if let Ok(Line::Updated(update)) = serde_json::from_str(line) {
            merged = merged.then(update);
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept.push_str(&serde_json::to_string(&Line::Updated(merged))?);
    kept.push('\n');
    Ok(kept)
}

/// How many names of a box [`drop_names`] keeps.
pub const NAMES_KEPT: usize = 32;

/// Returns the lines without the names that the box got, except for the last ones. The name that it was
/// made with stays.
pub fn drop_names(text: &str) -> String {
    let is_name = |line: &str| matches!(serde_json::from_str(line), Ok(Line::Renamed { .. }));
    let names = text.lines().filter(|line| is_name(line)).count();
    let mut excess = names.saturating_sub(NAMES_KEPT);
    let mut kept = String::new();
    for line in text.lines() {
        if excess > 0 && is_name(line) {
            excess -= 1;
        } else {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_lease_differs_from_a_missing_one() {
        let hour = Lease::of(Some(Duration::from_secs(3600)));
        for lease in [None, Some(Lease::Never), Some(hour)] {
            let update = UpdatedLine { lease, ..UpdatedLine::default() };
            let text = serde_json::to_string(&update).unwrap();
            assert_eq!(serde_json::from_str::<UpdatedLine>(&text).unwrap(), update);
        }
    }
}
