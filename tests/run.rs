//! `tare run`: a command in a fresh box, its exit code, its environment, who and
//! where it is.

use std::collections::BTreeSet;

use tare_harness::{Output, TemporaryDirectory, tare};

#[test]
fn hello_from_a_box() {
    let tare = tare!();
    tare.run(["--", "python3", "-c", "print('hello from a box')"])
        .ok()
        .printed("hello from a box\n")
        .said_nothing();
}

#[test]
fn options_end_where_the_command_begins() {
    let tare = tare!();
    tare.run(["echo", "--memory", "-v", "--"]).ok().printed("--memory -v --\n");
}

#[test]
fn the_exit_code_is_the_commands_own() {
    let tare = tare!();
    for code in [0, 1, 2, 42, 124, 125, 126, 127, 255] {
        tare.run(["--", "sh", "-c", &format!("exit {code}")]).exited(code).said_nothing();
    }
}

#[test]
fn a_command_that_a_signal_killed_ends_with_128_and_the_signal() {
    let tare = tare!();
    for (signal, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("HUP", 1), ("INT", 2)] {
        tare.run(["--", "sh", "-c", &format!("kill -{signal} $$")]).exited(128 + number);
    }
}

#[test]
fn a_file_that_is_not_executable_exits_with_126() {
    let tare = tare!();
    for path in ["/etc/passwd", "/usr"] {
        tare.run(["--", path]).exited(126).printed("").said(&[path]);
    }
}

#[test]
fn a_program_that_does_not_exist_ends_with_127() {
    let tare = tare!();
    for program in ["no-such-program", "/usr/bin/no-such-program", "./no-such-program"] {
        tare.run(["--", program]).exited(127).printed("").said(&["no-such-program"]);
    }
}

#[test]
fn the_hosts_environment_does_not_pass() {
    let tare = tare!();
    let mut command = tare.command(["run", "--", "env"]);
    command.env("SECRET", "of the host");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let keys: BTreeSet<&str> =
        text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    let own = ["HOME", "LANG", "PATH", "PIP_BREAK_SYSTEM_PACKAGES"];
    assert_eq!(keys, BTreeSet::from(own), "{text}");
}

#[test]
fn requested_variables_reach_the_command() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("env", "# a comment\nFROM_FILE=one=1\n\nBOTH=file\n");
    let output = tare
        .run([
            "--env-file",
            file.to_str().unwrap(),
            "-e",
            "BOTH=flag",
            "-e",
            "LINES=a\nb",
            "-e",
            "PATH=/usr/bin",
            "-e",
            "EMPTY=",
            "--",
            "python3",
            "-c",
            "import os; print([os.environ.get(k) for k in ('FROM_FILE','BOTH','LINES','PATH','EMPTY','HOME')])",
        ])
        .ok();
    let text = output.stdout_text();
    assert!(text.starts_with("['one=1', 'flag', 'a\\nb', '/usr/bin', '', '/"), "{text}");
}

#[test]
fn the_command_runs_in_the_requested_directory() {
    let tare = tare!();
    for directory in ["/tmp", "/usr/bin", "/"] {
        tare.run(["-w", directory, "--", "pwd"]).ok().printed(&format!("{directory}\n"));
    }
}

#[test]
fn the_working_directory_and_tmp_and_home_can_be_written_by_default() {
    let tare = tare!();
    let script = "echo a > here && echo b > /tmp/there && echo c > \"$HOME/home\" && cat here /tmp/there \"$HOME/home\"";
    tare.run(["--", "sh", "-c", script]).ok().printed("a\nb\nc\n");
}

#[test]
fn the_rest_of_the_root_cannot_be_written() {
    let tare = tare!();
    for directory in ["/", "/usr", "/usr/bin", "/etc", "/bin", "/lib"] {
        let script = format!("touch {directory}/written-by-a-box");
        assert_ne!(tare.run(["--", "sh", "-c", &script]).code, 0, "{directory}");
    }
}

#[test]
fn the_command_runs_as_an_ordinary_user_by_default() {
    let tare = tare!();
    tare.run(["--", "sh", "-c", "id -u; id -g; id -G"]).ok().printed("1000\n1000\n1000\n");
}
#[test]
fn the_command_runs_as_the_requested_user() {
    let tare = tare!();
    for (asked, uid, gid) in
        [("1234:2345", 1234, 2345), ("1:1", 1, 1), ("65533:65532", 65533, 65532)]
    {
        tare.run(["-u", asked, "--", "sh", "-c", "id -u; id -g; id -G"])
            .ok()
            .printed(&format!("{uid}\n{gid}\n{gid}\n"));
    }
    let output = tare.run(["-u", "1", "--", "id", "-u"]).ok();
    assert_eq!(output.stdout_text(), "1\n");
}

#[test]
fn the_hostname_is_the_boxs_own() {
    let tare = tare!();
    let host = hostname();
    let output = tare.run(["--", "uname", "-n"]).ok();
    let name = output.stdout_text();
    assert!(!name.trim().is_empty());
    assert_ne!(name.trim(), host, "{output}");
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("/proc is mounted");
    name.trim().to_owned()
}

#[test]
fn names_and_labels_are_accepted() {
    let tare = tare!();
    let options = ["--name", "web-1.a_b", "--label", "team=red", "--label", "empty="];
    tare.run(options.into_iter().chain(["--", "echo", "up"])).ok().printed("up\n").said_nothing();
}
#[test]
fn a_name_belongs_to_one_box_at_a_time() {
    let tare = tare!();
    let mut first = tare.spawn(["--name", "mine", "--", "sh", "-c", "echo up; read line"]);
    first.see("up");
    tare.run(["--name", "mine", "--", "true"]).exited(125).printed("").said(&["mine"]);
    first.write(b"\n");
    first.wait().ok();
    tare.run(["--name", "mine", "--", "true"]).ok();
}
#[test]
fn arguments_pass_verbatim() {
    let tare = tare!();
    let arguments = ["a b", "\"quoted\"", "$(id)", "*", "", "-x", "--", "é", "new\nline", "\\"];
    let mut call = vec!["--", "python3", "-c", "import sys; print(ascii(sys.argv[1:]))"];
    call.extend(arguments);
    let expected =
        "['a b', '\"quoted\"', '$(id)', '*', '', '-x', '--', '\\xe9', 'new\\nline', '\\\\']\n";
    tare.run(call).ok().printed(expected);
}

/// Only 0, 1 and 2 are open in a box (3 is the directory that `ls` reads).
#[test]
fn only_the_three_streams_are_open() {
    let tare = tare!();
    tare.shell("exec 7</dev/null 9</etc/hostname; exec \"$TARE\" run -- ls /proc/self/fd")
        .ok()
        .printed("0\n1\n2\n3\n");
}

/// What `--json` prints instead of the two streams.
#[track_caller]
fn report(output: &Output) -> serde_json::Value {
    assert!(output.stdout_text().ends_with("}\n"), "{output}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

#[test]
fn json_says_how_it_ended() {
    let tare = tare!();
    let script = "echo out; echo err >&2; exit 3";
    let output =
        tare.run(["--json", "--name", "web", "--", "sh", "-c", script]).exited(3).said_nothing();
    let report = report(&output);
    assert_eq!(report["exit_code"], 3);
    assert_eq!(report["signal"], serde_json::Value::Null);
    assert_eq!(report["cause"], "exited");
    assert_eq!(report["name"], "web");
    assert_eq!(report["stdout"], "out\n");
    assert_eq!(report["stderr"], "err\n");
    for unset in ["oom", "truncated"] {
        assert_eq!(report[unset], false, "{unset}");
    }
    assert_eq!(report["id"].as_str().map(str::len), Some(12));
    assert!(report["duration_ms"].is_u64());
}

/// The box is gone by then, and has no name. Without its id, no history could be found.
#[test]
fn the_note_about_the_end_of_a_box_names_the_box() {
    let tare = tare!();
    let output = tare.run(["--timeout", "300ms", "--", "sleep", "1000"]).exited(124);
    let text = output.stderr_text();
    let named = text.split_once("See 'tare explain ").and_then(|(_, rest)| rest.split_once('\''));
    let (id, _) = named.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(tare.json(["explain", id, "--json"])["cause"], "timeout");
    let quiet = ["--quiet", "--timeout", "300ms", "--", "sleep", "1000"];
    tare.run(quiet).exited(124).said_nothing();
    tare.run(["--", "false"]).exited(1).said_nothing();
}

#[test]
fn json_tells_the_ways_to_end_apart() {
    let tare = tare!();
    let killed = report(&tare.run(["--json", "--", "sh", "-c", "kill -9 $$"]).exited(137));
    assert_eq!((&killed["exit_code"], &killed["signal"]), (&137.into(), &9.into()));
    assert_eq!((&killed["cause"], &killed["oom"]), (&"signalled".into(), &false.into()));
    let late = tare.run(["--json", "--timeout", "300ms", "--", "sleep", "1000"]);
    let late = report(&late.exited(124));
    assert_eq!(late["cause"], "timeout");
    for ended in [&killed, &late] {
        let id = ended["id"].as_str().expect("an id");
        let explained = tare.json(["explain", id, "--json"]);
        assert_eq!(ended["sentence"], explained["sentence"], "{ended}");
    }
    let hungry = "held = [b'x' * 1048576 for _ in range(1024)]";
    let hungry = tare.run(["--json", "--memory", "64m", "--", "python3", "-c", hungry]);
    assert_eq!(report(&hungry.exited(137))["cause"], "memory");
    let loud = ["--json", "--output-limit", "1m", "--", "head", "-c", "2000000", "/dev/zero"];
    let loud = report(&tare.run(loud).ok());
    assert_eq!(loud["truncated"], true);
    assert_eq!(loud["stdout"].as_str().map(str::len), Some(1 << 20));
}
#[test]
fn json_stays_json_whatever_is_printed() {
    let tare = tare!();
    let script = "import os; os.write(1, bytes(range(256))); os.write(2, b'\\\"\\n\\xff')";
    let output = tare.run(["--json", "--", "python3", "-c", script]).ok();
    let report = report(&output);
    let text = report["stdout"].as_str().unwrap();
    assert!(text.starts_with("\0\u{1}") && text.contains('\u{fffd}'), "{text:?}");
    assert_eq!(report["stderr"], "\"\n\u{fffd}");
}

#[test]
fn json_does_not_change_error_messages() {
    let tare = tare!();
    tare.run(["--json", "--cpus", "NaN", "--", "true"]).exited(125).printed("").said(&["--cpus"]);
    tare.run(["--json", "--", "no-such-program"]).exited(127).said(&["no-such-program"]);
}

#[test]
fn a_run_that_could_not_start_names_its_box_and_its_cause() {
    let tare = tare!();
    let ran = tare.run(["--json", "--", "no-such-program"]).exited(127);
    let report = report(&ran);
    assert_eq!((&report["exit_code"], &report["cause"]), (&127.into(), &"start_failed".into()));
    let id = report["id"].as_str().expect("an id");
    assert_eq!(report["sentence"], tare.json(["explain", id, "--json"])["sentence"]);
    ran.said(&["no-such-program", &format!("See 'tare explain {id}'.")]);
}

/// Root often has one that shows nothing to others; the box's user is such another.
#[test]
fn the_callers_umask_is_not_the_boxs() {
    let tare = tare!();
    for umask in ["077", "0777", "0"] {
        let script = format!(
            "umask {umask}; exec \"$TARE\" run -- sh -c 'id -un; umask; touch x; stat -c %a x / /etc /etc/passwd /tmp /work'"
        );
        tare.shell(&script)
            .ok()
            .printed("box\n0022\n644\n755\n755\n644\n1777\n755\n")
            .said_nothing();
    }
}

#[test]
fn a_removed_current_directory_matters_only_for_relative_paths() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let gone = |call: &str| {
        let path = directory.text();
        let script = format!(
            "mkdir {path}/gone; cd {path}/gone; rmdir {path}/gone; exec \"$TARE\" run {call}"
        );
        tare.shell(&script)
    };
    gone("-- echo fine").ok().printed("fine\n");
    gone("-v /usr/share:/data -- echo fine").ok().printed("fine\n");
    for needs_it in ["-v data:/data -- true", "--rootfs root -- true", "--contain -- true"] {
        gone(needs_it).exited(125).said(&["current directory"]);
    }
}

#[test]
fn a_low_descriptor_limit_is_named_in_the_error() {
    let tare = tare!();
    for files in [10, 16, 20] {
        tare.shell(&format!("ulimit -n {files}; exec \"$TARE\" run -- true"))
            .exited(125)
            .said(&["ulimit -n 256"]);
    }
    tare.shell("ulimit -n 256; exec \"$TARE\" run -- true").ok();
}
