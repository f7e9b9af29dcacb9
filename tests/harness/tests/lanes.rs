//! A lane is a host of its own: what a test leaves in it fails the test, and nothing of it reaches
//! the next test. Each test here starts a lane inside its own.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use tare_harness::skip;
use tare_harness::skip::is_root;

/// Runs a shell script in a new lane. Returns its exit code and standard error.
fn in_lane(script: &str) -> (Option<i32>, String) {
    let output = at_root("tests/in-lane", &["sh", "-c", script]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text)
}

/// Runs a program in the root of the source tree, with its lanes below our own `/tmp`.
fn at_root(program: &str, args: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(program);
    command.args(args).current_dir(root).stdin(Stdio::null());
    command.env("TARE_LANES", std::env::temp_dir().join("lanes"));
    command.env("TARE_LANE", env!("CARGO_BIN_EXE_lane"));
    command.output().expect("it starts")
}

#[test]
fn lane_returns_the_exit_code_of_a_test_that_leaves_nothing() {
    if !is_root() {
        skip!("only root makes lanes");
    }
    assert_eq!(in_lane("exit 0"), (Some(0), String::new()));
    assert_eq!(in_lane("exit 7").0, Some(7));
}

#[test]
fn lane_fails_a_test_that_leaves_a_process() {
    if !is_root() {
        skip!("only root makes lanes");
    }
    let (code, text) = in_lane("setsid sleep 100 >/dev/null 2>&1 &");
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("(sleep)"), "{text}");
}

#[test]
fn lane_fails_a_test_that_leaves_a_cgroup_of_tare() {
    if !is_root() {
        skip!("only root makes lanes");
    }
    let root = tare_harness::hierarchies().pop().expect("a hierarchy");
    let (code, text) = in_lane(&format!("mkdir {}/tare-left", root.display()));
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("tare-left"), "{text}");
    assert!(!root.join("tare-left").exists(), "it is in the outer lane");
}

#[test]
fn lane_has_no_process_file_port_or_mount_of_the_host() {
    if !is_root() {
        skip!("only root makes lanes");
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let number = port.local_addr().expect("it is bound").port();
    let file = std::env::temp_dir().join("of-the-outer-lane");
    std::fs::write(&file, "").expect("/tmp is ours");
    // `ss` is no part of every host: the kernel shows the port in hexadecimal.
    let script = format!(
        "test ! -e {} && ! grep -q '^lanes-' /proc/[0-9]*/comm && \
         ! grep -q ':{number:04X} ' /proc/net/tcp",
        file.display()
    );
    let seen = in_lane(&script);
    std::fs::remove_file(&file).expect("it was made above");
    assert_eq!(seen, (Some(0), String::new()));
}

/// A shell with `&`, nohup and cron ignore signals, and every child inherits that.
#[test]
fn lane_resets_ignored_signals() {
    if !is_root() {
        skip!("only root makes lanes");
    }
    let script = "trap '' HUP INT QUIT; exec tests/in-lane grep SigIgn /proc/self/status";
    let output = at_root("sh", &["-c", script]);
    let text = String::from_utf8_lossy(&output.stdout);
    let ignored = text.trim().rsplit('\t').next().expect("a mask");
    let mask = u64::from_str_radix(ignored, 16).expect("hexadecimal");
    // HUP, INT and QUIT are signals 1 to 3.
    assert_eq!(mask & 0b111, 0, "{text}");
}
