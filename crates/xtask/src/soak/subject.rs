//! What is soaked: how it makes a box for each purpose, and how it is looked after.

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

/// Each lives for some milliseconds.
const BOXES_BETWEEN: u64 = 250;

/// How a command ended that should have ended in another way.
pub type Surprise = String;

pub trait Subject: Sync {
    /// Whatever is made once, for all boxes to come.
    fn make_ready(&self, caller: &Caller) -> Result<(), Surprise>;

    /// Starts the boxes that live throughout and are execed into.
    fn start_residents(&mut self, caller: &Caller) -> Result<(), Surprise>;

    /// What a box is for, in words.
    fn purpose(&self, job: &Job) -> &'static str {
        job.purpose.name()
    }

    /// One box from start to end, or as far as its purpose goes. Says how many
    /// execs there were.
    fn live(&self, job: Job, caller: &Caller) -> Result<u64, Surprise>;

    /// What anybody would run next. Says how many boxes there still are, if it
    /// can tell.
    fn next_command(&self, caller: &Caller) -> Result<Option<u64>, Surprise>;

    fn end_residents(&mut self, caller: &Caller) -> Result<(), Surprise>;

    /// Everybody waits for a sample, so there are at least so many boxes between two.
    fn boxes_between(&self) -> u64 {
        BOXES_BETWEEN
    }

    /// How long a difference has to stay before it counts as one. What is
    /// always different is not worth a long wait.
    fn patience(&self) -> Duration;

    /// Above so many processes it is not worth going on.
    fn processes_max(&self) -> Option<u64>;
}
