//! Host objects that a box may hold and that can outlive tare, one file each: acquire, probe, and
//! release by the id alone. This folder never decides when a holding is released: teardown does.

pub mod cgroup;
pub mod name;
pub mod scratch;
pub mod uids;

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::error::Error;
use crate::host::layout::BoxAt;
use crate::record::{LockedRecord, Record};

/// One kind of host object that a box may hold.
#[derive(Debug)]
pub struct Holding {
    /// The word for it in `tare inspect`.
    pub kind: &'static str,
    pub release_at: ReleaseAt,
    /// What the box holds of this kind now.
    pub probe: fn(BoxAt<'_>, &Record) -> Vec<String>,
    /// Releases it, and returns when it was seen gone. Absent and half-made objects are accepted.
    pub release: fn(BoxAt<'_>, &LockedRecord, Duration) -> Result<(), Error>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseAt {
    /// When the box ends.
    End,
    /// When its record is removed.
    Removal,
}

/// All kinds, in the order of their release. A uid range needs no entry: its claim ends with the
/// keeper. Names are released with the record itself (`record::remove` and [`name::Names`]), so
/// that a name leads to its box for as long as there is a record.
pub const HOLDINGS: [Holding; 2] = [cgroup::HOLDING, scratch::HOLDING];

/// A directory or file that a box sees: a volume, its root or a kept scratch space.
#[derive(Debug)]
pub struct Tree {
    pub place: Place,
    pub is_directory: bool,
}

/// Where a tree is.
#[derive(Debug)]
pub enum Place {
    /// A detached mount, which the keeper inherits.
    Mount(OwnedFd),
    /// A path of the host, which the keeper opens by its own rights.
    HostPath(Vec<u8>),
}
