//! The whole profile as text, so that a change of it is seen in review.

use std::fmt::Write as _;
use std::path::Path;

use crate::create::seccomp::tests::rule::{Check, EAFNOSUPPORT, EPERM};
use crate::create::seccomp::tests::*;

/// The last number of the table: above it nothing exists.
const LAST: u32 = 469;

#[test]
fn default_golden_lists_every_number() {
    let mut text = String::new();
    for number in 0..=LAST {
        let verdict = verdict(number, SeccompProfile::Default, SetIdBits::Allowed);
        line(&mut text, number, &describe(verdict));
    }
    compare("default.golden", &text);
}

#[test]
fn debug_golden_lists_the_differences_from_default() {
    let differences = differences(SeccompProfile::Debug, SetIdBits::Allowed);
    compare("debug.golden", &differences);
}

#[test]
fn strict_golden_lists_the_differences_from_default() {
    let differences = differences(SeccompProfile::Strict, SetIdBits::Allowed);
    compare("strict.golden", &differences);
}

#[test]
fn set_id_denied_golden_lists_the_differences_from_default() {
    let differences = differences(SeccompProfile::Default, SetIdBits::Denied);
    compare("set_id_denied.golden", &differences);
}

fn differences(profile: SeccompProfile, bits: SetIdBits) -> String {
    let mut text = String::new();
    for number in 0..=LAST {
        let default = verdict(number, SeccompProfile::Default, SetIdBits::Allowed);
        let other = verdict(number, profile, bits);
        if other != default {
            let change = format!("{} -> {}", describe(default), describe(other));
            line(&mut text, number, &change);
        }
    }
    text
}

/// From the ranges that are compiled, not from the table.
fn verdict(number: u32, profile: SeccompProfile, bits: SetIdBits) -> Verdict {
    let ranges = ranges(profile, bits);
    let range = ranges.iter().rfind(|range| range.start <= number);
    range.expect("the first range starts at 0").verdict
}

fn line(text: &mut String, number: u32, verdict: &str) {
    let entry = table::SYSCALLS.iter().find(|entry| entry.0 == number);
    let name = entry.map_or("-", |entry| entry.1);
    writeln!(text, "{number:>3} {name:<23} {verdict}").unwrap();
}

fn describe(verdict: Verdict) -> String {
    match verdict {
        Verdict::Allow => "allow".into(),
        Verdict::Errno(EPERM) => "EPERM".into(),
        Verdict::Errno(ENOSYS) => "ENOSYS".into(),
        Verdict::Errno(EAFNOSUPPORT) => "EAFNOSUPPORT".into(),
        Verdict::Errno(errno) => panic!("errno {errno} has no name here"),
        Verdict::Check(check) => describe_check(check),
    }
}

fn describe_check(check: Check) -> String {
    match check {
        Check::SocketDomain => {
            "argument 0 in {1, 2, 10}, or 16 with argument 2 = 0, else EAFNOSUPPORT".into()
        }
        Check::CloneFlags => "argument 0 without 0x7e020000, else EPERM".into(),
        Check::UnshareFlags => "argument 0 within 0x40600, else EPERM".into(),
        Check::IoctlRequest => "argument 1 not in {0x5412, 0x541c, 0x5423}, else EPERM".into(),
        Check::Personality => {
            "argument 0 in {0, 8, 0x20000, 0x20008, 0xffffffff}, else EPERM".into()
        }
        Check::OwnProcess(process) => format!("argument {process} in {{0}}, else EPERM"),
        Check::MessageFlags(flags) => format!("argument {flags} without 1, else EPERM"),
        Check::FileMode(mode) => format!("argument {mode} without 0o6000, else EPERM"),
        Check::OpenMode(flags) => format!(
            "argument {flags} without 0o20000100 or argument {} without 0o6000, else EPERM",
            flags + 1
        ),
    }
}

fn compare(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/create/seccomp").join(file);
    if std::env::var_os("TARE_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let changed: Vec<_> =
        text.lines().filter(|line| !golden.lines().any(|old| old == *line)).collect();
    assert!(
        golden == text,
        "the profile differs from {file}, in {changed:#?}\nif that is meant, run \
         `TARE_UPDATE_GOLDEN=1 cargo test -p tare-engine seccomp` and commit the file",
    );
}
