//! Host objects that a box may hold, one file each: acquire, probe, release by the id alone, and
//! the check that shows them gone. This folder never decides when a holding is released: teardown
//! does.
//!
//! [`HOLDINGS`] is the only list of them. Teardown releases and checks by it; `inspect` and receipts
//! show what it finds. Audits read `held_now` directly.

pub mod census;
pub mod cgroup;
pub mod held_now;
pub mod name;
pub mod recorded;
pub mod scratch;
pub mod uids;
pub mod with_keeper;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use crate::error::Error;
use crate::holdings::census::Processes;
use crate::holdings::cgroup::CgroupReader;
use crate::holdings::held_now::{ChosenProcesses, Held, held_now};
use crate::host::layout::BoxAt;
use crate::record::lines::{HeldItem, NAMED_MAX};
use crate::record::{LockedRecord, Record};
use crate::spec::{Isolation, Network};

/// One kind of object that a box may hold.
#[derive(Debug)]
pub struct Holding {
    /// The word for it in `tare inspect` and in receipts.
    pub kind: &'static str,
    pub ends: Ends,
    /// What the box holds of this kind now.
    pub probe: fn(&Look<'_>) -> Found,
    pub sight: Sight,
}

/// What ends a holding.
#[derive(Debug, Clone, Copy)]
pub enum Ends {
    /// The kernel, when the last process of the box is dead.
    WithKeeper,
    /// Teardown, when the box ends.
    AtEnd(Release),
    /// Teardown, when the record of the box is removed.
    AtRemoval(Release),
    /// Teardown, together with the record: a name leads to its box for as long as there is a
    /// record.
    WithRecord,
}

/// Releases it, and returns when it was seen gone. Absent and half-made objects are accepted.
pub type Release = fn(BoxAt<'_>, &LockedRecord, Duration) -> Result<(), Error>;

/// How tare sees that objects are gone.
#[derive(Debug, Clone, Copy)]
pub enum Sight {
    /// A look at a kernel object. `word` names it in receipts; docs/audit.md explains each.
    Check { word: &'static str, is_gone: fn(BoxAt<'_>, &Record, &HeldItem) -> bool },
    /// The kernel does not show it, for this reason.
    Hidden { reason: &'static str },
}

/// All kinds, in the order of their release.
pub const HOLDINGS: [Holding; 14] = [
    with_keeper::KEEPER,
    with_keeper::PROCESS,
    with_keeper::MONITOR,
    with_keeper::PORT,
    with_keeper::NAMESPACE,
    with_keeper::MOUNT,
    with_keeper::TMPFS,
    with_keeper::MEMORY,
    with_keeper::GUEST_MEMORY,
    uids::HOLDING,
    cgroup::HOLDING,
    scratch::HOLDING,
    recorded::HOLDING,
    name::HOLDING,
];

/// What a probe found.
#[derive(Debug)]
pub struct Found {
    /// `None`: it is not known.
    pub count: Option<u64>,
    pub bytes: Option<u64>,
    pub what: Vec<String>,
}

impl Found {
    pub fn these(what: Vec<String>) -> Self {
        Self { count: Some(what.len() as u64), bytes: None, what }
    }

    pub fn bytes(bytes: Option<u64>) -> Self {
        Self { count: Some(u64::from(bytes.is_some())), bytes, what: Vec::new() }
    }

    pub fn paths<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Self {
        let text = |path: P| path.as_ref().display().to_string();
        Self::these(paths.into_iter().map(text).collect())
    }
}

/// One look at a box: what the kernel shows of it now.
#[derive(Debug)]
pub struct Look<'a> {
    pub at: BoxAt<'a>,
    pub record: &'a Record,
    /// The keeper, if it is alive.
    pub keeper: Option<i32>,
    /// Whether probes also return what a dead box had by its record.
    pub includes_past: bool,
    /// All processes of the box, with the keeper.
    pub processes: u64,
    pub held: Held,
}

/// How many processes of a box a look reads closely: the keeper, and those that a receipt names. A box
/// with many processes must not delay its own end.
const CLOSELY_MAX: usize = 1 + NAMED_MAX;

impl<'a> Look<'a> {
    /// Looks at a box. `keeper` is alive.
    pub fn at(at: BoxAt<'a>, record: &'a Record, keeper: Option<i32>) -> Self {
        let mut members = CgroupReader::new(at, record).tree().members;
        members.extend(keeper.filter(|_| !members.is_empty()));
        if keeper.is_none() && members.is_empty() {
            let held = Held::default();
            return Self { at, record, keeper, includes_past: false, processes: 0, held };
        }
        let processes = Processes::of_box(&members, shares_network(record));
        let which = ChosenProcesses {
            keeper,
            is_live: true,
            most: CLOSELY_MAX,
            with_use: false,
            processes: &processes,
        };
        let (held, count) = held_now(at, record, which);
        Self { at, record, keeper, includes_past: false, processes: count, held }
    }

    /// Returns what the box holds of one kind. `None`: nothing.
    pub fn find(&self, holding: &Holding) -> Option<HeldItem> {
        let Found { count, bytes, what } = (holding.probe)(self);
        let item = HeldItem::new(holding.kind, count, bytes, what);
        (!item.is_empty()).then_some(item)
    }
}

/// Returns whether the box may listen on ports of the host. A record that does not say counts as
/// one that may.
fn shares_network(record: &Record) -> bool {
    let created = record.lines.created.as_ref();
    created.is_none_or(|created| {
        created.spec.network == Network::Host || created.spec.isolation == Isolation::Contain
    })
}

/// Returns whether nothing is at this path. An error of another kind proves nothing.
fn is_missing(path: &Path) -> bool {
    let found = path.symlink_metadata();
    matches!(found, Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

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
