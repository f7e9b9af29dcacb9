//! A request to make a box, already validated: bad input never gets further.
//!
//! This file owns the types; `spec/` owns the parsers that turn what a person
//! typed into them (one file per kind of value). Nothing here touches the host:
//! whether a path exists or a limit can be enforced is for `create` to find out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub mod arguments;
pub mod bytes;
pub mod count;
pub mod cpus;
mod decimal;
pub mod defaults;
pub mod duration;
pub mod env;
pub mod id;
pub mod name;
pub mod received;
pub mod signal;
mod text;
pub mod user;
pub mod volume;

pub use crate::spec::cpus::Cpus;
pub use crate::spec::name::Name;
pub use crate::spec::user::User;
pub use crate::spec::volume::{Access, Volume};

/// Where a limit's value comes from decides what happens when the kernel
/// cannot enforce it: what a person asked for is an error, a default is a note.
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

    pub fn is_asked(self) -> bool {
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

/// What becomes the box's root directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Root {
    /// A read-only allow-list view of the host's own programs and libraries.
    HostView,
    /// This directory, read-only below an overlay.
    Directory(#[serde(with = "text::one")] PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Own network namespace, loopback up, nothing else.
    None,
    /// The host's network namespace.
    Host,
}

/// How much of the host the box is kept from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// The whole default profile.
    Full,
    /// Processes only: PID and IPC namespace, cgroup, limits, one way out.
    Contain,
}

/// What the workload may do inside its own box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Privilege {
    /// An ordinary user with no capability at all.
    Unprivileged,
    /// `--root`: box uid 0 with CHOWN, DAC_OVERRIDE, FOWNER, SETUID and SETGID
    /// over the box's own uid range; host uid 0 stays unmapped.
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

/// What the workload's descriptors 0, 1 and 2 are.
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
    /// No element holds a NUL. Empty: the box waits for what is executed in it.
    #[serde(with = "text::list")]
    pub command: Vec<OsString>,
    pub name: Option<Name>,
    pub labels: BTreeMap<String, String>,
    /// The whole environment of the command, in order; no key twice. Only the
    /// keys are ever written down.
    #[serde(with = "text::keys")]
    pub env: Vec<(OsString, OsString)>,
    /// `None`: the box's own writable home, `/work`.
    #[serde(with = "text::optional")]
    pub workdir: Option<PathBuf>,
    /// Where `/work` is seen too, for programs that expect their files there. The
    /// working directory, unless another one is named.
    #[serde(default, with = "text::optional")]
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
}
