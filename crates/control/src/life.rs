//! The life of a detached box, as its keeper writes it down: a file that the
//! creator made, with room for all that will ever be said, so that a full disk
//! takes nothing away. One line for each event; what is not written yet is blank.
//! Behind these lines, in the same file, is what happened on the way (`events`).
//!
//! ```text
//! detached
//! stopping
//! exited 0 command 1763244545123
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The room of these lines: blanks from the beginning.
pub const LIFE_BYTES: usize = 256;

/// What ended a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndedBy {
    /// Its command ended.
    Command,
    /// Its timeout passed.
    Timeout,
    /// Its lease passed.
    Lease,
    /// It was asked to stop, and did, or did not within the grace.
    Stop,
    /// Its output passed the limit.
    Output,
    /// SIGKILL from outside, or for memory: nobody could say so in here.
    Kill,
}

impl EndedBy {
    const ALL: [Self; 6] =
        [Self::Command, Self::Timeout, Self::Lease, Self::Stop, Self::Output, Self::Kill];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Timeout => "timeout",
            Self::Lease => "lease",
            Self::Stop => "stop",
            Self::Output => "output",
            Self::Kill => "kill",
        }
    }
}

impl FromStr for EndedBy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut known = Self::ALL.into_iter();
        known.find(|one| one.as_str() == text).ok_or(())
    }
}

/// One line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifeEvent {
    Detached,
    Stopping,
    Exited {
        /// As of `wait`; meaningful when it was the command that ended the box.
        wait_status: i32,
        by: EndedBy,
        /// Milliseconds of the wall clock since 1970.
        at_ms: u64,
    },
}

impl fmt::Display for LifeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detached => f.write_str("detached"),
            Self::Stopping => f.write_str("stopping"),
            Self::Exited { wait_status, by, at_ms } => {
                write!(f, "exited {wait_status} {} {at_ms}", by.as_str())
            }
        }
    }
}

/// The events of a life; what a hostile keeper wrote instead of one is left out.
pub fn parse(file: &[u8]) -> Vec<LifeEvent> {
    let text = String::from_utf8_lossy(&file[..file.len().min(LIFE_BYTES)]);
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<LifeEvent> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["detached"] => Some(LifeEvent::Detached),
        ["stopping"] => Some(LifeEvent::Stopping),
        ["exited", wait_status, by, at_ms] => Some(LifeEvent::Exited {
            wait_status: wait_status.parse().ok()?,
            by: by.parse().ok()?,
            at_ms: at_ms.parse().ok()?,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_read_as_it_was_written_and_fits_its_room() {
        let events = [
            LifeEvent::Detached,
            LifeEvent::Stopping,
            LifeEvent::Exited { wait_status: i32::MIN, by: EndedBy::Command, at_ms: u64::MAX },
        ];
        let text: String = events.iter().map(|event| format!("{event}\n")).collect();
        assert!(text.len() <= LIFE_BYTES);
        let blank = " ".repeat(LIFE_BYTES - text.len());
        assert_eq!(parse((text + &blank).as_bytes()), events);
    }

    #[test]
    fn every_end_is_known_by_its_name() {
        for end in EndedBy::ALL {
            assert_eq!(end.as_str().parse(), Ok(end));
        }
    }

    #[test]
    fn malformed_events_are_left_out() {
        assert_eq!(parse(b"exited x command 1\nexited 1 magic 2\n\0\0\xff"), []);
        let behind = [&[b' '; LIFE_BYTES][..], b"\ndetached\n"].concat();
        assert_eq!(parse(&behind), []);
    }
}
