//! The values of options that a request omits.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use crate::spec::command::Variable;
use crate::spec::{
    DetachOptions, Isolation, Limit, Limits, Network, Privilege, Root, SeccompProfile, Spec,
    Tenant, Terminal, User,
};

pub const MEMORY_BYTES: u64 = 512 << 20;
pub const PIDS: u32 = 256;
pub const NOFILE: u32 = 1024;
pub const SCRATCH_BYTES: u64 = 256 << 20;
/// How much of a command's output is passed on.
pub const OUTPUT_BYTES: u64 = 64 << 20;
/// How much of the output of a detached box is kept. It is less than what is passed on to a caller,
/// because it lies in the state root, which usually is memory.
pub const LOG_BYTES: u64 = 16 << 20;
pub const LEASE: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the record of an ended box is kept.
pub const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

pub const USER: User = User { uid: 1000, gid: 1000 };
pub const BOX_ROOT: User = User { uid: 0, gid: 0 };

pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The box's writable home, in which its command starts.
pub const HOME: &str = "/work";
const LANG: &str = "C.UTF-8";

/// The environment variables of every command.
///
/// In a box with a root of its own, `pip install` works: it installs into the home directory, because
/// it cannot write to the system's. Debian's pip refuses that without `PIP_BREAK_SYSTEM_PACKAGES`.
/// There is no `PIP_USER`, with which pip fails in a virtual environment. A contained box gets none
/// of this: there, pip could change the host's packages.
pub fn env(home: &str, isolation: Isolation) -> Vec<Variable> {
    let (path, pip) = match isolation {
        Isolation::Full => (format!("{PATH}:{home}/.local/bin"), Some("1")),
        Isolation::Contain => (PATH.to_owned(), None),
    };
    let fixed = [("PATH", path.as_str()), ("HOME", home), ("LANG", LANG)];
    let pip = pip.map(|value| ("PIP_BREAK_SYSTEM_PACKAGES", value));
    fixed.into_iter().chain(pip).map(|(key, value)| (key.into(), value.into())).collect()
}

impl Spec {
    /// Returns the default box for this command.
    pub fn of(command: Vec<OsString>) -> Self {
        Self {
            command,
            tenant: Tenant::default(),
            name: None,
            labels: BTreeMap::new(),
            env: env(HOME, Isolation::Full),
            workdir: None,
            workspace: None,
            user: USER,
            privilege: Privilege::Unprivileged,
            limits: Limits::default(),
            timeout: None,
            root: Root::HostView,
            volumes: Vec::new(),
            network: Network::None,
            isolation: Isolation::Full,
            seccomp: SeccompProfile::Default,
            terminal: Terminal::Pipes,
            machine: None,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: Limit::Default(MEMORY_BYTES),
            cpus: None,
            pids: Limit::Default(PIDS),
            nofile: NOFILE,
            scratch_bytes: Limit::Default(SCRATCH_BYTES),
        }
    }
}

impl Default for DetachOptions {
    fn default() -> Self {
        Self {
            lease: Some(LEASE),
            retention: RETENTION,
            remove: false,
            keep: false,
            log_bytes_max: Limit::Default(LOG_BYTES),
            kill_past_log: false,
            stdin: false,
        }
    }
}
