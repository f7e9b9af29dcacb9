//! Holdings that the kernel releases when the keeper dies. No process has to release them.
//!
//! The keeper is PID 1 of the box's PID namespace. When it dies, the kernel kills every other
//! process of the namespace, and reports the keeper dead only after all of them are
//! (pid_namespaces(7)).

use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use tare_kernel::process::Process;
use tare_kernel::sockets::{self, Listening};

use crate::holdings::held_now::HeldPort;
use crate::holdings::{Ends, Found, Holding, Sight, cgroup, is_missing};
use crate::host::layout::{self, BoxAt};
use crate::record::Record;
use crate::record::lines::HeldItem;

pub const KEEPER: Holding = Holding {
    kind: "keeper",
    ends: Ends::WithKeeper,
    probe: |look| {
        let recorded = look.record.lines.keeper.as_ref().map(|keeper| keeper.pid);
        let keeper = look.keeper.or(recorded.filter(|_| look.includes_past));
        Found::these(keeper.map(pid_text).into_iter().collect())
    },
    sight: Sight::Check { word: "pidfd", is_gone: |_, record, item| is_keeper_dead(record, item) },
};

/// Without the keeper.
pub const PROCESS: Holding = Holding {
    kind: "process",
    ends: Ends::WithKeeper,
    probe: |look| {
        let pids = look.held.processes.iter().map(|process| process.pid);
        let others = pids.filter(|pid| Some(*pid) != look.keeper).map(pid_text);
        let count = look.processes.saturating_sub(u64::from(look.keeper.is_some()));
        let is_unknown = look.keeper.is_none() && look.includes_past;
        Found { count: (!is_unknown).then_some(count), bytes: None, what: others.collect() }
    },
    sight: Sight::Check {
        word: "pid_namespace",
        is_gone: |at, record, item| {
            let is_removed = unified(at, record).map(|it| is_missing(&it));
            let is_seen = is_removed == Some(true) && record.lines.keeper.is_none();
            is_removed != Some(false) && (is_seen || is_keeper_dead(record, item))
        },
    },
};

pub const PORT: Holding = Holding {
    kind: "port",
    ends: Ends::WithKeeper,
    probe: |look| {
        let ports = look.held.ports.iter();
        let text = |it: &HeldPort| port_text(it.transport, it.address, it.inode);
        Found::these(ports.map(text).collect())
    },
    sight: Sight::Check { word: "sock_diag", is_gone: |_, _, item| is_closed(item) },
};

pub const NAMESPACE: Holding = Holding {
    kind: "namespace",
    ends: Ends::WithKeeper,
    probe: |look| {
        let namespaces = look.held.namespaces.iter().flatten();
        Found::these(namespaces.map(|it| format!("{} {}", it.kind, it.inode)).collect())
    },
    sight: Sight::Hidden {
        reason: "the kernel frees a namespace after its last process, a network namespace in a \
                 worker thread some tens of milliseconds later, and reports neither",
    },
};

/// In the mount namespaces of the box.
pub const MOUNT: Holding = Holding {
    kind: "mount",
    ends: Ends::WithKeeper,
    probe: |look| Found { count: Some(look.held.mounts.unwrap_or(0)), ..Found::bytes(None) },
    sight: Sight::Hidden {
        reason: "they are in a mount namespace of the box, which the kernel frees after its last \
                 process; no process can look into it then",
    },
};

/// The scratch space of a box that does not keep it.
pub const TMPFS: Holding = Holding {
    kind: "tmpfs",
    ends: Ends::WithKeeper,
    probe: |look| Found::bytes(look.held.scratch_bytes.filter(|_| !look.record.keeps_scratch())),
    sight: Sight::Hidden {
        reason: "the scratch space is a tmpfs in a mount namespace of the box; the kernel frees \
                 both after the last process, and no name on the host shows it",
    },
};

pub const MEMORY: Holding = Holding {
    kind: "memory",
    ends: Ends::WithKeeper,
    probe: |look| Found::bytes(look.held.memory_bytes.filter(|_| look.keeper.is_some())),
    sight: Sight::Hidden {
        reason: "the cgroup that counted it is removed; the kernel's own threads give pages back \
                 later, and no process can see which were the box's",
    },
};

fn pid_text(pid: i32) -> String {
    format!("pid {pid}")
}

fn port_text(transport: &str, address: std::net::SocketAddr, inode: u64) -> String {
    format!("{transport} {address}, socket {inode}")
}

/// Returns whether the keeper is dead: no process has its pid, another process has it by now, or
/// its pidfd says so. What cannot be seen is not dead.
fn is_keeper_dead(record: &Record, item: &HeldItem) -> bool {
    let identity = record.lines.keeper.as_ref();
    // The keeper of a box whose creator died before it recorded the keeper.
    let found = || item.what.first()?.strip_prefix("pid ")?.parse().ok();
    let Some(pid) = identity.map(|identity| identity.pid).or_else(found) else {
        return item.count == Some(0);
    };
    match Process::open(pid) {
        Ok(process) => {
            let recorded = identity.and_then(|identity| identity.pidfd_inode);
            let is_other = recorded.is_some() && process.inode().is_ok_and(|it| it != recorded);
            is_other || process.wait_dead(Duration::ZERO).unwrap_or(false)
        }
        Err(error) => {
            let errno = error.raw_os_error().map(Errno::from_raw_os_error);
            matches!(errno, Some(Errno::SRCH | Errno::INVAL | Errno::NOENT))
        }
    }
}

/// The v2 directory of the box. The kernel removes none that has a process.
fn unified(at: BoxAt<'_>, record: &Record) -> Option<PathBuf> {
    let parent = cgroup::parents_of(at, record).unified?;
    Some(layout::cgroup(&parent, at.tagged_id()))
}

/// Returns whether none of these sockets is open any more.
fn is_closed(item: &HeldItem) -> bool {
    let text = |it: &Listening| port_text(it.transport.as_str(), it.address, it.inode);
    let listening = sockets::listening();
    listening.is_ok_and(|all| !all.iter().any(|it| item.what.contains(&text(it))))
}
