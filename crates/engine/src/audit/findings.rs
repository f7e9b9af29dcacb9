//! One difference between records and host, in words and as JSON.

use std::path::PathBuf;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::record::damage::Damage;
use crate::spec::BoxId;
use crate::spec::shown::quoted;

/// A difference between records and host, and what a sweep does about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The box that it is about; `None` for a process or a file that belongs to no box.
    pub id: Option<BoxId>,
    pub kind: FindingKind,
    pub action: Action,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindingKind {
    /// Cgroup directories of a box that has no record.
    Cgroups { paths: Vec<PathBuf> },
    /// A keeper that has neither record nor cgroup.
    Keeper { pid: i32 },
    /// A keeper that was never started, and whose creator is dead.
    Newborn { pid: i32 },
    /// Cgroup directories of a box whose record says that it is over.
    Remains { paths: Vec<PathBuf> },
    /// A name that leads to no box.
    Name { name: String },
    /// A file of the state root that tare did not make.
    Foreign { path: PathBuf },

    /// The keeper is dead, and the end is not on record.
    LostKeeper,
    /// The creator is gone, and the box was to end with it.
    LostCreator,
    /// The box lives past its lease.
    PassedLease,
    /// The box lives, and its cgroup is gone.
    LostCgroup,
    /// The files of the box were to be kept, and are gone.
    LostScratch,
    /// The record has a name by which the box is not found.
    LostName { name: String },
    /// The record cannot be relied on.
    Record { why: String },
}

/// What a sweep does about a finding. If there are several about one box, the greatest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing: only a user may end the box.
    Leave,
    /// Remove what is left.
    Remove,
    /// Remove what is left, and record how the box ended.
    Finish,
    /// Kill the processes of the box and remove what is left.
    End,
}

impl Finding {
    /// An object on the host that no record accounts for.
    pub(crate) fn unrecorded(id: Option<BoxId>, kind: FindingKind) -> Self {
        use FindingKind as Kind;
        let action = match &kind {
            Kind::Cgroups { .. }
            | Kind::Remains { .. }
            | Kind::Keeper { .. }
            | Kind::Newborn { .. } => Action::End,
            Kind::Name { .. } => Action::Remove,
            Kind::Foreign { .. }
            | Kind::LostKeeper
            | Kind::LostCreator
            | Kind::PassedLease
            | Kind::LostCgroup
            | Kind::LostScratch
            | Kind::LostName { .. }
            | Kind::Record { .. } => Action::Leave,
        };
        Self { text: kind.text(id.as_ref()), id, kind, action }
    }

    /// A record that the host does not agree with.
    pub(crate) fn missing(id: &BoxId, kind: FindingKind, action: Action) -> Self {
        Self { text: kind.text(Some(id)), id: Some(id.clone()), kind, action }
    }

    /// What a user can do about a finding that a sweep leaves alone.
    pub fn remedy(&self) -> Option<&'static str> {
        match (self.action, &self.kind) {
            (Action::Remove | Action::Finish | Action::End, _) => None,
            (Action::Leave, FindingKind::Foreign { .. }) => Some("move it elsewhere"),
            (Action::Leave, _) => Some("'tare rm -f' ends it"),
        }
    }
}

impl FindingKind {
    /// Whether the object is on the host and in no record. Otherwise it is in a record, and not so
    /// on the host.
    pub fn is_unrecorded(&self) -> bool {
        match self {
            Self::Cgroups { .. }
            | Self::Keeper { .. }
            | Self::Newborn { .. }
            | Self::Remains { .. }
            | Self::Name { .. }
            | Self::Foreign { .. } => true,
            Self::LostKeeper
            | Self::LostCreator
            | Self::PassedLease
            | Self::LostCgroup
            | Self::LostScratch
            | Self::LostName { .. }
            | Self::Record { .. } => false,
        }
    }

    /// The word for it in JSON.
    fn word(&self) -> &'static str {
        match self {
            Self::Cgroups { .. } | Self::LostCgroup => "cgroup",
            Self::Keeper { .. } | Self::LostKeeper => "keeper",
            Self::Newborn { .. } => "newborn",
            Self::Remains { .. } => "remains",
            Self::Name { .. } | Self::LostName { .. } => "name",
            Self::Foreign { .. } => "foreign",
            Self::LostCreator => "creator",
            Self::PassedLease => "lease",
            Self::LostScratch => "scratch",
            Self::Record { .. } => "record",
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
            Self::Newborn { pid } => {
                format!("process {pid} waits to become a keeper, and its creator is dead")
            }
            Self::Name { name } => {
                format!("the name {name} leads to box {id}, which has no record")
            }
            Self::Foreign { path } => format!("{} was not made by tare", quoted(path)),
            Self::LostKeeper => format!("box {id} has ended, and its end is not recorded"),
            Self::LostCreator => format!("the 'tare run' of attached box {id} is gone"),
            Self::PassedLease => format!("box {id} lives past its lease"),
            Self::LostCgroup => format!("box {id} is alive, and its cgroup is gone"),
            Self::LostScratch => format!("the kept files of box {id} are gone"),
            Self::LostName { name } => {
                format!("box {id} has the recorded name {name}, which does not lead to it")
            }
            Self::Record { why } => format!("box {id}: {why}"),
        }
    }
}

/// One path is named, the others have the same last part.
fn counted(paths: &[PathBuf]) -> String {
    match paths {
        [] => "nothing".to_owned(),
        [one] => format!("cgroup {}", one.display()),
        [.., last] => format!("{} cgroups (such as {})", paths.len(), last.display()),
    }
}

/// The field names and their order are those that `tare audit --json` promises.
impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let is_unrecorded = self.kind.is_unrecorded();
        if is_unrecorded {
            map.serialize_entry("kind", self.kind.word())?;
        }
        if let Some(id) = &self.id {
            map.serialize_entry("id", id)?;
        }
        if !is_unrecorded {
            map.serialize_entry("kind", self.kind.word())?;
        }
        match &self.kind {
            FindingKind::Cgroups { paths } | FindingKind::Remains { paths } => {
                map.serialize_entry("paths", paths)?;
            }
            FindingKind::Keeper { pid } | FindingKind::Newborn { pid } => {
                map.serialize_entry("pid", pid)?;
            }
            FindingKind::Name { name } | FindingKind::LostName { name } => {
                map.serialize_entry("name", name)?;
            }
            FindingKind::Foreign { path } => map.serialize_entry("path", path)?,
            FindingKind::Record { why } => map.serialize_entry("why", why)?,
            FindingKind::LostKeeper
            | FindingKind::LostCreator
            | FindingKind::PassedLease
            | FindingKind::LostCgroup
            | FindingKind::LostScratch => {}
        }
        map.serialize_entry("sentence", &self.text)?;
        map.serialize_entry("would", &self.action)?;
        map.end()
    }
}

impl Action {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::End => "ends it",
            Self::Finish => "removes the rest and records the end",
            Self::Remove => "removes it",
            Self::Leave => "leaves it alone",
        }
    }
}

/// What a sweep does about a damaged record. It ends no box that may live, and touches nothing
/// that another tare wrote, that may be in order, or that is not tare's.
pub fn action_about(damage: &Damage, lives: bool) -> Action {
    match damage {
        Damage::Unreadable(_) | Damage::NotOurs { .. } => Action::Leave,
        Damage::NotADirectory | Damage::Broken(_) if lives => Action::Leave,
        Damage::NotADirectory | Damage::Broken(_) => Action::Remove,
    }
}
