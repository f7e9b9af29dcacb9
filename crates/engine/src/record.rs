//! A box's record: a directory, made first, removed last.
//!
//! ```text
//! boxes/<id>/            locked by whoever looks after the box
//!   record.json          line 1: what was asked for, and under which roots
//!                        line 2: who the keeper is, before it may go on
//! ```
//! Nobody reads another's half-made record: the directory is locked from the
//! moment it is visible, because both happen under the shared lock of `boxes/`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, mkdirat, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Doing, Error, ErrorKind};
use crate::host::Host;
use crate::id::BoxId;
use crate::layout::Layout;
use crate::spec::Spec;

/// What is written before anything is acquired.
#[derive(Debug, Serialize, Deserialize)]
pub struct Intent {
    pub boot_id: String,
    pub cgroup_roots: Vec<PathBuf>,
    pub spec: Spec,
}

/// What proves that a process is the keeper and not someone with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperIdentity {
    pub boot_id: String,
    pub pid: i32,
    /// `None` on kernels where it would prove nothing.
    pub pidfd_inode: Option<u64>,
    pub cgroup_inode: Option<u64>,
}

/// A record that we hold the lock of.
#[derive(Debug)]
pub struct Record {
    directory: OwnedFd,
    intent: Option<Intent>,
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl Record {
    /// Makes the record of a new box; nothing of the box exists yet.
    pub fn create(layout: &Layout, id: &BoxId, host: &Host, spec: &Spec) -> Result<Self, Error> {
        let boxes = layout.boxes();
        let doing = || format!("cannot make the record of box {id} in {}", boxes.display());
        let mut record = Self::make_locked(&boxes, id).doing(doing)?;
        let intent = Intent {
            boot_id: host.boot_id.clone(),
            cgroup_roots: host.cgroups.all().into_iter().map(Path::to_owned).collect(),
            spec: spec.clone(),
        };
        record.append(&intent).doing(doing)?;
        record.intent = Some(intent);
        Ok(record)
    }

    fn make_locked(boxes: &Path, id: &BoxId) -> io::Result<Self> {
        let boxes = open_boxes(boxes)?;
        flock(&boxes, FlockOperation::LockShared)?;
        mkdirat(&boxes, id.as_str(), Mode::from_raw_mode(0o700))?;
        let directory = openat(&boxes, id.as_str(), DIRECTORY, Mode::empty())?;
        flock(&directory, FlockOperation::LockExclusive)?;
        Ok(Self {
            directory,
            intent: None,
        })
    }

    pub fn write_identity(&self, identity: &KeeperIdentity) -> io::Result<()> {
        self.append(identity)
    }

    fn append<T: Serialize>(&self, value: &T) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::APPEND | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.directory, FILE, flags, Mode::from_raw_mode(0o600))?;
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        io::Write::write_all(&mut fs::File::from(file), &line)
    }

    fn line(&self, number: usize) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, FILE, flags, Mode::empty()).ok()?;
        let text = io::read_to_string(fs::File::from(file)).ok()?;
        text.lines().nth(number).map(str::to_owned)
    }

    /// `None` when it is missing or damaged: teardown works from the id alone.
    pub fn intent(&self) -> Option<&Intent> {
        self.intent.as_ref()
    }

    pub fn identity(&self) -> Option<KeeperIdentity> {
        serde_json::from_str(&self.line(1)?).ok()
    }
}

const FILE: &str = "record.json";

/// An empty state root that somebody made is as good as one of ours.
fn open_boxes(boxes: &Path) -> rustix::io::Result<OwnedFd> {
    match openat(CWD, boxes, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => {
            mkdirat(CWD, boxes, Mode::from_raw_mode(0o700))?;
            openat(CWD, boxes, DIRECTORY, Mode::empty())
        }
        other => other,
    }
}

/// How many records one command looks at, so that a host with thousands of
/// live boxes does not pay for all of them at every start.
const LOOK_AT_MOST: usize = 64;

/// Records that nobody looks after: their creator is gone.
pub fn abandoned(layout: &Layout) -> Vec<(BoxId, Record)> {
    let Ok(boxes) = openat(CWD, layout.boxes(), DIRECTORY, Mode::empty()) else {
        return Vec::new();
    };
    let Ok(entries) = rustix::fs::Dir::read_from(&boxes) else {
        return Vec::new();
    };
    let names = entries.filter_map(Result::ok);
    let ids: Vec<BoxId> = names
        .filter_map(|entry| BoxId::parse(entry.file_name().to_str().ok()?))
        .take(LOOK_AT_MOST)
        .collect();
    if ids.is_empty() || !holds_still(boxes.as_fd()) {
        return Vec::new();
    }
    ids.into_iter()
        .filter_map(|id| Some((id.clone(), take_over(boxes.as_fd(), &id)?)))
        .collect()
}

/// Nobody is between making a record and locking it while we hold this; when
/// somebody is, someone else will look another time.
fn holds_still(boxes: rustix::fd::BorrowedFd<'_>) -> bool {
    flock(boxes, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn take_over(boxes: rustix::fd::BorrowedFd<'_>, id: &BoxId) -> Option<Record> {
    let directory = openat(boxes, id.as_str(), DIRECTORY, Mode::empty()).ok()?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    let mut record = Record {
        directory,
        intent: None,
    };
    record.intent = record
        .line(0)
        .and_then(|line| serde_json::from_str(&line).ok());
    Some(record)
}

/// Makes the state root what it must be: ours alone. What lies beneath is then
/// nobody else's either.
pub fn prepare_state_root(layout: &Layout) -> Result<(), Error> {
    let shown = layout.root().display();
    let doing = || format!("cannot use {shown} as a state root");
    let hint = "choose another with --state-root or TARE_STATE_ROOT";
    let root = open_or_make(layout)
        .doing(doing)
        .map_err(|error| error.with_hint(hint))?;
    let stat = rustix::fs::fstat(&root).doing(doing)?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0;
    if ours {
        return Ok(());
    }
    Err(Error::new(ErrorKind::BadRequest, doing())
        .because("it exists and is not ours alone")
        .with_hint("it must belong to the caller and be writable by nobody else"))
}

fn open_or_make(layout: &Layout) -> io::Result<OwnedFd> {
    match openat(CWD, layout.root(), DIRECTORY, Mode::empty()) {
        Ok(root) => return Ok(root),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    // Whoever else makes it at the same time makes the same.
    for directory in [layout.root().to_owned(), layout.boxes(), layout.names()] {
        match mkdirat(CWD, &directory, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(openat(CWD, layout.root(), DIRECTORY, Mode::empty())?)
}
