//! The parts that a box is made of, and whether this host has them.

use std::path::Path;

use rustix::fs::{Access, access};
use rustix::process::{Resource, getpid, getrlimit};
use tare_kernel::process::Process;

use super::host::Version;
use super::trial::LIMITS;
use super::{Answer, Probe, Row, missing, ok, warn};

/// Debian 12's own; older kernels are not tested.
const KERNEL_MIN: Version = Version(6, 1, 0);
/// The first with id-mapped mounts on tmpfs, which scratch space is.
const IDMAPPED_TMPFS: Version = Version(6, 3, 0);
/// The first with `user.` attributes on tmpfs. An overlay in a user namespace needs them to
/// replace a directory of the layer below.
const TMPFS_ATTRIBUTES: Version = Version(6, 6, 0);
/// With fewer descriptors or processes, only a few boxes fit at once.
const FEW: u64 = 4096;

pub const ROWS: [Row; 11] = [
    ("kernel", kernel),
    ("user namespaces", user_namespaces),
    ("seccomp", seccomp),
    ("cgroups", cgroups),
    ("cgroup parent", cgroup_parent),
    ("landlock", landlock),
    ("pidfd", pidfd),
    ("overlayfs", overlayfs),
    ("id-mapped mounts", idmapped_mounts),
    ("descriptors", descriptors),
    ("PIDs", pids),
];

fn kernel(probe: &Probe) -> Option<Answer> {
    let release = probe.files.read("/proc/sys/kernel/osrelease");
    let release = release.unwrap_or_else(|| "unknown".to_owned());
    Some(if probe.files.kernel() >= Some(KERNEL_MIN) {
        ok(release, "used as it is")
    } else {
        missing(release, "is tested with Linux 6.1 and later")
    })
}

fn user_namespaces(probe: &Probe) -> Option<Answer> {
    let one_id = "a box has the caller's one id inside: weaker than as root";
    Some(match (probe.engine.uid, probe.engine.is_privileged()) {
        (_, true) => ok("as root", "each box has 65,536 ids of its own"),
        (0, false) => ok("as root without all of its ids and capabilities", one_id),
        (1.., false) => ok("without root", one_id),
    })
}

fn seccomp(probe: &Probe) -> Option<Answer> {
    let actions = probe.files.read("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    Some(if actions.split(' ').any(|action| action == "errno") {
        ok("filters", "every command is filtered")
    } else {
        missing("no filters", "refuses boxes, except with --seccomp unconfined")
    })
}

/// The limits are those that boxes of the trial got.
fn cgroups(probe: &Probe) -> Option<Answer> {
    let (roots, limited) = (&probe.engine.cgroups, &probe.trial.limited);
    let has_v1 = [&roots.memory, &roots.pids, &roots.cpu].into_iter().any(Option::is_some);
    let layout = match (&roots.unified, has_v1) {
        (Some(_), false) => "pure v2",
        (Some(_), true) => "hybrid (v1 controllers beside v2)",
        (None, true) => "v1 only",
        (None, false) => "none",
    };
    let found = format!("{layout}, {} can be limited", limited.join(", "));
    let refused = "a limit that you ask for and the kernel cannot enforce is refused; \
                   the PID namespace still ends every box whole";
    Some(if probe.trial.made.is_err() {
        warn(layout, "without a box, no limit was tried")
    } else if limited.len() == LIMITS.len() {
        ok(found, "every limit is enforced by the kernel")
    } else {
        warn(found, refused)
    })
}

/// Where new boxes are made.
fn cgroup_parent(probe: &Probe) -> Option<Answer> {
    let roots = &probe.engine.cgroups;
    let own_text = probe.files.read("/proc/self/cgroup").unwrap_or_default();
    let attached = roots.of_caller(&own_text, roots.clone());
    // A box gets a cgroup only where this user may make a directory.
    let is_writable = |it: &&Path| access(*it, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    if !attached.all().iter().any(is_writable) {
        let how = "this user may make none in any hierarchy; the line above names the limits";
        return Some(warn("boxes have no cgroup", how));
    }
    let own: Vec<String> = attached
        .all()
        .into_iter()
        .filter(is_writable)
        .filter(|it| !roots.all().contains(it))
        .map(|it| it.display().to_string())
        .collect();
    let detached = "detached boxes are made at the root, or below --cgroup-parent";
    let root = "at the root of each hierarchy";
    Some(if !own.is_empty() {
        let found = format!("attached boxes are made below {}", own.join(", "));
        ok(found, format!("they count where this process counts; {detached}"))
    } else if own_text.lines().all(|line| line.ends_with(":/")) {
        ok(root, format!("this process has no cgroup of its own; {detached}"))
    } else {
        let how = "boxes cannot have limits below the cgroup of this process";
        ok(root, format!("{how}; {detached}"))
    })
}

/// ABI 6 (Linux 6.12) adds scopes for signals and abstract sockets.
fn landlock(_: &Probe) -> Option<Answer> {
    let abi = tare_kernel::landlock::abi();
    let found = format!("ABI {abi}");
    Some(match abi {
        0 => missing("not active", "relies on the mount namespace alone"),
        1..=5 => ok(found, "used for files; it cannot scope signals and sockets yet"),
        6.. => ok(found, "used for files, signals and abstract sockets"),
    })
}

fn pidfd(_: &Probe) -> Option<Answer> {
    let own = Process::open(getpid().as_raw_pid());
    Some(match own.and_then(|process| process.inode()) {
        Ok(Some(_)) => ok("with pidfs", "processes are known by their pidfd's inode"),
        Ok(None) => ok("without pidfs", "processes are known by their pidfd and cgroup alone"),
        Err(_) => missing("not allowed here", "cannot make boxes"),
    })
}

fn overlayfs(probe: &Probe) -> Option<Answer> {
    let known = probe.files.read("/proc/filesystems").unwrap_or_default();
    let is_known = known.lines().any(|line| line.ends_with("\toverlay"));
    Some(if !is_known {
        let how = "refuses --rootfs; boxes on the host's programs do without";
        missing("not known (not built in, or its module not loaded)", how)
    } else if probe.files.kernel() >= Some(TMPFS_ATTRIBUTES) {
        ok("known", "--rootfs is left unchanged below it")
    } else {
        let how = "--rootfs works, but a box cannot remove a directory of it that has files";
        warn("known, without attributes on tmpfs before Linux 6.6", how)
    })
}

fn idmapped_mounts(probe: &Probe) -> Option<Answer> {
    Some(if probe.files.kernel() >= Some(IDMAPPED_TMPFS) {
        ok("by kernel version", "volumes act as their owner")
    } else {
        let how = "refuses a writable volume or a --rootfs that cannot be mapped";
        warn("not on every file system of this kernel", how)
    })
}

fn descriptors(_: &Probe) -> Option<Answer> {
    let limit = getrlimit(Resource::Nofile);
    let show = |value: Option<u64>| value.map_or("unlimited".to_owned(), |n| n.to_string());
    let found = format!("{} now, {} at most", show(limit.current), show(limit.maximum));
    Some(if limit.maximum.is_some_and(|most| most < FEW) {
        warn(found, "few boxes at once fit; raise RLIMIT_NOFILE")
    } else {
        ok(found, "a box needs about ten")
    })
}

fn pids(probe: &Probe) -> Option<Answer> {
    let limits = &probe.trial.pids;
    let found: Vec<String> =
        limits.iter().map(|it| format!("{} ({})", it.limit, it.limit_is)).collect();
    Some(match limits.iter().map(|it| it.limit).min() {
        None => warn("unknown", "each box has its own limit (--pids)"),
        Some(..FEW) => warn(found.join(", "), "few boxes fit; raise the smallest limit"),
        Some(FEW..) => ok(found.join(", "), "each box has its own limit (--pids)"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::super::tests::on_host;
    use super::*;

    #[test]
    fn a_kernel_older_than_the_tested_ones_is_reported() {
        for (release, status) in
            [("5.15.0", Status::Missing), ("6.1.0-18-amd64", Status::Ok), ("7.1.2", Status::Ok)]
        {
            let answer = on_host(&[("proc/sys/kernel/osrelease", release)], |it| kernel(it));
            assert_eq!(answer.unwrap().status, status, "{release}");
        }
    }

    #[test]
    fn an_overlay_that_lacks_attributes_is_warned_about() {
        for (release, status) in [("6.1.0-54-amd64", Status::Warn), ("6.6.1", Status::Ok)] {
            let files = [
                ("proc/filesystems", "nodev\tproc\nnodev\toverlay\n"),
                ("proc/sys/kernel/osrelease", release),
            ];
            let answer = on_host(&files, |it| overlayfs(it));
            assert_eq!(answer.unwrap().status, status, "{release}");
        }
    }

    #[test]
    fn limits_are_promised_only_if_boxes_got_them() {
        for (limited, status, words) in [
            (&["memory", "pids", "cpu"][..], Status::Ok, "memory, pids, cpu can be limited"),
            (&["pids"], Status::Warn, "pids can be limited"),
        ] {
            on_host(&[], |probe| {
                probe.trial.limited = limited.to_vec();
                let answer = cgroups(probe).unwrap();
                assert_eq!(answer.status, status, "{limited:?}");
                assert!(answer.found.ends_with(words), "{}", answer.found);
            });
        }
    }
}
