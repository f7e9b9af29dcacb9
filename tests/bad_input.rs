//! Bad input: one line that says what, of what and why, exit code 125, nothing
//! made. (126 and 127 where it is the command that is wrong.)

use tare_harness::{Tare, TemporaryDirectory, fixture, skip, tare};

/// `tare run ARGS` is refused with one line that mentions all of these.
#[track_caller]
fn refused(tare: &Tare, args: &[&str], mentions: &[&str]) {
    refused_with(tare, 125, args, mentions);
}

#[track_caller]
fn refused_with(tare: &Tare, code: i32, args: &[&str], mentions: &[&str]) {
    let output = tare.run(args).exited(code).printed("").said(mentions);
    let line = output.stderr_text();
    assert!(line.starts_with("tare: "), "{output}");
    assert!(!line.contains("panicked"), "{output}");
}

#[test]
fn no_command_is_refused() {
    let tare = tare!();
    refused(&tare, &[], &["COMMAND"]);
    refused(&tare, &["--"], &["COMMAND"]);
    refused(&tare, &["--memory", "64m"], &["COMMAND"]);
}
#[test]
fn a_name_that_could_be_mistaken_for_something_else_is_refused() {
    let tare = tare!();
    let long = "x".repeat(64);
    let longer = "x".repeat(5000);
    let names = [
        "",
        ".",
        "..",
        "../x",
        "-rf",
        "a/b",
        "a b",
        "a\n",
        "é",
        "%2e%2e",
        "_a",
        "\u{1b}[31m",
        &long,
        &longer,
    ];
    for name in names {
        refused(&tare, &[&format!("--name={name}"), "--", "true"], &["name"]);
    }
    let longest = "x".repeat(63);
    tare.run(["--name", &longest, "--", "true"]).ok();
}

/// Numbers that are none, for every option that takes one.
#[test]
fn an_invalid_number_is_refused_and_named() {
    let tare = tare!();
    let options =
        ["--memory", "--cpus", "--pids", "--nofile", "--timeout", "--scratch", "--output-limit"];
    let values = [
        "0",
        "-1",
        "NaN",
        "nan",
        "Infinity",
        "inf",
        "1e400",
        "",
        "true",
        "banana",
        "0x10",
        "1_000",
        "١",
        " 1",
        "9223372036854775808",
        "18446744073709551616",
        "99999999999999999999999999",
    ];
    for option in options {
        for value in values {
            refused(&tare, &[&format!("{option}={value}"), "--", "true"], &[option, value]);
        }
    }
}

#[test]
fn a_number_with_a_foreign_unit_is_refused() {
    let tare = tare!();
    for (option, value) in [
        ("--memory", "64q"),
        ("--memory", "64 m"),
        ("--memory", "1.5.2g"),
        ("--timeout", "5 parsecs"),
        ("--timeout", "5"),
        ("--cpus", "1m"),
        ("--pids", "10k"),
    ] {
        let value_is_legal_elsewhere = option == "--timeout" && value == "5";
        let call = [&format!("{option}={value}"), "--", "true"];
        if value_is_legal_elsewhere {
            // Seconds without a unit may be taken or refused, never misread.
            let output = tare.run(call);
            assert!([0, 125].contains(&output.code), "{output}");
        } else {
            refused(&tare, &call, &[option, value]);
        }
    }
}
#[test]
fn memory_that_no_box_can_live_with_is_refused_with_the_least() {
    let tare = tare!();
    for value in ["1", "10", "4096", "4k", "100k"] {
        refused(&tare, &["--memory", value, "--", "true"], &["--memory", value]);
    }
}

#[test]
fn too_few_processes_or_descriptors_are_refused_or_work() {
    let tare = tare!();
    for (option, value) in [("--pids", "1"), ("--pids", "2"), ("--nofile", "1"), ("--nofile", "3")]
    {
        let output = tare.run([option, value, "--", "echo", "up"]);
        // Never a box that cannot start without a word why.
        assert!(
            output.code == 0 && output.stdout_text() == "up\n"
                || !output.stderr.is_empty() && output.code >= 125,
            "{output}"
        );
    }
}
#[test]
fn an_option_that_can_have_one_value_is_refused_twice() {
    let tare = tare!();
    for (option, value) in [
        ("--memory", "64m"),
        ("--cpus", "1"),
        ("--timeout", "5s"),
        ("--name", "a"),
        ("--rootfs", "/"),
        ("--net", "none"),
    ] {
        refused(&tare, &[option, value, option, value, "--", "true"], &[option]);
    }
}
#[test]
fn an_unknown_option_is_refused_with_the_nearest_known() {
    let tare = tare!();
    refused(&tare, &["--memroy", "64m", "--", "true"], &["--memroy", "--memory"]);
    refused(&tare, &["--timeuot=5s", "--", "true"], &["--timeuot", "--timeout"]);
    refused(&tare, &["-Z", "--", "true"], &["-Z"]);
}

#[test]
fn an_unknown_choice_is_refused_with_the_known() {
    let tare = tare!();
    refused(&tare, &["--net", "bridge", "--", "true"], &["bridge", "none", "host"]);
    refused(&tare, &["--seccomp", "off", "--", "true"], &["off", "unconfined"]);
}

#[test]
fn a_missing_value_is_refused() {
    let tare = tare!();
    refused(&tare, &["--memory"], &["--memory"]);
    refused(&tare, &["-v"], &["-v"]);
}
#[test]
fn an_invalid_variable_is_refused() {
    let tare = tare!();
    for variable in ["NO_EQUALS", "=value", "", "A\nB=c"] {
        refused(&tare, &["-e", variable, "--", "true"], &["variable"]);
    }
}

/// A shell cannot pass a NUL, a file can.
#[test]
fn an_invalid_environment_file_is_refused() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let contents: [(&str, &[u8]); 3] =
        [("nul", b"A=b\0c\n"), ("key", b"=x\n"), ("bare", b"A=1\nB\n")];
    for (name, content) in contents {
        let file = directory.write(name, content);
        let file = file.to_str().unwrap();
        refused(&tare, &["--env-file", file, "--", "true"], &[file]);
    }
    refused(&tare, &["--env-file", "/no/such/file", "--", "true"], &["/no/such/file"]);
    refused(&tare, &["--env-file", directory.text(), "--", "true"], &[directory.text()]);
}
#[test]
fn more_variables_than_a_program_can_take_are_refused() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let text: String = (0..100_000).map(|n| format!("KEY_{n}={}\n", "v".repeat(24))).collect();
    let file = directory.write("env", text);
    refused(&tare, &["--env-file", file.to_str().unwrap(), "--", "true"], &["too l"]);
}

/// One string of an environment may have 128 KiB (`MAX_ARG_STRLEN`).
#[test]
fn one_variable_that_is_too_long_is_refused() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("env", format!("A={}\n", "v".repeat(200_000)));
    refused(&tare, &["--env-file", file.to_str().unwrap(), "--", "true"], &["too l"]);
}
#[test]
fn a_home_with_a_line_break_is_refused() {
    let tare = tare!();
    refused(&tare, &["-e", "HOME=/\nroot2::0:0::/:", "--", "true"], &["HOME"]);
    let output = tare.run(["--", "cat", "/etc/passwd"]).ok();
    assert!(!output.stdout_text().contains("root2"), "{output}");
}
#[test]
fn an_empty_program_is_refused() {
    let tare = tare!();
    let output = tare.run(["--", ""]).printed("").said(&["tare: "]);
    assert!([125, 127].contains(&output.code), "{output}");
}
#[test]
fn a_hundred_thousand_arguments_pass_or_are_refused_in_words() {
    let tare = tare!();
    let mut call = vec!["--", "sh", "-c", "echo $#"];
    call.resize(call.len() + 100_000, "x");
    let output = tare.run(call);
    match output.code {
        0 => assert_eq!(output.stdout_text(), "99999\n"),
        code => {
            assert_eq!(code, 125, "exit code");
            output.said(&["tare: "]);
        }
    }
}
#[test]
fn an_invalid_working_directory_is_refused_and_named() {
    let tare = tare!();
    for directory in ["/no/such/directory", "/etc/passwd", "relative", ""] {
        refused(&tare, &["-w", directory, "--", "true"], &[directory]);
    }
}
#[test]
fn a_working_directory_behind_a_descriptor_is_refused() {
    let tare = tare!();
    for number in 3..12 {
        let directory = format!("/proc/self/fd/{number}");
        let output = tare.run(["-w", &directory, "--", "pwd"]);
        assert_eq!(output.code, 125, "{output}");
    }
}
#[test]
fn an_invalid_user_is_refused() {
    let tare = tare!();
    for user in [
        "4294967296",
        "4294967295",
        "2147483648",
        "65536",
        "1:65536",
        "+0",
        " 0",
        "0x0",
        "1:2:3",
        "-1",
        "root",
        "",
        ":",
        "1:",
        ":1",
        "1.0",
        "1:x",
        "٣",
    ] {
        refused(&tare, &[&format!("--user={user}"), "--", "true"], &[user]);
    }
}

#[test]
fn a_volume_that_does_not_exist_is_refused_and_named() {
    let tare = tare!();
    refused(&tare, &["-v", "/nope:/x", "--", "true"], &["/nope"]);
    refused(&tare, &["-v", "/nope:/x:ro", "--", "true"], &["/nope"]);
}

/// Users of docker write the name of an image first.
#[test]
fn an_image_in_place_of_a_program_is_refused_with_what_a_box_sees() {
    let tare = tare!();
    for image in ["alpine", "python:3.12-slim", "docker.io/library/alpine"] {
        tare.run([image, "sh"]).exited(127).said(&[image, "a box has no image", "--rootfs"]);
    }
}

#[test]
fn an_invalid_volume_is_refused() {
    let tare = tare!();
    for volume in [
        "",
        ":",
        "/tmp",
        "/tmp:",
        ":/x",
        "no-such-directory:/x",
        "/tmp:x",
        "/tmp:/x:",
        "/tmp:/x:wx",
        "/tmp:/x:ro:ro",
        "/tmp:/",
        "/tmp:/..",
    ] {
        refused(&tare, &["-v", volume, "--", "true"], &["-v"]);
    }
}
#[test]
fn a_volume_behind_a_symbolic_link_is_refused() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    std::os::unix::fs::symlink("/etc", directory.join("link")).unwrap();
    let volume = format!("{}/link:/x", directory.text());
    refused(&tare, &["-v", &volume, "--", "true"], &["link"]);
    let volume = format!("{}/link/ssl:/x", directory.text());
    refused(&tare, &["-v", &volume, "--", "true"], &["link"]);
}

#[test]
fn two_volumes_at_one_place_are_refused() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let volume = format!("{}:/x", directory.text());
    refused(&tare, &["-v", &volume, "-v", &volume, "--", "true"], &["/x"]);
}

#[test]
fn an_invalid_root_directory_is_refused_and_named() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("file", "");
    for root in ["/no/such/root", file.to_str().unwrap(), ""] {
        refused(&tare, &["--rootfs", root, "--", "true"], &[root]);
    }
}

#[test]
fn a_root_directory_without_the_program_ends_with_127() {
    let tare = tare!();
    let empty = TemporaryDirectory::new();
    refused_with(&tare, 127, &["--rootfs", empty.text(), "--", "/bin/sh"], &["/bin/sh"]);
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    refused_with(&tare, 127, &["--rootfs", root.text(), "--", "python3"], &["python3"]);
}

#[test]
fn an_invalid_label_is_refused() {
    let tare = tare!();
    for label in ["no-equals", "=x", ""] {
        refused(&tare, &["--label", label, "--", "true"], &["label"]);
    }
}

#[test]
fn output_for_people_shows_no_raw_control_characters() {
    let tare = tare!();
    let output =
        tare.run(["-v", "/nope\u{1b}[31m\u{7}:/x", "--", "true"]).exited(125).said(&["/nope"]);
    assert!(!output.stderr.contains(&0x1b) && !output.stderr.contains(&7), "{output}");
}

#[test]
fn a_state_root_that_cannot_be_used_is_named() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("file", "");
    let mut command = tare.command(["run", "--", "true"]);
    let output = command.env("TARE_STATE_ROOT", &file).output().unwrap();
    let line = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{line}");
    assert!(line.contains(file.to_str().unwrap()), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
}

#[test]
fn a_state_root_below_a_missing_directory_is_an_error_that_names_it() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let missing = directory.join("missing");
    let root = missing.join("root").display().to_string();
    let said = format!("there is no directory {} (make that first", missing.display());
    for (args, code) in [(&["ls"][..], 1), (&["run", "--", "true"], 125)] {
        let args = ["--state-root", &root].into_iter().chain(args.iter().copied());
        tare.call(args).exited(code).said(&[&root, &said]);
    }
    assert!(!missing.exists());
}

#[test]
fn unknown_subcommand_exits_2() {
    let tare = tare!();
    let output = tare.call(["rnu", "--", "true"]).exited(2).printed("");
    assert!(output.stderr_text().contains("rnu"), "{output}");
    tare.call(["--no-such-option"]).exited(2);
}

#[test]
fn a_command_in_one_word_gets_a_hint_about_words() {
    let tare = tare!();
    let output = tare.run(["--", "echo hi"]).exited(127);
    output.said(&["cannot run 'echo hi' in the box", "separate words"]);
}
