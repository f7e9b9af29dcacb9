//! What a box is made of, and whether this host has it.

use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use tare_engine::{CgroupRoots, Host as EngineHost};

use crate::commands::doctor::host::{Host, Version};
use crate::commands::doctor::{Check, Status, cgroups};

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
    let engine = EngineHost::probe();
    vec![
        kernel(host),
        user_namespaces(&engine),
        seccomp(host),
        cgroups::check(&engine.cgroups),
        cgroups::parents(&engine.cgroups, &host.read("/proc/self/cgroup").unwrap_or_default()),
        landlock(tare_kernel::landlock::abi()),
        pidfd(),
        overlayfs(host),
        idmapped_mounts(host),
        descriptors(),
        pids(host, &engine.cgroups),
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
            Check::new("kernel", Status::Missing, found, "is tried with Linux 6.1 or later")
        }
    }
}

fn user_namespaces(host: &EngineHost) -> Check {
    let one_id = "a box has the caller's one id inside: weaker than as root";
    let (found, how) = match (host.uid, host.is_privileged()) {
        (_, true) => ("as root", "each box has 65,536 ids of its own"),
        (0, false) => ("as root without all of its ids and capabilities", one_id),
        (1.., false) => ("without root", one_id),
    };
    Check::new("user namespaces", Status::Ok, found, how)
}

fn seccomp(host: &Host) -> Check {
    let actions = host.read("/proc/sys/kernel/seccomp/actions_avail");
    match actions {
        Some(actions) if actions.split(' ').any(|action| action == "errno") => {
            Check::new("seccomp", Status::Ok, "filters", "every command is filtered")
        }
        Some(_) | None => Check::new(
            "seccomp",
            Status::Missing,
            "no filters",
            "refuses boxes but with --seccomp unconfined",
        ),
    }
}

/// ABI 6 came with the scopes for signals and abstract sockets (kernel 6.12).
fn landlock(abi: u32) -> Check {
    let (status, how) = match abi {
        0 => (Status::Missing, "relies on the mount namespace alone"),
        1..=5 => (Status::Ok, "used for files; it cannot scope signals and sockets yet"),
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
        Ok(PIDFS_MAGIC) => (Status::Ok, "with pidfs", "processes are known by their pidfd's inode"),
        Ok(_) => {
            (Status::Ok, "without pidfs", "processes are known by their pidfd and cgroup alone")
        }
        Err(_) => (Status::Missing, "not allowed here", "cannot make boxes"),
    };
    Check::new("pidfd", status, found, how)
}

fn overlayfs(host: &Host) -> Check {
    let known = host.read("/proc/filesystems").unwrap_or_default();
    let is_known = known.lines().any(|line| line.ends_with("\toverlay"));
    let is_whole = host.kernel().is_some_and(|version| version >= TMPFS_ATTRIBUTES);
    match (is_known, is_whole) {
        (true, true) => {
            Check::new("overlayfs", Status::Ok, "known", "--rootfs is left unchanged below it")
        }
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
        Some(version) if version >= IDMAPPED_TMPFS => {
            Check::new(what, Status::Ok, "by kernel version", "volumes act as their owner")
        }
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
    let found = format!("{} now, {} at most", show(limit.current), show(limit.maximum));
    match limit.maximum {
        Some(most) if most < DESCRIPTORS_FEW => {
            let how = "few boxes at once fit; raise RLIMIT_NOFILE";
            Check::new("descriptors", Status::Warn, found, how)
        }
        Some(_) | None => Check::new("descriptors", Status::Ok, found, "a box needs about ten"),
    }
}

fn pids(host: &Host, roots: &CgroupRoots) -> Check {
    let own = host.read("/proc/self/cgroup").unwrap_or_default();
    let numbers = [
        ("pid_max", host.sysctl("kernel.pid_max")),
        ("threads-max", host.sysctl("kernel.threads-max")),
        ("pids.max of this group", cgroups::pids_max(roots, &own)),
    ];
    let known: Vec<_> =
        numbers.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
    let found: Vec<_> = known.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let found = if found.is_empty() { "unknown".to_owned() } else { found.join(", ") };
    match known.iter().map(|(_, value)| *value).min() {
        Some(least) if least >= PIDS_FEW => {
            Check::new("PIDs", Status::Ok, found, "each box has its own limit (--pids)")
        }
        Some(_) | None => Check::new("PIDs", Status::Warn, found, "few boxes fit; raise the least"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::tests::FakeHost;

    #[test]
    fn a_kernel_older_than_the_tested_ones_is_reported() {
        for (name, release, status) in [
            ("k-old", "5.15.0", Status::Missing),
            ("k-12", "6.1.0-18-amd64", Status::Ok),
            ("k-new", "7.1.2", Status::Ok),
        ] {
            let fake = FakeHost::new(name, &[("proc/sys/kernel/osrelease", release)]);
            assert_eq!(kernel(&fake.host).status, status, "{name}");
        }
    }

    #[test]
    fn an_overlay_that_lacks_attributes_is_warned_about() {
        for (name, release, status) in
            [("o-12", "6.1.0-54-amd64", Status::Warn), ("o-new", "6.6.1", Status::Ok)]
        {
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
        assert!(checks(&fake.host).iter().all(|check| !check.found.is_empty()));
    }
}
