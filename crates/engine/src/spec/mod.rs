//! A validated request to make a box.
//!
//! This file owns the types of a request. The other files of this folder turn text that a user
//! wrote into these types, and reject bad input with a hint. Nothing here touches the host: whether
//! a path exists, or whether the kernel can enforce a limit, is found out when the box is made.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub mod command;
pub mod defaults;
pub mod name;
pub mod quantity;
pub mod shown;
mod text;
pub mod volume;

pub use crate::spec::name::{BoxId, Name, Tenant, User};
pub use crate::spec::quantity::Cpus;
pub use crate::spec::volume::{Access, Volume};

/// A limit and where it comes from. If the kernel cannot enforce the limit, a limit that the user
/// asked for is an error, and a default is only a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit<T> {
    Asked(T),
    Default(T),
}

impl<T: Copy> Limit<T> {
    pub fn value(self) -> T {
        match self {
            Self::Asked(value) | Self::Default(value) => value,
        }
    }

    pub fn is_explicit(self) -> bool {
        matches!(self, Self::Asked(_))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub memory_bytes: Limit<u64>,
    /// `None`: all processors of the host.
    pub cpus: Option<Cpus>,
    pub pids: Limit<u32>,
    pub nofile: u32,
    pub scratch_bytes: Limit<u64>,
}

/// The root directory of a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Root {
    /// A read-only allow-list view of the host's own programs and libraries.
    HostView,
    /// This directory, read-only below an overlay.
    Directory(#[serde(with = "text")] PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Own network namespace, loopback up, nothing else.
    None,
    /// The host's network namespace.
    Host,
}

/// How much of the host is hidden from a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// The whole default profile.
    Full,
    /// Processes only: PID and IPC namespace, cgroup, limits.
    Contain,
}

/// What the workload may do inside its own box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Privilege {
    /// An ordinary user without capabilities.
    Unprivileged,
    /// `--root`: uid 0 of the box, with CHOWN, DAC_OVERRIDE, FOWNER, SETUID and SETGID over the
    /// box's own uid range. The host's uid 0 stays unmapped.
    BoxRoot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeccompProfile {
    Default,
    /// Default plus ptrace and process_vm_*.
    Debug,
    /// Default minus SysV IPC and MSG_OOB.
    Strict,
    Unconfined,
}

/// The standard streams of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Terminal {
    Pipes,
    /// A pseudo-terminal from the box's own devpts.
    Pty {
        rows: u16,
        columns: u16,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// No element has a NUL. If it is empty, the box waits for execs.
    #[serde(with = "text")]
    pub command: Vec<OsString>,
    /// Whose box it is. Names are unique for each tenant.
    #[serde(default)]
    pub tenant: Tenant,
    pub name: Option<Name>,
    pub labels: BTreeMap<String, String>,
    /// The whole environment of the command, in order and without duplicate keys. Records have
    /// only the keys.
    #[serde(with = "text")]
    pub env: Vec<(OsString, OsString)>,
    /// `None`: `/work`, the box's writable home.
    #[serde(with = "text")]
    pub workdir: Option<PathBuf>,
    /// A second path of `/work`, for programs that expect their files there. It is the working
    /// directory, unless `workdir` names another one.
    #[serde(default, with = "text")]
    pub workspace: Option<PathBuf>,
    pub user: User,
    pub privilege: Privilege,
    pub limits: Limits,
    pub timeout: Option<Duration>,
    pub root: Root,
    pub volumes: Vec<Volume>,
    pub network: Network,
    pub isolation: Isolation,
    pub seccomp: SeccompProfile,
    pub terminal: Terminal,
    /// The machine that the box runs in; `None`: the host's kernel runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineSpec>,
}

impl Spec {
    pub fn driver(&self) -> Driver {
        if self.machine.is_some() { Driver::Vm } else { Driver::Native }
    }
}

/// Which kernel runs a box.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// The kernel of the host.
    #[default]
    Native,
    /// A kernel of its own, in a virtual machine.
    Vm,
}

/// The virtual machine of a box.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    pub accel: Accel,
    /// `None`: the chosen kernel.
    pub kernel: Option<String>,
}

/// Which accelerator a user wants for a machine.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    #[default]
    Kvm,
    /// Emulation, which is not a security boundary.
    Tcg,
    /// KVM where it works, otherwise emulation.
    Auto,
}

/// What runs the instructions of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    Kvm,
    Tcg,
}

/// Options of a box that outlives its creator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachOptions {
    /// How long the box may live; `None`: without a limit.
    pub lease: Option<Duration>,
    /// How long its record, exit code and log are kept after its end.
    pub retention: Duration,
    /// Keep nothing after its end.
    pub remove: bool,
    /// Keep its scratch space as long as its record.
    pub keep: bool,
    /// How much of its output is kept: the last bytes.
    pub log_bytes_max: Limit<u64>,
    /// More output than that ends the box.
    pub kill_past_log: bool,
    /// Its standard input stays open, for clients that attach.
    pub stdin: bool,
}
