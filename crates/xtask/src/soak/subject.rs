//! The subject of a soak: a way to run boxes.

use super::commands::Caller;
use super::mix::Job;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Tare,
    Bwrap,
    LibreChat,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tare => "tare",
            Self::Bwrap => "bwrap, naively",
            Self::LibreChat => "tare serve, for LibreChat",
        }
    }
}

/// How many boxes run between two samples at least. Each lives for some milliseconds.
const BOXES_BETWEEN: u64 = 250;

/// A description of a command that ended in another way than expected.
pub type Surprise = String;

pub trait Subject: Sync {
    /// Prepares the subject before the first sample.
    fn make_ready(&self, caller: &Caller) -> Result<(), Surprise>;

    /// Starts the residents: boxes that live throughout the soak and get execs.
    fn start_residents(&mut self, caller: &Caller) -> Result<(), Surprise>;

    /// The purpose of a box, in words.
    fn purpose(&self, job: &Job) -> &'static str {
        job.purpose.name()
    }

    /// Runs one box, as far as its purpose goes. Returns the number of execs.
    fn live(&self, job: Job, caller: &Caller) -> Result<u64, Surprise>;

    /// Runs the next ordinary command. Returns how many boxes exist, if the subject knows.
    fn next_command(&self, caller: &Caller) -> Result<Option<u64>, Surprise>;

    fn end_residents(&mut self, caller: &Caller) -> Result<(), Surprise>;

    /// How many boxes run between two samples at least: all workers wait for a sample.
    fn boxes_between(&self) -> u64 {
        BOXES_BETWEEN
    }

    /// How long to wait until everything is as before.
    fn patience(&self) -> Duration;

    /// The number of processes at which the soak stops.
    fn processes_max(&self) -> Option<u64>;
}
