//! Histories on a real file system.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Instant;

use rustix::fs::{FileType, FlockOperation, flock};

use super::*;
use crate::history::steps::{self, History, Now};
use crate::record::lines::parse;
use crate::spec::BoxId;

const BOOT: &str = "this-boot";
const HOUR: Duration = Duration::from_secs(3600);

/// A directory that goes with the test.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("history-{}", BoxId::random()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("history")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn history(path: &Path) -> HistoryFile<'_> {
    HistoryFile { path, boot_id: BOOT }
}

/// Returns sources with one line of a record, which says this.
fn sources(text: &str) -> Sources {
    let line = serde_json::json!({"stuck": {"step": text, "why": "", "tries": 1, "at_ns": 1}});
    Sources {
        id: BoxId::random(),
        lines: parse(&line.to_string()).collect(),
        events: Vec::new(),
        ended: None,
        detached: false,
        oom: false,
        removal: None,
        dropped: 0,
        receipt: None,
    }
}

/// Returns sources like these with another text.
fn again(sources: &Sources, text: &str) -> Sources {
    Sources { id: sources.id.clone(), ..self::sources(text) }
}

fn add(path: &Path, sources: &Sources, retention: Duration) {
    let copy = serde_json::from_value(serde_json::to_value(sources).unwrap()).unwrap();
    history(path).add(copy, retention).unwrap();
}

fn told(sources: &Sources) -> History {
    steps::history(sources, Now::read())
}

/// Returns the ids and the texts in the file.
fn read(path: &Path) -> Vec<(BoxId, String)> {
    let all = history(path).read().unwrap();
    all.iter().map(|it| (it.id.clone(), told(it).steps[0].text.clone())).collect()
}

fn expected(all: &[&Sources]) -> Vec<(BoxId, String)> {
    all.iter().map(|it| (it.id.clone(), told(it).steps[0].text.clone())).collect()
}

#[test]
fn histories_are_read_in_order_and_the_last_of_a_box_counts() {
    let place = Place::new();
    let path = place.file();
    assert_eq!(read(&path), []);
    let (one, two) = (sources("one"), sources("two"));
    let again = again(&one, "once more");
    for one in [&one, &two, &again] {
        add(&path, one, HOUR);
    }
    assert_eq!(read(&path), expected(&[&two, &again]));
}

#[test]
fn a_history_is_kept_for_its_retention_and_not_past_a_boot() {
    let place = Place::new();
    let path = place.file();
    history(&path).add(sources("none"), Duration::ZERO).unwrap();
    assert!(!path.exists(), "nothing of it is to be kept");
    history(&path).add(sources("short"), Duration::from_nanos(1)).unwrap();
    assert_eq!(read(&path), []);
    // The next line removes it.
    let long = sources("long");
    add(&path, &long, HOUR);
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("short") && text.contains("long"), "{text}");
    assert_eq!(read(&path), expected(&[&long]));
    let later = HistoryFile { path: &path, boot_id: "another-boot" };
    assert!(later.read().unwrap().is_empty());
}

#[test]
fn the_history_file_stays_within_its_limit_and_drops_the_oldest() {
    let place = Place::new();
    let path = place.file();
    let all: Vec<Sources> = (0..1500).map(|_| sources(&"x".repeat(1000))).collect();
    for one in &all {
        add(&path, one, HOUR);
        assert!(fs::metadata(&path).unwrap().len() <= HISTORY_BYTES_MAX as u64);
    }
    let left: Vec<BoxId> = history(&path).read().unwrap().into_iter().map(|it| it.id).collect();
    let newest: Vec<BoxId> = all.iter().map(|it| it.id.clone()).collect();
    assert!(left.len() > 500, "{}", left.len());
    assert_eq!(left, newest[newest.len() - left.len()..]);
}

#[test]
fn a_history_that_is_too_long_is_shortened() {
    let place = Place::new();
    let path = place.file();
    let mut long = sources("beginning");
    long.lines.extend((0..500).flat_map(|_| sources(&"é".repeat(1000)).lines));
    add(&path, &long, HOUR);
    assert!(fs::metadata(&path).unwrap().len() <= LINE_BYTES_MAX as u64);
    let read = told(&history(&path).read().unwrap()[0]);
    assert_eq!(read.steps[0].text, "could not be ended: beginning");
    // The same line many times is one step.
    assert!(read.forgotten >= 480, "{}", read.forgotten);
}

#[test]
fn damage_hides_no_other_line() {
    let place = Place::new();
    let path = place.file();
    let (one, two) = (sources("one"), sources("two"));
    add(&path, &one, HOUR);
    let whole = fs::read(&path).unwrap();
    for damage in [
        &b"{\"boot_id\":\"this-boot\",\"until"[..],
        b"\xff\xfe\0\n\n\n{}\nnull\n[[[[",
        &[b'['; 50_000],
        &whole[..whole.len() / 2],
    ] {
        fs::write(&path, [&whole[..], damage].concat()).unwrap();
        add(&path, &two, HOUR);
        assert_eq!(read(&path), expected(&[&one, &two]));
    }
}

/// Whichever bytes are changed, reading yields only visible characters.
#[test]
fn a_hostile_file_is_read_in_bounds() {
    let place = Place::new();
    let path = place.file();
    add(&path, &sources("\u{1b}[2J\r\n\u{9b}\u{202e}"), HOUR);
    let read = told(&history(&path).read().unwrap()[0]);
    let text = &read.steps[0].text;
    assert!(text.is_ascii() && !text.contains('\u{1b}'));
    let whole = fs::read(&path).unwrap();
    let mut state = 5_u64;
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8;
        }
        fs::write(&path, &bytes).unwrap();
        for sources in history(&path).read().unwrap() {
            let read = told(&sources);
            let texts = read.steps.iter().map(|step| &step.text);
            for text in texts.chain(&read.names) {
                assert!(!text.chars().any(char::is_control), "{text:?}");
            }
        }
    }
}

#[test]
fn a_huge_file_is_read_at_its_end_and_becomes_small_again() {
    let place = Place::new();
    let path = place.file();
    let file = File::create(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(read(&path), []);
    let one = sources("one");
    add(&path, &one, HOUR);
    assert_eq!(read(&path), expected(&[&one]));
    assert!(fs::metadata(&path).unwrap().len() < HISTORY_BYTES_MAX as u64);
}

#[test]
fn a_foreign_history_file_is_left_alone() {
    let place = Place::new();
    let path = place.file();
    let target = place.0.join("target");
    fs::write(&target, "precious").unwrap();
    symlink(&target, &path).unwrap();
    history(&path).add(sources("one"), HOUR).unwrap_err();
    history(&path).read().unwrap_err();
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    history(&path).add(sources("one"), HOUR).unwrap_err();
    history(&path).read().unwrap_err();
    fs::remove_dir(&path).unwrap();
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    history(&path).add(sources("one"), HOUR).unwrap_err();
    history(&path).read().unwrap_err();
}

#[test]
fn a_locked_history_file_loses_one_history_and_delays_nothing() {
    let place = Place::new();
    let path = place.file();
    fs::write(&path, "").unwrap();
    let held = File::open(&path).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let start = Instant::now();
    history(&path).add(sources("one"), HOUR).unwrap_err();
    assert_eq!(read(&path), []);
    assert!(start.elapsed() < 20 * LOCK_WITHIN);
}

#[test]
fn concurrent_additions_lose_no_history() {
    let place = Place::new();
    let path = place.file();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let one = sources("one of many");
                    // An add that waited too long for the lock is tried again.
                    while history(&path).add(again(&one, "one of many"), HOUR).is_err() {}
                }
            });
        }
    });
    assert_eq!(read(&path).len(), 200);
}
