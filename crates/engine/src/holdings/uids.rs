//! The uid range of a box: 65,536 host ids that no other box has.
//!
//! A claim is a lock on one byte of a file, held by the keeper. It ends with the box, whichever other
//! process dies, so there is nothing to release. The kernel keeps the locks of a file in one list and
//! walks it whenever a descriptor of the file is closed. There are several files, so that thousands
//! of boxes do not slow each other down.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use tare_kernel::fds::{open_directory, open_regular};
use tare_kernel::locks::{claim_byte, is_byte_free};
use tare_kernel::step::step;

use crate::error::{Context, Error, ErrorKind};
use crate::holdings::{Ends, Found, Holding, Sight};
use crate::host::layout::{BoxAt, Layout};
use crate::host::random_below;
use crate::host::state_root::make_private;
use crate::record::Record;

/// The width of a range. Distributions expect this many ids.
pub const COUNT: u32 = 65_536;
/// Lower ids belong to users, to services and to the ranges of /etc/subuid.
const FIRST: u32 = 0x5800_0000;
/// From here on there are systemd's foreign ids, and ids that some programs read as negative.
const END: u32 = 0x7ffe_0000;
/// The distance between two ranges. It is not the width, because the kernel hashes users by the last
/// bits of their ids, and those would be the same in all boxes.
const STRIDE: u32 = COUNT + 1;
const SLOTS: u32 = (END - FIRST) / STRIDE;
/// How many files there are.
const FILES: u32 = 16;

#[derive(Debug)]
pub struct UidRange {
    /// The host's id of the box's user 0; never 0.
    pub first: u32,
    /// The keeper holds it.
    pub claim: OwnedFd,
}

/// Claims a free range.
pub fn acquire(layout: &Layout) -> Result<UidRange, Error> {
    let path = layout.uid_claims();
    let doing = || format!("cannot claim a uid range in {}", path.display());
    let directory = open_claims(&path).context(doing)?;
    // The ranges of other state roots are not known here, and a random range is most likely free.
    let start = u32::try_from(random_below(SLOTS as usize)).unwrap_or(0);
    for step in 0..SLOTS {
        let slot = (start + step) % SLOTS;
        let file = open_file(&directory, slot % FILES).context(doing)?;
        if claim_byte(file.as_fd(), u64::from(slot)).context(doing)? {
            return Ok(UidRange { first: FIRST + slot * STRIDE, claim: file });
        }
    }
    Err(Error::new(ErrorKind::Unsupported, doing())
        .caused_by(format!("all {SLOTS} are taken"))
        .with_hint("end some boxes first"))
}

/// The uid range of a live box.
pub const HOLDING: Holding = Holding {
    kind: "uid_range",
    ends: Ends::WithKeeper,
    probe: |look| {
        let is_held = look.keeper.is_some() || look.includes_past;
        let first = first_uid(look.record).filter(|_| is_held);
        Found::these(first.map(range_text).into_iter().collect())
    },
    sight: Sight::Check { word: "claim_lock", is_gone: |at, record, _| is_free(at, record) },
};

fn first_uid(record: &Record) -> Option<u32> {
    record.lines.keeper.as_ref()?.first_uid
}

fn range_text(first: u32) -> String {
    format!("{first}-{}", first.saturating_add(COUNT - 1))
}

/// Returns whether no process claims the range of the box.
fn is_free(at: BoxAt<'_>, record: &Record) -> bool {
    let Some(slot) = first_uid(record).and_then(|first| first.checked_sub(FIRST)) else {
        return true;
    };
    let slot = slot / STRIDE;
    let directory = open_claims(&at.root.layout.uid_claims());
    let file = directory.map_err(io::Error::from).and_then(|it| open_file(&it, slot % FILES));
    file.and_then(|file| is_byte_free(file.as_fd(), u64::from(slot))).unwrap_or(false)
}

/// Entries of `claims/` that tare did not make: everything but its regular files.
pub fn foreign(layout: &Layout) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(layout.uid_claims()).into_iter().flatten();
    let is_ours = |entry: &std::fs::DirEntry| {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        number.is_some_and(|number| number < FILES)
            && entry.file_type().is_ok_and(|kind| kind.is_file())
    };
    let foreign = entries.filter_map(Result::ok).filter(|entry| !is_ours(entry));
    foreign.map(|entry| entry.path()).collect()
}

/// Opens `claims/`, never through a link: tare makes it only in the state root.
fn open_claims(path: &Path) -> rustix::io::Result<OwnedFd> {
    let open = || open_directory(CWD, path);
    match open() {
        Err(Errno::NOENT) => {
            make_private(path)?;
            open()
        }
        other => other,
    }
}

fn open_file(directory: &OwnedFd, number: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE;
    let name = number.to_string();
    step("open claims", || {
        let mode = Mode::from_raw_mode(0o600);
        open_regular(directory.as_fd(), &*name, flags, mode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tag::Tag;

    #[test]
    fn ranges_held_at_once_never_overlap_and_never_hold_host_root() {
        let root = std::env::temp_dir().join(format!("tare-uids-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        let layout = Layout::new(root.clone(), Tag::of(&root));
        let held: Vec<UidRange> = (0..200).map(|_| acquire(&layout).unwrap()).collect();
        let mut firsts: Vec<u32> = held.iter().map(|range| range.first).collect();
        firsts.sort_unstable();
        assert!(firsts.windows(2).all(|two| two[0] + COUNT <= two[1]));
        assert!(held.iter().all(|range| range.first >= FIRST && range.first + COUNT <= END));
        std::fs::remove_dir_all(root).unwrap();
    }
}
