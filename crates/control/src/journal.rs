//! The journal of a detached box: a file of one page that the creator of the box makes, and in which
//! the keeper records what happens.
//!
//! ```text
//! 1 24207533677 detached                        slot 0: the box was detached
//! 7 24209990021 stop 10000                      slot 1: a client asked it to stop
//! 9 24210004512 ended 0 stopped 1763244545123   slot 2: the box ended
//! 5 24208220193 paused                          slot 3: the last of `paused` and `resumed`
//! 2 24207533677 exec 1 python3                  slots 4 to 63: a ring of the newest events
//! 3 24207541004 end 1 256 exited
//! ```
//!
//! The first slots are facts: each has its own place, so no later event overwrites it.
//!
//! A slot has 64 bytes: a number, the time on the boot clock in microseconds, a word, its fields,
//! blanks, a newline. The creator fills the file with blanks, so a full disk costs the keeper
//! nothing, and every note is one write.
//!
//! A later version of tare reads journals that this version writes. So the form is text, a word
//! keeps its fields, and a reader skips lines that it does not know. Readers trust nothing: the box
//! can choose the names in this file, and a box that took over its keeper can write anything. Only
//! visible ASCII is written or read.

use std::fmt;
use std::io::Write;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::cause::{Cause, End};

pub const SLOT_BYTES: usize = 64;
/// Slots for the facts, before the ring.
const FACT_SLOTS: usize = 4;
/// How many events the ring keeps.
pub const EVENT_SLOTS: usize = 60;
/// One page, which a file takes anyway.
pub const JOURNAL_BYTES: usize = (FACT_SLOTS + EVENT_SLOTS) * SLOT_BYTES;

/// The largest time, in microseconds of the boot clock and in milliseconds of the wall clock. It
/// has 15 digits, so the longest line fits its slot.
const TIME_MAX: u64 = 999_999_999_999_999;
const NAME_BYTES_MAX: usize = 24;

/// The name of a program, in visible ASCII and never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// Takes the last part of a path. Other characters than visible ASCII become `?`.
    pub fn of(program: &[u8]) -> Self {
        let last = program.rsplit(|byte| *byte == b'/').next();
        let bytes = last.unwrap_or_default().iter().take(NAME_BYTES_MAX);
        let shown = bytes.map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' });
        let name: String = shown.collect();
        Self(if name.is_empty() { "?".to_owned() } else { name })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        if word.len() > NAME_BYTES_MAX {
            return Err(());
        }
        Ok(Self(word.to_owned()))
    }
}

/// Declares [`BoxEvent`] and both directions of its text form from one table: word, variant, fields.
macro_rules! box_events {
    ($($(#[$doc:meta])* $word:literal => $variant:ident $({ $($field:ident: $type:ty),+ })?;)+) => {
        /// Something that happened in a detached box.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum BoxEvent {
            $($(#[$doc])* $variant $({ $($field: $type),+ })?,)+
        }

        impl fmt::Display for BoxEvent {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),+ })? => {
                        f.write_str($word)?;
                        $($(write!(f, " {}", $field)?;)+)?
                        Ok(())
                    })+
                }
            }
        }

        impl BoxEvent {
            fn read(words: &[&str]) -> Option<Self> {
                let (word, fields) = words.split_first()?;
                match *word {
                    $($word => {
                        let [$($($field),+)?] = fields else { return None };
                        Some(Self::$variant $({ $($field: $field.parse().ok()?),+ })?)
                    })+
                    _ => None,
                }
            }
        }
    };
}

// `process` counts the processes that clients started in a box, from 1. `wait_status` and `cause`
// are those of an [`End`].
box_events! {
    /// The command runs.
    "started" => Started;
    /// The box no longer depends on its creator.
    "detached" => Detached;
    /// The creator ended before it detached the box.
    "abandoned" => Abandoned;
    "exec" => ExecStarted { process: u32, name: Name };
    "failed" => ExecFailed { process: u32, name: Name };
    "end" => ExecEnded { process: u32, wait_status: i32, cause: Cause };
    "copy-in" => CopyIn { process: u32 };
    "copy-out" => CopyOut { process: u32 };
    "copy-end" => CopyEnded { process: u32, wait_status: i32, cause: Cause };
    /// A client asked the box to stop.
    "stop" => StopRequested { grace_ms: u32 };
    /// A client sent this signal to the command.
    "signal" => Signalled { signal: i32 };
    "paused" => Paused;
    "resumed" => Resumed;
    /// The scratch space was full when the command had ended.
    "scratch-full" => ScratchFull;
    /// The box has ended; only a fact, never in the ring. `at_ms` is the wall clock, in
    /// milliseconds since 1970.
    "ended" => Ended { wait_status: i32, cause: Cause, at_ms: u64 };
}

impl BoxEvent {
    /// Returns the slot of a fact.
    fn fact_slot(&self) -> Option<usize> {
        match self {
            Self::Detached => Some(0),
            Self::StopRequested { .. } => Some(1),
            Self::Ended { .. } => Some(2),
            Self::Paused | Self::Resumed => Some(3),
            Self::Started
            | Self::Abandoned
            | Self::ExecStarted { .. }
            | Self::ExecFailed { .. }
            | Self::ExecEnded { .. }
            | Self::CopyIn { .. }
            | Self::CopyOut { .. }
            | Self::CopyEnded { .. }
            | Self::Signalled { .. }
            | Self::ScratchFull => None,
        }
    }

    /// Returns whether the event is kept in the ring; facts may be kept there as well.
    pub fn is_in_ring(&self) -> bool {
        !matches!(self, Self::Ended { .. })
    }
}

/// An event with its number and time. Its text form is one line of the journal, also in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Event {
    /// The first event of a box has 0.
    pub number: u32,
    /// Microseconds of the boot clock.
    pub at_us: u64,
    pub what: BoxEvent,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.number, self.at_us.min(TIME_MAX), self.what)
    }
}

impl FromStr for Event {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let is_visible = |byte: u8| matches!(byte, b' '..=b'~');
        if line.len() >= SLOT_BYTES || !line.bytes().all(is_visible) {
            return Err(());
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [number, at_us, what @ ..] = words.as_slice() else {
            return Err(());
        };
        let number = number.parse().map_err(drop)?;
        let at_us = at_us.parse().ok().filter(|at| *at <= TIME_MAX).ok_or(())?;
        Ok(Self { number, at_us, what: BoxEvent::read(what).ok_or(())? })
    }
}

impl From<Event> for String {
    fn from(event: Event) -> Self {
        event.to_string()
    }
}

impl TryFrom<String> for Event {
    type Error = &'static str;

    fn try_from(line: String) -> Result<Self, Self::Error> {
        line.parse().map_err(|()| "not a line of a journal")
    }
}

impl Event {
    /// Returns what to write, and at which offsets of the file: as a fact, then into the ring.
    pub fn slots(&self) -> impl Iterator<Item = ([u8; SLOT_BYTES], u64)> {
        let mut slot = [b' '; SLOT_BYTES];
        slot[SLOT_BYTES - 1] = b'\n';
        let mut room = &mut slot[..SLOT_BYTES - 1];
        // Only the name of a program can be too long for the slot; the slot cuts it.
        write!(room, "{self}").ok();
        let in_ring = self.what.is_in_ring().then(|| ring_slot(self.number));
        let places = self.what.fact_slot().into_iter().chain(in_ring);
        places.map(move |place| (slot, (place * SLOT_BYTES) as u64))
    }
}

fn ring_slot(number: u32) -> usize {
    FACT_SLOTS + number as usize % EVENT_SLOTS
}

/// Everything that a journal says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Journal {
    /// The box no longer depends on its creator.
    pub detached: bool,
    /// A client asked the box to stop.
    pub stopping: bool,
    /// A client paused the box. The kernel has the last word: a client that resumes the box may be
    /// killed before the keeper records it.
    pub paused: bool,
    pub ended: Option<Ended>,
    /// The newest events, the oldest first.
    pub events: Vec<Event>,
}

/// How and when a box ended; see [`BoxEvent::Ended`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub end: End,
    /// Milliseconds of the wall clock since 1970.
    pub at_ms: u64,
    /// Microseconds of the boot clock.
    pub at_us: u64,
}

impl Journal {
    /// Reads a journal. Skips a line whose word does not belong into its slot: it is torn, or no keeper
    /// wrote it.
    pub fn read(file: &[u8]) -> Self {
        let slots = file.chunks_exact(SLOT_BYTES).take(FACT_SLOTS + EVENT_SLOTS).enumerate();
        let mut journal = Self::default();
        for (place, slot) in slots {
            let Some(event) = event_in(slot) else { continue };
            if event.what.fact_slot() == Some(place) {
                journal.add_fact(&event);
            } else if event.what.is_in_ring() && ring_slot(event.number) == place {
                journal.events.push(event);
            }
        }
        journal.events.sort_by_key(|event| event.number);
        journal
    }

    fn add_fact(&mut self, event: &Event) {
        self.detached |= event.what == BoxEvent::Detached;
        self.stopping |= matches!(event.what, BoxEvent::StopRequested { .. });
        self.paused |= event.what == BoxEvent::Paused;
        if let BoxEvent::Ended { wait_status, cause, at_ms } = event.what {
            // Only the keeper of a machine knows that: other boxes have cgroups that count.
            let end = End { cause, wait_status, oom: cause == Cause::Memory };
            self.ended = Some(Ended { end, at_ms, at_us: event.at_us });
        }
    }
}

fn event_in(slot: &[u8]) -> Option<Event> {
    std::str::from_utf8(slot.strip_suffix(b"\n")?).ok()?.parse().ok()
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
