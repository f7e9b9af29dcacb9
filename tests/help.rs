//! `--help` and `--version`: worth reading, on standard output, nothing else.

use tare_harness::tare;

#[test]
fn help_names_every_command() {
    let tare = tare!();
    let output = tare.call(["--help"]).ok().said_nothing();
    let commands = [
        "run",
        "exec",
        "cp",
        "attach",
        "ls",
        "logs",
        "stats",
        "inspect",
        "explain",
        "wait",
        "stop",
        "kill",
        "rm",
        "pause",
        "resume",
        "rename",
        "update",
        "vm",
        "doctor",
        "completion",
        "help",
        "version",
    ];
    for command in commands {
        assert!(output.stdout_text().contains(command), "{output}");
    }
}

#[test]
fn help_of_run_names_every_option_and_every_exit_code() {
    let tare = tare!();
    let output = tare.call(["run", "--help"]).ok().said_nothing();
    let text = output.stdout_text();
    let words = [
        "--timeout",
        "--memory",
        "--cpus",
        "--pids",
        "--nofile",
        "--scratch",
        "--output-limit",
        "--output-kill",
        "--env",
        "--env-file",
        "--workdir",
        "--user",
        "--volume",
        "--rootfs",
        "--net",
        "--contain",
        "--label",
        "--name",
        "--quiet",
        "--json",
        "--root",
        "--seccomp",
        "--detach",
        "--lease",
        "--rm",
        "--keep",
        "--retention",
        "124",
        "125",
        "126",
        "127",
    ];
    for word in words {
        assert!(text.contains(word), "{word} is missing:\n{text}");
    }
}

#[test]
fn help_of_every_command_has_an_example() {
    let tare = tare!();
    let commands = [
        "run", "exec", "cp", "attach", "ls", "logs", "stats", "inspect", "explain", "audit",
        "sweep", "wait", "stop", "kill", "rm", "pause", "resume", "rename", "update", "vm",
    ];
    for command in commands {
        let output = tare.call([command, "--help"]).ok().said_nothing();
        let example = format!("  tare {command} ");
        assert!(output.stdout_text().contains(&example), "{output}");
    }
}

#[test]
fn the_version_is_one_line() {
    let tare = tare!();
    let expected = format!("tare {} (debug build)\n", env!("CARGO_PKG_VERSION"));
    tare.call(["--version"]).ok().said_nothing().printed(&expected);
}

#[test]
fn help_and_version_are_commands_too() {
    let tare = tare!();
    for (word, option) in [
        (&["help"][..], &["--help"][..]),
        (&["help", "run"], &["run", "--help"]),
        (&["help", "ps"], &["ps", "--help"]),
        (&["help", "help"], &["help", "--help"]),
        (&["help", "vm", "kernel"], &["vm", "kernel", "--help"]),
        (&["help", "vm", "kernel", "use"], &["vm", "kernel", "use", "--help"]),
        (&["version"], &["--version"]),
    ] {
        let expected = tare.call(option).ok().stdout_text();
        tare.call(word).ok().said_nothing().printed(&expected);
    }
    let unknown = tare.call(["help", "rum"]).exited(2).printed("");
    unknown.said(&["unrecognized subcommand 'rum'", "did you mean run?"]);
    tare.call(["help", "run", "ls"]).exited(2).printed("").said(&["unexpected argument 'ls'"]);
    tare.call(["help", "vm", "lss"]).exited(2).said(&["did you mean 'tare vm kernel ls'?"]);
}

#[test]
fn help_goes_into_a_closed_pipe_without_a_panic() {
    let tare = tare!();
    let output = tare.shell("\"$TARE\" run --help | true");
    assert!(!output.stderr_text().contains("panicked"), "{output}");
}
