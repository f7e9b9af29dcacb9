//! One difference between records and host, in words and as JSON.

use std::path::PathBuf;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::hint::Hint;
use crate::observe::state::Duty;
use crate::spec::BoxId;
use crate::spec::shown::quoted;

/// A difference between records and host, and what a sweep does about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// `None` for an object that belongs to no box.
    pub id: Option<BoxId>,
    pub kind: FindingKind,
    pub duty: Duty,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindingKind {
    /// Cgroup directories of a box that has no record.
    Cgroups { paths: Vec<PathBuf> },
    /// A keeper that has neither record nor cgroup.
    Keeper { pid: i32 },
    /// Cgroup directories of a box whose record says that it has ended.
    Remains { paths: Vec<PathBuf> },
    /// A name that leads to no box.
    Name { name: String },
    /// A file of the state root that tare did not make.
    Foreign { path: PathBuf },
    /// An empty cgroup into which tare had moved itself.
    Caller { path: PathBuf },

    /// The keeper is dead, and the end is not on record.
    LostKeeper,
    /// The creator is gone, and the box was to end with it.
    LostCreator,
    /// The box lives past its lease.
    PassedLease,
    /// The box lives, and its cgroup is gone.
    LostCgroup,
    /// The kept files of the box are gone.
    LostScratch,
    /// The record has a name that does not lead to the box.
    LostName { name: String },
    /// The record cannot be trusted. `remedy` is what the user can do about it.
    Record { why: String, remedy: Hint },
}

/// The two lists of an audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Orphans,
    Lost,
}

impl Finding {
    pub(crate) fn new(id: Option<BoxId>, kind: FindingKind, duty: Duty) -> Self {
        Self { text: kind.text(id.as_ref()), id, kind, duty }
    }

    /// What a user can do about a finding that a sweep leaves alone.
    pub fn remedy(&self) -> Option<Hint> {
        match (self.duty, &self.kind) {
            (Duty::Remove(_) | Duty::Finish(_) | Duty::End(_), _) => None,
            (Duty::Leave, FindingKind::Foreign { .. }) => Some("move it elsewhere".into()),
            (Duty::Leave, FindingKind::Record { remedy, .. }) => Some(remedy.clone()),
            (Duty::Leave, _) => Some(Hint::Force),
        }
    }
}

impl FindingKind {
    /// Returns whether the object is on the host and in no record. Otherwise it is in a record, and
    /// is not on the host, or differs there.
    pub fn is_unrecorded(&self) -> bool {
        self.list_and_word().0 == List::Orphans
    }

    /// Returns the list that the finding is in, and the word for its kind there, in JSON.
    fn list_and_word(&self) -> (List, &'static str) {
        match self {
            Self::Cgroups { .. } => (List::Orphans, "cgroup"),
            Self::Keeper { .. } => (List::Orphans, "keeper"),
            Self::Remains { .. } => (List::Orphans, "remains"),
            Self::Name { .. } => (List::Orphans, "name"),
            Self::Foreign { .. } => (List::Orphans, "foreign"),
            Self::Caller { .. } => (List::Orphans, "caller"),
            Self::LostKeeper => (List::Lost, "keeper"),
            Self::LostCreator => (List::Lost, "creator"),
            Self::PassedLease => (List::Lost, "lease"),
            Self::LostCgroup => (List::Lost, "cgroup"),
            Self::LostScratch => (List::Lost, "scratch"),
            Self::LostName { .. } => (List::Lost, "name"),
            Self::Record { .. } => (List::Lost, "record"),
        }
    }

    fn text(&self, id: Option<&BoxId>) -> String {
        let id = id.map_or("", BoxId::as_str);
        match self {
            Self::Cgroups { paths } => {
                format!("leftover box {id}: {} and no record", counted(paths))
            }
            Self::Remains { paths } => {
                format!("ended box {id} still has {}", counted(paths))
            }
            Self::Keeper { pid } => {
                format!("leftover box {id}: keeper process {pid} and no record")
            }
            Self::Name { name } => {
                format!("the name {name} leads to box {id}, which has no record")
            }
            Self::Foreign { path } => format!("{} was not made by tare", quoted(path)),
            Self::Caller { path } => {
                format!("no process is left in {}, where tare was", path.display())
            }
            Self::LostKeeper => format!("box {id} has ended, and its end is not recorded"),
            Self::LostCreator => format!("the process that made attached box {id} is gone"),
            Self::PassedLease => format!("box {id} lives past its lease"),
            Self::LostCgroup => format!("box {id} is alive, and its cgroup is gone"),
            Self::LostScratch => format!("the kept files of box {id} are gone"),
            Self::LostName { name } => {
                format!("box {id} has the recorded name {name}, which does not lead to it")
            }
            Self::Record { why, .. } => format!("box {id}: {why}"),
        }
    }
}

/// Shows the last path only: all of them end in the same directory name.
fn counted(paths: &[PathBuf]) -> String {
    match paths {
        [] => "nothing".to_owned(),
        [one] => format!("cgroup {}", one.display()),
        [.., last] => format!("{} cgroups (such as {})", paths.len(), last.display()),
    }
}

/// The field names are those of `tare audit --json`.
impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(id) = &self.id {
            map.serialize_entry("id", id)?;
        }
        map.serialize_entry("kind", self.kind.list_and_word().1)?;
        match &self.kind {
            FindingKind::Cgroups { paths } | FindingKind::Remains { paths } => {
                map.serialize_entry("paths", paths)?;
            }
            FindingKind::Keeper { pid } => map.serialize_entry("pid", pid)?,
            FindingKind::Name { name } | FindingKind::LostName { name } => {
                map.serialize_entry("name", name)?;
            }
            FindingKind::Foreign { path } | FindingKind::Caller { path } => {
                map.serialize_entry("path", path)?
            }
            FindingKind::Record { why, .. } => map.serialize_entry("why", why)?,
            FindingKind::LostKeeper
            | FindingKind::LostCreator
            | FindingKind::PassedLease
            | FindingKind::LostCgroup
            | FindingKind::LostScratch => {}
        }
        map.serialize_entry("sentence", &self.text)?;
        map.serialize_entry("would", &self.duty)?;
        map.end()
    }
}
