//! The files of a record that tare and the keeper share: the control socket, the journal and the
//! log. The keeper writes them, so tare does not trust them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, openat, statat};
use rustix::io::{Errno, ioctl_fionbio, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with,
};
use tare_control::journal::{JOURNAL_BYTES, Journal};
use tare_control::log::{self, FILE_NAMES, Reader, Stream};
use tare_kernel::clock::boot_ns;
use tare_kernel::fds::open_regular;
use tare_kernel::step::step;

use crate::record::json::open_file;
use crate::record::{LockedRecord, PRIVATE, Record};
use crate::time::Timestamp;

pub const CONTROL: &str = "control";
pub const JOURNAL: &str = "journal";
/// The names of modules on one line, and behind it one byte for each clone.
pub const TEMPLATE: &str = "template";
/// The bytes that are read of it. A template is replaced long before it has made so many clones.
const TEMPLATE_BYTES_MAX: usize = 16 << 20;

/// What the record of a template says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateFacts {
    pub imported: Vec<String>,
    pub clones: u64,
}

/// What a detached box writes into its record.
#[derive(Debug)]
pub struct DetachedFiles {
    pub journal: OwnedFd,
    pub log: [OwnedFd; 2],
}

impl Record {
    /// Reads what the keeper of a detached box has written. Without a journal it is empty.
    pub fn journal(&self) -> io::Result<Journal> {
        let file = open_file(self.directory.as_fd(), JOURNAL)?;
        let journal = file.map(|file| read_journal(file.as_fd())).transpose()?;
        Ok(journal.unwrap_or_default())
    }

    /// Returns when the keeper of a detached box last showed that it lived: by its start, its
    /// events and its log. `None` if the record says when tare killed it.
    pub fn last_sign(&self) -> Option<Timestamp> {
        let (created, keeper) = (self.lines.created.as_ref()?, self.lines.keeper.as_ref()?);
        if self.lines.ending.is_some() {
            return None;
        }
        let events = self.journal().unwrap_or_default().events;
        let event_ns = events.iter().map(|event| event.at_us.saturating_mul(1000));
        let last_ns = event_ns.chain([keeper.at_ns]).max()?.min(boot_ns());
        let after = Duration::from_nanos(last_ns.saturating_sub(created.created_ns));
        let written = FILE_NAMES.iter().filter_map(|name| {
            let stat = statat(&self.directory, *name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
            let ms = stat.st_mtime_nsec as u64 / 1_000_000;
            Some(Timestamp::from_ms(seconds.saturating_mul(1000).saturating_add(ms)))
        });
        written.chain([created.created_at.after(after)]).max()
    }

    /// Returns the last sign of life on the boot clock: that of the keeper, or of the process that was
    /// about to kill it.
    pub fn last_sign_ns(&self) -> Option<u64> {
        let created = self.lines.created.as_ref()?;
        let sign = self.last_sign().map(|at| {
            let after = at.since(created.created_at).as_nanos();
            created.created_ns.saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
        });
        sign.or(self.lines.ending.as_ref().map(|ending| ending.at_ns))
    }

    /// Returns the last bytes that the command wrote to stderr, as far as the log has them. `None` for
    /// a box without a log.
    pub fn last_stderr(&self, most: usize) -> Option<Vec<u8>> {
        let open = |name| open_regular(self.directory.as_fd(), name, OFlags::RDONLY, Mode::empty());
        let [first, second] = FILE_NAMES.map(|name| open(name).ok());
        let mut log = Reader::new([first?, second?]);
        let mut last = Vec::new();
        while let Ok(Some(entry)) = log.next_entry() {
            if entry.stream == Stream::Stderr {
                last.extend_from_slice(log.bytes());
                last.drain(..last.len().saturating_sub(most));
            }
        }
        Some(last)
    }

    /// Returns what the record says about a template. `None` for any other box.
    pub fn template(&self) -> Option<TemplateFacts> {
        let file = open_file(self.directory.as_fd(), TEMPLATE).ok()??;
        let mut text = String::new();
        let mut reader = io::Read::take(std::fs::File::from(file), TEMPLATE_BYTES_MAX as u64);
        io::Read::read_to_string(&mut reader, &mut text).ok()?;
        let (imported, clones) = text.split_once('\n')?;
        let imported = imported.split_whitespace().map(str::to_owned).collect();
        Some(TemplateFacts { imported, clones: clones.len() as u64 })
    }

    /// Opens the journal, to be read later; see [`read_journal`].
    pub fn open_journal(&self) -> Option<OwnedFd> {
        open_regular(self.directory.as_fd(), JOURNAL, OFlags::RDONLY, Mode::empty()).ok()
    }

    /// Returns whether the record is that of a detached box.
    pub fn has_journal(&self) -> bool {
        self.has(JOURNAL)
    }

    /// Connects to the keeper. Connecting, and each send, waits for `within` at most. Without time to
    /// wait, a keeper that has too many connections to accept is the error `EAGAIN` (connect(2)).
    pub fn connect(&self, within: Duration) -> io::Result<OwnedFd> {
        let socket = unix_socket()?;
        if within.is_zero() {
            // A timeout of zero would be none (socket(7)).
            ioctl_fionbio(&socket, true)?;
        } else {
            set_socket_timeout(&socket, Timeout::Send, Some(within))?;
        }
        let address = self.control_address()?;
        step("connect to keeper", || connect(&socket, &address))?;
        Ok(socket)
    }

    /// The address by the open directory, because the path may be too long for an address.
    fn control_address(&self) -> io::Result<SocketAddrUnix> {
        let path = format!("/proc/self/fd/{}/{CONTROL}", self.directory.as_raw_fd());
        Ok(SocketAddrUnix::new(path)?)
    }
}

impl LockedRecord {
    /// Makes the file of a template that has imported these modules. Each clone adds a byte to it.
    pub fn make_template_file(&self, imported: &[String]) -> io::Result<OwnedFd> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
        let file =
            step("make the file of a template", || openat(&**self, TEMPLATE, flags, PRIVATE))?;
        rustix::io::write(&file, format!("{}\n", imported.join(" ")).as_bytes())?;
        Ok(file)
    }

    /// Binds the control socket. The keeper listens on it.
    pub fn bind_control(&self) -> io::Result<OwnedFd> {
        let socket = unix_socket()?;
        // The name gets the mode of the socket (unix(7)).
        step("make socket private", || fchmod(&socket, PRIVATE))?;
        let address = self.control_address()?;
        step("bind socket", || bind(&socket, &address))?;
        Ok(socket)
    }

    /// Creates the files of a detached box. The space of the journal, and of the log's header,
    /// is reserved now.
    pub fn make_detached_files(&self) -> io::Result<DetachedFiles> {
        let make = |name: &str| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let make = || openat(&self.directory, name, flags, PRIVATE);
            step("create file of detached box", make)
        };
        let journal = make(JOURNAL)?;
        step("reserve the journal", || {
            match rustix::io::pwrite(&journal, &[b' '; JOURNAL_BYTES], 0) {
                Ok(JOURNAL_BYTES) => Ok(()),
                Ok(_) => Err(Errno::NOSPC),
                Err(errno) => Err(errno),
            }
        })?;
        let log = [make(FILE_NAMES[0])?, make(FILE_NAMES[1])?];
        step("reserve the header of the log", || {
            rustix::io::pwrite(&log[0], &log::first_header(), 0)
        })?;
        Ok(DetachedFiles { journal, log })
    }
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let make = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    Ok(step("make socket", make)?)
}

/// Reads the journal from an open file, which the keeper may be writing.
pub fn read_journal(file: BorrowedFd<'_>) -> io::Result<Journal> {
    let mut bytes = [0; JOURNAL_BYTES];
    let length = retry_on_intr(|| rustix::io::pread(file, &mut bytes, 0))?;
    Ok(Journal::read(&bytes[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::lines::RecordLines;
    use std::os::unix::net::UnixListener;
    use tare_harness::TemporaryDirectory;

    /// More than the connections that may wait to be accepted in the standard library's listener.
    const CONNECTIONS: usize = 10_000;

    #[test]
    fn connecting_without_time_never_waits_for_a_keeper_that_does_not_accept() {
        let place = TemporaryDirectory::new();
        let _listener = UnixListener::bind(place.join(CONTROL)).expect("the directory is empty");
        let directory = std::fs::File::open(place.path()).expect("it is there").into();
        let record = Record { directory, lines: RecordLines::default(), damage: None };
        let mut connections = Vec::new();
        let refused = (0..CONNECTIONS).find_map(|_| match record.connect(Duration::ZERO) {
            Ok(connection) => {
                connections.push(connection);
                None
            }
            Err(error) => Some(error),
        });
        let errno = refused.and_then(|error| error.raw_os_error());
        assert_eq!(errno.map(Errno::from_raw_os_error), Some(Errno::AGAIN));
    }
}
