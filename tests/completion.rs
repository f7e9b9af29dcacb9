//! `tare completion`: scripts that the shells accept.

use std::process::Command;

use tare_harness::skip::has_program;
use tare_harness::{Tare, TemporaryDirectory, skip, tare};

#[test]
fn completion_scripts_of_every_shell_list_the_options() {
    let tare = tare!();
    for shell in ["bash", "zsh", "fish"] {
        let output = tare.call(["completion", shell]).ok().said_nothing();
        let words = [
            "tare", "run", "exec", "explain", "audit", "sweep", "dry-run", "rename", "doctor",
            "memory", "timeout", "lease", "watch", "fetch", "choose",
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

/// Asks bash what it offers for the last of these words.
fn offered(tare: &Tare, words: &str) -> Vec<String> {
    let script = format!(
        "eval \"$(\"$TARE\" completion bash)\"; tare() {{ \"$TARE\" \"$@\"; }}; \
         COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _tare_and_boxes tare \
         \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let script = format!("bash -c '{}'", script.replace('\'', "'\\''"));
    tare.shell(&script).ok().stdout_text().lines().map(str::to_owned).collect()
}

#[test]
fn bash_offers_the_names_of_boxes() {
    let tare = tare!();
    if !has_program("bash") {
        skip!("bash is not installed");
    }
    // No id has an upper-case letter.
    let named = tare.detached(["--name", "Web", "--", "sleep", "1000"]);
    let unnamed = tare.detached(["--", "sleep", "1000"]);
    assert_eq!(offered(&tare, "tare stop \"\""), ["Web", &unnamed]);
    assert_eq!(offered(&tare, "tare exec W"), ["Web"]);
    assert_eq!(offered(&tare, "tare --state-root x logs -f We"), ["Web"]);
    assert_eq!(offered(&tare, "tare cp We"), ["Web:"]);
    assert!(offered(&tare, "tare stop -").contains(&"--time".to_owned()));
    assert!(!offered(&tare, "tare run W").contains(&"Web".to_owned()));
    tare.remove(&named);
    tare.remove(&unnamed);
}
