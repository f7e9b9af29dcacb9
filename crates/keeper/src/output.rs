//! The output of a detached box: from its pipes or its terminal into its log.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Gid, OFlags, Uid, fchown, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tare_control::log::{Stream, Writer};
use tare_control::{DetachedPlan, Identity};
use tare_kernel::step::step;

/// What one read takes; the keeper has no more memory for it.
const CHUNK_BYTES: usize = 16 << 10;
/// After so many reads of one stream the others get their turn.
const ROUNDS_MAX: usize = 8;
/// What a pipe can hold at the end of its box, in chunks: 1 MiB, the most that
/// an unprivileged user can make it (pipe(7)).
const LAST_ROUNDS_MAX: usize = 64;

#[derive(Debug)]
pub struct Output {
    ring: Writer,
    sources: Vec<(Stream, OwnedFd)>,
    writers: [OwnedFd; 2],
    bytes_max: u64,
    kill_past: bool,
}

impl Output {
    /// The pipes are for whoever's output belongs into the log; of a command
    /// with a terminal, its master side is one more source.
    pub fn new(
        ring: Writer,
        plan: &DetachedPlan,
        owner: Option<Identity>,
        terminal: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let (stdout, stdout_writer) = pipe_of(owner)?;
        let (stderr, stderr_writer) = pipe_of(owner)?;
        let mut sources = vec![(Stream::Stdout, stdout), (Stream::Stderr, stderr)];
        sources.extend(terminal.map(|master| (Stream::Stdout, master)));
        for (_, source) in &sources {
            let flags = fcntl_getfl(source)?;
            fcntl_setfl(source, flags | OFlags::NONBLOCK)?;
        }
        Ok(Self {
            ring,
            sources,
            writers: [stdout_writer, stderr_writer],
            bytes_max: plan.log_bytes_max,
            kill_past: plan.kill_past_log,
        })
    }

    /// The ends that a process writes to.
    pub fn writers(&self) -> &[OwnedFd; 2] {
        &self.writers
    }

    pub fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sources.iter().map(|(_, fd)| fd.as_fd())
    }

    pub fn received_bytes(&self) -> u64 {
        self.ring.received_bytes()
    }

    pub fn dropped_bytes(&self) -> u64 {
        self.ring.dropped_bytes()
    }

    /// Whether there was more than the box may say.
    pub fn is_past_limit(&self) -> bool {
        self.kill_past && self.ring.received_bytes() > self.bytes_max
    }

    /// Takes what is there, without waiting.
    pub fn collect(&mut self) {
        self.take(ROUNDS_MAX);
    }

    /// Takes what was written before the end.
    pub fn collect_last(&mut self) {
        self.take(LAST_ROUNDS_MAX);
    }

    fn take(&mut self, rounds_max: usize) {
        let ring = &mut self.ring;
        // A terminal whose other side is closed says so at every look (EIO); it
        // is no source any more.
        self.sources.retain(|(stream, fd)| copy(ring, *stream, fd, rounds_max));
    }
}

/// `false` when nothing will come any more.
fn copy(ring: &mut Writer, stream: Stream, source: &OwnedFd, rounds_max: usize) -> bool {
    let mut buffer = [0; CHUNK_BYTES];
    for _ in 0..rounds_max {
        match rustix::io::read(source, &mut buffer) {
            Ok(0) => return false,
            Ok(length) => ring.append(stream, &buffer[..length]),
            Err(Errno::AGAIN | Errno::INTR) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// A pipe whose owner can open it again by name (`/dev/stdout`).
pub fn pipe_of(owner: Option<Identity>) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = step("pipe made", || pipe_with(PipeFlags::CLOEXEC))?;
    if let Some(Identity { uid, gid }) = owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        step("pipe given away", || fchown(&read, Some(uid), Some(gid)))?;
    }
    Ok((read, write))
}
