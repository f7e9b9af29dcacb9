//! Writes records of a log to stdout and stderr, in the order of the log, with or without the time
//! before each line.
//!
//! Consecutive records of one stream are collected and written together.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, write};
use rustix::termios::isatty;
use tare_engine::logs::{LogRecord, Stream};

use crate::commands::logs::visible::ControlEscaper;
use crate::stdio::Caller;

/// Large enough that the system calls cost little.
const GATHERED_BYTES_MAX: usize = 64 << 10;

/// The text that is printed before each line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    None,
    Time,
}

/// How control characters, which could move the cursor, are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controls {
    VisibleOnTerminals,
    Raw,
}

#[derive(Debug)]
pub struct Printer<'fd> {
    stdout: LineWriter<'fd>,
    stderr: LineWriter<'fd>,
    /// The stream that was printed last. Only its writer has collected bytes.
    latest: Stream,
    prefix: Prefix,
}

impl<'fd> Printer<'fd> {
    pub fn new(caller: Caller<'fd>, prefix: Prefix, controls: Controls) -> Self {
        Self {
            stdout: LineWriter::new(caller.stdout, controls),
            stderr: LineWriter::new(caller.stderr, controls),
            latest: Stream::Stdout,
            prefix,
        }
    }

    pub fn stdout(&self) -> BorrowedFd<'fd> {
        self.stdout.fd
    }

    pub fn print(&mut self, record: &LogRecord<'_>) -> Result<(), Errno> {
        if record.stream != self.latest {
            self.flush()?;
            self.latest = record.stream;
        }
        let prefix = self.prefix;
        let outlet = self.latest_writer();
        for line in record.bytes.split_inclusive(|byte| *byte == b'\n') {
            if outlet.at_line_start && prefix == Prefix::Time {
                let time = record.time.to_string();
                outlet.gathered.extend_from_slice(time.as_bytes());
                outlet.gathered.push(b' ');
            }
            outlet.add(line);
        }
        match outlet.gathered.len() {
            GATHERED_BYTES_MAX.. => outlet.flush(),
            _ => Ok(()),
        }
    }

    /// Writes all collected bytes.
    pub fn flush(&mut self) -> Result<(), Errno> {
        self.latest_writer().flush()
    }

    fn latest_writer(&mut self) -> &mut LineWriter<'fd> {
        match self.latest {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

/// Writes the lines of one stream.
#[derive(Debug)]
struct LineWriter<'fd> {
    fd: BorrowedFd<'fd>,
    gathered: Vec<u8>,
    at_line_start: bool,
    /// On a terminal.
    visible: Option<ControlEscaper>,
}

impl<'fd> LineWriter<'fd> {
    fn new(fd: BorrowedFd<'fd>, controls: Controls) -> Self {
        Self {
            fd,
            gathered: Vec::new(),
            at_line_start: true,
            visible: match controls {
                Controls::VisibleOnTerminals => isatty(fd).then(ControlEscaper::default),
                Controls::Raw => None,
            },
        }
    }

    /// Adds a line, or a part of one.
    fn add(&mut self, line: &[u8]) {
        self.at_line_start = line.ends_with(b"\n");
        match &mut self.visible {
            Some(visible) => visible.show(line, &mut self.gathered),
            None => self.gathered.extend_from_slice(line),
        }
    }

    fn flush(&mut self) -> Result<(), Errno> {
        let written = write_all(self.fd, &self.gathered);
        self.gathered.clear();
        written
    }
}

/// Writes all bytes and waits for a slow reader. No other process waits for tare meanwhile.
fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match write(fd, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            // Another process that shares the descriptor may have made it non-blocking.
            Err(Errno::AGAIN) => await_room(fd)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn await_room(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    rustix::io::retry_on_intr(|| poll(&mut fds, None)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use tare_engine::Timestamp;

    const TIME: u64 = 1_794_780_545_123;

    /// The output for some records, each of a later millisecond.
    fn printed(prefix: Prefix, records: &[(Stream, &str)]) -> [String; 2] {
        let [(mut out, out_end), (mut err, err_end)] = [(); 2].map(|()| std::io::pipe().unwrap());
        let caller = Caller {
            stdout: out_end.as_fd(),
            stderr: err_end.as_fd(),
            ..Caller::of_this_process()
        };
        let mut printer = Printer::new(caller, prefix, Controls::VisibleOnTerminals);
        for (time_ms, (stream, text)) in (TIME..).zip(records) {
            let record = LogRecord {
                time: Timestamp::from_ms(time_ms),
                stream: *stream,
                bytes: text.as_bytes(),
                missed_bytes: 0,
            };
            printer.print(&record).unwrap();
        }
        printer.flush().unwrap();
        drop((out_end, err_end));
        let mut texts = [String::new(), String::new()];
        out.read_to_string(&mut texts[0]).unwrap();
        err.read_to_string(&mut texts[1]).unwrap();
        texts
    }

    #[test]
    fn each_stream_goes_to_its_own_descriptor_unchanged() {
        let records =
            [(Stream::Stdout, "a\x1b[31m\n"), (Stream::Stderr, "x"), (Stream::Stdout, "b")];
        assert_eq!(printed(Prefix::None, &records), ["a\x1b[31m\nb", "x"]);
    }

    #[test]
    fn every_line_gets_one_time_however_many_records_it_took() {
        let records = [
            (Stream::Stdout, "one\ntw"),
            (Stream::Stderr, "err\n"),
            (Stream::Stdout, "o"),
            (Stream::Stdout, "\n\nthree"),
        ];
        let [out, err] = printed(Prefix::Time, &records);
        let expected = "2026-11-15T22:09:05.123Z one\n\
                        2026-11-15T22:09:05.123Z two\n\
                        2026-11-15T22:09:05.126Z \n\
                        2026-11-15T22:09:05.126Z three";
        assert_eq!(out, expected);
        assert_eq!(err, "2026-11-15T22:09:05.124Z err\n");
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error_that_says_so() {
        let (reading, writing) = std::io::pipe().unwrap();
        drop(reading);
        assert_eq!(write_all(writing.as_fd(), b"x"), Err(Errno::PIPE));
    }
}
