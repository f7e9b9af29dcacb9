//! The server's end of a pipe to tare's copy process in a box. The process runs as the box's user,
//! so the box can stop it. Therefore every wait has a limit.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use tare_kernel::clock::timespec;

/// The time limit for the next bytes.
const NEXT_WITHIN: Duration = Duration::from_secs(10);
/// The time limit for all bytes. Other processes of the box can slow the copy down.
const ALL_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Pipe {
    file: File,
    until: Instant,
}

impl Pipe {
    /// Duplicates the end, which no other code uses.
    pub fn of(end: &OwnedFd) -> io::Result<Self> {
        fcntl_setfl(end, fcntl_getfl(end)? | OFlags::NONBLOCK)?;
        Ok(Self { file: File::from(end.try_clone()?), until: Instant::now() + ALL_WITHIN })
    }

    fn ready(&self, what: PollFlags) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        let within = timespec(left.min(NEXT_WITHIN));
        match poll(&mut [PollFd::new(&self.file, what)], Some(&within)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            // An interrupted wait is one more try.
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            self.ready(PollFlags::IN)?;
            match self.file.read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.ready(PollFlags::OUT)?;
            match self.file.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_neither_reads_nor_writes_times_out() {
        let (reads, writes) = rustix::pipe::pipe().expect("a pipe");
        let soon = |end| Pipe {
            until: Instant::now() + Duration::from_millis(50),
            ..Pipe::of(end).expect("our end")
        };
        let timed_out = |result: io::Result<()>| {
            result.expect_err("the peer does nothing").kind() == io::ErrorKind::TimedOut
        };
        assert!(timed_out(soon(&reads).read_exact(&mut [0])));
        assert!(timed_out(soon(&writes).write_all(&[0; 1 << 20])));
        let mut there = [1];
        Pipe::of(&reads).and_then(|mut pipe| pipe.read_exact(&mut there)).expect("it was written");
        assert_eq!(there, [0]);
    }
}
