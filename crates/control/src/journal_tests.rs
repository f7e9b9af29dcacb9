//! Journals as a keeper writes them, and journals that no keeper wrote.

use super::*;

const LONGEST: [u8; 300] = [b'x'; 300];

fn every() -> Vec<BoxEvent> {
    let (process, wait_status, cause) = (u32::MAX, 0xff00, Cause::Exited);
    let name = Name::of(&LONGEST);
    vec![
        BoxEvent::Started,
        BoxEvent::Detached,
        BoxEvent::Abandoned,
        BoxEvent::ExecStarted { process: 1, name: name.clone() },
        BoxEvent::ExecFailed { process: 1, name },
        BoxEvent::ExecEnded { process, wait_status, cause },
        BoxEvent::ExecEnded { process, wait_status: 9, cause: Cause::ClientGone },
        BoxEvent::CopyIn { process },
        BoxEvent::CopyOut { process },
        BoxEvent::CopyEnded { process, wait_status, cause },
        BoxEvent::StopRequested { grace_ms: u32::MAX },
        BoxEvent::Signalled { signal: i32::MIN },
        BoxEvent::Resumed,
        BoxEvent::Paused,
    ]
}

fn file_of(events: &[Event]) -> Vec<u8> {
    let mut file = vec![b' '; JOURNAL_BYTES];
    for (slot, at) in events.iter().flat_map(Event::slots) {
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
    assert_eq!(JOURNAL_BYTES, 4096);
    let numbered = every().into_iter().enumerate();
    let events: Vec<Event> = numbered
        .map(|(at, what)| Event { number: u32::MAX - 30 + at as u32, at_us: TIME_MAX, what })
        .collect();
    let journal = Journal::read(&file_of(&events));
    assert_eq!(journal.events, events);
    assert!(journal.detached && journal.stopping && journal.paused);
    assert_eq!(journal.ended, None);
}

#[test]
fn facts_outlive_the_events_of_the_ring() {
    let what = [
        BoxEvent::Detached,
        BoxEvent::StopRequested { grace_ms: 5 },
        BoxEvent::Paused,
        BoxEvent::Resumed,
        BoxEvent::Ended { wait_status: 9, cause: Cause::OutputLimit, at_ms: TIME_MAX },
    ];
    let filler = (0..1000).map(|_| BoxEvent::Started);
    let events = what.into_iter().chain(filler).zip(0..);
    let events: Vec<Event> =
        events.map(|(what, number)| Event { number, at_us: TIME_MAX, what }).collect();
    let journal = Journal::read(&file_of(&events));
    assert!(journal.detached && journal.stopping && !journal.paused);
    let end = End::killed(Cause::OutputLimit);
    assert_eq!(journal.ended, Some(Ended { end, at_ms: TIME_MAX, at_us: TIME_MAX }));
    assert!(journal.events.iter().all(|event| event.what == BoxEvent::Started));
}

#[test]
fn the_ring_keeps_the_newest_events() {
    let events: Vec<Event> = (0..1000)
        .map(|number| Event {
            number,
            at_us: u64::from(number),
            what: BoxEvent::ExecEnded { process: number, wait_status: 0, cause: Cause::Exited },
        })
        .collect();
    let file = file_of(&events);
    assert_eq!(file.len(), JOURNAL_BYTES);
    assert_eq!(Journal::read(&file).events, events[1000 - EVENT_SLOTS..]);
}

/// The longest lines that a keeper writes: a limit ends a box with SIGKILL.
#[test]
fn the_end_of_a_box_fits_its_slot() {
    for (wait_status, cause) in [(9, Cause::OutputLimit), (0xff00, Cause::Stopped)] {
        let what = BoxEvent::Ended { wait_status, cause, at_ms: TIME_MAX };
        let event = Event { number: u32::MAX, at_us: TIME_MAX, what };
        let ended = Journal::read(&file_of(&[event])).ended;
        assert_eq!(ended.map(|it| (it.end.cause, it.at_ms)), Some((cause, TIME_MAX)));
    }
}

#[test]
fn every_program_name_becomes_one_printable_word() {
    let mut random = Random(7);
    for length in 0..200 {
        let name = Name::of(&random.bytes(length));
        let shown = name.to_string();
        assert!((1..=NAME_BYTES_MAX).contains(&shown.len()));
        assert!(shown.bytes().all(|byte| byte.is_ascii_graphic()));
        let event = Event { number: 3, at_us: 5, what: BoxEvent::ExecStarted { process: 1, name } };
        assert_eq!(Journal::read(&file_of(std::slice::from_ref(&event))).events, [event]);
    }
    assert_eq!(Name::of(b"/usr/bin/python3").to_string(), "python3");
    assert_eq!(Name::of(b"\x1b[2J a\xff\n").to_string(), "?[2J?a??");
    assert_eq!(Name::of(b"bin/").to_string(), "?");
}

/// Whatever is in the file, reading it ends. The result has nothing but visible characters, at most
/// one event for each slot, and is in order.
#[test]
fn a_hostile_journal_yields_only_possible_events() {
    let mut random = Random(11);
    let events = (0..60).map(|number| Event {
        number,
        at_us: 1,
        what: every()[number as usize % every().len()].clone(),
    });
    let whole = file_of(&events.collect::<Vec<_>>());
    for round in 0..2000 {
        let mut file = match round % 3 {
            0 => {
                let length = random.below(2 * JOURNAL_BYTES);
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
        let events = Journal::read(&file).events;
        assert!(events.len() <= EVENT_SLOTS);
        assert!(events.is_sorted_by(|one, other| one.number < other.number));
        for event in &events {
            assert!(event.to_string().bytes().all(|byte| matches!(byte, b' '..=b'~')));
        }
    }
}

#[test]
fn a_torn_or_misplaced_event_is_ignored() {
    for (place, text) in [
        (4, "61 5 started"),
        (4, "0 5 started now"),
        (4, "0 5 exec 1 two words"),
        (4, "0 x started"),
        (4, "0 5 end 1 9 magic"),
        (4, "0 9999999999999999 started"),
        (4, "-1 5 started"),
        (4, "0 5 ended 0 exited 1"),
        (4, "0"),
        (4, ""),
        (0, "0 5 ended 0 exited 1"),
        (1, "0 5 detached"),
        (2, "0 5 ended x exited 1"),
        (2, "0 5 ended 1 magic 2"),
        (2, "0 5 started"),
        (64, "0 5 detached"),
    ] {
        let mut file = vec![b' '; JOURNAL_BYTES + SLOT_BYTES];
        let slot = format!("{text:63}\n");
        file[place * SLOT_BYTES..][..SLOT_BYTES].copy_from_slice(slot.as_bytes());
        assert_eq!(Journal::read(&file), Journal::default(), "{text}");
    }
}
