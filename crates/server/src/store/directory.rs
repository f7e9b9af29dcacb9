//! The directory of a store: every name in it, and what is done to them. Names are
//! resolved one at a time, from descriptors, and no link is followed.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, linkat, mkdirat,
    openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use tare_kernel::fds::open_regular;

use crate::librechat::Id;
use crate::store::failure::{Doing, StoreError};
use crate::store::object::{ContentHash, Object};

/// For the one who runs the server.
const PRIVATE_DIRECTORY: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const DATA: &str = ".data";
const RECORD: &str = ".json";
/// A name has up to 256 characters; a record that is larger is none of ours.
const RECORD_BYTES_MAX: u64 = 64 << 10;
/// About 600 bytes for each file of a session.
const KNOWN_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug)]
pub struct Places {
    incoming: OwnedFd,
    blobs: OwnedFd,
    sessions: OwnedFd,
    known: OwnedFd,
    /// Held for as long as this lives, however it ends.
    _lock: OwnedFd,
}

/// The files of one session.
#[derive(Debug)]
pub struct Session {
    id: Id,
    directory: OwnedFd,
}

/// What the disk has more room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Erased {
    pub freed_bytes: u64,
}

/// How a content came to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It is on the disk now.
    New,
    /// The same was there already.
    Known,
}

impl Places {
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let shown = || directory.display().to_string();
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(directory);
        made.doing(|| format!("cannot make {}", shown()))?;
        let opening = || format!("cannot open {}", shown());
        let root = openat(CWD, directory, DIRECTORY, Mode::empty()).doing(opening)?;
        let lock = OFlags::CREATE | OFlags::RDWR;
        let lock = open_regular(root.as_fd(), "lock", lock, PRIVATE_FILE).doing(opening)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(StoreError::InUse { directory: shown() }),
            Err(error) => return Err(error).doing(|| format!("cannot lock {}", shown())),
        }
        let part = |name| made_directory(root.as_fd(), name).doing(opening);
        Ok(Self {
            incoming: part("incoming")?,
            blobs: part("blobs")?,
            sessions: part("sessions")?,
            known: part("known")?,
            _lock: lock,
        })
    }

    /// Whoever wrote what is there is dead.
    pub fn clear_incoming(&self) -> Result<(), StoreError> {
        for name in names(&self.incoming).doing(|| "cannot list incoming".to_owned())? {
            let is_ours = name.bytes().all(|byte| byte.is_ascii_digit());
            if is_ours {
                remove(&self.incoming, &name).doing(|| format!("cannot remove incoming/{name}"))?;
            }
        }
        Ok(())
    }

    pub fn begin(&self, number: u64) -> Result<File, StoreError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(&self.incoming, number.to_string(), flags, PRIVATE_FILE);
        let file = file.doing(|| format!("cannot make incoming/{number}"))?;
        Ok(File::from(file))
    }

    /// Gone is gone, whoever removed it.
    pub fn abandon(&self, number: u64) -> Result<(), StoreError> {
        let removed = remove(&self.incoming, &number.to_string());
        removed.doing(|| format!("cannot remove incoming/{number}"))
    }

    /// Makes a file of what has come: its content, and then its record, written under
    /// another number. Afterwards nothing of it is in `incoming`, or all of it.
    pub fn settle(
        &self,
        content: u64,
        record: u64,
        object: &Object,
    ) -> Result<Settled, StoreError> {
        let settling = || format!("cannot keep {}/{}", object.session, object.id);
        self.write_record(record, object)?;
        let settled = self.settle_written(content, record, object);
        if settled.is_err() {
            // What of it is there has no record, and is nobody's.
            remove(&self.incoming, &record.to_string()).ok();
            if let Ok(Some(session)) = self.session(&object.session) {
                self.erase(&session, &object.id, Some(&object.sha256)).ok();
            }
            self.remove_if_empty(&object.session).ok();
        }
        settled.doing(settling)
    }

    fn write_record(&self, number: u64, object: &Object) -> Result<(), StoreError> {
        let text = serde_json::to_vec(object).map_err(std::io::Error::from);
        let text = text.doing(|| format!("cannot write the record of {}", object.id))?;
        self.write_incoming(number, &text)
    }

    fn write_incoming(&self, number: u64, text: &[u8]) -> Result<(), StoreError> {
        let written = self.begin(number)?.write_all(text);
        if written.is_err() {
            self.abandon(number).ok();
        }
        written.doing(|| format!("cannot write incoming/{number}"))
    }

    /// Replaces what is known of a runtime session, whole or not at all.
    pub fn write_known(&self, number: u64, session: &str, text: &[u8]) -> Result<(), StoreError> {
        self.write_incoming(number, text)?;
        let renamed = renameat(&self.incoming, number.to_string(), &self.known, session);
        if renamed.is_err() {
            self.abandon(number).ok();
        }
        renamed.doing(|| format!("cannot write known/{session}"))
    }

    pub fn read_known(&self, session: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(file) = open_file(&self.known, session).doing(|| reading_known(session))? else {
            return Ok(None);
        };
        let mut text = Vec::new();
        let read = file.take(KNOWN_BYTES_MAX).read_to_end(&mut text);
        read.doing(|| reading_known(session))?;
        Ok(Some(text))
    }

    pub fn remove_known(&self, session: &str) -> Result<(), StoreError> {
        remove(&self.known, session).doing(|| format!("cannot remove known/{session}"))
    }

    /// The runtime sessions of which something is known. Other names are not ours.
    pub fn known(&self) -> Result<Vec<String>, StoreError> {
        let mut names = names(&self.known).doing(|| "cannot list known".to_owned())?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        names.retain(|name| name.bytes().all(is_digit));
        Ok(names)
    }

    fn settle_written(&self, content: u64, record: u64, object: &Object) -> Result<Settled, Errno> {
        let session = made_directory(self.sessions.as_fd(), object.session.as_str())?;
        let (content, blob) = (content.to_string(), object.sha256.as_str());
        let data = format!("{}{DATA}", object.id);
        let settled = match self.make_blob(&content, object) {
            Ok(settled) => {
                let linked = linkat(&self.blobs, blob, &session, &*data, AtFlags::empty());
                linked.map(|()| settled)
            }
            Err(error) => Err(error),
        };
        let settled = match settled {
            Err(error) if has_no_link(error) => {
                // Then it has a content of its own.
                renameat(&self.incoming, &*content, &session, &*data)?;
                Settled::New
            }
            settled => settled?,
        };
        let name = format!("{}{RECORD}", object.id);
        renameat(&self.incoming, record.to_string(), &session, name)?;
        remove(&self.incoming, &content)?;
        Ok(settled)
    }

    fn make_blob(&self, content: &str, object: &Object) -> Result<Settled, Errno> {
        let blob = object.sha256.as_str();
        let made = linkat(&self.incoming, content, &self.blobs, blob, AtFlags::empty());
        match made {
            Ok(()) => Ok(Settled::New),
            Err(Errno::EXIST) if self.is_whole(&object.sha256, object.size)? => Ok(Settled::Known),
            // What a loss of power has left is not the content of anything.
            Err(Errno::EXIST) => {
                remove(&self.blobs, blob)?;
                linkat(&self.incoming, content, &self.blobs, blob, AtFlags::empty())?;
                Ok(Settled::New)
            }
            Err(error) => Err(error),
        }
    }

    fn is_whole(&self, blob: &ContentHash, size: u64) -> Result<bool, Errno> {
        let found = regular(&self.blobs, blob.as_str())?;
        Ok(found.is_some_and(|found| bytes_of(&found) == size))
    }

    /// The record first. Of a file that is not there nothing.
    pub fn erase(
        &self,
        session: &Session,
        file: &Id,
        sha256: Option<&ContentHash>,
    ) -> Result<Erased, StoreError> {
        let erasing = || format!("cannot remove {}/{file}", session.id);
        remove(&session.directory, &format!("{file}{RECORD}")).doing(erasing)?;
        let data = format!("{file}{DATA}");
        let found = regular(&session.directory, &data).doing(erasing)?;
        remove(&session.directory, &data).doing(erasing)?;
        match (found, sha256) {
            (Some(found), _) if found.st_nlink == 1 => Ok(Erased { freed_bytes: bytes_of(&found) }),
            (_, Some(sha256)) => self.erase_unused(sha256),
            (_, None) => Ok(Erased::default()),
        }
    }

    /// A content to which no file leads.
    pub fn erase_unused(&self, blob: &ContentHash) -> Result<Erased, StoreError> {
        let erasing = || format!("cannot remove blobs/{blob}");
        let found = regular(&self.blobs, blob.as_str()).doing(erasing)?;
        let Some(found) = found.filter(|found| found.st_nlink == 1) else {
            return Ok(Erased::default());
        };
        remove(&self.blobs, blob.as_str()).doing(erasing)?;
        Ok(Erased { freed_bytes: bytes_of(&found) })
    }

    /// All contents.
    pub fn blobs(&self) -> Result<Vec<ContentHash>, StoreError> {
        let names = names(&self.blobs).doing(|| "cannot list blobs".to_owned())?;
        Ok(names.iter().filter_map(|name| ContentHash::parse(name)).collect())
    }

    pub fn blob_bytes(&self, blob: &ContentHash) -> Result<u64, StoreError> {
        let found = regular(&self.blobs, blob.as_str());
        let found = found.doing(|| format!("cannot look at blobs/{blob}"))?;
        Ok(found.as_ref().map_or(0, bytes_of))
    }

    pub fn sessions(&self) -> Result<Vec<Id>, StoreError> {
        let names = names(&self.sessions).doing(|| "cannot list sessions".to_owned())?;
        Ok(names.iter().filter_map(|name| Id::parse(name)).collect())
    }

    /// `None`: there is none, or something else that has its name.
    pub fn session(&self, id: &Id) -> Result<Option<Session>, StoreError> {
        match openat(&self.sessions, id.as_str(), DIRECTORY, Mode::empty()) {
            Ok(directory) => Ok(Some(Session { id: id.clone(), directory })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error).doing(|| format!("cannot open sessions/{id}")),
        }
    }

    pub fn remove_if_empty(&self, session: &Id) -> Result<(), StoreError> {
        match unlinkat(&self.sessions, session.as_str(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(error).doing(|| format!("cannot remove sessions/{session}")),
        }
    }
}

impl Session {
    /// Every file of which anything is there.
    pub fn files(&self) -> Result<BTreeSet<Id>, StoreError> {
        let names = names(&self.directory).doing(|| format!("cannot list {}", self.id))?;
        let id = |name: &String| {
            let id = name.strip_suffix(DATA).or(name.strip_suffix(RECORD))?;
            Id::parse(id)
        };
        Ok(names.iter().filter_map(id).collect())
    }

    /// Its record, if it can be read and its content is all there.
    pub fn object(&self, file: &Id) -> Result<Option<Object>, StoreError> {
        let Some(object) = self.record(file)? else {
            return Ok(None);
        };
        let found = self.data(file)?;
        let is_whole = found.is_some_and(|found| bytes_of(&found) == object.size);
        Ok(is_whole.then_some(object))
    }

    /// Its record, if it can be read.
    pub fn record(&self, file: &Id) -> Result<Option<Object>, StoreError> {
        let Some(record) = self.open_file(&format!("{file}{RECORD}"))? else {
            return Ok(None);
        };
        let mut text = Vec::new();
        let read = record.take(RECORD_BYTES_MAX).read_to_end(&mut text);
        read.doing(|| format!("cannot read the record of {file}"))?;
        let object = serde_json::from_slice::<Object>(&text).ok();
        Ok(object.filter(|object| object.session == self.id && object.id == *file))
    }

    /// How its content is on the disk.
    pub fn data(&self, file: &Id) -> Result<Option<Stat>, StoreError> {
        let found = regular(&self.directory, &format!("{file}{DATA}"));
        found.doing(|| format!("cannot look at {}/{file}", self.id))
    }

    /// The same of its record.
    pub fn record_status(&self, file: &Id) -> Result<Option<Stat>, StoreError> {
        let found = existing(&self.directory, &format!("{file}{RECORD}"));
        found.doing(|| format!("cannot look at {}/{file}", self.id))
    }

    pub fn content(&self, object: &Object) -> Result<Option<File>, StoreError> {
        self.open_file(&format!("{}{DATA}", object.id))
    }

    fn open_file(&self, name: &str) -> Result<Option<File>, StoreError> {
        let opened = open_file(&self.directory, name);
        opened.doing(|| format!("cannot open {}/{name}", self.id))
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

fn reading_known(session: &str) -> String {
    format!("cannot read known/{session}")
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

fn made_directory(parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    match mkdirat(&parent, name, PRIVATE_DIRECTORY) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    openat(parent, name, DIRECTORY, Mode::empty())
}

/// As many links lead there as there can be, or this file system has none.
fn has_no_link(error: Errno) -> bool {
    matches!(error, Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP)
}

fn remove(directory: impl AsFd, name: &str) -> Result<(), Errno> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

fn existing(directory: impl AsFd, name: &str) -> Result<Option<Stat>, Errno> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn regular(directory: impl AsFd, name: &str) -> Result<Option<Stat>, Errno> {
    let is_file = |found: &Stat| FileType::from_raw_mode(found.st_mode).is_file();
    Ok(existing(directory, name)?.filter(is_file))
}

fn bytes_of(found: &Stat) -> u64 {
    u64::try_from(found.st_size).unwrap_or(0)
}

/// What is in a directory, as far as it is text; our own names are.
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
