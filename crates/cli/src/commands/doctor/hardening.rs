//! Settings of the host that make an escape easier. tare changes none of them:
//! its own filter closes most of these doors for boxes, not for the rest of
//! the host.

use crate::commands::doctor::host::{Host, Version};
use crate::commands::doctor::{Check, Status};

/// A sysctl and the least value that is no warning.
const AT_LEAST: [(&str, u64, &str); 8] = [
    ("kernel.kptr_restrict", 1, "kernel addresses can be read outside of boxes; set it to 1"),
    ("kernel.dmesg_restrict", 1, "the kernel's log can be read outside of boxes; set it to 1"),
    ("kernel.unprivileged_bpf_disabled", 1, "boxes have no bpf; set it to 1 for the rest"),
    ("kernel.io_uring_disabled", 2, "boxes have no io_uring; set it to 2 for the rest"),
    ("fs.protected_symlinks", 1, "set it to 1"),
    ("fs.protected_hardlinks", 1, "set it to 1"),
    ("fs.protected_fifos", 2, "set it to 2"),
    ("fs.protected_regular", 2, "set it to 2"),
];

/// First releases of each series with the fixes of the page-cache escapes of
/// 2026; in between, a distribution may have its own.
const FIXED: [Version; 3] = [Version(6, 6, 138), Version(6, 12, 87), Version(6, 18, 29)];

pub fn checks(host: &Host) -> Vec<Check> {
    let mut checks: Vec<Check> = AT_LEAST
        .iter()
        .filter_map(|(name, least, how)| at_least(host, name, *least, how))
        .collect();
    let others = [tiocsti(host), yama(host), ksm(host), fixes(host), core_pattern(host)];
    checks.extend(others.into_iter().flatten());
    checks
}

/// Nothing is said of a setting that this kernel does not have.
fn at_least(host: &Host, name: &str, least: u64, how: &str) -> Option<Check> {
    let value = host.sysctl(name)?;
    (value < least).then(|| Check::new(name, Status::Warn, value.to_string(), how))
}

fn tiocsti(host: &Host) -> Option<Check> {
    let name = "dev.tty.legacy_tiocsti";
    (host.sysctl(name)? == 1).then(|| {
        let how = "boxes have terminals of their own and no TIOCSTI; set it to 0 for the rest";
        Check::new(name, Status::Warn, "1", how)
    })
}

fn yama(host: &Host) -> Option<Check> {
    host.sysctl("kernel.yama.ptrace_scope").is_none().then(|| {
        let how = "processes of one user can trace each other; boxes cannot trace at all";
        Check::new("Yama", Status::Warn, "absent", how)
    })
}

fn ksm(host: &Host) -> Option<Check> {
    (host.number("/sys/kernel/mm/ksm/run")? == 1).then(|| {
        let how = "equal pages are shared between boxes, which timing can tell; write 0 to run";
        Check::new("KSM", Status::Warn, "on", how)
    })
}

fn fixes(host: &Host) -> Option<Check> {
    let version = host.kernel()?;
    let in_series = FIXED.iter().find(|fixed| (fixed.0, fixed.1) == (version.0, version.1));
    let newest = FIXED[FIXED.len() - 1];
    let has_them = match in_series {
        Some(fixed) => version >= *fixed,
        None => version > newest,
    };
    (!has_them).then(|| {
        let found = format!("{}.{}.{}", version.0, version.1, version.2);
        let how = "may lack fixes of escapes known since; update, or ask the distribution";
        Check::new("kernel fixes", Status::Warn, found, how)
    })
}

fn core_pattern(host: &Host) -> Option<Check> {
    let pattern = host.read("/proc/sys/kernel/core_pattern")?;
    pattern.starts_with('|').then(|| {
        let how = "a program of the host would read cores; boxes dump none";
        Check::new("kernel.core_pattern", Status::Warn, "a pipe", how)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::tests::FakeHost;

    #[test]
    fn a_lax_host_is_warned_about_and_a_strict_one_is_not() {
        let lax = FakeHost::new(
            "lax",
            &[
                ("proc/sys/kernel/kptr_restrict", "0"),
                ("proc/sys/kernel/dmesg_restrict", "0"),
                ("proc/sys/kernel/io_uring_disabled", "1"),
                ("proc/sys/dev/tty/legacy_tiocsti", "1"),
                ("proc/sys/fs/protected_fifos", "1"),
                ("proc/sys/kernel/core_pattern", "|/usr/share/apport"),
                ("sys/kernel/mm/ksm/run", "1"),
                ("proc/sys/kernel/osrelease", "6.18.28"),
            ],
        );
        assert_eq!(checks(&lax.host).len(), 9);
        let strict = FakeHost::new(
            "strict",
            &[
                ("proc/sys/kernel/kptr_restrict", "2"),
                ("proc/sys/kernel/yama/ptrace_scope", "1"),
                ("proc/sys/kernel/core_pattern", "core"),
                ("sys/kernel/mm/ksm/run", "0"),
                ("proc/sys/kernel/osrelease", "6.18.29"),
            ],
        );
        assert!(checks(&strict.host).is_empty());
    }

    #[test]
    fn fixes_are_looked_for_in_the_kernels_own_series() {
        for (name, release, warns) in [
            ("f-1", "6.1.150", true),
            ("f-6", "6.6.138", false),
            ("f-12", "6.12.86", true),
            ("f-15", "6.15.99", true),
            ("f-18", "6.18.44-x", false),
            ("f-7", "7.0.0", false),
        ] {
            let fake = FakeHost::new(name, &[("proc/sys/kernel/osrelease", release)]);
            assert_eq!(fixes(&fake.host).is_some(), warns, "{release}");
        }
    }
}
