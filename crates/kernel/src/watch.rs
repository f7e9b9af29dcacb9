//! Learning that a file was written or cut off, by whatever process (inotify(7)).
//!
//! It says that something has changed, never what: the caller looks for itself.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::io::Errno;

/// Readable, for `poll`, from a change until [`Watch::drain`].
#[derive(Debug)]
pub struct Watch {
    inotify: OwnedFd,
}

impl Watch {
    /// Watches files that are open here. Changes from now on are announced, so
    /// whoever looks at the files afterwards misses none.
    pub fn files(files: &[OwnedFd]) -> io::Result<Self> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(explained)?;
        for file in files {
            // Through the descriptor: whatever has the file's name by now.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            add_watch(&inotify, path, WatchFlags::MODIFY).map_err(explained)?;
        }
        Ok(Self { inotify })
    }

    /// Forgets the changes so far; call it before looking at the files.
    pub fn drain(&self) -> io::Result<()> {
        let mut events = [0; EVENTS_BYTES];
        loop {
            match rustix::io::read(&self.inotify, &mut events) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Some hundred events of 16 bytes. Equal ones that follow each other are one
/// (inotify(7)), so there are rarely more than two.
const EVENTS_BYTES: usize = 4096;

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Two limits of a user hide behind numbers that mean something else.
fn explained(errno: Errno) -> io::Error {
    let kind = io::ErrorKind::QuotaExceeded;
    match errno {
        Errno::MFILE => io::Error::new(
            kind,
            "no descriptor or inotify instance is left (fs.inotify.max_user_instances)",
        ),
        Errno::NOSPC => io::Error::new(
            kind,
            "no inotify watch is left (fs.inotify.max_user_watches)",
        ),
        errno => errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::ftruncate;
    use rustix::io::pwrite;
    use std::fs::File;
    use tare_harness::TemporaryDirectory;

    fn is_readable(watch: &Watch) -> bool {
        let mut fds = [PollFd::new(watch, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn a_write_and_a_cut_are_announced_until_drained() {
        let directory = TemporaryDirectory::new();
        let files = ["a", "b"].map(|name| File::create(directory.join(name)).unwrap().into());
        let watch = Watch::files(&files).unwrap();
        assert!(!is_readable(&watch));
        for file in &files {
            pwrite(file, b"x", 0).unwrap();
            assert!(is_readable(&watch));
            watch.drain().unwrap();
            assert!(!is_readable(&watch));
            ftruncate(file, 0).unwrap();
            assert!(is_readable(&watch));
            watch.drain().unwrap();
            assert!(!is_readable(&watch));
        }
    }
}
