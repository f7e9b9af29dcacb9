//! Reads the log of a detached box: from the oldest record on, only the newest lines, or only output
//! after some time. Can then follow new output.
//!
//! ```text
//! open ─▶ since ─▶ tail ─▶ next_record* ─▶ (None) ─▶ missed_at_end ─▶ wait on the watch ─┐
//!                               ▲                                                        │
//!                               └────────────────────────────────────────────────────────┘
//! ```
//!
//! Only one record at a time is in memory. The keeper is not trusted, and neither is the log that it
//! wrote: see [`tare_control::log`].

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use tare_control::log::{Entry, FILE_NAMES, LogEnd, ReadError, Reader};
use tare_kernel::fds::open_regular;
use tare_kernel::watch::{Mark, Watch};

use crate::error::{Context, Error};
use crate::time::Timestamp;

pub use tare_control::log::Stream;

/// Some output, as the keeper received it. It may have several lines, or half of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRecord<'a> {
    pub time: Timestamp,
    pub stream: Stream,
    pub bytes: &'a [u8],
    /// How many bytes between the previous record and this one are lost.
    pub missed_bytes: u64,
}

/// A reader of one log.
#[derive(Debug)]
pub struct Logs {
    reader: Reader,
    since: Option<Timestamp>,
    skip: Skip,
    /// Where to stop. `None` to follow the log.
    end: Option<LogEnd>,
}

/// The part of a log before the last lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Skip {
    /// How many lines of each stream.
    stdout: u64,
    stderr: u64,
    /// Output from this position on is never skipped.
    end_position: u64,
}

/// A count of lines from the beginning.
#[derive(Debug, Default)]
struct LineCount {
    first_position: Option<u64>,
    counted: Skip,
    /// Streams whose last line has no end yet, in the order in which they were written.
    unfinished: Vec<Stream>,
}

/// How often to count a log whose oldest records are overwritten meanwhile.
const COUNTS_MAX: usize = 3;

impl Logs {
    /// Opens the log in the record of a box.
    pub fn open(directory: BorrowedFd<'_>) -> Result<Self, Error> {
        let open = |name| {
            open_regular(directory, name, OFlags::RDONLY, Mode::empty())
                .context(|| format!("cannot open {name}"))
        };
        let files: [OwnedFd; 2] = [open(FILE_NAMES[0])?, open(FILE_NAMES[1])?];
        Ok(Self { reader: Reader::new(files), since: None, skip: Skip::default(), end: None })
    }

    /// Leaves out output from before this time, and starts again at the oldest record.
    pub fn since(&mut self, time: Timestamp) {
        self.since = Some(time);
        self.rewind();
    }

    /// Leaves out everything but the last lines that exist now. The lines of both streams are counted
    /// together, in the order of their ends. A line without an end counts.
    pub fn tail(&mut self, lines: u64) -> Result<(), Error> {
        for _ in 0..COUNTS_MAX {
            let end = self.reader.end().map_err(unreadable)?;
            let all = self.count(u64::MAX, end)?;
            let before = self.count(all.counted.lines().saturating_sub(lines), end)?;
            self.rewind();
            if before.first_position == all.first_position {
                self.skip = Skip { end_position: all.counted.end_position, ..before.counted };
                return Ok(());
            }
        }
        // The log is overwritten faster than it is counted, so everything in it is new.
        Ok(())
    }

    /// Leaves out output from now on. A busy box may write faster than the caller reads.
    pub fn stop_here(&mut self) -> Result<(), Error> {
        self.end = Some(self.reader.end().map_err(unreadable)?);
        Ok(())
    }

    /// Returns the next record; `None` if there is none yet. After an error there are no more
    /// records.
    pub fn next_record(&mut self) -> Result<Option<LogRecord<'_>>, Error> {
        while let Some(entry) = self.next_entry(self.end)? {
            let length = self.reader.bytes().len();
            let skipped = self.skip.skipped(&entry, self.reader.bytes());
            if skipped < length {
                return Ok(Some(LogRecord {
                    time: Timestamp::from_ms(entry.time_ms),
                    stream: entry.stream,
                    bytes: &self.reader.bytes()[skipped..],
                    missed_bytes: entry.missed_bytes,
                }));
            }
        }
        Ok(None)
    }

    /// Returns how many bytes after the last record were lost, if there is no next record. Each
    /// byte is reported once.
    pub fn missed_at_end(&mut self) -> Result<u64, Error> {
        match &self.end {
            Some(end) => Ok(self.reader.missed_before(end)),
            None => self.reader.missed_at_end().map_err(unreadable),
        }
    }

    /// Returns a watch that reports new output and lost output.
    pub fn watch(&self) -> Result<Watch, Error> {
        Watch::files(self.reader.files()).context(|| "cannot watch the log".to_owned())
    }

    /// Adds the log to a watch, which may have other logs too.
    pub fn watch_with(&self, watch: &Watch) -> Result<[Mark; 2], Error> {
        let [one, other] = self.reader.files();
        let marks = || Ok([watch.add(one)?, watch.add(other)?]);
        let marks: std::io::Result<_> = marks();
        marks.context(|| "cannot watch the log".to_owned())
    }

    fn rewind(&mut self) {
        self.reader.rewind();
        self.skip = Skip::default();
    }

    /// Returns the next record before this end that is not too old.
    fn next_entry(&mut self, end: Option<LogEnd>) -> Result<Option<Entry>, Error> {
        let mut next = || match &end {
            Some(end) => self.reader.next_entry_before(end),
            None => self.reader.next_entry(),
        };
        while let Some(entry) = next().map_err(unreadable)? {
            if self.since.is_none_or(|since| entry.time_ms >= since.as_ms()) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Counts lines from the beginning, at most this many.
    fn count(&mut self, lines_max: u64, end: LogEnd) -> Result<LineCount, Error> {
        self.rewind();
        let mut count = LineCount::default();
        while count.counted.lines() < lines_max {
            let Some(entry) = self.next_entry(Some(end))? else {
                count.add_unfinished(lines_max);
                break;
            };
            count.add(&entry, self.reader.bytes(), lines_max);
        }
        Ok(count)
    }
}

fn unreadable(error: ReadError) -> Error {
    Error::failed("cannot read the log of the box")
        .caused_by(error)
        .with_hint("does the disk of the state root work?")
}

impl Skip {
    fn lines(&self) -> u64 {
        self.stdout.saturating_add(self.stderr)
    }

    fn lines_of(&mut self, stream: Stream) -> &mut u64 {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// Returns how many bytes of this record to leave out.
    fn skipped(&mut self, entry: &Entry, bytes: &[u8]) -> usize {
        let is_after = entry.position >= self.end_position;
        let lines = self.lines_of(entry.stream);
        if is_after || *lines == 0 {
            return 0;
        }
        let mut end = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            end += line.len();
            *lines -= u64::from(line.ends_with(b"\n"));
            if *lines == 0 {
                break;
            }
        }
        end
    }
}

impl LineCount {
    fn add(&mut self, entry: &Entry, bytes: &[u8], lines_max: u64) {
        self.first_position.get_or_insert(entry.position);
        self.counted.end_position = entry.position.saturating_add(bytes.len() as u64);
        let left = lines_max - self.counted.lines();
        let ends = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        *self.counted.lines_of(entry.stream) += ends.min(left);
        self.unfinished.retain(|stream| *stream != entry.stream);
        if !bytes.ends_with(b"\n") {
            self.unfinished.push(entry.stream);
        }
    }

    fn add_unfinished(&mut self, lines_max: u64) {
        let left = lines_max - self.counted.lines();
        let counting = usize::try_from(left).unwrap_or(usize::MAX);
        for stream in self.unfinished.iter().take(counting) {
            *self.counted.lines_of(*stream) += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::fs::File;
    use std::os::fd::AsFd;
    use tare_control::log::Writer;
    use tare_harness::TemporaryDirectory;

    const BYTES_MAX: u64 = 64 << 10;

    struct Box {
        directory: TemporaryDirectory,
        writer: Writer,
    }

    impl Box {
        fn new() -> Self {
            let directory = TemporaryDirectory::new();
            let files = FILE_NAMES.map(|name| {
                let path = directory.join(name);
                File::create_new(path).unwrap().into()
            });
            let writer = Writer::new(files, BYTES_MAX);
            Self { directory, writer }
        }

        fn logs(&self) -> Logs {
            let directory = File::open(self.directory.path()).unwrap();
            Logs::open(directory.as_fd()).unwrap()
        }

        fn out(&mut self, time_ms: u64, text: &str) {
            self.writer.append_at(time_ms, Stream::Stdout, text.as_bytes());
        }

        fn err(&mut self, time_ms: u64, text: &str) {
            self.writer.append_at(time_ms, Stream::Stderr, text.as_bytes());
        }

        fn tail(&self, lines: u64) -> String {
            let mut logs = self.logs();
            logs.tail(lines).unwrap();
            rest(&mut logs)
        }
    }

    /// What is left to read; stderr's records in brackets.
    fn rest(logs: &mut Logs) -> String {
        let mut shown = String::new();
        while let Some(record) = logs.next_record().unwrap() {
            let text = std::str::from_utf8(record.bytes).unwrap();
            match record.stream {
                Stream::Stdout => shown += text,
                Stream::Stderr => shown += &format!("[{text}]"),
            }
        }
        shown
    }

    #[test]
    fn the_log_of_a_silent_box_is_empty() {
        let silent = Box::new();
        assert_eq!(rest(&mut silent.logs()), "");
        assert_eq!(silent.tail(5), "");
    }

    #[test]
    fn records_come_with_their_time_and_stream_and_later_ones_later() {
        let mut written = Box::new();
        written.out(1000, "a\n");
        let mut logs = written.logs();
        let record = logs.next_record().unwrap().unwrap();
        let expected = LogRecord {
            time: Timestamp::from_ms(1000),
            stream: Stream::Stdout,
            bytes: b"a\n",
            missed_bytes: 0,
        };
        assert_eq!(record, expected);
        assert_eq!(logs.next_record().unwrap(), None);
        written.err(2000, "b\n");
        assert_eq!(rest(&mut logs), "[b\n]");
    }

    #[test]
    fn the_watch_reports_new_output() {
        let mut written = Box::new();
        let logs = written.logs();
        let watch = logs.watch().unwrap();
        let is_readable = || {
            let mut fds = [PollFd::new(&watch, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
        };
        assert!(!is_readable());
        written.out(1, "a");
        assert!(is_readable());
        watch.drain().unwrap();
        assert!(!is_readable());
    }

    #[test]
    fn a_log_that_is_not_there_or_a_symlink_is_an_error() {
        let directory = TemporaryDirectory::new();
        let open = || Logs::open(File::open(directory.path()).unwrap().as_fd());
        assert_eq!(open().unwrap_err().to_string(), "cannot open log.0");
        directory.write("log.0", "");
        std::os::unix::fs::symlink("log.0", directory.join("log.1")).unwrap();
        assert_eq!(open().unwrap_err().to_string(), "cannot open log.1");
    }

    #[test]
    fn damage_is_an_error_after_the_readable_part() {
        let mut written = Box::new();
        written.out(1, "fine\n");
        written.directory.write("log.1", [0xff; 100]);
        let mut logs = written.logs();
        assert!(logs.next_record().unwrap().is_some());
        let error = logs.next_record().unwrap_err();
        assert_eq!(error.to_string(), "cannot read the log of the box");
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "log.1 is damaged at byte 0");
    }

    #[test]
    fn the_tail_is_the_last_lines_however_they_were_written() {
        let mut written = Box::new();
        written.out(1, "1\n2\n3");
        written.out(1, "\n4\n5\n");
        assert_eq!(written.tail(0), "");
        assert_eq!(written.tail(1), "5\n");
        assert_eq!(written.tail(3), "3\n4\n5\n");
        assert_eq!(written.tail(5), "1\n2\n3\n4\n5\n");
        assert_eq!(written.tail(u64::MAX), "1\n2\n3\n4\n5\n");
        written.out(1, "6");
        assert_eq!(written.tail(0), "");
        assert_eq!(written.tail(1), "6");
        assert_eq!(written.tail(2), "5\n6");
    }

    #[test]
    fn tail_counts_lines_of_both_streams_and_cuts_none() {
        let mut written = Box::new();
        written.out(1, "old\nhal");
        written.err(1, "error\n");
        written.out(1, "f\n");
        assert_eq!(written.tail(1), "half\n");
        assert_eq!(written.tail(2), "hal[error\n]f\n");
        written.err(1, "no end");
        assert_eq!(written.tail(1), "[no end]");
        written.out(1, "nor here");
        assert_eq!(written.tail(1), "nor here");
        assert_eq!(written.tail(2), "[no end]nor here");
        assert_eq!(written.tail(3), "half\n[no end]nor here");
    }

    #[test]
    fn the_tail_of_a_log_that_has_turned_many_times_is_exact() {
        let mut written = Box::new();
        for number in 0..30_000 {
            written.out(1, &format!("line {number}\n"));
        }
        let expected: String = (29_500..30_000).map(|it| format!("line {it}\n")).collect();
        assert!(written.tail(500) == expected);
    }

    #[test]
    fn output_after_the_tail_is_never_lost() {
        let mut written = Box::new();
        let mut logs = written.logs();
        written.out(1, &"old\n".repeat(100));
        logs.tail(2).unwrap();
        // Overtaken: what was counted is gone.
        let new = |range: std::ops::Range<u32>| -> String {
            range.map(|number| format!("new {number}\n")).collect()
        };
        for number in 0..5000 {
            written.out(1, &new(number..number + 1));
        }
        let shown = rest(&mut logs);
        assert!(shown.len() > 5000 && new(0..5000).ends_with(&shown));

        logs.tail(0).unwrap();
        assert_eq!(rest(&mut logs), "");
        written.out(1, "newest\n");
        assert_eq!(rest(&mut logs), "newest\n");
    }

    #[test]
    fn a_stopped_follower_ends_while_the_box_continues() {
        let mut written = Box::new();
        written.out(1, "a\n");
        let mut logs = written.logs();
        logs.stop_here().unwrap();
        written.out(1, "b\n");
        assert_eq!(rest(&mut logs), "a\n");
    }

    #[test]
    fn since_leaves_out_the_older_and_the_tail_counts_the_rest() {
        let mut written = Box::new();
        for time_ms in [1000, 2000, 3000, 2500, 4000] {
            written.out(time_ms, &format!("{time_ms}\n"));
        }
        let mut logs = written.logs();
        logs.since(Timestamp::from_ms(2500));
        assert_eq!(rest(&mut logs), "3000\n2500\n4000\n");
        logs.tail(2).unwrap();
        assert_eq!(rest(&mut logs), "2500\n4000\n");
        logs.since(Timestamp::from_ms(9000));
        assert_eq!(rest(&mut logs), "");
    }
}
