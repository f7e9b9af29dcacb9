//! Tests that this host cannot run: reported and counted.
//!
//! No test is skipped silently: each skip is a line on the real standard error (the test runner
//! captures only what `eprintln!` writes) and a line in the file that `TARE_SKIPS` names, so that
//! `./check` can count them.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

/// Use [`skip!`](crate::skip!), which also ends the test. `place` is the path of
/// an item inside of the test.
pub fn announce(place: &str, why: &str) {
    let test = place.trim_end_matches("::here");
    let line = format!("SKIPPED: {test}: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error can be written");
    if let Some(file) = std::env::var_os("TARE_SKIPS") {
        append(Path::new(&file), &line);
    }
}

fn append(file: &Path, line: &str) {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("cannot note a skip in {}: {error}", file.display()));
}

/// Whether a program of this name is in one of the usual directories.
pub fn has_program(name: &str) -> bool {
    ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
        .iter()
        .any(|directory| Path::new(directory).join(name).exists())
}

/// Whether this host lets users make user namespaces at all.
pub fn user_namespaces_are_allowed() -> bool {
    let allowed = |file: &str| fs::read_to_string(file).map_or(true, |text| text.trim() != "0");
    allowed("/proc/sys/user/max_user_namespaces")
        && allowed("/proc/sys/kernel/unprivileged_userns_clone")
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
