//! Why this host cannot make a box: from the step that failed, its error number and facts
//! about the host to the likely cause, with what to do about it.
//!
//! `run`, `serve` and `doctor` all give this hint. The facts are read after a failure
//! only, so a box that can be made does not pay for them.

use rustix::io::Errno;
use tare_control::SetupStep;

use crate::error::Error;
use crate::host;

/// What failed on the way to a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedStep {
    /// Writing below the state root.
    StateRoot,
    /// Starting the keeper in its namespaces.
    Keeper,
    /// Mapping the box's user ids.
    IdMap,
    /// A step of the keeper.
    Setup(SetupStep),
}

/// What the host says about the usual obstacles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// A seccomp filter restricts this process.
    is_filtered: bool,
    /// The kinds of namespaces of which the host allows none.
    namespaces_off: Vec<&'static str>,
    /// A setting that keeps user namespaces from unprivileged users.
    restriction: Option<&'static str>,
    /// A mount that hides a part of `/proc`.
    proc_mask: Option<String>,
}

const NAMESPACES: [&str; 7] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];

/// Each with the value that restricts, and what to do.
const RESTRICTIONS: [(&str, &str, &str); 2] = [
    (
        "unprivileged_userns_clone",
        "0",
        "user namespaces are for root here: set kernel.unprivileged_userns_clone=1, or run tare \
         as root",
    ),
    (
        "apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor restricts user namespaces here: give tare a profile with 'userns,', or run \
         tare as root",
    ),
];

const FILTERED: &str = "a seccomp filter refuses it; docker's default filter does, and so does the \
                        filter of a tare box: run tare outside of it, or start the container \
                        with --security-opt seccomp=unconfined";

impl Facts {
    fn read() -> Self {
        let is_off = |kind: &&str| {
            let limit = host::read(&format!("/proc/sys/user/max_{kind}_namespaces"));
            limit.trim() == "0"
        };
        let is_set = |(name, value, _): &&(&str, &str, &str)| {
            host::read(&format!("/proc/sys/kernel/{name}")).trim() == *value
        };
        Self {
            is_filtered: is_filtered(&host::read("/proc/self/status")),
            namespaces_off: NAMESPACES.into_iter().filter(is_off).collect(),
            restriction: RESTRICTIONS.iter().find(is_set).map(|found| found.2),
            proc_mask: proc_mask(&host::mount_table()),
        }
    }
}

/// proc_pid_status(5): 2 is a filter.
fn is_filtered(status: &str) -> bool {
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

/// The kernel mounts a new proc only for a caller that sees all of an old one. A mount
/// on an empty directory hides nothing (`mnt_already_visible` in `fs/namespace.c`).
fn proc_mask(mount_table: &str) -> Option<String> {
    const HIDES_NOTHING: &str = "/proc/sys/fs/binfmt_misc";
    let points = mount_table.lines().filter_map(|line| line.split(' ').nth(4));
    let mut masks = points.filter(|point| point.starts_with("/proc/") && *point != HIDES_NOTHING);
    masks.next().map(str::to_owned)
}

/// `error` with the likely cause as its hint.
pub fn explained(error: Error, step: FailedStep) -> Error {
    let Some(errno) = error.errno() else {
        return error;
    };
    match likely(step, errno, &Facts::read()) {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

fn likely(step: FailedStep, errno: Errno, facts: &Facts) -> Option<String> {
    match step {
        FailedStep::StateRoot => state_root(errno).map(str::to_owned),
        FailedStep::Keeper => Some(keeper(errno, facts)),
        FailedStep::IdMap => is_refusal(errno).then(|| {
            "root without the capabilities SYS_ADMIN, CHOWN, DAC_OVERRIDE, KILL, SETGID and \
             SETUID needs SETFCAP to map its own id: add them, or run tare as an ordinary user"
                .to_owned()
        }),
        FailedStep::Setup(SetupStep::Proc) if is_refusal(errno) => match &facts.proc_mask {
            Some(mask) => Some(format!(
                "{mask} is hidden by a mount, as in containers: start the container with \
                 docker's --security-opt systempaths=unconfined or podman's unmask=ALL"
            )),
            None => refused(facts).map(str::to_owned),
        },
        FailedStep::Setup(_) if errno == Errno::NOSPC => switched_off(facts),
        FailedStep::Setup(_) if is_refusal(errno) => refused(facts).map(str::to_owned),
        FailedStep::Setup(_) => None,
    }
}

fn state_root(errno: Errno) -> Option<&'static str> {
    match errno {
        // As in /proc.
        Errno::NOENT => Some(
            "no directory can be made there: name another one with --state-root or \
             TARE_STATE_ROOT",
        ),
        Errno::ROFS => Some(
            "the state root is on a read-only file system: name a writable directory with \
             --state-root or TARE_STATE_ROOT",
        ),
        Errno::NOSPC | Errno::DQUOT => Some(
            "the file system of the state root is full: make room there, or name another \
             directory with --state-root or TARE_STATE_ROOT",
        ),
        _ => None,
    }
}

fn keeper(errno: Errno, facts: &Facts) -> String {
    let known = match errno {
        Errno::NOSPC | Errno::USERS => switched_off(facts),
        Errno::NOSYS if !facts.is_filtered => Some("tare needs Linux 6.1 or later".to_owned()),
        Errno::NOSYS => Some(FILTERED.to_owned()),
        Errno::AGAIN => Some("the host or this user is out of processes".to_owned()),
        _ if is_refusal(errno) => refused(facts).map(str::to_owned),
        _ => None,
    };
    let unknown = || match errno {
        Errno::NOSPC | Errno::USERS => {
            "too many namespaces: end some boxes, or raise the user.max_*_namespaces settings \
             with sysctl"
        }
        Errno::PERM => {
            "the kernel refuses to create a user namespace, as it always does in a chroot"
        }
        _ => "see 'tare doctor' for what this host can do",
    };
    known.unwrap_or_else(|| unknown().to_owned())
}

fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::PERM | Errno::ACCESS)
}

fn refused(facts: &Facts) -> Option<&'static str> {
    facts.restriction.or(facts.is_filtered.then_some(FILTERED))
}

fn switched_off(facts: &Facts) -> Option<String> {
    let kind = facts.namespaces_off.first()?;
    Some(format!(
        "user.max_{kind}_namespaces is 0, and a box needs such a namespace: raise it with sysctl"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_and_a_mask_are_found_where_the_kernel_shows_them() {
        assert!(is_filtered("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!is_filtered("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"));
        let table = "20 1 0:20 / /proc rw - proc proc rw\n\
                     21 20 0:21 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n";
        assert_eq!(proc_mask(table), None);
        let masked = format!("{table}22 20 0:20 /sys /proc/sys ro - proc proc rw\n");
        assert_eq!(proc_mask(&masked).as_deref(), Some("/proc/sys"));
    }

    #[test]
    fn the_likely_cause_follows_from_step_errno_and_facts() {
        let none = Facts::default();
        let filtered = Facts { is_filtered: true, ..Facts::default() };
        let no_pid = Facts { namespaces_off: vec!["pid"], ..Facts::default() };
        let apparmor = Facts { restriction: Some(RESTRICTIONS[1].2), ..Facts::default() };
        let network = FailedStep::Setup(SetupStep::Network);
        for (step, errno, facts, expected) in [
            (FailedStep::StateRoot, Errno::ROFS, &none, Some("read-only")),
            (FailedStep::StateRoot, Errno::DQUOT, &none, Some("full")),
            (FailedStep::StateRoot, Errno::NOENT, &none, Some("--state-root")),
            (FailedStep::StateRoot, Errno::NOSYS, &none, None),
            (FailedStep::Keeper, Errno::NOSYS, &none, Some("Linux 6.1")),
            (FailedStep::Keeper, Errno::NOSYS, &filtered, Some("seccomp")),
            (FailedStep::Keeper, Errno::PERM, &filtered, Some("seccomp")),
            (FailedStep::Keeper, Errno::PERM, &none, Some("chroot")),
            (FailedStep::Keeper, Errno::NOSPC, &no_pid, Some("max_pid_name")),
            (FailedStep::Keeper, Errno::NOSPC, &none, Some("too many")),
            (FailedStep::Keeper, Errno::AGAIN, &filtered, Some("processes")),
            (FailedStep::IdMap, Errno::PERM, &none, Some("SETFCAP")),
            (network, Errno::NOSPC, &no_pid, Some("max_pid_name")),
            (network, Errno::PERM, &apparmor, Some("AppArmor")),
            (network, Errno::IO, &apparmor, None),
        ] {
            let hint = likely(step, errno, facts);
            let is_expected = match (&hint, expected) {
                (Some(hint), Some(part)) => hint.contains(part),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            assert!(is_expected, "{step:?} {errno:?} {facts:?}: {hint:?}");
        }
    }
}
