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
    sight: Sight::Check { word: "pid_namespace", is_gone: are_processes_gone },
};

/// The monitor of a machine, which is also one of the processes.
pub const MONITOR: Holding = Holding {
    kind: "monitor",
    ends: Ends::WithKeeper,
    probe: |look| {
        let pids = look.held.processes.iter().map(|process| process.pid);
        let others = pids.filter(|pid| look.record.is_machine() && Some(*pid) != look.keeper);
        Found::these(others.map(pid_text).collect())
    },
    sight: Sight::Check { word: "pid_namespace", is_gone: are_processes_gone },
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

/// The memory of a machine, which is memory of its monitor.
pub const GUEST_MEMORY: Holding = Holding {
    kind: "guest_memory",
    ends: Ends::WithKeeper,
    probe: |look| {
        let is_there = look.record.is_machine() && (look.keeper.is_some() || look.includes_past);
        Found { count: Some(u64::from(is_there)), ..Found::bytes(None) }
    },
    sight: Sight::Hidden {
        reason: "the kernel frees the memory of a machine with its monitor; no process can see \
                 the pages then",
    },
};

fn are_processes_gone(at: BoxAt<'_>, record: &Record, item: &HeldItem) -> bool {
    let is_removed = unified(at, record).map(|it| is_missing(&it));
    match (is_removed, &record.lines.keeper) {
        (Some(false), _) => false,
        (Some(true), None) => true,
        (_, Some(_)) => is_keeper_dead(record, item),
        // Only their pids identify them.
        (None, None) => are_dead(item),
    }
}

fn pid_text(pid: i32) -> String {
    format!("pid {pid}")
}

fn port_text(transport: &str, address: std::net::SocketAddr, inode: u64) -> String {
    format!("{transport} {address}, socket {inode}")
}

/// Returns whether the keeper is dead. A keeper that its creator died too early to record is known by
/// the pid that a look found.
fn is_keeper_dead(record: &Record, item: &HeldItem) -> bool {
    match &record.lines.keeper {
        Some(identity) => is_dead(identity.pid, identity.pidfd_inode),
        None => are_dead(item),
    }
}

/// Returns whether all processes of the item are dead. False if the item does not name all.
fn are_dead(item: &HeldItem) -> bool {
    let pid = |text: &String| text.strip_prefix("pid ")?.parse().ok();
    let is_dead = |text: &String| pid(text).is_some_and(|pid| is_dead(pid, None));
    item.count == Some(item.what.len() as u64) && item.what.iter().all(is_dead)
}

/// Returns whether a process is dead: no process has its pid, another process has it by now, or its
/// pidfd says so. What cannot be seen is not dead.
fn is_dead(pid: i32, recorded: Option<u64>) -> bool {
    match Process::open(pid) {
        Ok(process) => {
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::record::lines::{KeeperLine, Lease, RecordLines};

    fn item(count: Option<u64>, pids: &[u32]) -> HeldItem {
        let what = pids.iter().map(|pid| format!("pid {pid}")).collect();
        HeldItem::new("keeper", count, None, what)
    }

    /// Its creator died before it recorded the keeper, and the host has no v2 cgroup to look at.
    #[test]
    fn an_unrecorded_keeper_is_dead_when_the_process_that_a_look_found_is() {
        let record = Record::of(RecordLines::default());
        let mut keeper = Command::new("sleep").arg("1000").spawn().unwrap();
        let found = item(Some(1), &[keeper.id()]);
        assert!(!is_keeper_dead(&record, &found), "it lives");
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        assert!(is_keeper_dead(&record, &found), "it is gone");
        assert!(is_keeper_dead(&record, &item(Some(0), &[])), "there was none");
        assert!(!is_keeper_dead(&record, &item(None, &[])), "no look has found it");
    }

    #[test]
    fn processes_are_gone_when_all_of_them_are_named_and_dead() {
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let alive = std::process::id();
        assert!(are_dead(&item(Some(1), &[gone.id()])));
        assert!(!are_dead(&item(Some(2), &[gone.id(), alive])), "one lives");
        assert!(!are_dead(&item(Some(2), &[gone.id()])), "one is not named");
        assert!(!are_dead(&item(None, &[gone.id()])));
    }

    #[test]
    fn another_process_with_the_pid_of_the_keeper_is_not_the_keeper() {
        let own = Process::open(std::process::id() as i32).unwrap();
        let Some(inode) = own.inode().unwrap() else { return };
        let record = |pidfd_inode| {
            let (boot_id, lease) = (String::new(), Lease::Never);
            let pid = own.pid();
            let (cgroup_inode, first_uid) = (None, None);
            let keeper =
                KeeperLine { boot_id, pid, pidfd_inode, cgroup_inode, first_uid, lease, at_ns: 0 };
            Record::of(RecordLines { keeper: Some(keeper), ..RecordLines::default() })
        };
        let found = item(Some(1), &[std::process::id()]);
        assert!(!is_keeper_dead(&record(Some(inode)), &found));
        assert!(is_keeper_dead(&record(Some(inode + 1)), &found));
        assert!(!is_keeper_dead(&record(None), &found), "nothing says that it is another one");
    }
}
