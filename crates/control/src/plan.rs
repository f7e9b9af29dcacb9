//! The plan: everything a keeper needs to know to make its box.
//!
//! It is made by the engine from a validated spec, holds no decision that the
//! keeper would have to take, and names host objects only by descriptors that
//! the keeper inherited.

use std::ffi::CStr;

use serde::{Deserialize, Serialize};

/// The keeper's first descriptors at birth: 0, 1 and 2 are the command's (of a
/// detached box: nobody's), 3 is the link to the creator, 4 the claim on the uid
/// range, 5 the box's own socket, bound and not listened on. Then come, as the
/// plan says: the workload's cgroup, the `life` and the two segments of the log, and
/// one for each [`TreeSource::Inherited`]: the scratch space's, the root's, then the
/// volumes'.
pub const KEEPER_FDS: u32 = 6;

/// The name under which the binary is a keeper.
pub const KEEPER_NAME: &CStr = c"tare-keeper";

/// Where a tree of files to be mounted comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeSource {
    /// A detached mount that the creator made and the keeper inherited.
    Inherited,
    /// A path of the host: an unprivileged creator cannot make mounts, its
    /// keeper can, in its own namespaces.
    HostPath(Vec<u8>),
    /// The box's own `/work`, seen in another place too.
    Work,
}

/// One instruction of a classic BPF program, as `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BpfInstruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub k: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
}

/// A resource limit by its `RLIMIT_*` number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

/// What the workload keeps of the capabilities over its own box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Capabilities {
    /// None, and no way to regain one.
    None,
    /// Those that `--root` names.
    BoxRoot,
    /// As they are: containment only.
    Untouched,
}

/// One process of the workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Empty: the box has no command, and waits for what is executed in it.
    pub argv: Vec<Vec<u8>>,
    /// `KEY=VALUE` each.
    pub env: Vec<Vec<u8>>,
    pub workdir: Vec<u8>,
    /// `None`: as the keeper's own, containment only.
    pub identity: Option<Identity>,
    pub capabilities: Capabilities,
    pub limits: Vec<ResourceLimit>,
    /// Empty: unconfined.
    pub seccomp: Vec<BpfInstruction>,
    pub no_new_privs: bool,
}

/// A name of the host that the box sees read-only under the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostEntry {
    Directory(String),
    File(String),
    Symlink { path: String, target: String },
}

/// A small file that is written into the box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFile {
    pub path: String,
    pub content: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootPlan {
    HostView(Vec<HostEntry>),
    /// This tree, below an overlay on the scratch space.
    Overlay(TreeSource),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumePlan {
    pub source: TreeSource,
    pub target: Vec<u8>,
    pub is_directory: bool,
    pub writable: bool,
}

/// Where everything writable is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScratchPlan {
    /// A tmpfs of the box's own, gone with it.
    Own { bytes: u64, inodes: u64 },
    /// This one, which outlives the box.
    Kept(TreeSource),
}

/// The mounts of an isolated box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filesystem {
    pub root: RootPlan,
    pub scratch: ScratchPlan,
    pub files: Vec<HostFile>,
    pub volumes: Vec<VolumePlan>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockPlan {
    /// Whether the whole root may be written (an overlay), or only the scratch
    /// space, the devices and the writable volumes.
    pub root_writable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalPlan {
    pub rows: u16,
    pub columns: u16,
}

/// What a box has that outlives its creator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachedPlan {
    /// The log keeps the last of the output, this much.
    pub log_bytes_max: u64,
    /// Whether more output than that ends the box.
    pub kill_past_log: bool,
    /// Whether the command's standard input stays open for whoever attaches.
    pub stdin: bool,
    /// Boot-clock nanoseconds at which the box ends, whoever is alive then.
    pub lease_ns: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Whether the box has a network namespace of its own.
    pub own_network: bool,
    /// Whether the workload has a cgroup of its own below the keeper's.
    pub workload_cgroup: bool,
    pub detached: Option<DetachedPlan>,
    pub inherited_trees: u32,
    /// `None`: the host's files as they are, containment only.
    pub filesystem: Option<Filesystem>,
    pub hostname: Option<String>,
    pub landlock: Option<LandlockPlan>,
    pub terminal: Option<TerminalPlan>,
    /// Boot-clock nanoseconds at which its timeout ends the box.
    pub deadline_ns: Option<u64>,
    pub workload: Workload,
}
