//! The standard streams of a detached box. The keeper copies output from pipes and from the
//! terminal into the log, and keeps the write end of the command's input.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Gid, OFlags, Uid, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use tare_control::log::{Stream, Writer};
use tare_control::{DetachedPlan, Identity};
use tare_kernel::fds::{open_null, pipe_of};

/// How much one read takes. The keeper has no more memory for it.
const CHUNK_BYTES: usize = 16 << 10;
/// How many reads of one stream follow each other before the next stream is read.
const ROUNDS_MAX: usize = 8;
/// How many reads empty a pipe at the end of its box. A pipe holds at most 1 MiB, unless a
/// privileged user made it larger (pipe(7)).
const LAST_ROUNDS_MAX: usize = 64;

/// The descriptors 0, 1 and 2 of a new process.
#[derive(Debug)]
pub enum Streams {
    /// The keeper's own, which it inherited from the creator.
    Keepers,
    /// A terminal, which also controls the process.
    Terminal(OwnedFd),
    Given([OwnedFd; 3]),
}

/// The log of a detached box, and the pipes and terminals that lead to it.
#[derive(Debug)]
pub struct Output {
    ring: Writer,
    sources: Vec<(Stream, OwnedFd)>,
    writers: [OwnedFd; 2],
    input: Option<Input>,
    bytes_max: u64,
    kill_past: bool,
}

/// The write end of the command's standard input.
#[derive(Debug)]
enum Input {
    Pipe(OwnedFd),
    Terminal(OwnedFd),
}

impl Output {
    /// Makes one pair of pipes for all processes whose output goes into the log.
    pub fn open(
        plan: &DetachedPlan,
        log: [OwnedFd; 2],
        owner: Option<Identity>,
    ) -> io::Result<Self> {
        let (stdout, stdout_writer) = pipe_for(owner)?;
        let (stderr, stderr_writer) = pipe_for(owner)?;
        let mut output = Self {
            ring: Writer::new(log, plan.log_bytes_max),
            sources: Vec::new(),
            writers: [stdout_writer, stderr_writer],
            input: None,
            bytes_max: plan.log_bytes_max,
            kill_past: plan.kill_past_log,
        };
        output.add(Stream::Stdout, stdout)?;
        output.add(Stream::Stderr, stderr)?;
        Ok(output)
    }

    /// Copies the output of the command's terminal into the log. Clients that attach write to the
    /// terminal.
    pub fn watch_terminal(&mut self, master: OwnedFd) -> io::Result<()> {
        self.add(Stream::Stdout, master.try_clone()?)?;
        self.input = Some(Input::Terminal(master));
        Ok(())
    }

    fn add(&mut self, stream: Stream, source: OwnedFd) -> io::Result<()> {
        let flags = fcntl_getfl(&source)?;
        fcntl_setfl(&source, flags | OFlags::NONBLOCK)?;
        self.sources.push((stream, source));
        Ok(())
    }

    /// Returns the streams of a process whose output goes into the log. With `keep_stdin`, its
    /// input stays open for clients that attach.
    pub fn streams(&mut self, keep_stdin: bool, owner: Option<Identity>) -> io::Result<Streams> {
        let stdin = if keep_stdin {
            let (read, write) = pipe_for(owner)?;
            self.input = Some(Input::Pipe(write));
            read
        } else {
            open_null()?
        };
        let [stdout, stderr] = &self.writers;
        Ok(Streams::Given([stdin, stdout.try_clone()?, stderr.try_clone()?]))
    }

    /// Returns the write end of the command's input, and whether it is a terminal.
    pub fn input(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match self.input.as_ref()? {
            Input::Pipe(fd) => Some((fd.as_fd(), false)),
            Input::Terminal(fd) => Some((fd.as_fd(), true)),
        }
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

    /// Returns whether the box has to end because its output is larger than the limit.
    pub fn is_past_limit(&self) -> bool {
        self.kill_past && self.ring.received_bytes() > self.bytes_max
    }

    /// Copies what has arrived into the log, without waiting.
    pub fn collect(&mut self) {
        self.take(ROUNDS_MAX);
    }

    /// Copies everything that was written before the end of the box.
    pub fn collect_last(&mut self) {
        self.take(LAST_ROUNDS_MAX);
    }

    fn take(&mut self, rounds_max: usize) {
        let ring = &mut self.ring;
        // Every read of a terminal whose other side is closed fails with EIO, so the terminal is
        // dropped.
        self.sources.retain(|(stream, fd)| copy(ring, *stream, fd, rounds_max));
    }
}

/// Copies one stream into the log. Returns `false` if the stream has ended.
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

fn pipe_for(owner: Option<Identity>) -> io::Result<(OwnedFd, OwnedFd)> {
    let ids = |Identity { uid, gid }| (Uid::from_raw(uid), Gid::from_raw(gid));
    Ok(pipe_of(owner.map(ids))?)
}
