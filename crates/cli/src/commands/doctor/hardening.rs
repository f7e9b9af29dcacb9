//! Settings of the host that make an escape easier. tare changes none of them: its own filter
//! protects boxes, and not the rest of the host.
//!
//! Nothing is said about a setting that is good, or that this kernel does not have.

use std::ops::RangeInclusive;

use super::host::Version;
use super::{Answer, Probe, Row, warn};

const MAX: u64 = u64::MAX;

/// A sysctl, its good values, and what to do about any other.
const SYSCTLS: [(&str, RangeInclusive<u64>, &str); 9] = [
    ("kernel.kptr_restrict", 1..=MAX, "kernel addresses can be read outside of boxes; set it to 1"),
    (
        "kernel.dmesg_restrict",
        1..=MAX,
        "the kernel's log can be read outside of boxes; set it to 1",
    ),
    ("kernel.unprivileged_bpf_disabled", 1..=MAX, "boxes have no bpf; set it to 1 for the rest"),
    ("kernel.io_uring_disabled", 2..=MAX, "boxes have no io_uring; set it to 2 for the rest"),
    ("fs.protected_symlinks", 1..=MAX, "set it to 1"),
    ("fs.protected_hardlinks", 1..=MAX, "set it to 1"),
    ("fs.protected_fifos", 2..=MAX, "set it to 2"),
    ("fs.protected_regular", 2..=MAX, "set it to 2"),
    (
        "dev.tty.legacy_tiocsti",
        0..=0,
        "boxes have terminals of their own and no TIOCSTI; set it to 0 for the rest",
    ),
];

const ROWS: [Row; 4] =
    [("Yama", yama), ("KSM", ksm), ("kernel fixes", fixes), ("kernel.core_pattern", core_pattern)];

/// The first release of each series with the fixes of the page-cache escapes of 2026. A
/// distribution may have fixed other releases too.
const FIXED: [Version; 3] = [Version(6, 6, 138), Version(6, 12, 87), Version(6, 18, 29)];

pub fn answers(probe: &Probe) -> impl Iterator<Item = (&'static str, Answer)> {
    let sysctls = SYSCTLS.into_iter().filter_map(|(name, good, how)| {
        let value = probe.files.sysctl(name)?;
        (!good.contains(&value)).then(|| (name, warn(value.to_string(), how)))
    });
    sysctls.chain(super::answers(&ROWS, probe))
}

fn yama(probe: &Probe) -> Option<Answer> {
    let how = "processes of one user can trace each other; boxes cannot trace at all";
    let scope = probe.files.sysctl("kernel.yama.ptrace_scope");
    scope.is_none().then(|| warn("absent", how))
}

fn ksm(probe: &Probe) -> Option<Answer> {
    let how = "equal pages are shared between boxes, which timing can show; write 0 to run";
    (probe.files.read("/sys/kernel/mm/ksm/run")? == "1").then(|| warn("on", how))
}

fn fixes(probe: &Probe) -> Option<Answer> {
    let version = probe.files.kernel()?;
    let in_series = FIXED.iter().find(|fixed| (fixed.0, fixed.1) == (version.0, version.1));
    let has_them = version >= *in_series.unwrap_or(&FIXED[FIXED.len() - 1]);
    let found = format!("{}.{}.{}", version.0, version.1, version.2);
    let how = "may lack fixes of escapes known since; update, or ask the distribution";
    (!has_them).then(|| warn(found, how))
}

fn core_pattern(probe: &Probe) -> Option<Answer> {
    let how = "a program of the host would read core dumps; boxes dump none";
    let pattern = probe.files.read("/proc/sys/kernel/core_pattern")?;
    pattern.starts_with('|').then(|| warn("a pipe", how))
}

#[cfg(test)]
mod tests {
    use super::super::tests::on_host;
    use super::*;

    #[test]
    fn a_lax_host_is_warned_about_and_a_strict_one_is_not() {
        let lax = [
            ("proc/sys/kernel/kptr_restrict", "0"),
            ("proc/sys/kernel/dmesg_restrict", "0"),
            ("proc/sys/kernel/io_uring_disabled", "1"),
            ("proc/sys/dev/tty/legacy_tiocsti", "1"),
            ("proc/sys/fs/protected_fifos", "1"),
            ("proc/sys/kernel/core_pattern", "|/usr/share/apport"),
            ("sys/kernel/mm/ksm/run", "1"),
            ("proc/sys/kernel/osrelease", "6.18.28"),
        ];
        assert_eq!(on_host(&lax, |it| answers(it).count()), 9);
        let strict = [
            ("proc/sys/kernel/kptr_restrict", "2"),
            ("proc/sys/dev/tty/legacy_tiocsti", "0"),
            ("proc/sys/kernel/yama/ptrace_scope", "1"),
            ("proc/sys/kernel/core_pattern", "core"),
            ("sys/kernel/mm/ksm/run", "0"),
            ("proc/sys/kernel/osrelease", "6.18.29"),
        ];
        assert_eq!(on_host(&strict, |it| answers(it).count()), 0);
    }

    #[test]
    fn fixes_are_looked_for_in_the_kernels_own_series() {
        for (release, warns) in [
            ("6.1.150", true),
            ("6.6.138", false),
            ("6.12.86", true),
            ("6.15.99", true),
            ("6.18.44-x", false),
            ("7.0.0", false),
        ] {
            let files = [("proc/sys/kernel/osrelease", release)];
            assert_eq!(on_host(&files, |it| fixes(it)).is_some(), warns, "{release}");
        }
    }
}
