//! `tools/rustc-with-target`, which cargo calls in place of rustc.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const WRAPPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/rustc-with-target");

/// A directory with a rustc that has no target but its own, and prints its arguments.
fn distribution(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("tare-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory can be made");
    let rustc = "#!/bin/sh
        case $1 in --print) echo /nowhere ;; --version) echo rustc 1.63.0 ;; *) echo \"$@\" ;; esac";
    let path = directory.join("rustc");
    fs::write(&path, rustc).expect("a file can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    directory
}

fn call(directory: &Path, arguments: &[&str]) -> Output {
    let mut wrapper = Command::new(WRAPPER);
    wrapper.arg(directory.join("rustc")).args(arguments);
    // There is no rustup.
    wrapper.env("PATH", directory).env("CARGO_MANIFEST_DIR", "/home/me/registry/tokio-1.0");
    wrapper.env("OUT_DIR", "/home/me/target/out").output().expect("there is a shell")
}

#[test]
fn a_build_without_rustup_says_what_is_missing_in_one_line() {
    let directory = distribution("missing");
    let target = "x86_64-unknown-linux-musl";
    let output =
        call(&directory, &["-", "--crate-name", "___", "--print=cfg", "--target", target, "-"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in [target, "rustc 1.63.0", "rustup", "Fedora", "Arch"] {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
    fs::remove_dir_all(directory).expect("it is ours");
}

#[test]
fn a_release_names_sources_from_the_directory_of_their_package_on() {
    let directory = distribution("release");
    let output = call(&directory, &["--crate-name", "tokio", "-C", "opt-level=s"]);
    let given = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(given.contains("--remap-path-prefix=/home/me/registry/="), "{given}");
    assert!(given.contains("--remap-path-prefix=/home/me/target/out=out"), "{given}");
    let output = call(&directory, &["--crate-name", "tokio", "-C", "debuginfo=1"]);
    assert_eq!(output.stdout, b"--crate-name tokio -C debuginfo=1\n");
    fs::remove_dir_all(directory).expect("it is ours");
}
