//! What a box is made of, and whether this host has it.

use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, getuid, pidfd_open};

use super::host::{Host, Version};
use super::{Check, Status, cgroups};

/// Debian 12's own; older kernels are not tried.
const KERNEL_MIN: Version = Version(6, 1, 0);
/// The first with id-mapped mounts on tmpfs, which scratch space is.
const IDMAPPED_TMPFS: Version = Version(6, 3, 0);
/// The first with `user.` attributes on tmpfs, in which an overlay of a user
/// namespace notes that a directory of the layer below was replaced.
const TMPFS_ATTRIBUTES: Version = Version(6, 6, 0);
/// `PID_FS_MAGIC`: a pidfd has an inode that is never used again.
const PIDFS_MAGIC: i64 = 0x5049_4446;
/// Below this a dozen boxes use up what there is.
const DESCRIPTORS_FEW: u64 = 4096;
const PIDS_FEW: u64 = 4096;

pub fn checks(host: &Host) -> Vec<Check> {
    vec![
        kernel(host),
        user_namespaces(host, getuid().is_root()),
        seccomp(host),
        cgroups::check(host),
        landlock(tare_kernel::landlock::abi()),
        pidfd(),
        overlayfs(host),
        idmapped_mounts(host),
        descriptors(),
        pids(host),
    ]
}

fn kernel(host: &Host) -> Check {
    let found = host.read("/proc/sys/kernel/osrelease");
    let found = found.unwrap_or_else(|| "unknown".to_owned());
    match host.kernel() {
        Some(version) if version >= KERNEL_MIN => {
            Check::new("kernel", Status::Ok, found, "used as it is")
        }
        Some(_) | None => {
            Check::new("kernel", Status::Missing, found, "needs Linux 6.1 or later").needed()
        }
    }
}

/// Read, not tried: trying would be a fork of a process that only looks.
fn user_namespaces(host: &Host, is_root: bool) -> Check {
    let what = "user namespaces";
    let missing = |found: &str, how: &str| Check::new(what, Status::Missing, found, how).needed();
    if host.sysctl("user.max_user_namespaces").unwrap_or(0) == 0 {
        return missing(
            "none allowed",
            "every box has one: set user.max_user_namespaces",
        );
    }
    if !is_root && host.sysctl("kernel.unprivileged_userns_clone") == Some(0) {
        return missing(
            "only for root",
            "run tare as root, or set kernel.unprivileged_userns_clone=1",
        );
    }
    if !is_root && host.sysctl("kernel.apparmor_restrict_unprivileged_userns") == Some(1) {
        return missing(
            "restricted by AppArmor",
            "run tare as root, or give tare a profile with 'userns,'",
        );
    }
    let one_id = "a box has the caller's one id inside: weaker than as root";
    let (found, how) = match (is_root, has_every_id(host)) {
        (true, true) => ("allowed", "each box has 65,536 ids of its own"),
        (true, false) => ("allowed, in one that has not every id", one_id),
        (false, _) => ("allowed without root", one_id),
    };
    Check::new(what, Status::Ok, found, how)
}

/// Whether this is the first user namespace, where each id is itself; in a container it
/// may be another.
fn has_every_id(host: &Host) -> bool {
    let map = host.read("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn seccomp(host: &Host) -> Check {
    let actions = host.read("/proc/sys/kernel/seccomp/actions_avail");
    match actions {
        Some(actions) if actions.split(' ').any(|action| action == "errno") => Check::new(
            "seccomp",
            Status::Ok,
            "filters",
            "every command is filtered",
        ),
        Some(_) | None => Check::new(
            "seccomp",
            Status::Missing,
            "no filters",
            "refuses boxes but with --seccomp unconfined",
        )
        .needed(),
    }
}

/// ABI 6 came with the scopes for signals and abstract sockets (kernel 6.12).
fn landlock(abi: u32) -> Check {
    let (status, how) = match abi {
        0 => (Status::Missing, "relies on the mount namespace alone"),
        1..=5 => (
            Status::Ok,
            "used for files; it cannot scope signals and sockets yet",
        ),
        6.. => (Status::Ok, "used for files, signals and abstract sockets"),
    };
    let found = match abi {
        0 => "not active".to_owned(),
        _ => format!("ABI {abi}"),
    };
    Check::new("landlock", status, found, how)
}

fn pidfd() -> Check {
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty());
    let magic = pidfd.and_then(rustix::fs::fstatfs).map(|fs| fs.f_type);
    let (status, found, how) = match magic {
        Ok(PIDFS_MAGIC) => (
            Status::Ok,
            "with pidfs",
            "processes are known by their pidfd's inode",
        ),
        Ok(_) => (
            Status::Ok,
            "without pidfs",
            "processes are known by their pidfd and cgroup alone",
        ),
        Err(_) => (Status::Missing, "not allowed here", "cannot make boxes"),
    };
    let check = Check::new("pidfd", status, found, how);
    match status {
        Status::Missing => check.needed(),
        Status::Ok | Status::Warn => check,
    }
}

fn overlayfs(host: &Host) -> Check {
    let known = host.read("/proc/filesystems").unwrap_or_default();
    let is_known = known.lines().any(|line| line.ends_with("\toverlay"));
    let is_whole = host
        .kernel()
        .is_some_and(|version| version >= TMPFS_ATTRIBUTES);
    match (is_known, is_whole) {
        (true, true) => Check::new(
            "overlayfs",
            Status::Ok,
            "known",
            "--rootfs is left unchanged below it",
        ),
        (true, false) => Check::new(
            "overlayfs",
            Status::Warn,
            "known, without attributes on tmpfs before Linux 6.6",
            "--rootfs works, but a box cannot remove a directory of it that has files",
        ),
        (false, _) => Check::new(
            "overlayfs",
            Status::Missing,
            "not known (not built in, or its module not loaded)",
            "refuses --rootfs; boxes on the host's programs do without",
        ),
    }
}

fn idmapped_mounts(host: &Host) -> Check {
    let what = "id-mapped mounts";
    match host.kernel() {
        Some(version) if version >= IDMAPPED_TMPFS => Check::new(
            what,
            Status::Ok,
            "by kernel version",
            "volumes act as their owner",
        ),
        Some(_) | None => Check::new(
            what,
            Status::Warn,
            "not on every file system of this kernel",
            "refuses a writable volume or a --rootfs that cannot be mapped",
        ),
    }
}

fn descriptors() -> Check {
    let limit = getrlimit(Resource::Nofile);
    let show = |value: Option<u64>| value.map_or("unlimited".to_owned(), |n| n.to_string());
    let found = format!(
        "{} now, {} at most",
        show(limit.current),
        show(limit.maximum)
    );
    match limit.maximum {
        Some(most) if most < DESCRIPTORS_FEW => {
            let how = "few boxes at once fit; raise RLIMIT_NOFILE";
            Check::new("descriptors", Status::Warn, found, how)
        }
        Some(_) | None => Check::new("descriptors", Status::Ok, found, "a box needs about ten"),
    }
}

fn pids(host: &Host) -> Check {
    let numbers = [
        ("pid_max", host.sysctl("kernel.pid_max")),
        ("threads-max", host.sysctl("kernel.threads-max")),
        ("pids.max of this group", cgroups::pids_max(host)),
    ];
    let known: Vec<_> = numbers
        .iter()
        .filter_map(|(name, value)| Some((*name, (*value)?)))
        .collect();
    let found: Vec<_> = known
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let found = match found.is_empty() {
        true => "unknown".to_owned(),
        false => found.join(", "),
    };
    match known.iter().map(|(_, value)| *value).min() {
        Some(least) if least >= PIDS_FEW => Check::new(
            "PIDs",
            Status::Ok,
            found,
            "each box has its own limit (--pids)",
        ),
        Some(_) | None => Check::new(
            "PIDs",
            Status::Warn,
            found,
            "few boxes fit; raise the least",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::tests::FakeHost;

    #[test]
    fn root_of_a_user_namespace_has_no_ids_to_give_away() {
        for (name, map, expected) in [
            ("ids-all", "0 0 4294967295", "each box has 65,536 ids"),
            ("ids-some", "0 200000 65536", "the caller's one id"),
        ] {
            let files = [
                ("proc/sys/user/max_user_namespaces", "9"),
                ("proc/self/uid_map", map),
            ];
            let check = user_namespaces(&FakeHost::new(name, &files).host, true);
            assert!(check.tare.contains(expected), "{}", check.tare);
        }
    }

    #[test]
    fn a_host_without_user_namespaces_cannot_make_boxes() {
        for (name, files, is_root, needed) in [
            (
                "un-none",
                &[("proc/sys/user/max_user_namespaces", "0")][..],
                true,
                true,
            ),
            (
                "un-root",
                &[("proc/sys/user/max_user_namespaces", "9")],
                true,
                false,
            ),
            (
                "un-debian",
                &[
                    ("proc/sys/user/max_user_namespaces", "9"),
                    ("proc/sys/kernel/unprivileged_userns_clone", "0"),
                ],
                false,
                true,
            ),
            (
                "un-ubuntu",
                &[
                    ("proc/sys/user/max_user_namespaces", "9"),
                    ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
                ],
                false,
                true,
            ),
            (
                "un-user",
                &[("proc/sys/user/max_user_namespaces", "9")],
                false,
                false,
            ),
        ] {
            let fake = FakeHost::new(name, files);
            let check = user_namespaces(&fake.host, is_root);
            assert_eq!(check.prevents_boxes, needed, "{name}");
        }
    }

    #[test]
    fn an_old_kernel_cannot_make_boxes() {
        for (name, release, prevents) in [
            ("k-old", "5.15.0", true),
            ("k-12", "6.1.0-18-amd64", false),
            ("k-new", "7.1.2", false),
        ] {
            let fake = FakeHost::new(name, &[("proc/sys/kernel/osrelease", release)]);
            assert_eq!(kernel(&fake.host).prevents_boxes, prevents, "{name}");
        }
    }

    #[test]
    fn an_overlay_that_lacks_attributes_is_warned_about() {
        for (name, release, status) in [
            ("o-12", "6.1.0-54-amd64", Status::Warn),
            ("o-new", "6.6.1", Status::Ok),
        ] {
            let files = [
                ("proc/filesystems", "nodev\tproc\nnodev\toverlay\n"),
                ("proc/sys/kernel/osrelease", release),
            ];
            let fake = FakeHost::new(name, &files);
            assert_eq!(overlayfs(&fake.host).status, status, "{name}");
        }
    }

    #[test]
    fn a_bare_host_is_described_without_failing() {
        let fake = FakeHost::new("bare", &[]);
        assert_eq!(checks(&fake.host).len(), 10);
    }
}
