//! `tare logs` on a log and a keeper of the test's own.

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tare_control::log::{FILE_NAMES, Writer};
use tare_engine::logs::Stream;
use tare_harness::TemporaryDirectory;

use super::*;
use crate::error::sentence;

const BYTES_MAX: u64 = 64 << 10;

/// A log, and a process that lives until it is told to end.
struct Box {
    directory: TemporaryDirectory,
    writer: Writer,
    keeper: Child,
}

impl Box {
    fn new() -> Self {
        let directory = TemporaryDirectory::new();
        let files = FILE_NAMES.map(|name| File::create(directory.join(name)).unwrap().into());
        let keeper = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        Self { directory, writer: Writer::new(files, BYTES_MAX), keeper }
    }

    fn logs(&self) -> Logs {
        Logs::open(File::open(self.directory.path()).unwrap().as_fd()).unwrap()
    }

    fn write(&mut self, text: &str) {
        self.writer.append_at(1, Stream::Stdout, text.as_bytes());
    }

    fn process(&self) -> Process {
        Process::open(self.keeper.id().cast_signed()).unwrap()
    }

    fn end(&mut self) {
        drop(self.keeper.stdin.take());
    }
}

impl Drop for Box {
    fn drop(&mut self) {
        self.end();
        self.keeper.wait().unwrap();
    }
}

fn printer(stdout: &PipeWriter) -> Printer<'_> {
    let caller =
        Caller { stdout: stdout.as_fd(), stderr: stdout.as_fd(), ..Caller::of_this_process() };
    Printer::new(caller, Prefix::None, Controls::VisibleOnTerminals)
}

/// Follows in a thread; what it shows, and how it ends.
fn following(
    mut logs: Logs,
    keeper: Process,
) -> (BufReader<PipeReader>, std::thread::JoinHandle<Result<(), Stop>>) {
    let (reading, writing) = std::io::pipe().unwrap();
    let thread = std::thread::spawn(move || follow(&mut logs, &keeper, &mut printer(&writing)));
    (BufReader::new(reading), thread)
}

fn line(shown: &mut impl BufRead) -> String {
    let mut line = String::new();
    shown.read_line(&mut line).unwrap();
    line
}

#[test]
fn following_shows_what_was_there_what_comes_and_ends_with_the_box() {
    let mut followed = Box::new();
    followed.write("before\n");
    let (mut shown, thread) = following(followed.logs(), followed.process());
    assert_eq!(line(&mut shown), "before\n");
    for number in 0..3000 {
        followed.write(&format!("line {number}\n"));
        assert_eq!(line(&mut shown), format!("line {number}\n"));
    }
    followed.write("last words");
    followed.end();
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "last words");
    thread.join().unwrap().unwrap();
}

#[test]
fn following_ends_when_the_reader_is_gone_though_the_box_is_silent() {
    let followed = Box::new();
    let (shown, thread) = following(followed.logs(), followed.process());
    drop(shown);
    let ended = thread.join().unwrap();
    assert!(matches!(ended, Err(Stop::ReaderGone)), "{ended:?}");
}

#[test]
fn logs_without_follow_end_while_the_box_lives() {
    let mut shown = Box::new();
    shown.write("one\n");
    let (mut reading, writing) = std::io::pipe().unwrap();
    show(&mut shown.logs(), &mut printer(&writing)).unwrap();
    drop(writing);
    let mut text = String::new();
    reading.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one\n");
}

#[test]
fn output_before_damage_in_the_log_is_shown() {
    let mut damaged = Box::new();
    damaged.write("one\n");
    damaged.directory.write("log.1", [0xff; 64]);
    let (mut reading, writing) = std::io::pipe().unwrap();
    let result = show(&mut damaged.logs(), &mut printer(&writing));
    drop(writing);
    let mut text = String::new();
    reading.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one\n");
    let Err(Stop::Failed(error)) = result else {
        panic!("{result:?}");
    };
    let said = "cannot read the log of the box: log.1 is damaged at byte 0 \
                (does the disk of the state root work?)";
    assert_eq!(sentence(&error), said);
}

#[test]
fn since_is_a_duration_or_a_moment() {
    let ago = Timestamp::now().before(Duration::from_secs(600)).as_ms();
    let since = Timestamp::parse_or_ago("10m").unwrap().as_ms();
    assert!((ago..ago + 60_000).contains(&since));
    let absolute = Timestamp::parse_or_ago("2026-11-15T23:09:05.5+01:00").unwrap();
    assert_eq!(absolute.to_string(), "2026-11-15T22:09:05.500Z");
    for text in ["", "-5m", "yesterday", "2026-11-15", "4000d"] {
        let error = Timestamp::parse_or_ago(text).unwrap_err().to_string();
        assert!(error.ends_with("is neither a duration nor a time"));
    }
}
