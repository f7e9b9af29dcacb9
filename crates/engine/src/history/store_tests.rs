//! Histories on a real file system.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rustix::fs::FileType;

use super::*;
use crate::history::steps::{self, History};
use crate::record::lines::parse as parse_lines;
use crate::spec::{BoxId, Tenant};
use crate::time::Moment;

const BOOT: &str = "this-boot";
const HOUR: Duration = Duration::from_secs(3600);

/// A directory that goes with the test.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("histories-{}", BoxId::random()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn histories(&self) -> PathBuf {
        self.0.join("histories")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A store of a process of its own.
fn store(path: &Path) -> HistoryStore<'_> {
    HistoryStore { path, boot_id: BOOT, open: Box::leak(Box::default()) }
}

/// A successful run without a receipt: its line is the only one.
fn run() -> Sources {
    let run = serde_json::json!({"command": "true", "created_at": Timestamp::now(), "created_ns": 1, "ended_ns": 2});
    serde_json::from_value(serde_json::json!({ "id": BoxId::random(), "run": run })).unwrap()
}

fn first(path: &Path) -> PathBuf {
    path.join("1")
}

fn bytes_of(path: &Path) -> u64 {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// Returns sources with one line of a record, which says this.
fn sources(text: &str) -> Sources {
    let line = serde_json::json!({"stuck": {"step": text, "why": "", "tries": 1, "at_ns": 1}});
    let id = BoxId::random();
    let value = serde_json::json!({ "id": id });
    let none: Sources = serde_json::from_value(value).unwrap();
    Sources { lines: parse_lines(&line.to_string()).collect(), ..none }
}

/// Returns sources like these with another text.
fn again(sources: &Sources, text: &str) -> Sources {
    Sources { id: sources.id.clone(), ..self::sources(text) }
}

fn copy(sources: &Sources) -> Sources {
    serde_json::from_value(serde_json::to_value(sources).unwrap()).unwrap()
}

fn add(path: &Path, sources: &Sources, retention: Duration) {
    store(path).add(&Tenant::default(), copy(sources), retention).unwrap();
}

fn told(sources: &Sources) -> History {
    steps::history(sources, Moment::now())
}

/// Returns the histories that are kept, the newest first.
fn kept(path: &Path) -> Vec<Sources> {
    let found = store(path).find(&[Wanted::Id("")]).unwrap();
    found.into_iter().filter_map(Lookup::kept).collect()
}

/// Returns their ids and texts.
fn read(path: &Path) -> Vec<(BoxId, String)> {
    expected(&kept(path).iter().collect::<Vec<_>>())
}

fn expected(all: &[&Sources]) -> Vec<(BoxId, String)> {
    all.iter().map(|it| (it.id.clone(), told(it).steps[0].text.clone())).collect()
}

#[test]
fn the_newest_history_comes_first_and_the_last_of_a_box_counts() {
    let place = Place::new();
    let path = place.histories();
    assert_eq!(read(&path), []);
    let (one, two) = (sources("one"), sources("two"));
    let again = again(&one, "once more");
    for one in [&one, &two, &again] {
        add(&path, one, HOUR);
    }
    assert_eq!(read(&path), expected(&[&again, &two]));
}

#[test]
fn a_history_is_found_by_its_id_the_beginning_of_it_and_its_name() {
    let place = Place::new();
    let path = place.histories();
    let (one, two) = (sources("one"), sources("\"name\":\"web\""));
    let mut named = sources("named");
    named.lines.extend(parse_lines("{\"renamed\":{\"name\":\"web\",\"at_ns\":1}}"));
    for one in [&one, &two, &named] {
        add(&path, one, HOUR);
    }
    let ids = |wanted: &[Wanted<'_>]| {
        let found = store(&path).find(wanted).unwrap();
        found.iter().map(|it| it.sources().id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&[Wanted::Id(one.id.as_str())]), std::slice::from_ref(&one.id));
    assert!(ids(&[Wanted::Id(&one.id.as_str()[..8])]).contains(&one.id));
    assert_eq!(ids(&[Wanted::Name("web")]), std::slice::from_ref(&named.id), "quotes are escaped");
    assert_eq!(ids(&[Wanted::Name("we")]), []);
}

#[test]
fn a_history_is_kept_for_its_retention_also_past_a_boot() {
    let place = Place::new();
    let path = place.histories();
    store(&path).add(&Tenant::default(), sources("none"), Duration::ZERO).unwrap();
    assert!(!path.exists(), "nothing of it is to be kept");
    add(&path, &sources("short"), Duration::from_nanos(1));
    assert_eq!(read(&path), []);
    assert!(matches!(store(&path).find(&[Wanted::Id("")]).unwrap()[..], [Lookup::Expired(_)]));
    let long = sources("long");
    add(&path, &long, HOUR);
    assert_eq!(read(&path), expected(&[&long]));
    let later = HistoryStore { boot_id: "another-boot", ..store(&path) };
    let found = later.find(&[Wanted::Id(long.id.as_str())]).unwrap();
    assert!(matches!(found[..], [Lookup::Kept(_)]));
}

#[test]
fn histories_stay_within_their_size_and_the_oldest_go_first() {
    let place = Place::new();
    let path = place.histories();
    store(&path).set(Some(BYTES_MIN), None).unwrap();
    assert_eq!(store(&path).dropped_before(&|_| true), None);
    let all: Vec<Sources> = (0..3000).map(|_| sources(&"x".repeat(1000))).collect();
    for (number, one) in all.iter().enumerate() {
        add(&path, one, HOUR);
        if number % 50 == 0 {
            assert!(bytes_of(&path) <= BYTES_MIN, "{}", bytes_of(&path));
        }
    }
    let left: Vec<BoxId> = kept(&path).into_iter().rev().map(|it| it.id).collect();
    let newest: Vec<BoxId> = all.iter().map(|it| it.id.clone()).collect();
    assert!(left.len() > 500, "{}", left.len());
    assert_eq!(left, newest[newest.len() - left.len()..]);
}

fn key(name: &str) -> Tenant {
    Tenant::parse(name).unwrap()
}

/// Returns how many of these boxes are still kept.
fn left(path: &Path, all: &[Sources]) -> usize {
    let kept: Vec<BoxId> = kept(path).into_iter().map(|it| it.id).collect();
    all.iter().filter(|it| kept.contains(&it.id)).count()
}

#[test]
fn a_key_with_many_histories_pushes_out_none_of_another_key() {
    let place = Place::new();
    let path = place.histories();
    store(&path).set(Some(BYTES_MIN), None).unwrap();
    let some = || -> Vec<Sources> { (0..100).map(|_| sources(&"x".repeat(1000))).collect() };
    let (quiet, command_line) = (some(), some());
    for (one, other) in quiet.iter().zip(&command_line) {
        store(&path).add(&key("quiet"), copy(one), HOUR).unwrap();
        add(&path, other, HOUR);
    }
    for _ in 0..3000 {
        store(&path).add(&key("loud"), sources(&"x".repeat(1000)), HOUR).unwrap();
    }
    assert!(bytes_of(&path) <= BYTES_MIN, "{}", bytes_of(&path));
    assert_eq!((left(&path, &quiet), left(&path, &command_line)), (100, 100));
    assert!(kept(&path).len() > 500, "{}", kept(&path).len());
    assert_eq!(store(&path).dropped_before(&|it| it == Some(&key("none"))), None);
    assert!(store(&path).dropped_before(&|_| true).is_none(), "no removal is in these lines");
}

#[test]
fn more_keys_than_segments_stay_within_the_size() {
    let place = Place::new();
    let path = place.histories();
    store(&path).set(Some(BYTES_MIN), None).unwrap();
    for number in 0..2000 {
        let tenant = key(&format!("key{}", number % 100));
        store(&path).add(&tenant, sources(&"x".repeat(1000)), HOUR).unwrap();
        if number % 50 == 0 {
            assert!(bytes_of(&path) <= BYTES_MIN, "{}", bytes_of(&path));
        }
    }
    assert!(kept(&path).len() >= 30, "{}", kept(&path).len());
    assert!(fs::read_dir(&path).unwrap().count() < 3 * SEGMENTS as usize);
}

#[test]
fn the_largest_size_is_a_size() {
    let place = Place::new();
    let path = place.histories();
    store(&path).set(Some(u64::MAX), None).unwrap();
    for number in 0..2 * SEGMENTS {
        store(&path).add(&key(&format!("key{number}")), sources("x"), HOUR).unwrap();
    }
    assert!(!kept(&path).is_empty());
}

#[test]
fn a_detached_box_is_found_by_the_index_and_without_it() {
    let place = Place::new();
    let path = place.histories();
    let detached = || Sources { detached: true, ..sources("detached") };
    let (one, attached) = (detached(), sources("attached"));
    for one in [&detached(), &one, &attached] {
        add(&path, one, HOUR);
    }
    let finds = |id: &BoxId| store(&path).find_detached(id).unwrap().is_some();
    assert!(finds(&one.id) && !finds(&attached.id) && !finds(&BoxId::random()));
    assert_eq!(fs::read(path.join("ids.1")).unwrap().len(), 2 * one.id.as_str().len());
    fs::remove_file(path.join("ids.1")).unwrap();
    assert!(finds(&one.id) && !finds(&attached.id));
    // A segment without an index gets none.
    add(&path, &detached(), HOUR);
    assert!(!path.join("ids.1").exists() && finds(&one.id));
}

#[test]
fn a_smaller_size_drops_the_oldest_at_once() {
    let place = Place::new();
    let path = place.histories();
    store(&path).set(Some(4 * BYTES_MIN), None).unwrap();
    for _ in 0..3000 {
        add(&path, &sources(&"x".repeat(1000)), HOUR);
    }
    assert!(bytes_of(&path) > 2 * BYTES_MIN);
    store(&path).set(Some(BYTES_MIN), None).unwrap();
    assert!(bytes_of(&path) <= BYTES_MIN, "{}", bytes_of(&path));
    assert!(!kept(&path).is_empty());
    assert_eq!(store(&path).settings(), HistorySettings { bytes: BYTES_MIN, stderr: true });
    store(&path).set(None, Some(false)).unwrap();
    assert_eq!(store(&path).settings(), HistorySettings { bytes: BYTES_MIN, stderr: false });
}

#[test]
fn a_size_out_of_its_range_is_refused() {
    assert_eq!(history_bytes(64 << 20).unwrap(), 64 << 20);
    for wrong in [0, BYTES_MIN - 1, BYTES_MAX + 1] {
        assert!(history_bytes(wrong).is_err());
    }
}

#[test]
fn a_history_that_is_too_long_is_shortened() {
    let place = Place::new();
    let path = place.histories();
    let mut long = sources("beginning");
    long.lines.extend((0..500).flat_map(|_| sources(&"é".repeat(1000)).lines));
    add(&path, &long, HOUR);
    assert!(fs::metadata(first(&path)).unwrap().len() <= LINE_BYTES_MAX as u64);
    let read = told(&kept(&path)[0]);
    assert_eq!(read.steps[0].text, "could not be ended: beginning");
    // The same line many times is one step.
    assert!(read.forgotten >= 480, "{}", read.forgotten);
}

#[test]
fn a_long_stderr_and_a_long_receipt_do_not_hide_the_history() {
    let place = Place::new();
    let path = place.histories();
    let paths = vec!["/".repeat(1000); 32];
    let receipt = serde_json::json!({
        "version": 1, "id": BoxId::random(), "name": null, "key": null, "boot_id": BOOT,
        "created_at": null, "looked": null, "why": "requested", "pid": 1, "complete": true,
        "held": [], "left_alone": [{ "kind": "volume", "count": 32, "what": paths }],
    });
    let long = Sources {
        stderr: crate::history::shown_stderr(&[0x1b; 2048]),
        receipt: Some(serde_json::from_value(receipt).unwrap()),
        ..sources("beginning")
    };
    add(&path, &long, HOUR);
    let read = kept(&path).pop().expect("the history can be read");
    assert!(read.stderr.is_some_and(|stderr| stderr.ends_with("\\u{1b}")));
    assert_eq!(read.receipt.unwrap().left_alone[0].count, Some(32));
}

#[test]
fn a_receipt_is_completed_by_a_second_line_that_repeats_nothing() {
    let place = Place::new();
    let path = place.histories();
    let item = |kind: &str, gone: serde_json::Value| {
        serde_json::json!({ "kind": kind, "count": 1, "bytes": null, "what": [],
            "gone": gone, "not_observed": null })
    };
    let seen =
        |check: &str| serde_json::json!({ "at": Timestamp::now(), "boot_ns": 1, "check": check });
    let receipt = serde_json::json!({
        "version": 1, "id": BoxId::random(), "name": "web", "key": null, "boot_id": BOOT,
        "created_at": null, "looked": null, "why": "requested", "pid": 1, "complete": false,
        "held": [item("keeper", seen("pidfd")), item("record", serde_json::Value::Null)],
        "left_alone": [],
    });
    let mut first = sources("removed");
    first.lines.extend(parse_lines("{\"renamed\":{\"name\":\"web\",\"at_ns\":1}}"));
    first.receipt = Some(serde_json::from_value(receipt).unwrap());
    add(&path, &first, HOUR);
    let gone = serde_json::json!({
        "name": "web", "complete": true, "gone": [["record", seen("path")]]
    });
    let last = Sources::of_removal(&first.id, serde_json::from_value(gone).unwrap());
    add(&path, &last, HOUR);
    for wanted in [Wanted::Id(first.id.as_str()), Wanted::Name("web")] {
        let found = store(&path).find(&[wanted]).unwrap();
        let [Lookup::Kept(found)] = &found[..] else { panic!("{found:?}") };
        let receipt = found.receipt.as_ref().unwrap();
        let checks: Vec<_> =
            receipt.held.iter().map(|it| &*it.gone.as_ref().unwrap().check).collect();
        assert!(receipt.complete && checks == ["pidfd", "path"], "{receipt:?}");
        // Their times come from two readings of the clock.
        let said = |sources| told(sources).steps.into_iter().map(|it| it.text).collect::<Vec<_>>();
        assert_eq!(said(found), said(&first));
    }
    // Its first line was dropped.
    let other = Sources { id: BoxId::random(), ..copy(&last) };
    add(&path, &other, HOUR);
    assert_eq!(kept(&path).len(), 1);
}

#[test]
fn damage_hides_no_other_line() {
    let place = Place::new();
    let path = place.histories();
    let (one, two) = (sources("one"), sources("two"));
    add(&path, &one, HOUR);
    let whole = fs::read(first(&path)).unwrap();
    for damage in [
        &b"{\"boot_id\":\"this-boot\",\"until"[..],
        b"\xff\xfe\0\n\n\n{}\nnull\n[[[[",
        &[b'['; 50_000],
        &whole[..whole.len() / 2],
    ] {
        // A process begins each line with a newline, and may be killed after it.
        fs::write(first(&path), [&whole[..], b"\n", damage].concat()).unwrap();
        add(&path, &two, HOUR);
        assert_eq!(read(&path), expected(&[&two, &one]));
    }
}

/// Whichever bytes are changed, reading yields only visible characters.
#[test]
fn a_hostile_file_is_read_in_bounds() {
    let place = Place::new();
    let path = place.histories();
    add(&path, &sources("\u{1b}[2J\r\n\u{9b}\u{202e}"), HOUR);
    let read = told(&kept(&path)[0]);
    let text = &read.steps[0].text;
    assert!(text.is_ascii() && !text.contains('\u{1b}'));
    let whole = fs::read(first(&path)).unwrap();
    let mut state = 5_u64;
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8;
        }
        fs::write(first(&path), &bytes).unwrap();
        for sources in kept(&path) {
            let read = told(&sources);
            let texts = read.steps.iter().map(|step| &step.text);
            for text in texts.chain(&read.names) {
                assert!(!text.chars().any(char::is_control), "{text:?}");
            }
        }
    }
}

#[test]
fn a_huge_segment_is_read_at_its_end() {
    let place = Place::new();
    let path = place.histories();
    fs::create_dir(&path).unwrap();
    File::create(first(&path)).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(read(&path), []);
    let one = sources("one");
    add(&path, &one, HOUR);
    assert_eq!(read(&path), expected(&[&one]));
}

#[test]
fn foreign_files_in_place_of_histories_are_left_alone() {
    let place = Place::new();
    let path = place.histories();
    let target = place.0.join("target");
    fs::create_dir(&target).unwrap();
    symlink(&target, &path).unwrap();
    store(&path).add(&Tenant::default(), sources("one"), HOUR).unwrap_err();
    store(&path).find(&[Wanted::Id("")]).unwrap_err();
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    store(&path).add(&Tenant::default(), sources("one"), HOUR).unwrap_err();
    store(&path).find(&[Wanted::Id("")]).unwrap_err();
    store(&path).reserve(&Tenant::default(), 1).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    rustix::fs::mknodat(CWD, first(&path), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    store(&path).add(&Tenant::default(), sources("one"), HOUR).unwrap_err();
    store(&path).find(&[Wanted::Id("")]).unwrap_err();
}

#[test]
fn the_history_file_of_an_earlier_version_is_the_first_segment() {
    let place = Place::new();
    let path = place.histories();
    let one = sources("one");
    add(&path, &one, HOUR);
    fs::rename(first(&path), place.0.join("history")).unwrap();
    fs::remove_dir_all(&path).unwrap();
    let two = sources("two");
    add(&path, &two, HOUR);
    assert_eq!(read(&path), expected(&[&two, &one]));
}

#[test]
fn concurrent_additions_lose_no_history() {
    let place = Place::new();
    let path = place.histories();
    store(&path).set(Some(2 * BYTES_MIN), None).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..300 {
                    add(&path, &sources(&"x".repeat(800)), HOUR);
                }
            });
        }
    });
    assert_eq!(read(&path).len(), 1200);
    assert!(fs::read_dir(&path).unwrap().count() > 4, "there were several segments");
}

/// A server keeps the segment open. It must notice what other processes do to it.
#[test]
fn lines_for_a_segment_that_is_kept_open_are_found_and_stay_within_the_size() {
    let place = Place::new();
    let path = place.histories();
    let server = store(&path);
    let add = |tenant: &Tenant| {
        let one = run();
        server.add(tenant, copy(&one), HOUR).unwrap();
        let found = store(&path).find(&[Wanted::Id(one.id.as_str())]).unwrap();
        assert!(matches!(&found[..], [Lookup::Kept(it)] if it.id == one.id), "{found:?}");
    };
    let own = Tenant::default();
    add(&own);
    add(&own);
    let first = fs::read_to_string(first(&path)).unwrap();
    assert_eq!(first.trim().lines().count(), 2);
    add(&Tenant::parse("ci").unwrap());
    add(&own);
    // Another process drops the segment, and makes new ones.
    for segment in segments::list(&open_directory(CWD, &*path).unwrap()).unwrap() {
        fs::remove_file(path.join(segment.file())).unwrap();
    }
    add(&own);
    store(&path).set(Some(BYTES_MIN), None).unwrap();
    let line = fs::read_to_string(path.join("1")).unwrap().len() as u64;
    for _ in 0..2 * BYTES_MIN / line {
        server.add(&own, run(), HOUR).unwrap();
    }
    add(&own);
    assert!(bytes_of(&path) <= BYTES_MIN + 4096, "{}", bytes_of(&path));
    // The whole directory is removed.
    fs::remove_dir_all(&path).unwrap();
    add(&own);
}
