//! The last 256 KiB of a process, for any number of readers. A reader that is too slow loses
//! the oldest bytes and learns how many.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::watch;

use crate::work::streams::chunk::{CHUNK_BYTES, Chunk};
use crate::workers::locked;

/// How much of the output is kept.
pub const KEPT_BYTES_MAX: usize = 256 << 10;

#[derive(Debug, Default)]
pub struct RecentOutput {
    held: Mutex<KeptOutput>,
    /// Changes when output is added, and at the end.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct KeptOutput {
    chunks: VecDeque<Chunk>,
    /// The position of the first chunk in the whole output.
    begin: u64,
    /// The position of the next chunk.
    end: u64,
    is_over: bool,
}

impl KeptOutput {
    /// Joins small chunks, because each chunk takes memory of its own.
    fn put(&mut self, chunk: Chunk) {
        let fits = |last: &&mut Chunk| {
            last.stream == chunk.stream && last.bytes.len() + chunk.bytes.len() <= CHUNK_BYTES
        };
        match self.chunks.back_mut().filter(fits) {
            Some(last) => last.bytes.extend_from_slice(&chunk.bytes),
            None => self.chunks.push_back(chunk),
        }
    }
}

/// The position of a reader in the whole output.
#[derive(Debug, Default)]
pub struct Position(u64);

#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    Chunk(Chunk),
    /// This number of bytes is no longer kept.
    Missed(u64),
    Over,
}

impl RecentOutput {
    pub fn add(&self, chunk: Chunk) {
        let mut held = locked(&self.held);
        held.end += chunk.bytes.len() as u64;
        held.put(chunk);
        while held.end - held.begin > KEPT_BYTES_MAX as u64 {
            let Some(first) = held.chunks.pop_front() else {
                break;
            };
            held.begin += first.bytes.len() as u64;
        }
        drop(held);
        self.changed.send_replace(());
    }

    /// The output is complete.
    pub fn end(&self) {
        locked(&self.held).is_over = true;
        self.changed.send_replace(());
    }

    /// The number of bytes of the whole output, and of those that are no longer kept.
    pub fn counts(&self) -> (u64, u64) {
        let held = locked(&self.held);
        (held.end, held.begin)
    }

    /// Waits for the output after this position.
    pub async fn next(&self, place: &mut Position) -> Piece {
        let mut changes = self.changed.subscribe();
        loop {
            if let Some(next) = self.look(place) {
                return next;
            }
            // The sender is a field of this value, so it is not gone.
            changes.changed().await.ok();
        }
    }

    fn look(&self, Position(place): &mut Position) -> Option<Piece> {
        let held = locked(&self.held);
        if *place < held.begin {
            let missed = held.begin - *place;
            *place = held.begin;
            return Some(Piece::Missed(missed));
        }
        let mut at = held.begin;
        for chunk in &held.chunks {
            let end = at + chunk.bytes.len() as u64;
            if *place < end {
                let seen = usize::try_from(*place - at).unwrap_or(0);
                *place = end;
                let bytes = chunk.bytes[seen..].to_vec();
                return Some(Piece::Chunk(Chunk { stream: chunk.stream, bytes }));
            }
            at = end;
        }
        held.is_over.then_some(Piece::Over)
    }
}

#[cfg(test)]
mod tests {
    use tare_engine::logs::Stream;

    use super::*;

    fn chunk(byte: u8, count: usize) -> Chunk {
        Chunk { stream: Stream::Stdout, bytes: vec![byte; count] }
    }

    #[tokio::test]
    async fn a_late_reader_reads_all_output() {
        let recent = RecentOutput::default();
        let mut place = Position::default();
        recent.add(chunk(1, 1));
        assert_eq!(recent.next(&mut place).await, Piece::Chunk(chunk(1, 1)));
        recent.add(chunk(1, 1));
        recent.add(Chunk { stream: Stream::Stderr, bytes: vec![2] });
        recent.end();
        assert_eq!(recent.next(&mut place).await, Piece::Chunk(chunk(1, 1)));
        let second = Piece::Chunk(Chunk { stream: Stream::Stderr, bytes: vec![2] });
        assert_eq!(recent.next(&mut place).await, second);
        assert_eq!(recent.next(&mut place).await, Piece::Over);
        assert_eq!(recent.counts(), (3, 0));
        let whole = recent.next(&mut Position::default()).await;
        assert_eq!(whole, Piece::Chunk(chunk(1, 2)));
    }

    #[tokio::test]
    async fn a_slow_reader_gets_the_number_of_lost_bytes() {
        let recent = RecentOutput::default();
        let mut place = Position::default();
        for _chunk in 0..8 {
            recent.add(chunk(0, KEPT_BYTES_MAX / 4));
        }
        assert_eq!(recent.counts().1, KEPT_BYTES_MAX as u64);
        assert_eq!(recent.next(&mut place).await, Piece::Missed(KEPT_BYTES_MAX as u64));
        for _chunk in 0..4 {
            assert!(matches!(recent.next(&mut place).await, Piece::Chunk(_)));
        }
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let recent = RecentOutput::default();
        let mut place = Position::default();
        let (next, ()) = tokio::join!(recent.next(&mut place), async {
            tokio::task::yield_now().await;
            recent.add(chunk(1, 1));
        });
        assert_eq!(next, Piece::Chunk(chunk(1, 1)));
    }
}
