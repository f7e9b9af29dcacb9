//! What is different, and what a sweep does about it.

use std::path::PathBuf;

use serde::Serialize;

use crate::record::damage::Flaw;
use crate::spec::BoxId;

/// The two differences between records and host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Differences {
    pub orphans: Vec<Orphan>,
    pub lost: Vec<Lost>,
}

/// On the host, and in no record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Orphan {
    #[serde(flatten)]
    pub what: OrphanKind,
    pub sentence: String,
    pub would: Would,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OrphanKind {
    /// Directories in cgroup hierarchies, and whoever is in them.
    Cgroup { id: BoxId, paths: Vec<PathBuf> },
    /// A keeper that has no cgroup.
    Keeper { id: BoxId, pid: i32 },
    /// A keeper that was never started, and whose creator is dead.
    Newborn { pid: i32 },
    /// The same of a box whose record says that it is over.
    Remains { id: BoxId, paths: Vec<PathBuf> },
    /// A name that no box has.
    Name { id: BoxId, name: String },
}

/// In a record, and not on the host, or not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lost {
    pub id: BoxId,
    #[serde(flatten)]
    pub what: LostKind,
    pub sentence: String,
    pub would: Would,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LostKind {
    /// The keeper is dead, and the end not on record.
    Keeper,
    /// Whoever made it is gone, and it was not to live on.
    Creator,
    /// It should have ended by itself.
    Lease,
    /// It lives, and its cgroup is gone.
    Cgroup,
    /// Its files were to be kept, and are gone.
    Scratch,
    /// It is called so on record, and nobody finds it by that.
    Name { name: String },
    /// The record does not say what it must.
    Record { why: String },
}

/// What a sweep does about it; of several things about one box, the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Would {
    /// Nothing: who wants its end says so.
    Leave,
    /// Remove what is left.
    Remove,
    /// Remove what is left, and write down how it ended.
    Finish,
    /// Kill whoever is in it and remove what is left.
    End,
}

impl Orphan {
    pub(super) fn of(what: OrphanKind) -> Self {
        let (sentence, would) = match &what {
            OrphanKind::Cgroup { id, paths } => {
                (format!("box {id} is in no record, and has {}", counted(paths)), Would::End)
            }
            OrphanKind::Remains { id, paths } => {
                (format!("box {id} is over, and still has {}", counted(paths)), Would::End)
            }
            OrphanKind::Keeper { id, pid } => (
                format!("box {id} is in no record, and its keeper lives, process {pid}"),
                Would::End,
            ),
            OrphanKind::Newborn { pid } => (
                format!("process {pid} waits to become a keeper, and its creator is dead"),
                Would::End,
            ),
            OrphanKind::Name { id, name } => (
                format!("the name {name} is that of box {id}, which is in no record"),
                Would::Remove,
            ),
        };
        Self { what, sentence, would }
    }

    /// Whether anything was left of it when it was looked at again.
    pub(super) fn is_something(&self) -> bool {
        match &self.what {
            OrphanKind::Cgroup { paths, .. } | OrphanKind::Remains { paths, .. } => {
                !paths.is_empty()
            }
            OrphanKind::Keeper { .. } | OrphanKind::Newborn { .. } | OrphanKind::Name { .. } => {
                true
            }
        }
    }
}

/// One is named, the others are called the same.
fn counted(paths: &[PathBuf]) -> String {
    match paths {
        [] => "nothing".to_owned(),
        [one] => format!("cgroup {}", one.display()),
        [.., last] => format!("{} cgroups, such as {}", paths.len(), last.display()),
    }
}

impl Lost {
    pub(super) fn of(id: &BoxId, what: LostKind, would: Would) -> Self {
        let sentence = match &what {
            LostKind::Keeper => format!("box {id} is over, and its end is not on record"),
            LostKind::Creator => format!("box {id} was to end with its tare, which is gone"),
            LostKind::Lease => format!("box {id} lives past its lease"),
            LostKind::Cgroup => format!("box {id} lives, and its cgroup is gone"),
            LostKind::Scratch => format!("the files of box {id} were to be kept, and are gone"),
            LostKind::Name { name } => {
                format!("box {id} is called {name}, and is not found by that name")
            }
            LostKind::Record { why } => format!("box {id}: {why}"),
        };
        Self { id: id.clone(), what, sentence, would }
    }
}

impl Would {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::End => "end it",
            Self::Finish => "remove what is left and write its end down",
            Self::Remove => "remove what is left",
            Self::Leave => "leave it alone",
        }
    }
}

/// A sweep ends nobody who may live, and touches nothing of a newer tare, or that
/// may be in order.
pub fn would_about(flaw: &Flaw, lives: bool) -> Would {
    match flaw {
        Flaw::Newer { .. } | Flaw::Unreadable(_) | Flaw::Unseen(_) | Flaw::Foreign { .. } => {
            Would::Leave
        }
        Flaw::NoDirectory
        | Flaw::Closed
        | Flaw::NotOurs { .. }
        | Flaw::Odd
        | Flaw::Incomplete
        | Flaw::Wrong => {
            if lives {
                Would::Leave
            } else {
                Would::Remove
            }
        }
    }
}
