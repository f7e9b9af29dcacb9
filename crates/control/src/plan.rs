//! The plan: everything a keeper needs to know to make its box.
//!
//! The engine makes it from a validated spec. It leaves no decision to the keeper, and
//! names host objects only by descriptors that the keeper inherits. What runs in the box
//! comes later, with the go.

use std::ffi::CStr;

use serde::{Deserialize, Serialize};

/// The keeper's socket to its creator. 0, 1 and 2 are the command's standard streams, or
/// `/dev/null`.
pub const CREATOR_FD: i32 = 3;
/// The first of the descriptors that [`Plan::roles`] names.
pub const FIRST_ROLE_FD: i32 = 4;

/// The purpose of a descriptor that a keeper inherits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The claim on the box's user ids: held, never used.
    UidLock,
    /// The box's own socket: bound, and not listening yet.
    Listener,
    /// The cgroup v2 directory of the workload, if it is not the keeper's own.
    WorkloadCgroup,
    /// The `tasks` file of the cgroup v1 directory that limits the processor time of the workload.
    WorkloadTasks,
    /// The journal of a detached box.
    Journal,
    /// A segment of a detached box's log: 0 or 1.
    Log(u8),
    /// A detached mount, for [`TreeSource::Inherited`].
    Tree(u16),
    /// The socket to the clone of a template that was made with the keeper: the other process of the
    /// box.
    Clone,
    /// The kernel that a machine boots.
    Kernel,
    /// The first files of a machine: this binary, and modules of the kernel.
    Initramfs,
    /// A file system with a node of KVM that the monitor may open (`tare_kernel::kvm::own_node`).
    KvmNode,
}

/// The name under which the binary is a keeper.
pub const KEEPER_NAME: &CStr = c"tare-keeper";
/// The name under which the binary is the first process of a machine, and its path in there.
pub const MACHINE_NAME: &CStr = c"/tare-machine";

/// Where a tree of files to be mounted comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeSource {
    /// A detached mount that the creator made, by the number of its [`Role::Tree`].
    Inherited(u16),
    /// A path of the host. An unprivileged creator cannot make mounts; its keeper can, in its own
    /// namespaces.
    HostPath(Vec<u8>),
    /// The box's own `/work`, mounted in another place too.
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

/// A resource limit of each process, soft and hard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimit {
    pub resource: Resource,
    pub value: u64,
}

/// The resources that tare limits with `setrlimit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resource {
    Core,
    Data,
    FileSize,
    LockedMemory,
    MessageQueues,
    Nice,
    OpenFiles,
    Processes,
    RealtimePriority,
    QueuedSignals,
}

impl From<Resource> for rustix::process::Resource {
    fn from(resource: Resource) -> Self {
        match resource {
            Resource::Core => Self::Core,
            Resource::Data => Self::Data,
            Resource::FileSize => Self::Fsize,
            Resource::LockedMemory => Self::Memlock,
            Resource::MessageQueues => Self::Msgqueue,
            Resource::Nice => Self::Nice,
            Resource::OpenFiles => Self::Nofile,
            Resource::Processes => Self::Nproc,
            Resource::RealtimePriority => Self::Rtprio,
            Resource::QueuedSignals => Self::Sigpending,
        }
    }
}

/// The capabilities over its own box that the workload keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Capabilities {
    /// None, and no way to regain one.
    None,
    /// The capabilities of `--root`.
    BoxRoot,
    /// Those of the keeper, for a contained box and for root of a machine.
    Untouched,
}

/// The settings of every process of the workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// `KEY=VALUE` each. An [`Exec`](crate::Exec) can replace them.
    pub env: Vec<Vec<u8>>,
    pub workdir: Vec<u8>,
    /// `None` for a contained box: the keeper's own.
    pub identity: Option<Identity>,
    pub capabilities: Capabilities,
    pub limits: Vec<ResourceLimit>,
    /// Empty for a process without a filter.
    pub seccomp: Vec<BpfInstruction>,
    pub no_new_privs: bool,
}

/// A file or directory of the host that the box sees read-only under the same name.
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
    /// The go may bring another content.
    pub rewritable: bool,
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

/// Where the writable files of the box are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScratchPlan {
    /// A tmpfs that ends with the box.
    Own { bytes: u64, inodes: u64 },
    /// A directory that outlives the box.
    Kept(TreeSource),
}

/// How much `/proc` of a box shows, and with it the rest of the kernel's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcPlan {
    /// Nothing of the host.
    Masked,
    /// Everything that any user of the host may read. The kernel lets a user mount a `/proc` only where a whole
    /// one can be seen, and a template makes boxes.
    Whole,
    /// Everything, writable, beside all of `/sys`, `/dev` and the box's cgroups: the kernel belongs to the
    /// box.
    OwnKernel,
}

/// The mounts of an isolated box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filesystem {
    pub root: RootPlan,
    pub proc: ProcPlan,
    pub scratch: ScratchPlan,
    pub files: Vec<HostFile>,
    pub volumes: Vec<VolumePlan>,
    /// For the box of a machine.
    pub export: Option<ExportPlan>,
    /// Whether `/dev` has the node of KVM: the one of [`Role::KvmNode`], or else the host's.
    pub kvm: bool,
}

/// The root that a machine sees, assembled apart from the root of its monitor: that one has a `/proc`
/// from which the memory of the monitor can be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportPlan {
    /// Absolute, in the root of the monitor.
    pub path: String,
    pub entries: Vec<HostEntry>,
    pub files: Vec<HostFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockPlan {
    /// Whether the whole root may be written (an overlay). Otherwise only the scratch space, the
    /// devices and the writable volumes may.
    pub root_writable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalPlan {
    pub rows: u16,
    pub columns: u16,
}

/// The additional part of the plan for the keeper of a detached box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachedPlan {
    /// The log keeps the newest output, at most this much.
    pub log_bytes_max: u64,
    /// Whether more output than that ends the box.
    pub kill_past_log: bool,
}

/// Everything that a keeper needs to know to make its box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The roles of the keeper's descriptors from [`FIRST_ROLE_FD`] on, in order.
    pub roles: Vec<Role>,
    /// The offset that the time namespace of creator and keeper adds to the boot clock.
    pub clock_offset_ns: i64,
    /// Whether the box has a network namespace of its own.
    pub own_network: bool,
    pub detached: Option<DetachedPlan>,
    /// `None` for a contained box, which has the host's files.
    pub filesystem: Option<Filesystem>,
    pub hostname: Option<String>,
    pub landlock: Option<LandlockPlan>,
    pub profile: Profile,
    /// The workload of this box is a machine, and the command runs in it.
    pub machine: Option<Box<MachinePlan>>,
    /// The box is in a machine, where the kernel counts for this box alone.
    pub in_machine: bool,
}

/// A machine, and the box in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachinePlan {
    /// The program that runs the machine, with its arguments. It inherits [`MonitorFd`]s.
    pub monitor: Vec<Vec<u8>>,
    /// How long the machine may take until its keeper answers.
    pub boot_ns: u64,
    /// The memory that the machine is started with.
    pub memory_bytes: u64,
    /// The command that sets the memory of the machine, with `{}` for the number of MiB.
    pub set_memory: String,
    pub guest: GuestPlan,
}

/// The part of the plan for the first process of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestPlan {
    /// The box in the machine. Its roles are those of its trees.
    pub plan: Plan,
    /// The trees of the plan by their numbers.
    pub trees: Vec<SharedTree>,
    /// How many processes the box may have.
    pub pids: u32,
    /// The time of the host, in nanoseconds since 1970. The outer keeper sets it.
    pub now_ns: u64,
}

/// A tree that the monitor shares with the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedTree {
    /// The name of the share.
    pub share: String,
    /// Where it is in the share.
    pub path: String,
    pub writable: bool,
}

/// The descriptors of a monitor after its standard streams, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MonitorFd {
    Port = 3,
    Console = 4,
    Kernel = 5,
    Initramfs = 6,
    /// It takes commands from here.
    Commands = 7,
}
