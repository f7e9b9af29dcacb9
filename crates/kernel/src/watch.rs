//! Announces that files were written or truncated, by any process (inotify(7)).
//!
//! An event names the file and not the change: the caller reads the file. One instance watches
//! any number of files. A user has few instances (fs.inotify.max_user_instances, 128 by
//! default), so a process makes only one.

use std::collections::HashSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::inotify::{add_watch, init, remove_watch};
use rustix::io::Errno;

/// An inotify instance. It is readable from a change until [`Watch::drain`] or
/// [`Watch::changes`].
#[derive(Debug)]
pub struct Watch {
    inotify: OwnedFd,
}

/// A watched file. Adding the same file again returns the same mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark(i32);

/// The files that have changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Changes {
    Of(HashSet<Mark>),
    /// The kernel dropped events: any file may have changed.
    Unknown,
}

impl Watch {
    pub fn new() -> io::Result<Self> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(explained)?;
        Ok(Self { inotify })
    }

    /// Watches open files. Read the files after this call to miss no change.
    pub fn files(files: &[OwnedFd]) -> io::Result<Self> {
        let watch = Self::new()?;
        for file in files {
            watch.add(file)?;
        }
        Ok(watch)
    }

    /// Watches one more file, until it is deleted or removed from the watch.
    pub fn add(&self, file: &OwnedFd) -> io::Result<Mark> {
        // Through the descriptor: another file may have the name by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mark = add_watch(&self.inotify, path, WatchFlags::MODIFY).map_err(explained)?;
        Ok(Mark(mark))
    }

    /// Stops watching a file.
    pub fn remove(&self, Mark(mark): Mark) {
        // Fails if the file was deleted.
        remove_watch(&self.inotify, mark).ok();
    }

    /// Returns the files that have changed since the last call.
    pub fn changes(&self) -> io::Result<Changes> {
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut events = Reader::new(&self.inotify, &mut buffer);
        let (mut changed, mut is_known) = (HashSet::new(), true);
        loop {
            match events.next() {
                Ok(event) => {
                    is_known &= !event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                    changed.insert(Mark(event.wd()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if is_known => return Ok(Changes::Of(changed)),
                Err(Errno::AGAIN) => return Ok(Changes::Unknown),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Forgets the changes so far. Call it before reading the files.
    pub fn drain(&self) -> io::Result<()> {
        self.changes().map(drop)
    }
}

/// Room for 256 events of 16 bytes. The kernel merges equal events that follow each other
/// (inotify(7)), so there are rarely more than two.
const EVENTS_BYTES: usize = 4096;

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Names the limit of the user that two error numbers stand for.
fn explained(errno: Errno) -> io::Error {
    let kind = io::ErrorKind::QuotaExceeded;
    match errno {
        Errno::MFILE => io::Error::new(
            kind,
            "no descriptor or inotify instance is left (fs.inotify.max_user_instances)",
        ),
        Errno::NOSPC => {
            io::Error::new(kind, "no inotify watch is left (fs.inotify.max_user_watches)")
        }
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
    #[test]
    fn one_inotify_instance_reports_which_file_changed() {
        let directory = TemporaryDirectory::new();
        let files = ["a", "b"].map(|name| File::create(directory.join(name)).unwrap().into());
        let watch = Watch::new().unwrap();
        let marks = files.each_ref().map(|file| watch.add(file).unwrap());
        assert_ne!(marks[0], marks[1]);
        assert_eq!(watch.add(&files[0]).unwrap(), marks[0]);
        assert_eq!(watch.changes().unwrap(), Changes::Of(HashSet::new()));
        pwrite(&files[1], b"x", 0).unwrap();
        assert_eq!(watch.changes().unwrap(), Changes::Of(HashSet::from([marks[1]])));
        watch.remove(marks[1]);
        watch.drain().unwrap();
        pwrite(&files[1], b"x", 0).unwrap();
        assert!(!is_readable(&watch));
        // It is gone already.
        watch.remove(marks[1]);
    }
}
