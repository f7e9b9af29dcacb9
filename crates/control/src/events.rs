//! What happened in a detached box, as its keeper writes it down behind its
//! [`life`](crate::life): a ring of slots in the same page, so that the newest are
//! there, room is never wanted, and an event is one write of a few bytes.
//!
//! ```text
//! 3 24207533677 exec 1 python3
//! 4 24207541004 end 1 256
//! ```
//! A number that grows by one, the time, a word, what belongs to it, blanks. The
//! names in it were chosen by whoever is in the box: only what every terminal shows
//! is ever written or read, and what is anything else is no event.

use std::fmt;
use std::io::Write;

use crate::life::{EndedBy, LIFE_BYTES};

/// A slot, with the end of its line.
pub const SLOT_BYTES: usize = 64;
pub const SLOTS: usize = 60;
/// A page, which a file takes anyway: the life, then the slots.
pub const LIFE_FILE_BYTES: usize = LIFE_BYTES + SLOTS * SLOT_BYTES;

/// What a time on the boot clock has at most, in microseconds: thirty years.
const AT_US_MAX: u64 = 999_999_999_999_999;
/// How much of a name is written down.
const NAME_BYTES_MAX: usize = 24;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The first of a box has 0.
    pub number: u32,
    /// On the boot clock.
    pub at_us: u64,
    pub what: Happening,
}

/// Processes that were started for clients are counted, from 1 on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// The command runs.
    Started,
    /// Nobody but itself keeps the box any more.
    Detached,
    /// The creator is gone before that.
    Abandoned,
    ExecStarted {
        process: u32,
        name: Name,
    },
    ExecFailed {
        process: u32,
        name: Name,
    },
    CopyIn {
        process: u32,
    },
    CopyOut {
        process: u32,
    },
    /// A process that was started for a client.
    Ended {
        process: u32,
        wait_status: i32,
    },
    TimedOut {
        process: u32,
    },
    /// Its client is gone.
    HungUp {
        process: u32,
    },
    StopAsked {
        grace_ms: u32,
    },
    Signalled {
        signal: i32,
    },
    Paused,
    Resumed,
    /// The command has ended.
    CommandEnded {
        wait_status: i32,
    },
    /// The keeper ends everyone, because a limit was passed.
    Killed {
        by: EndedBy,
    },
}

/// What a program is called, in characters that do nothing to a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// The last part of a path. What is not a visible character is shown as `?`.
    pub fn of(program: &[u8]) -> Self {
        let last = program.rsplit(|byte| *byte == b'/').next();
        let bytes = last.unwrap_or_default().iter().take(NAME_BYTES_MAX);
        let shown = bytes.map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' });
        Self(shown.collect())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn read(words: &[&str]) -> Option<Self> {
        match words {
            [] => Some(Self(String::new())),
            [word] if word.len() <= NAME_BYTES_MAX => Some(Self((*word).to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("started"),
            Self::Detached => f.write_str("detached"),
            Self::Abandoned => f.write_str("abandoned"),
            Self::ExecStarted { process, name } => write!(f, "exec {process} {}", name.0),
            Self::ExecFailed { process, name } => write!(f, "failed {process} {}", name.0),
            Self::CopyIn { process } => write!(f, "copy-in {process}"),
            Self::CopyOut { process } => write!(f, "copy-out {process}"),
            Self::Ended { process, wait_status } => write!(f, "end {process} {wait_status}"),
            Self::TimedOut { process } => write!(f, "timeout {process}"),
            Self::HungUp { process } => write!(f, "hung-up {process}"),
            Self::StopAsked { grace_ms } => write!(f, "stop {grace_ms}"),
            Self::Signalled { signal } => write!(f, "signal {signal}"),
            Self::Paused => f.write_str("paused"),
            Self::Resumed => f.write_str("resumed"),
            Self::CommandEnded { wait_status } => write!(f, "exited {wait_status}"),
            Self::Killed { by } => write!(f, "killed {}", by.as_str()),
        }
    }
}

impl Happening {
    fn read(words: &[&str]) -> Option<Self> {
        let (word, rest) = words.split_first()?;
        let one = || match rest {
            [process] => process.parse().ok(),
            _ => None,
        };
        Some(match (*word, rest) {
            ("started", []) => Self::Started,
            ("detached", []) => Self::Detached,
            ("abandoned", []) => Self::Abandoned,
            ("exec", [process, name @ ..]) => {
                Self::ExecStarted { process: process.parse().ok()?, name: Name::read(name)? }
            }
            ("failed", [process, name @ ..]) => {
                Self::ExecFailed { process: process.parse().ok()?, name: Name::read(name)? }
            }
            ("copy-in", _) => Self::CopyIn { process: one()? },
            ("copy-out", _) => Self::CopyOut { process: one()? },
            ("end", [process, wait_status]) => Self::Ended {
                process: process.parse().ok()?,
                wait_status: wait_status.parse().ok()?,
            },
            ("timeout", _) => Self::TimedOut { process: one()? },
            ("hung-up", _) => Self::HungUp { process: one()? },
            ("stop", [grace_ms]) => Self::StopAsked { grace_ms: grace_ms.parse().ok()? },
            ("signal", [signal]) => Self::Signalled { signal: signal.parse().ok()? },
            ("paused", []) => Self::Paused,
            ("resumed", []) => Self::Resumed,
            ("exited", [wait_status]) => {
                Self::CommandEnded { wait_status: wait_status.parse().ok()? }
            }
            ("killed", [by]) => Self::Killed { by: by.parse().ok()? },
            _ => return None,
        })
    }
}

impl Event {
    /// What is written, and where in the file.
    pub fn slot(&self) -> ([u8; SLOT_BYTES], u64) {
        let mut slot = [b' '; SLOT_BYTES];
        slot[SLOT_BYTES - 1] = b'\n';
        let mut room = &mut slot[..SLOT_BYTES - 1];
        let at_us = self.at_us.min(AT_US_MAX);
        // Only a name can be longer than the room that is left, and is then cut.
        write!(room, "{} {at_us} {}", self.number, self.what).ok();
        (slot, (LIFE_BYTES + place(self.number) * SLOT_BYTES) as u64)
    }

    fn read(slot: &[u8]) -> Option<Self> {
        let is_shown = |byte: &u8| matches!(byte, b' '..=b'~');
        let line = slot.strip_suffix(b"\n")?;
        let text = std::str::from_utf8(line).ok()?;
        if !line.iter().all(is_shown) {
            return None;
        }
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let [number, at_us, what @ ..] = words.as_slice() else {
            return None;
        };
        Some(Self {
            number: number.parse().ok()?,
            at_us: at_us.parse().ok().filter(|at| *at <= AT_US_MAX)?,
            what: Happening::read(what)?,
        })
    }
}

fn place(number: u32) -> usize {
    number as usize % SLOTS
}

/// The events of a life, the oldest first. One that is where it cannot be is half
/// of one event and half of another, or a lie.
pub fn parse(file: &[u8]) -> Vec<Event> {
    let slots = file.get(LIFE_BYTES..).unwrap_or_default();
    let slots = slots.chunks_exact(SLOT_BYTES).take(SLOTS).enumerate();
    let read = slots.filter_map(|(at, slot)| Event::read(slot).filter(|it| place(it.number) == at));
    let mut events: Vec<Event> = read.collect();
    events.sort_by_key(|event| event.number);
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: [u8; 300] = [b'x'; 300];

    fn every() -> Vec<Happening> {
        let (process, wait_status) = (u32::MAX, i32::MIN);
        let name = Name::of(&LONGEST);
        vec![
            Happening::Started,
            Happening::Detached,
            Happening::Abandoned,
            Happening::ExecStarted { process: 1, name: name.clone() },
            Happening::ExecFailed { process: 1, name },
            Happening::CopyIn { process },
            Happening::CopyOut { process },
            Happening::Ended { process, wait_status },
            Happening::TimedOut { process },
            Happening::HungUp { process },
            Happening::StopAsked { grace_ms: u32::MAX },
            Happening::Signalled { signal: i32::MIN },
            Happening::Paused,
            Happening::Resumed,
            Happening::CommandEnded { wait_status },
            Happening::Killed { by: EndedBy::Timeout },
        ]
    }

    fn file_of(events: &[Event]) -> Vec<u8> {
        let mut file = vec![b' '; LIFE_FILE_BYTES];
        for event in events {
            let (slot, at) = event.slot();
            let at = usize::try_from(at).unwrap();
            file[at..at + SLOT_BYTES].copy_from_slice(&slot);
        }
        file
    }

    /// A small generator (xorshift), so that a failure repeats.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn below(&mut self, end: usize) -> usize {
            (self.next() % end as u64) as usize
        }

        fn bytes(&mut self, length: usize) -> Vec<u8> {
            (0..length).map(|_| self.next() as u8).collect()
        }
    }

    #[test]
    fn events_are_read_as_they_were_written_also_at_their_longest() {
        assert_eq!(LIFE_FILE_BYTES, 4096);
        let numbered = every().into_iter().enumerate();
        let events: Vec<Event> = numbered
            .map(|(at, what)| Event { number: u32::MAX - 30 + at as u32, at_us: AT_US_MAX, what })
            .collect();
        assert_eq!(parse(&file_of(&events)), events);
    }

    #[test]
    fn the_newest_are_there() {
        let events: Vec<Event> = (0..1000)
            .map(|number| Event {
                number,
                at_us: u64::from(number),
                what: Happening::Ended { process: number, wait_status: 0 },
            })
            .collect();
        let file = file_of(&events);
        assert_eq!(file.len(), LIFE_FILE_BYTES);
        assert_eq!(parse(&file), events[1000 - SLOTS..]);
    }

    #[test]
    fn every_program_name_becomes_one_harmless_word() {
        let mut random = Random(7);
        for length in 0..200 {
            let name = Name::of(&random.bytes(length));
            assert!(name.as_str().len() <= NAME_BYTES_MAX);
            assert!(name.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
            let event =
                Event { number: 3, at_us: 5, what: Happening::ExecStarted { process: 1, name } };
            assert_eq!(parse(&file_of(std::slice::from_ref(&event))), [event]);
        }
        assert_eq!(Name::of(b"/usr/bin/python3").as_str(), "python3");
        assert_eq!(Name::of(b"\x1b[2J a\xff\n").as_str(), "?[2J?a??");
        assert_eq!(Name::of(b"bin/").as_str(), "");
    }

    /// Whatever is in the file, reading it ends, and what comes of it is nothing but
    /// visible characters, at most one event for each slot, in order.
    #[test]
    fn a_hostile_journal_yields_only_possible_events() {
        let mut random = Random(11);
        let whole = file_of(
            &(0..60)
                .map(|number| Event {
                    number,
                    at_us: 1,
                    what: every()[number as usize % 16].clone(),
                })
                .collect::<Vec<_>>(),
        );
        for round in 0..2000 {
            let mut file = match round % 3 {
                0 => {
                    let length = random.below(2 * LIFE_FILE_BYTES);
                    random.bytes(length)
                }
                _ => whole.clone(),
            };
            for _ in 0..random.below(200).min(file.len()) {
                let at = random.below(file.len());
                file[at] = match round % 2 {
                    0 => random.next() as u8,
                    _ => b" 0123456789\n"[random.below(12)],
                };
            }
            let events = parse(&file);
            assert!(events.len() <= SLOTS);
            assert!(events.is_sorted_by(|one, other| one.number < other.number));
            for event in &events {
                let shown = event.what.to_string();
                assert!(shown.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            }
        }
    }

    #[test]
    fn a_torn_event_is_ignored() {
        for text in [
            "61 5 started",
            "1 5 started now",
            "1 5 exec 1 two words",
            "1 x started",
            "1 5 killed magic",
            "1 9999999999999999 started",
            "-1 5 started",
            "1",
            "",
        ] {
            let mut file = vec![b' '; LIFE_FILE_BYTES];
            let slot = format!("{text:63}\n");
            file[LIFE_BYTES..LIFE_BYTES + SLOT_BYTES].copy_from_slice(slot.as_bytes());
            assert_eq!(parse(&file), [], "{text}");
        }
    }
}
