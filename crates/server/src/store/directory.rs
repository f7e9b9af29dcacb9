//! The store's directory: its parts, its lock, and the way of a file from `incoming` into a session.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, openat, renameat, unlinkat};
use rustix::io::Errno;
use tare_kernel::fds::open_regular;

use crate::error::ServiceError;
use crate::store::entries::{DIRECTORY, IoContext, names, open_file, open_or_create, remove};
use crate::store::id::Id;
use crate::store::object::Object;
use crate::store::session_files::{DATA, RECORD, SessionFiles};

/// Only the user who runs the server can read the store.
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
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

fn in_use(directory: &Path) -> ServiceError {
    let detail = Some(format!("another server uses {}", directory.display()).into());
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

    /// Empties `incoming`. While a server writes files, it must not call this.
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
