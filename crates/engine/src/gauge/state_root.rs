//! The state root: its file system, and the boxes on record.

use std::os::fd::OwnedFd;

use rustix::fs::{StatVfs, fstat, fstatvfs};

use crate::gauge::entries;
use crate::gauge::reading::{Gauge, Reading};

/// The records of all boxes, open.
#[derive(Debug)]
pub struct StateRoot {
    pub boxes: OwnedFd,
    /// The greatest number of boxes that is wanted.
    pub boxes_max: Option<u64>,
    /// How many live, if somebody has said so.
    pub boxes_live: Option<u64>,
}

impl StateRoot {
    pub fn read(&self, readings: &mut Vec<Reading>) {
        if let Ok(disk) = fstatvfs(&self.boxes) {
            readings.extend(bytes(&disk));
            readings.extend(inodes(&disk));
        }
        readings.extend(self.read_boxes());
    }

    fn read_boxes(&self) -> Option<Reading> {
        let limit = self.boxes_max?;
        let limit_is = "the configured maximum of boxes";
        let used = self.boxes_live.or_else(|| self.count_boxes())?;
        Some(Reading::new(Gauge::Boxes, used, limit, limit_is))
    }

    /// A directory has two links and one for each directory in it; a file system that
    /// does not count them says one.
    fn count_boxes(&self) -> Option<u64> {
        let told = fstat(&self.boxes).ok()?.st_nlink.checked_sub(2);
        told.or_else(|| entries::count(&self.boxes).ok())
    }
}

/// What is reserved for root is neither used nor there for us: as df(1) tells it.
fn bytes(disk: &StatVfs) -> Option<Reading> {
    let used = disk.f_blocks.saturating_sub(disk.f_bfree);
    let limit = used + disk.f_bavail;
    let limit_is = "the size of the state root's file system";
    let reading =
        Reading::new(Gauge::DiskBytes, used * disk.f_frsize, limit * disk.f_frsize, limit_is);
    // A tmpfs without a size says nothing.
    (disk.f_blocks > 0).then_some(reading)
}

/// A file system that makes them as needed has no number of them.
fn inodes(disk: &StatVfs) -> Option<Reading> {
    let used = disk.f_files.saturating_sub(disk.f_ffree);
    let limit = used + disk.f_favail;
    let limit_is = "the number of inodes of the state root's file system";
    (disk.f_files > 0).then(|| Reading::new(Gauge::DiskInodes, used, limit, limit_is))
}
