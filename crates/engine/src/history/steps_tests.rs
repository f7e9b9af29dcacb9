//! Histories from lines and events that a test made up.

use tare_control::journal::Name;

use super::*;
use crate::record::lines::{VERSION, parse};

const ID: &str = "abcdefghij23";
/// On the boot clock, when the boxes of these tests were made.
const BEGAN_NS: u64 = 1_000_000_000;

fn at(ms: u64) -> u64 {
    BEGAN_NS + ms * 1_000_000
}

fn now(ms: u64) -> Moment {
    Moment { at: Timestamp::from_ms(1_000_000 + ms), boot_ns: at(ms) }
}

fn event(number: u32, ms: u64, what: BoxEvent) -> Event {
    Event { number, at_us: at(ms) / 1000, what }
}

/// The first line of a box whose creation was at 1,000 s of 1970.
fn created(command: &str) -> String {
    let created_at = Timestamp::from_ms(1_000_000);
    serde_json::json!({"intent": {
        "version": VERSION, "boot_id": "b", "created_at": created_at, "created_ns": BEGAN_NS,
        "cgroup_roots": [], "detached": null,
        "spec": {
            "command": ["sh", "-c", command], "name": "web", "labels": {}, "env": [],
            "workdir": null, "user": {"uid": 1, "gid": 1}, "privilege": "unprivileged",
            "limits": {
                "memory_bytes": {"Default": 1}, "cpus": null, "pids": {"Default": 1},
                "nofile": 1, "scratch_bytes": {"Default": 1}
            },
            "timeout": null, "root": "HostView", "volumes": [], "network": "none",
            "isolation": "full", "seccomp": "default", "terminal": "Pipes"
        }
    }})
    .to_string()
}

fn ended(ms: u64, cause: &str) -> String {
    let at_wall = Timestamp::from_ms(1_000_000 + ms);
    format!(
        r#"{{"ended":{{"cause":"{cause}","wait_status":9,"oom":false,"at":"{at_wall}","at_ns":{},"emptied_ms":3}}}}"#,
        at(ms)
    )
}

fn sources(lines: &[String], ended: Option<Ended>, events: Vec<Event>) -> Sources {
    Sources {
        lines: parse(&lines.join("\n")).collect(),
        events,
        ended,
        ..Sources::none(&BoxId::parse(ID).unwrap())
    }
}

fn told(lines: &[String], ended: Option<Ended>, events: Vec<Event>) -> History {
    history(&sources(lines, ended, events), now(10_000))
}

fn kinds(story: &History) -> Vec<StepKind> {
    story.steps.iter().map(|step| step.event).collect()
}

#[test]
fn lines_and_events_are_one_story_in_the_order_of_their_times() {
    let lines = [
        created("true"),
        format!(r#"{{"renamed":{{"name":"b","at_ns":{}}}}}"#, at(30)),
        format!(r#"{{"ending":{{"why":"requested","pid":7,"at_ns":{}}}}}"#, at(50)),
        ended(54, "killed"),
    ];
    let events = vec![
        event(0, 10, BoxEvent::Started),
        event(1, 20, BoxEvent::ExecStarted { process: 1, name: Name::of(b"ls") }),
        event(2, 40, BoxEvent::ExecEnded { process: 1, wait_status: 256, cause: Cause::Exited }),
    ];
    let removal = Removal { why: Reason::Expired, pid: 8, emptied_ms: None, at: now(60) };
    let sources = Sources { removal: Some(removal), ..sources(&lines, None, events) };
    let story = history(&sources, now(10_000));
    let expected = [
        (0, "created: sh -c true"),
        (10, "its command runs"),
        (20, "exec 1 started: ls"),
        (30, "renamed to b"),
        (40, "exec 1 exited with 1"),
        (50, "killed by tare (pid 7): as a user requested"),
        (54, "all processes gone after 3 ms"),
        (60, "removed by tare (pid 8): it had ended, and its retention had passed"),
    ];
    let steps: Vec<(u64, &str)> =
        story.steps.iter().map(|step| (step.after_ms, step.text.as_str())).collect();
    assert_eq!(steps, expected);
    assert_eq!(story.names, ["web", "b"]);
    assert_eq!((story.steps[4].exit_code, story.steps[4].cause), (Some(1), Some(Cause::Exited)));
    assert_eq!(story.end.map(|end| end.cause), Some(Cause::Killed));
    assert_eq!(story.steps[4].at, Timestamp::from_ms(1_000_040));
}

#[test]
fn a_keeper_that_recorded_no_end_was_killed_by_another_process() {
    let story = told(&[created("true"), ended(9, "keeper_lost")], None, Vec::new());
    let expected = [StepKind::Created, StepKind::Lost, StepKind::Emptied];
    assert_eq!(kinds(&story), expected);
}

#[test]
fn the_end_of_a_box_is_dated_by_its_keeper() {
    let end = End::of_command(0);
    let said = Ended { end, at_ms: 1_000_005, at_us: at(5) / 1000 };
    for lines in [vec![created("true")], vec![created("true"), ended(9, "exited")]] {
        let story = told(&lines, Some(said), Vec::new());
        assert_eq!(kinds(&story)[..2], [StepKind::Created, StepKind::CommandEnded]);
        let cause = story.end.map(|end| end.cause);
        assert_eq!((story.steps[1].after_ms, cause), (5, Some(Cause::Exited)));
    }
}

/// What the record, the keeper and the process that removed the box say, in this order.
#[test]
fn the_cause_of_an_end_is_read_from_the_best_source() {
    let removal = |why| Some(Removal { why, pid: 8, emptied_ms: None, at: now(60) });
    let killed = format!(r#"{{"ending":{{"why":"stopped","pid":7,"at_ns":{}}}}}"#, at(50));
    let said = Ended { end: End::killed(Cause::Timeout), at_ms: 5, at_us: at(5) / 1000 };
    for (lines, ended, why, expected) in [
        (vec![], None, None, None),
        (vec![ended(9, "lease")], Some(said), None, Some(Cause::Lease)),
        (vec![killed.clone()], Some(said), None, Some(Cause::Timeout)),
        (vec![killed], None, Some(Reason::Abandoned), Some(Cause::Stopped)),
        (vec![], None, Some(Reason::Abandoned), Some(Cause::ClientGone)),
        (vec![], None, Some(Reason::RemoveAfterEnd), Some(Cause::KeeperLost)),
        (vec![], None, Some(Reason::Rebooted), Some(Cause::HostRebooted)),
        (vec![], Some(said), Some(Reason::Rebooted), Some(Cause::Timeout)),
    ] {
        let removal = why.and_then(removal);
        let sources = Sources { removal, ..sources(&lines, ended, Vec::new()) };
        assert_eq!(sources.end().map(|end| end.cause), expected);
    }
    let evidence = Some(Evidence { oom_kills: Some(1), ..Evidence::default() });
    let oom = Sources { evidence, removal: removal(Reason::Expired), ..sources(&[], None, vec![]) };
    assert_eq!(oom.end().map(|end| end.cause), Some(Cause::Memory));
}

#[test]
fn a_line_that_was_written_twice_happened_once() {
    let line = format!(r#"{{"renamed":{{"name":"b","at_ns":{}}}}}"#, at(30));
    let story = told(&[created("true"), line.clone(), line], None, vec![]);
    assert_eq!(kinds(&story), [StepKind::Created, StepKind::Renamed]);
}

/// A keeper can be made to write anything.
#[test]
fn no_event_is_before_the_box_or_after_now() {
    let events = vec![
        event(0, 10, BoxEvent::Started),
        Event { number: 1, at_us: 0, what: BoxEvent::Paused },
        Event { number: 2, at_us: u64::MAX, what: BoxEvent::Resumed },
    ];
    let story = told(&[created("true")], None, events);
    let times: Vec<u64> = story.steps.iter().map(|step| step.after_ms).collect();
    assert_eq!(times, [0, 0, 10, 10_000]);
}

#[test]
fn without_a_record_the_keepers_events_are_shown() {
    let story = told(&[], None, vec![event(7, 9_000, BoxEvent::Started)]);
    assert_eq!(kinds(&story), [StepKind::Started]);
    assert_eq!(story.created_at, Timestamp::from_ms(1_009_000));
    assert_eq!(story.forgotten, 7);
}

#[test]
fn a_long_history_loses_its_middle_and_counts_the_loss() {
    let paused = |number| event(number, 10 + u64::from(number), BoxEvent::Paused);
    let story = told(&[created("true")], None, (0..500).map(paused).collect());
    assert_eq!(story.steps.len(), STEPS_MAX);
    assert_eq!(story.forgotten, 501 - STEPS_MAX as u64);
    assert_eq!(story.steps[0].event, StepKind::Created);
    assert_eq!(story.steps[STEPS_MAX - 1].after_ms, 509);
}

#[test]
fn a_command_is_shown_on_one_harmless_line() {
    let story = told(&[created("\u{1b}[2J\n\u{202e}é\u{9b}")], None, vec![]);
    assert_eq!(story.steps[0].text, "created: sh -c \\u{1b}[2J\\n\\u{202e}é\\u{9b}");
    let story = told(&[created(&"x".repeat(100_000))], None, vec![]);
    assert!(story.steps[0].text.len() < 2 * TEXT_CHARS_MAX);
}

#[test]
fn sources_that_are_too_long_lose_their_middle() {
    let many = (0..60).map(|number| event(number, 10 + u64::from(number), BoxEvent::Paused));
    let line = format!(r#"{{"renamed":{{"name":"b","at_ns":{}}}}}"#, at(5));
    let lines = [created(&"x".repeat(1000)), line.clone(), line];
    let mut sources = sources(&lines, None, many.collect());
    assert!(sources.shorten());
    let story = history(&sources, now(10_000));
    assert!(story.steps[0].text.ends_with("xxx..."), "{}", story.steps[0].text);
    assert_eq!((story.steps.len(), story.forgotten), (62, 0));
    while sources.shorten() {}
    let story = history(&sources, now(10_000));
    let times: Vec<u64> = story.steps.iter().map(|step| step.after_ms).collect();
    assert_eq!(times, [0, 5, 10, 69]);
    assert_eq!(story.names, ["web", "b"]);
    assert_eq!(story.forgotten, 1 + 58);
}

#[test]
fn a_request_is_named_where_its_act_is_shown_and_is_a_step_only_if_no_other_step_shows_it() {
    let request = |act: &str, ms| {
        let by = r#"{"server":{"pid":7}}"#;
        format!(r#"{{"requested":{{"act":{act},"by":{by},"at_ns":{}}}}}"#, at(ms))
    };
    let lines = [
        created("true"),
        request("\"stop\"", 9),
        request("{\"signal\":10}", 19),
        ended(50, "stopped"),
    ];
    let events = vec![event(0, 10, BoxEvent::StopRequested { grace_ms: 1000 })];
    let story = told(&lines, None, events);
    let texts: Vec<&str> = story.steps.iter().map(|step| step.text.as_str()).collect();
    assert_eq!(texts[1], "asked to stop by 'tare serve' (pid 7), with a grace of 1s");
    assert_eq!(texts[2], "signal 10 (SIGUSR1) requested by 'tare serve' (pid 7)");
}

#[test]
fn a_successful_run_is_one_short_line() {
    let created: Created = match parse(&created(&"x".repeat(1000))).next() {
        Some(Line::Created(created)) => *created,
        other => panic!("{other:?}"),
    };
    let sources = Sources::of_success(&BoxId::parse(ID).unwrap(), &created);
    let line = serde_json::to_string(&sources).unwrap();
    assert!(line.len() < 300, "{}: {line}", line.len());
    let read: Sources = serde_json::from_str(&line).unwrap();
    assert_eq!(read.end(), Some(End::of_command(0)));
    assert_eq!(read.names().collect::<Vec<_>>(), ["web"]);
    assert!(read.had_name_until("web").is_some() && read.had_name_until("b").is_none());
    let story = history(&read, now(10_000));
    assert_eq!(kinds(&story), [StepKind::Created, StepKind::CommandEnded]);
}
