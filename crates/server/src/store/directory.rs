//! The store's directory: every name in it, and every operation on it. Names are resolved one at
//! a time, from descriptors, and no symbolic link is followed.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, mkdirat, openat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;
use tare_engine::Timestamp;
use tare_kernel::fds::open_regular;

use crate::error::ServiceError;
use crate::store::id::Id;
use crate::store::object::Object;

/// Only the user who runs the server can read the store.
const PRIVATE_DIRECTORY: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const DATA: &str = ".data";
const RECORD: &str = ".json";
/// Names have up to 256 characters, so no record is larger than this.
const RECORD_BYTES_MAX: u64 = 64 << 10;
/// About 600 bytes for each file of a session.
const KNOWN_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug)]
pub struct StoreDirectory {
    incoming: OwnedFd,
    sessions: OwnedFd,
    known: OwnedFd,
    /// The kernel releases this lock when the server ends, however it ends.
    _lock: OwnedFd,
}

/// The files of one session.
#[derive(Debug)]
pub struct SessionFiles {
    session: Id,
    directory: OwnedFd,
}

/// Adds to an error of the operating system what the store was doing. Only the log shows it,
/// because it can contain paths of the host.
pub trait IoContext<T> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T, ServiceError>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn context(self, doing: impl FnOnce() -> String) -> Result<T, ServiceError> {
        self.map_err(|source| {
            let source = source.into();
            let detail = format!("{}: {source}", doing());
            let missing = match source.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOSPC | Errno::DQUOT) => "space for files",
                Some(Errno::MFILE | Errno::NFILE) => "descriptors",
                Some(_) | None => return ServiceError::internal(detail),
            };
            let message = format!("the host has no {missing} left");
            ServiceError { detail: Some(detail), ..ServiceError::unavailable("exhausted", message) }
        })
    }
}

fn in_use(directory: &Path) -> ServiceError {
    let detail = Some(format!("another server uses {}", directory.display()));
    let message = "another server uses the directory of files";
    ServiceError { detail, ..ServiceError::unavailable("store_in_use", message) }
        .with_hint("give each server a directory of its own: [files] directory")
}

impl StoreDirectory {
    pub fn open(directory: &Path) -> Result<Self, ServiceError> {
        let shown = || directory.display().to_string();
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(directory);
        made.context(|| format!("cannot create {}", shown()))?;
        let opening = || format!("cannot open {}", shown());
        let root = openat(CWD, directory, DIRECTORY, Mode::empty()).context(opening)?;
        let lock = OFlags::CREATE | OFlags::RDWR;
        let lock = open_regular(root.as_fd(), "lock", lock, PRIVATE_FILE).context(opening)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(directory)),
            Err(error) => return Err(error).context(|| format!("cannot lock {}", shown())),
        }
        let part = |name| open_or_create(root.as_fd(), name).context(opening);
        Ok(Self {
            incoming: part("incoming")?,
            sessions: part("sessions")?,
            known: part("known")?,
            _lock: lock,
        })
    }

    /// Removes files that an earlier server was writing when it ended.
    pub fn clear_incoming(&self) -> Result<(), ServiceError> {
        for name in names(&self.incoming).context(|| "cannot list incoming".to_owned())? {
            let is_ours = name.bytes().all(|byte| byte.is_ascii_digit());
            if is_ours {
                remove(&self.incoming, &name)
                    .context(|| format!("cannot remove incoming/{name}"))?;
            }
        }
        Ok(())
    }

    /// Creates an empty file in `incoming`.
    pub fn begin(&self, number: u64) -> Result<File, ServiceError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(&self.incoming, number.to_string(), flags, PRIVATE_FILE);
        let file = file.context(|| format!("cannot create incoming/{number}"))?;
        Ok(File::from(file))
    }

    /// Succeeds if the file is already gone.
    pub fn abandon(&self, number: u64) -> Result<(), ServiceError> {
        let removed = remove(&self.incoming, &number.to_string());
        removed.context(|| format!("cannot remove incoming/{number}"))
    }

    /// Makes the file `content` of `incoming` part of a session, and writes its record as the
    /// file `record` of `incoming` first. If this fails, nothing of either is in the session.
    pub fn keep(&self, content: u64, record: u64, object: &Object) -> Result<(), ServiceError> {
        self.write_record(record, object)?;
        let kept = self.move_to_session(content, record, object);
        if kept.is_err() {
            self.abandon(record).ok();
            if let Ok(Some(files)) = self.session(&object.session) {
                files.erase(&object.id).ok();
            }
            self.remove_if_empty(&object.session).ok();
        }
        kept.context(|| format!("cannot keep {}/{}", object.session, object.id))
    }

    /// Moves the content first: without a record it is not a file yet.
    fn move_to_session(&self, content: u64, record: u64, object: &Object) -> Result<(), Errno> {
        let session = open_or_create(self.sessions.as_fd(), object.session.as_str())?;
        for (number, suffix) in [(content, DATA), (record, RECORD)] {
            let name = format!("{}{suffix}", object.id);
            renameat(&self.incoming, number.to_string(), &session, name)?;
        }
        Ok(())
    }

    fn write_record(&self, number: u64, object: &Object) -> Result<(), ServiceError> {
        let text = serde_json::to_vec(object).map_err(io::Error::from);
        let text = text.context(|| format!("cannot write the record of {}", object.id))?;
        self.write_incoming(number, &text)
    }

    fn write_incoming(&self, number: u64, text: &[u8]) -> Result<(), ServiceError> {
        let written = self.begin(number)?.write_all(text);
        if written.is_err() {
            self.abandon(number).ok();
        }
        written.context(|| format!("cannot write incoming/{number}"))
    }

    /// Replaces an entry of `known` atomically.
    pub fn write_known(&self, number: u64, session: &str, text: &[u8]) -> Result<(), ServiceError> {
        self.write_incoming(number, text)?;
        let renamed = renameat(&self.incoming, number.to_string(), &self.known, session);
        if renamed.is_err() {
            self.abandon(number).ok();
        }
        renamed.context(|| format!("cannot write known/{session}"))
    }

    pub fn read_known(&self, session: &str) -> Result<Option<Vec<u8>>, ServiceError> {
        let Some(file) =
            open_file(&self.known, session).context(|| format!("cannot read known/{session}"))?
        else {
            return Ok(None);
        };
        let mut text = Vec::new();
        let read = file.take(KNOWN_BYTES_MAX).read_to_end(&mut text);
        read.context(|| format!("cannot read known/{session}"))?;
        Ok(Some(text))
    }

    pub fn remove_known(&self, session: &str) -> Result<(), ServiceError> {
        remove(&self.known, session).context(|| format!("cannot remove known/{session}"))
    }

    /// The names in `known`. The store ignores names that it did not write.
    pub fn known(&self) -> Result<Vec<String>, ServiceError> {
        let mut names = names(&self.known).context(|| "cannot list known".to_owned())?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        names.retain(|name| name.bytes().all(is_digit));
        Ok(names)
    }

    pub fn sessions(&self) -> Result<Vec<Id>, ServiceError> {
        let names = names(&self.sessions).context(|| "cannot list sessions".to_owned())?;
        Ok(names.iter().filter_map(|name| Id::parse(name)).collect())
    }

    /// Returns `None` if the session has no directory, or something else has its name.
    pub fn session(&self, id: &Id) -> Result<Option<SessionFiles>, ServiceError> {
        match openat(&self.sessions, id.as_str(), DIRECTORY, Mode::empty()) {
            Ok(directory) => Ok(Some(SessionFiles { session: id.clone(), directory })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error).context(|| format!("cannot open sessions/{id}")),
        }
    }

    pub fn remove_if_empty(&self, session: &Id) -> Result<(), ServiceError> {
        match unlinkat(&self.sessions, session.as_str(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error).context(|| format!("cannot remove sessions/{session}")),
        }
    }
}

impl SessionFiles {
    /// Every file of which there is a record or content.
    pub fn ids(&self) -> Result<BTreeSet<Id>, ServiceError> {
        let names =
            names(&self.directory).context(|| format!("cannot list sessions/{}", self.session))?;
        let id = |name: &String| {
            let id = name.strip_suffix(DATA).or(name.strip_suffix(RECORD))?;
            Id::parse(id)
        };
        Ok(names.iter().filter_map(id).collect())
    }

    /// Returns a file whose record can be read and whose content is complete.
    pub fn object(&self, file: &Id) -> Result<Option<Object>, ServiceError> {
        let Some(object) = self.record(file)? else {
            return Ok(None);
        };
        let content = status(&self.directory, &format!("{file}{DATA}"));
        let content = content.context(|| format!("cannot look at {}/{file}", self.session))?;
        let size = |status: &Stat| u64::try_from(status.st_size).unwrap_or(0);
        let is_file = |status: &Stat| FileType::from_raw_mode(status.st_mode).is_file();
        let is_whole =
            content.is_some_and(|status| is_file(&status) && size(&status) == object.size);
        Ok(is_whole.then_some(object))
    }

    /// Returns the record of a file if it can be read, even if the content is not complete.
    pub fn record(&self, file: &Id) -> Result<Option<Object>, ServiceError> {
        let Some(record) = self.open_file(&format!("{file}{RECORD}"))? else {
            return Ok(None);
        };
        let mut text = Vec::new();
        let read = record.take(RECORD_BYTES_MAX).read_to_end(&mut text);
        read.context(|| format!("cannot read the record of {file}"))?;
        let object = serde_json::from_slice::<Object>(&text).ok();
        Ok(object.filter(|object| object.session == self.session && object.id == *file))
    }

    /// Returns when the record was last written, whether or not it can be read.
    pub fn record_changed_at(&self, file: &Id) -> Result<Option<Timestamp>, ServiceError> {
        let status = status(&self.directory, &format!("{file}{RECORD}"));
        let status = status.context(|| format!("cannot look at {}/{file}", self.session))?;
        let seconds = |status: Stat| u64::try_from(status.st_mtime).unwrap_or(0);
        Ok(status.map(|status| Timestamp::from_ms(seconds(status).saturating_mul(1000))))
    }

    /// Removes a file, its record first. Succeeds if nothing is there.
    pub fn erase(&self, file: &Id) -> Result<(), ServiceError> {
        for suffix in [RECORD, DATA] {
            let removed = remove(&self.directory, &format!("{file}{suffix}"));
            removed.context(|| format!("cannot remove {}/{file}", self.session))?;
        }
        Ok(())
    }

    pub fn content(&self, object: &Object) -> Result<Option<File>, ServiceError> {
        self.open_file(&format!("{}{DATA}", object.id))
    }

    fn open_file(&self, name: &str) -> Result<Option<File>, ServiceError> {
        let opened = open_file(&self.directory, name);
        opened.context(|| format!("cannot open {}/{name}", self.session))
    }
}

fn open_file(directory: impl AsFd, name: &str) -> Result<Option<File>, Errno> {
    // A FIFO must not block the thread that opens it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

fn open_or_create(parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    match mkdirat(&parent, name, PRIVATE_DIRECTORY) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    openat(parent, name, DIRECTORY, Mode::empty())
}

fn remove(directory: impl AsFd, name: &str) -> Result<(), Errno> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns `None` if the name does not exist. Does not follow a symbolic link.
fn status(directory: impl AsFd, name: &str) -> Result<Option<Stat>, Errno> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(status)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names in a directory that are UTF-8, as all names of the store are.
fn names(directory: impl AsFd) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if let Ok(name) = name.to_str() {
            names.push(name.to_owned());
        }
    }
    names.retain(|name| !matches!(name.as_str(), "." | ".."));
    Ok(names)
}
