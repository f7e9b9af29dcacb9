//! `tare completion`: scripts that the shells accept.

use std::process::Command;

use tare_harness::skip::has_program;
use tare_harness::{TemporaryDirectory, skip, tare};

#[test]
fn completion_scripts_of_every_shell_list_the_options() {
    let tare = tare!();
    for shell in ["bash", "zsh", "fish"] {
        let output = tare.call(["completion", shell]).ok().said_nothing();
        let words = [
            "tare", "run", "exec", "explain", "audit", "sweep", "dry-run", "rename", "doctor",
            "memory", "timeout", "lease", "watch",
        ];
        for word in words {
            assert!(output.stdout_text().contains(word), "{shell}: {word} is missing");
        }
    }
}

#[test]
fn bash_parses_its_completion_script() {
    let tare = tare!();
    if !has_program("bash") {
        skip!("bash is not installed");
    }
    let directory = TemporaryDirectory::new();
    let completion = tare.call(["completion", "bash"]).ok().stdout;
    assert!(!completion.is_empty());
    let script = directory.write("completion", completion);
    let status = Command::new("bash").arg("-n").arg(script).status().unwrap();
    assert!(status.success());
}

#[test]
fn completion_for_an_unknown_shell_is_refused() {
    let tare = tare!();
    let output = tare.call(["completion", "tcsh"]).exited(2).printed("");
    assert!(output.stderr_text().contains("tcsh"), "{output}");
    tare.call(["completion"]).exited(2).printed("");
}
