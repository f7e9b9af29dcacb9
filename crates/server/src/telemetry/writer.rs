//! The thread that writes the log. No request waits for a reader of the log or for the disk: if the
//! queue is full, the server drops the line and counts it.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// How many lines can wait. Each has less than a few thousand characters.
const LINES_WAITING: usize = 1024;
/// How long the last lines may take when the server ends.
const FLUSHED_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Writer {
    lines: SyncSender<Line>,
    dropped: Arc<AtomicU64>,
}

enum Line {
    Text(String),
    /// Reports that every line before it is written.
    Flush(SyncSender<()>),
}

impl Writer {
    pub fn start(to: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(LINES_WAITING);
        let thread = std::thread::Builder::new().name("journal".into());
        thread.spawn(move || write_all(to, &waiting))?;
        Ok(Self { lines, dropped: Arc::default() })
    }

    pub fn write(&self, line: String) {
        match self.lines.try_send(Line::Text(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The number of lines that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until every line is written, for a bounded time.
    pub fn flush(&self) {
        let (written, seen) = sync_channel(1);
        if self.lines.try_send(Line::Flush(written)).is_ok() {
            seen.recv_timeout(FLUSHED_WITHIN).ok();
        }
    }
}

fn write_all(mut to: impl Write, waiting: &Receiver<Line>) {
    while let Ok(line) = waiting.recv() {
        match line {
            // The server goes on if its log cannot be written.
            Line::Text(text) => drop(to.write_all(text.as_bytes())),
            Line::Flush(written) => drop(written.try_send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn an_unread_log_blocks_nothing_and_continues_when_it_is_read() {
        let (reader, to) = io::pipe().expect("a pipe");
        let writer = Writer::start(to).expect("a thread");
        let line = || format!("{}\n", "x".repeat(99));
        // A pipe holds 64 KiB.
        for _each in 0..LINES_WAITING + 1000 {
            writer.write(line());
        }
        let dropped = writer.dropped();
        assert!(dropped > 0, "it was never full");
        let kept = u64::try_from(LINES_WAITING + 1000).expect("a number") - dropped;
        let mut lines = BufReader::new(reader).lines();
        for _each in 0..kept {
            let read = lines.next().expect("a line").expect("it is whole");
            assert_eq!(read.len(), 99);
        }
        writer.write("again\n".to_owned());
        assert_eq!(lines.next().and_then(Result::ok).as_deref(), Some("again"));
        writer.flush();
    }
}
