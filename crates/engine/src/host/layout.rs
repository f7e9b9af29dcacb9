//! Every name that a box may have on the host, as a pure function of the roots, the tag of the state
//! root and the box's id. Nothing here touches the host.
//!
//! Functions of the engine take a [`StateRoot`], or a [`BoxAt`] if they are about one box.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::actor::Actor;
use crate::host::cgroups::{CgroupParent, CgroupRoots};
use crate::host::tag::{Tag, TaggedId};
use crate::host::{Host, read};
use crate::spec::{BoxId, Tenant};
use crate::vm::CurrentSettings;

/// One state root on this host, and what this process may do there.
#[derive(Debug, Clone)]
pub struct StateRoot {
    pub layout: Layout,
    pub host: Host,
    pub access: RootAccess,
    /// The cgroup that the user chose for new boxes; `None`: the root of each hierarchy.
    pub cgroup_parent: Option<CgroupParent>,
    pub on_reclaimed: OnReclaimed,
    /// This process, for the records of the boxes that it makes.
    pub creator: Actor,
    /// How machines are made, if this process makes any.
    pub machines: CurrentSettings,
    pub open_segment: OpenSegment,
}

/// The file to which this process added a history last, kept open: a server adds one with each run.
pub type OpenSegment = Arc<Mutex<Option<HistorySegment>>>;

/// A segment of the stored histories.
#[derive(Debug)]
pub struct HistorySegment {
    pub file: File,
    pub tenant: Tenant,
    /// How large it may become.
    pub bytes_max: u64,
    /// The inode of the settings that say so. `None`: there were none.
    pub settings: Option<u64>,
}

/// Whether this process may change boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootAccess {
    ReadWrite,
    ReadOnly,
}

/// A callback for each box that was left behind and that this process has removed: the box, and
/// what there was of it, in sentences. It must not wait, because another request does.
#[derive(Clone, Default)]
pub struct OnReclaimed(pub Option<Arc<Reclaimed>>);

type Reclaimed = dyn Fn(&BoxId, &[String]) + Send + Sync;

impl fmt::Debug for OnReclaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnReclaimed").field(&self.0.is_some()).finish()
    }
}

impl StateRoot {
    pub fn at<'a>(&'a self, id: &'a BoxId) -> BoxAt<'a> {
        BoxAt { root: self, id }
    }

    /// The directories in which a new detached box gets its cgroups.
    pub fn parents_of_detached(&self) -> CgroupRoots {
        let roots = &self.host.cgroups;
        self.cgroup_parent.as_ref().map_or_else(|| roots.clone(), |parent| roots.below(parent))
    }

    /// The directories in which a new attached box gets its cgroups: those of this process, where
    /// boxes can have limits there.
    pub fn parents_of_attached(&self) -> CgroupRoots {
        self.host.cgroups.of_caller(&read("/proc/self/cgroup"), self.parents_of_detached())
    }

    /// The directories in which the box of a template gets its cgroups, and the boxes that the template
    /// makes get theirs. The kernel lets an ordinary user put a process only into a cgroup that has an
    /// ancestor in common with the user's, and only if both belong to the user.
    pub fn parents_in_pool(&self, template: &BoxId) -> CgroupRoots {
        let mut parents = self.parents_of_attached();
        let pool = |it: PathBuf| cgroup(&it, self.layout.tagged_id(template));
        parents.unified = parents.unified.map(pool);
        parents
    }
}

/// One box of a state root, whether or not it exists.
#[derive(Debug, Clone, Copy)]
pub struct BoxAt<'a> {
    pub root: &'a StateRoot,
    pub id: &'a BoxId,
}

impl<'a> BoxAt<'a> {
    /// The box's name on the host: the tag of its state root, and its id.
    pub fn tagged_id(self) -> TaggedId<'a> {
        self.root.layout.tagged_id(self.id)
    }

    /// The directory of the box's record.
    pub fn record(self) -> PathBuf {
        self.root.layout.boxes().join(self.id.as_str())
    }

    /// The scratch space of a box that keeps it.
    pub fn scratch(self) -> PathBuf {
        self.root.layout.scratch(self.id)
    }
}

/// The names under one state root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
    tag: Tag,
}

impl Layout {
    pub fn new(root: PathBuf, tag: Tag) -> Self {
        Self { root, tag }
    }

    /// `/run/tare` for root, a private directory for other users.
    pub fn default_root(uid: u32, runtime_dir: Option<PathBuf>) -> PathBuf {
        match (uid, runtime_dir) {
            (0, _) => PathBuf::from("/run/tare"),
            (_, Some(directory)) => directory.join("tare"),
            (uid, None) => PathBuf::from(format!("/tmp/tare-{uid}")),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn tag(&self) -> &Tag {
        &self.tag
    }

    /// A box of this state root, as the host knows it.
    pub fn tagged_id<'a>(&'a self, id: &'a BoxId) -> TaggedId<'a> {
        TaggedId { tag: &self.tag, id }
    }

    /// One directory per box: the records.
    pub fn boxes(&self) -> PathBuf {
        self.root.join("boxes")
    }

    /// One directory per tenant, with a symbolic link to an id per name.
    pub fn names(&self) -> PathBuf {
        self.root.join("names")
    }

    /// The scratch space of a box that keeps it.
    pub fn scratch(&self, id: &BoxId) -> PathBuf {
        self.boxes().join(id.as_str()).join(SCRATCH)
    }

    /// One symbolic link for each cgroup below which boxes are made.
    pub fn parents(&self) -> PathBuf {
        self.root.join("parents")
    }

    /// The histories of removed boxes.
    pub fn histories(&self) -> PathBuf {
        self.root.join("histories")
    }

    /// The files that `tare serve` keeps for its clients, if no other directory is configured.
    pub fn kept_files(&self) -> PathBuf {
        self.root.join("files")
    }

    /// The directory of the files whose bytes are claims on uid ranges.
    pub fn uid_claims(&self) -> PathBuf {
        self.root.join("claims")
    }
}

/// A box's directory in a cgroup hierarchy. It lies directly under a cgroup that exists already, so
/// that no parent has to be made, shared and removed. A template and the boxes that it makes are in one
/// more directory of the unified hierarchy, which has the same name as the template's own in it.
pub fn cgroup(root: &Path, of: TaggedId<'_>) -> PathBuf {
    root.join(format!("tare-{}-{}", of.tag, of.id))
}

/// The box whose cgroup directory has this name, if it is a box of the state root with this tag.
pub fn box_of(name: &str, tag: &Tag) -> Option<BoxId> {
    let tagged = name.strip_prefix("tare-")?.strip_prefix(tag.as_str())?;
    BoxId::parse(tagged.strip_prefix('-')?)
}

/// The scratch space in the record of a box that keeps it.
pub const SCRATCH: &str = "scratch";

/// Where the workload of a detached box is, below the box's own directory.
pub const WORKLOAD_CGROUP: &str = "work";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_known_by_its_directory_and_no_other_directory_is_a_box() {
        let (tag, id) = (Tag::of(Path::new("/run/tare")), BoxId::random());
        let tagged = TaggedId { tag: &tag, id: &id };
        let name = |path: PathBuf| path.to_str().unwrap().to_owned();
        let known = name(cgroup(Path::new(""), tagged));
        assert_eq!(box_of(&known, &tag), Some(id.clone()));
        assert_eq!(box_of(&known, &Tag::of(Path::new("/run/other"))), None);
        for other in ["tare-x", "tare-abcdefghijkl", &format!("tare-{tag}-"), &format!("{known}x")]
        {
            assert_eq!(box_of(other, &tag), None, "{other}");
        }
    }

    #[test]
    fn an_unprivileged_user_gets_a_state_root_of_its_own() {
        let run = PathBuf::from("/run/user/7");
        assert_eq!(Layout::default_root(0, Some(run.clone())), Path::new("/run/tare"));
        assert_eq!(Layout::default_root(7, Some(run)), Path::new("/run/user/7/tare"));
        assert_eq!(Layout::default_root(7, None), Path::new("/tmp/tare-7"));
    }
}
