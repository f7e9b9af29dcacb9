//! A box's record: a directory, made first, removed last.
//!
//! ```text
//! boxes/<id>/      locked by the process that changes the box
//!   record.json    what is known of it, a line for each fact (see `lines`)
//!   control        the socket on which its keeper answers
//!   journal        of a detached box: what its keeper says about it
//!   log.0, log.1   of a detached box: the last of its output
//!   scratch        of a box that keeps it: its scratch space
//! ```
//! No process reads a record that another one is still making: the directory is locked from
//! the moment it is visible, because both happen under the shared lock of `boxes/`.

pub mod damage;
pub mod files;
pub mod lines;

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, chmodat, flock, fstat, mkdirat, openat,
    statat, unlinkat,
};
use rustix::io::Errno;
use tare_control::log::FILE_NAMES;
use tare_kernel::clock::boot_ns;
use tare_kernel::fds::open_regular;
use tare_kernel::replace::Draft;
use tare_kernel::step::step;
use tare_kernel::tree;

use crate::error::{Context, Error, ErrorKind};
use crate::host::layout::Layout;
use crate::host::state_root::open_boxes;
use crate::host::{CgroupRoots, Host};
use crate::record::damage::Damage;
use crate::record::files::{CONTROL, JOURNAL};
use crate::record::lines::{
    Created, EndingLine, KeeperLine, Line, Reason, RecordLines, RemovingLine, VERSION,
};
use crate::spec::{BoxId, DetachOptions, Isolation, Spec};
use crate::time::Timestamp;
use tare_kernel::locks::{LOCK_WITHIN, Lock, lock_within};

/// A record as it was when it was looked at.
#[derive(Debug)]
pub struct Record {
    /// Or what is in its place.
    directory: OwnedFd,
    pub lines: RecordLines,
    /// Why the lines cannot be trusted, if they cannot.
    pub damage: Option<Damage>,
}

/// A record that this process has locked, so that no other one changes it.
#[derive(Debug)]
pub struct LockedRecord(Record);

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

const FILE: &str = "record.json";
const FILE_C: &CStr = c"record.json";
/// The files of a record.
const FILES: [&str; 5] = [FILE, CONTROL, JOURNAL, FILE_NAMES[0], FILE_NAMES[1]];

#[cfg(test)]
impl Record {
    /// A record that says this, without a directory of its own.
    pub fn of(lines: RecordLines) -> Self {
        let directory = openat(CWD, c"/", DIRECTORY, Mode::empty()).expect("the root is there");
        Self { directory, lines, damage: None }
    }
}

impl Record {
    /// `None` when there is no such box.
    pub fn look(boxes: BorrowedFd<'_>, id: &BoxId) -> io::Result<Option<Self>> {
        let open = || openat(boxes, id.as_str(), DIRECTORY, Mode::empty());
        match step("record opened", open) {
            Ok(directory) => Ok(Some(Self::read(directory))),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => Self::closed(boxes, id),
            Err(Errno::ACCESS) => Self::closed(boxes, id),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What is there instead of a directory that we can read: it is a box all the
    /// same, of which only the id is known.
    fn closed(boxes: BorrowedFd<'_>, id: &BoxId) -> io::Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(boxes, id.as_str(), flags, Mode::empty()) {
            Ok(directory) => Ok(Some(Self {
                directory,
                lines: RecordLines::default(),
                damage: Some(Damage::NotADirectory),
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn read(directory: OwnedFd) -> Self {
        let (lines, damage) = match read_lines(directory.as_fd()) {
            Ok(lines) => {
                let other = lines.other_version.map(Damage::other_version);
                (lines, other)
            }
            // What cannot be read says nothing: teardown works from the id alone.
            Err(damage) => (RecordLines::default(), Some(damage)),
        };
        let foreign =
            if lines.is_empty() { damage::foreign_entry(directory.as_fd()) } else { None };
        Self { directory, lines, damage: foreign.map(|entry| Damage::NotOurs { entry }).or(damage) }
    }

    /// Reads the lines one by one, for the history.
    pub fn read_each_line(&self) -> Vec<Line> {
        let file = open_file(self.directory.as_fd(), FILE).ok().flatten();
        let text = file.and_then(|file| read_damaged(file).ok());
        lines::parse(&text.unwrap_or_default()).collect()
    }

    /// Whether it holds nothing at all, as when it was just made; or a file for a first
    /// line that was never written.
    pub fn is_blank(&self) -> bool {
        let file = statat(&self.directory, FILE, AtFlags::SYMLINK_NOFOLLOW);
        let is_empty = match file {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size == 0,
            Err(errno) => errno == Errno::NOENT,
        };
        is_empty && ![CONTROL, JOURNAL].into_iter().any(|name| self.has(name))
    }

    /// Whether it is to hold what the box had written.
    pub fn keeps_scratch(&self) -> bool {
        let created = self.lines.created.as_ref();
        let is_full = created.is_some_and(|created| created.spec.isolation == Isolation::Full);
        is_full && self.lines.detached().is_some_and(|options| options.keep)
    }

    /// Whether the record is to be kept after the box's end: that of a box that was detached. A
    /// journal that cannot be read is no reason to lose the rest.
    pub fn is_kept(&self) -> bool {
        let was_detached = || {
            let journal = self.journal();
            journal.map_or(true, |journal| journal.detached)
        };
        self.lines.detached().is_some_and(|options| !options.remove) && was_detached()
    }

    /// Notes why tare kills the box of another process, which has locked the record. The creator
    /// of an attached box reads it when the keeper is gone.
    pub fn note_kill(&self, why: Reason) -> io::Result<()> {
        self.append(&Line::Ending(EndingLine::now(why)))
    }

    /// Why tare killed the box, if it did.
    pub fn kill_noted(&self) -> Option<Reason> {
        let lines = read_lines(self.directory.as_fd()).ok()?;
        lines.ending.map(|ending| ending.why)
    }

    /// Adds a line to the file.
    fn append(&self, line: &Line) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::APPEND | OFlags::RDWR;
        let open = || open_regular(self.directory.as_fd(), FILE, flags, PRIVATE);
        let mut file = fs::File::from(step("lines opened", open)?);
        let bytes_before = file.metadata()?.len();
        let mut bytes = Vec::new();
        // A process that was killed while it wrote left half a line.
        if !ends_a_line(&file, bytes_before)? {
            bytes.push(b'\n');
        }
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
        if bytes_before + bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        let write = || io::Write::write_all(&mut file, &bytes);
        if let Err(error) = step("line written", write) {
            // A disk that is full takes part of it. If this fails too, the next line
            // begins with its own end of line.
            step("half a line taken back", || file.set_len(bytes_before)).ok();
            return Err(error);
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        !matches!(statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
    }

    /// Whether the directory has not been removed since it was opened.
    pub fn exists(&self) -> bool {
        fstat(&self.directory).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Whether a process is changing the box now.
    pub fn is_busy(&self) -> bool {
        if self.damage.as_ref().is_some_and(Damage::has_no_directory) {
            return false;
        }
        let lock = FlockOperation::NonBlockingLockShared;
        let free = step("record tried", || flock(&self.directory, lock)).is_ok();
        if free {
            // It cannot fail for an open descriptor.
            flock(&self.directory, FlockOperation::Unlock).ok();
        }
        !free
    }

    /// Waits for the lock, and reads the record again. `None` if it is gone by then.
    pub fn lock(
        self,
        boxes: BorrowedFd<'_>,
        id: &BoxId,
        within: Duration,
    ) -> Result<Option<LockedRecord>, Error> {
        let doing = || format!("cannot lock box {id}");
        if self.damage.as_ref().is_some_and(Damage::has_no_directory) {
            return Ok(Some(LockedRecord::replace(boxes, id).context(doing)?));
        }
        match lock_within("record locked", &self.directory, Lock::Exclusive, within) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(busy(id, error)),
            locked => locked.context(doing)?,
        }
        let open = || openat(boxes, id.as_str(), DIRECTORY, Mode::empty());
        let now = match step("locked record looked at", open) {
            Ok(directory) => fstat(&directory).context(doing)?,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno).context(doing),
        };
        let ours = fstat(&self.directory).context(doing)?;
        let same = (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino);
        Ok(same.then(|| LockedRecord(Self::read(self.directory))))
    }
}

fn busy(id: &BoxId, why: io::Error) -> Error {
    Error::new(ErrorKind::Busy, format!("box {id} is busy"))
        .caused_by(why)
        .with_hint("another tare command is changing it; try again when that is done")
}

impl AsFd for Record {
    /// The directory.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl std::ops::Deref for LockedRecord {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.0
    }
}

impl LockedRecord {
    /// Makes the record of a new box, whose cgroups will be in `parents`; nothing of the box exists
    /// yet.
    pub fn create(
        layout: &Layout,
        id: &BoxId,
        (host, parents): (&Host, &CgroupRoots),
        spec: &Spec,
        detached: Option<&DetachOptions>,
    ) -> Result<Self, Error> {
        let boxes = layout.boxes();
        let doing = || format!("cannot make the record of box {id} in {}", boxes.display());
        let opened = open_boxes(&boxes).context(doing)?;
        let mut record = Self::make(opened, id).context(doing)?;
        let created = Created {
            version: VERSION,
            boot_id: host.boot_id.clone(),
            created_at: Timestamp::now(),
            created_ns: boot_ns(),
            cgroup_roots: parents.all().into_iter().map(Path::to_owned).collect(),
            spec: spec.clone(),
            detached: detached.cloned(),
        };
        if let Err(error) = record.add(Line::Created(Box::new(created))).context(doing) {
            // Nothing of the box exists yet but this directory.
            return Err(match remove(layout, id) {
                Ok(()) => error,
                Err(left) => error.with_note(&left, "the next command tries again"),
            });
        }
        Ok(record)
    }

    /// The record of a box of which nothing but its id is known, in place of
    /// whatever is there; an error if that is a record.
    pub fn claim(boxes: BorrowedFd<'_>, id: &BoxId) -> io::Result<Self> {
        Self::make(openat(boxes, c".", DIRECTORY, Mode::empty())?, id)
    }

    /// Makes the record of a box in place of what cannot be opened as one.
    fn replace(boxes: BorrowedFd<'_>, id: &BoxId) -> io::Result<Self> {
        let remove = || unlinkat(boxes, id.as_str(), AtFlags::empty());
        match step("no record removed", remove) {
            Ok(()) | Err(Errno::NOENT) => return Self::claim(boxes, id),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
        let open_up = || chmodat(boxes, id.as_str(), Mode::RWXU, AtFlags::empty());
        step("record opened up", open_up)?;
        let open = || openat(boxes, id.as_str(), DIRECTORY, Mode::empty());
        let directory = step("opened record opened", open)?;
        let lock = || flock(&directory, FlockOperation::NonBlockingLockExclusive);
        step("opened record locked", lock)?;
        Ok(Self(Record::read(directory)))
    }

    fn make(boxes: OwnedFd, id: &BoxId) -> io::Result<Self> {
        lock_within("records held", &boxes, Lock::Shared, LOCK_WITHIN)?;
        step("record made", || mkdirat(&boxes, id.as_str(), Mode::from_raw_mode(0o700)))?;
        let open = || openat(&boxes, id.as_str(), DIRECTORY, Mode::empty());
        let locked = step("new record opened", open).map_err(io::Error::from);
        let locked = locked.and_then(|directory| {
            let name = "new record locked";
            lock_within(name, &directory, Lock::Exclusive, LOCK_WITHIN).map(|()| directory)
        });
        match locked {
            Ok(directory) => {
                Ok(Self(Record { directory, lines: RecordLines::default(), damage: None }))
            }
            Err(error) => {
                // An empty directory that cannot be removed now is removed by the next
                // command; the first error says more.
                step("new record given up", || unlinkat(&boxes, id.as_str(), AtFlags::REMOVEDIR))
                    .ok();
                Err(error)
            }
        }
    }

    pub fn add_keeper(&mut self, identity: KeeperLine) -> io::Result<()> {
        self.add(Line::Keeper(identity))
    }

    /// Adds a line, all of it or nothing.
    pub fn add(&mut self, line: Line) -> io::Result<()> {
        if matches!(line, Line::Updated(_)) && self.lines.updates >= UPDATES_MAX {
            // If the disk is full, the record is a line longer than it could be.
            self.merge_updates().ok();
        }
        self.append(&line)?;
        self.0.lines.note(line);
        Ok(())
    }

    /// Replaces all changes of limits and lease by one line. A box whose lease is renewed for years
    /// has a short record.
    fn merge_updates(&mut self) -> io::Result<()> {
        let Some(file) = open_file(self.directory.as_fd(), FILE)? else {
            return Ok(());
        };
        let merged = lines::merge_updates(&read_damaged(file)?)?;
        let mut draft = Draft::create(self.directory.as_fd(), FILE_C, PRIVATE)?;
        step("shorter record written", || io::Write::write_all(draft.file(), merged.as_bytes()))?;
        draft.publish()?;
        self.0.lines.updates = 1;
        Ok(())
    }

    /// Overwrites what the record says with the line that its removal has begun. The write needs no
    /// room, so it also works on a full disk. A removal that is killed is then finished by the next
    /// command, whatever the record said before.
    pub fn forget(&mut self, id: &BoxId) -> Result<(), Error> {
        let doing = || format!("cannot remove the record of box {id}");
        let removing = Line::Removing(RemovingLine { at_ns: boot_ns() });
        let mut line = serde_json::to_vec(&removing).context(doing)?;
        line.push(b'\n');
        let open = |flags| open_regular(self.directory.as_fd(), FILE, flags, PRIVATE);
        let file = match step("lines opened to overwrite", || open(OFlags::RDWR)) {
            Ok(file) => file,
            Err(_) => {
                // It is missing, or is not a file that tare can write.
                tree::remove(self.directory.as_fd(), FILE_C).context(doing)?;
                let create = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
                step("lines made again", || open(create)).context(doing)?
            }
        };
        let file = fs::File::from(file);
        step("lines overwritten", || {
            std::os::unix::fs::FileExt::write_all_at(&file, &line, 0)?;
            file.set_len(line.len() as u64)
        })
        .context(doing)?;
        self.0.lines.removing = true;
        Ok(())
    }

    /// Unlocks the record for other processes.
    pub fn unlock(self) -> Record {
        // It cannot fail for an open descriptor, and closing it does the same.
        step("record unlocked", || flock(&self.directory, FlockOperation::Unlock)).ok();
        self.0
    }
}

fn ends_a_line(file: &fs::File, bytes: u64) -> io::Result<bool> {
    let mut last = *b"\n";
    if let Some(at) = bytes.checked_sub(1) {
        std::os::unix::fs::FileExt::read_at(file, &mut last, at)?;
    }
    Ok(last == *b"\n")
}

/// Reads the lines. A file that another user could have written is damaged.
fn read_lines(directory: BorrowedFd<'_>) -> Result<RecordLines, Damage> {
    let unreadable = |error: io::Error| Damage::unreadable(&error);
    check_owner(directory)?;
    let text = match open_file(directory, FILE).map_err(unreadable)? {
        Some(file) => {
            check_owner(file.as_fd())?;
            read_damaged(file).map_err(unreadable)?
        }
        None => String::new(),
    };
    Ok(RecordLines::read(&text))
}

fn check_owner(of: BorrowedFd<'_>) -> Result<(), Damage> {
    let stat = fstat(of).map_err(|errno| Damage::unreadable(&errno.into()))?;
    if stat.st_uid == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(Damage::Broken(format!("its record belongs to user {}", stat.st_uid)))
    }
}

/// Whatever is in it: a byte that is no text takes only its own line away.
fn read_damaged(file: OwnedFd) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read_bytes(file)?).into_owned())
}

fn read_bytes(file: OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    let file = io::Read::take(fs::File::from(file), FILE_BYTES_MAX + 1);
    io::Read::read_to_end(&mut { file }, &mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX { Err(Errno::FBIG.into()) } else { Ok(bytes) }
}

/// No file of a record is longer. A command has at most 2 MiB of arguments, which JSON writes with
/// at most six characters for each byte.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// After how many changes of limits or lease the record is made shorter.
const UPDATES_MAX: usize = 64;
/// Most are shorter, and read at once.
const USUAL_BYTES: usize = 4096;

/// A small file of a record.
fn open_file(directory: BorrowedFd<'_>, name: &str) -> io::Result<Option<OwnedFd>> {
    let open = || open_regular(directory, name, OFlags::RDONLY, Mode::empty());
    match step("file of a record opened", open) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a record with everything in it, its lines last. A record that is absent is removed
/// already. If the directory itself cannot be removed, its lines are written again.
pub fn remove(layout: &Layout, id: &BoxId) -> Result<(), Error> {
    let doing = || format!("cannot remove the record of box {id}");
    let open = || openat(CWD, layout.boxes(), DIRECTORY, Mode::empty());
    let boxes = step("records opened to remove one", open).context(doing)?;
    let name = CString::new(id.as_str()).context(doing)?;
    let mut lines = Vec::new();
    if let Ok(directory) = openat(&boxes, &name, DIRECTORY, Mode::empty()) {
        for entry in tree::names(directory.as_fd()).context(doing)? {
            if entry.as_bytes() != FILE.as_bytes() {
                tree::remove(directory.as_fd(), &entry).context(doing)?;
            }
        }
        let file = open_file(directory.as_fd(), FILE).ok().flatten();
        lines = file.and_then(|file| read_bytes(file).ok()).unwrap_or_default();
    }
    let removed = tree::remove(boxes.as_fd(), &name);
    if removed.is_err() && !lines.is_empty() {
        write_again(boxes.as_fd(), &name, &lines);
    }
    removed.context(doing)
}

/// What is there already is not touched, and what cannot be written is missing.
fn write_again(boxes: BorrowedFd<'_>, name: &CStr, lines: &[u8]) {
    let Ok(directory) = openat(boxes, name, DIRECTORY, Mode::empty()) else {
        return;
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    if let Ok(file) = openat(&directory, FILE, flags, PRIVATE) {
        io::Write::write_all(&mut fs::File::from(file), lines).ok();
    }
}
