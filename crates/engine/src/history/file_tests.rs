//! Histories on a real file system.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Instant;

use rustix::fs::{FileType, FlockOperation, flock};

use super::*;
use crate::history::steps::{Step, StepKind};
use crate::spec::BoxId;
use crate::time::Timestamp;

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

fn history(path: &Path) -> History<'_> {
    History { path, boot_id: BOOT }
}

fn story(text: &str) -> Story {
    let at = Timestamp::from_ms(1);
    Story {
        id: BoxId::random(),
        names: vec!["web".into()],
        created_at: at,
        steps: vec![Step {
            at,
            after_ms: 0,
            event: StepKind::Created,
            process: None,
            exit_code: None,
            text: text.to_owned(),
        }],
        forgotten: 0,
    }
}

#[test]
fn stories_are_read_as_they_were_added_and_the_last_of_a_box_counts() {
    let place = Place::new();
    let path = place.file();
    assert_eq!(history(&path).stories().unwrap(), []);
    let (one, two) = (story("one"), story("two"));
    let again = Story { forgotten: 3, ..one.clone() };
    for story in [&one, &two, &again] {
        history(&path).add(story, HOUR).unwrap();
    }
    assert_eq!(history(&path).stories().unwrap(), [two, again]);
}

#[test]
fn a_story_is_kept_for_its_retention_and_not_past_a_boot() {
    let place = Place::new();
    let path = place.file();
    history(&path).add(&story("none"), Duration::ZERO).unwrap();
    assert!(!path.exists(), "nothing of it is to be kept");
    history(&path).add(&story("short"), Duration::from_nanos(1)).unwrap();
    assert_eq!(history(&path).stories().unwrap(), []);
    // The next one lets go of it.
    let long = story("long");
    history(&path).add(&long, HOUR).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("short") && text.contains("long"), "{text}");
    assert_eq!(history(&path).stories().unwrap(), [long]);
    let later = History { path: &path, boot_id: "another-boot" };
    assert_eq!(later.stories().unwrap(), []);
}

#[test]
fn the_history_file_stays_within_its_limit_and_drops_the_oldest() {
    let place = Place::new();
    let path = place.file();
    let stories: Vec<Story> = (0..1500).map(|_| story(&"x".repeat(1000))).collect();
    for story in &stories {
        history(&path).add(story, HOUR).unwrap();
        assert!(fs::metadata(&path).unwrap().len() <= HISTORY_BYTES_MAX as u64);
    }
    let left: Vec<BoxId> =
        history(&path).stories().unwrap().into_iter().map(|story| story.id).collect();
    let newest: Vec<BoxId> = stories.iter().map(|story| story.id.clone()).collect();
    assert!(left.len() > 500, "{}", left.len());
    assert_eq!(left, newest[newest.len() - left.len()..]);
}

#[test]
fn a_story_that_is_too_long_is_shortened() {
    let place = Place::new();
    let path = place.file();
    let mut long = story("beginning");
    let step = Step { text: "é".repeat(1000), ..long.steps[0].clone() };
    long.steps.extend(std::iter::repeat_n(step, 500));
    history(&path).add(&long, HOUR).unwrap();
    assert!(fs::metadata(&path).unwrap().len() <= STORY_BYTES_MAX as u64);
    let read = &history(&path).stories().unwrap()[0];
    assert_eq!(read.steps[0].text, "beginning");
    assert_eq!(read.steps.len() as u64 + read.forgotten, 501);
}

#[test]
fn damage_hides_no_other_line() {
    let place = Place::new();
    let path = place.file();
    let (one, two) = (story("one"), story("two"));
    history(&path).add(&one, HOUR).unwrap();
    let whole = fs::read(&path).unwrap();
    for damage in [
        &b"{\"boot_id\":\"this-boot\",\"until"[..],
        b"\xff\xfe\0\n\n\n{}\nnull\n[[[[",
        &[b'['; 50_000],
        &whole[..whole.len() / 2],
    ] {
        fs::write(&path, [&whole[..], damage].concat()).unwrap();
        history(&path).add(&two, HOUR).unwrap();
        assert_eq!(history(&path).stories().unwrap(), [one.clone(), two.clone()]);
    }
}

/// Whatever bytes of it are others, what is read is harmless.
#[test]
fn a_hostile_file_is_read_in_bounds() {
    let place = Place::new();
    let path = place.file();
    let hostile =
        Story { names: vec!["\u{1b}]0;x\u{7}".into()], ..story("\u{1b}[2J\r\n\u{9b}\u{202e}") };
    history(&path).add(&hostile, HOUR).unwrap();
    let read = &history(&path).stories().unwrap()[0];
    let texts = [&read.names[0], &read.steps[0].text];
    assert!(texts.iter().all(|text| text.is_ascii() && !text.contains('\u{1b}')));
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
        for story in history(&path).stories().unwrap() {
            let texts = story.steps.iter().map(|step| &step.text);
            for text in texts.chain(&story.names) {
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
    assert_eq!(history(&path).stories().unwrap(), []);
    let one = story("one");
    history(&path).add(&one, HOUR).unwrap();
    assert_eq!(history(&path).stories().unwrap(), [one]);
    assert!(fs::metadata(&path).unwrap().len() < HISTORY_BYTES_MAX as u64);
}

#[test]
fn a_foreign_history_file_is_left_alone() {
    let place = Place::new();
    let path = place.file();
    let target = place.0.join("target");
    fs::write(&target, "precious").unwrap();
    symlink(&target, &path).unwrap();
    history(&path).add(&story("one"), HOUR).unwrap_err();
    history(&path).stories().unwrap_err();
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    history(&path).add(&story("one"), HOUR).unwrap_err();
    history(&path).stories().unwrap_err();
    fs::remove_dir(&path).unwrap();
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    history(&path).add(&story("one"), HOUR).unwrap_err();
    history(&path).stories().unwrap_err();
}

#[test]
fn a_locked_history_file_loses_one_history_and_delays_nothing() {
    let place = Place::new();
    let path = place.file();
    fs::write(&path, "").unwrap();
    let held = File::open(&path).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let start = Instant::now();
    history(&path).add(&story("one"), HOUR).unwrap_err();
    assert_eq!(history(&path).stories().unwrap(), []);
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
                    let story = story("one of many");
                    // Who waited for too long tries again: here it is all about it.
                    while history(&path).add(&story, HOUR).is_err() {}
                }
            });
        }
    });
    assert_eq!(history(&path).stories().unwrap().len(), 200);
}
