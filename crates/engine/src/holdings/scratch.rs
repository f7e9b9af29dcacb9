//! The scratch space of a box with `--keep`. It is in the box's record and outlives every process.
//! Without `--keep`, the scratch space is a tmpfs in the box's mount namespace, which the kernel
//! frees.
//!
//! As root it is a tmpfs with the requested size. Without privileges tare cannot mount anything on
//! the host, so it is a directory without a limit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;
use tare_kernel::mount::{self, NOSUID_NODEV, Reach};
use tare_kernel::step::step;
use tare_kernel::tree;

use crate::error::{Context, Error, ErrorKind, Hint};
use crate::holdings::{Ends, Found, Holding, Place, Sight, Tree, is_missing};
use crate::host::layout::{Layout, SCRATCH};
use crate::record::Record;
use crate::spec::{BoxId, Limits};

/// Makes the scratch space in the open record. `first_uid` is the host's id of the box's user 0;
/// `None`: it is the caller's.
pub fn acquire(
    layout: &Layout,
    record: BorrowedFd<'_>,
    id: &BoxId,
    limits: &Limits,
    first_uid: Option<u32>,
) -> Result<Tree, Error> {
    let doing = || format!("cannot make the scratch space of box {id}");
    if first_uid.is_none() && limits.scratch_bytes.is_explicit() {
        return Err(cannot_limit());
    }
    step("make place of scratch space", || mkdirat(record, SCRATCH, Mode::from_raw_mode(0o700)))
        .context(doing)?;
    match first_uid {
        Some(first) => mounted(record, limits, first).context(doing),
        None => {
            let path = layout.scratch(id);
            let place = Place::HostPath(path.as_os_str().as_bytes().to_owned());
            Ok(Tree { place, is_directory: true })
        }
    }
}

fn mounted(record: BorrowedFd<'_>, limits: &Limits, first: u32) -> io::Result<Tree> {
    let bytes = limits.scratch_bytes.value();
    let options = [
        ("size", &*bytes.to_string()),
        ("nr_inodes", &*scratch_inodes(bytes).to_string()),
        ("uid", &*first.to_string()),
        ("gid", &*first.to_string()),
        ("mode", "0755"),
    ];
    let space = mount::filesystem(c"tmpfs", &options, NOSUID_NODEV)?;
    mount::attach(space.as_fd(), record, c"scratch")?;
    let theirs = mount::detached_copy(space.as_fd(), c"", Reach::One)?;
    Ok(Tree { place: Place::Mount(theirs), is_directory: true })
}

/// A scratch space full of empty files is as full as one full of bytes.
const BYTES_PER_INODE: u64 = 1024;
const INODES_MIN: u64 = 1024;

/// How many names a scratch space of this size may have.
pub fn scratch_inodes(bytes: u64) -> u64 {
    (bytes / BYTES_PER_INODE).max(INODES_MIN)
}

fn cannot_limit() -> Error {
    Error::new(ErrorKind::Unsupported, "cannot limit a scratch space that is kept on this host")
        .caused_by("without root, tare cannot mount a file system with a size limit")
        .with_hint(Hint::LeaveScratchOrKeepOut)
}

/// The kept scratch space of a box.
pub const HOLDING: Holding = Holding {
    kind: "scratch",
    ends: Ends::AtRemoval(|at, record, _| {
        if may_keep(record) { release(&at.root.layout, record.as_fd(), at.id) } else { Ok(()) }
    }),
    probe: |look| {
        let path = look.at.scratch();
        let found = Found::paths(Some(path).filter(|path| path.exists()));
        let bytes = look.held.scratch_bytes.filter(|_| !found.what.is_empty());
        Found { bytes, ..found }
    },
    sight: Sight::Check { word: "path", is_gone: |at, _, _| is_missing(&at.scratch()) },
};

/// A record that does not say counts as one that may keep its scratch space.
fn may_keep(record: &Record) -> bool {
    let created = record.lines.created.as_ref();
    created.is_none_or(|created| created.detached.as_ref().is_some_and(|options| options.keep))
}

/// Unmounts and removes the scratch space with everything in it. Succeeds if there is none.
fn release(layout: &Layout, record: BorrowedFd<'_>, id: &BoxId) -> Result<(), Error> {
    let doing = || format!("cannot release the scratch space of box {id}");
    unmount(layout, id).and_then(|()| tree::remove(record, c"scratch")).context(doing)
}

fn unmount(layout: &Layout, id: &BoxId) -> io::Result<()> {
    let path = layout.scratch(id);
    for _ in 0..STACKED_MAX {
        match mount::detach(&path) {
            Ok(()) => {}
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::BUSY.into())
}

/// How many mounts are removed there. There is one, unless another process mounted there too.
const STACKED_MAX: usize = 16;

/// EINVAL: nothing is mounted there. EPERM: this process may not mount, so it has not.
fn is_absent(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::INVAL | Errno::NOENT | Errno::PERM | Errno::NOTDIR))
}
