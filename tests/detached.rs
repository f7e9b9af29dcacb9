//! `tare run -d`: detached boxes, from their start to what tare keeps after their end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tare_harness::skip::has_program;
use tare_harness::{
    Output, Process, Tare, TemporaryDirectory, eventually, in_boxes, skip, tare, unix_now,
    unix_seconds,
};

fn names(processes: &[Process]) -> Vec<&str> {
    processes.iter().map(|one| one.name.as_str()).collect()
}

/// Their records were read up to their first megabyte.
#[test]
fn a_box_with_more_than_a_megabyte_of_arguments_is_like_any_other() {
    let tare = tare!();
    let argument = "A".repeat(100_000);
    let arguments = std::iter::repeat_n(argument.as_str(), 11);
    let words = ["--name", "a", "--lease", "1h", "--", "sh", "-c", "sleep 1000"];
    let id = tare.detached(words.into_iter().chain(arguments));
    assert_eq!(tare.listed(&id).expect("it is listed")["name"], "a");
    assert_eq!(tare.state(&id), "running");
    tare.exec("a", ["true"]).ok();
    let table = tare.call(["ls"]).ok().stdout_text();
    assert!(table.contains("sleep 1000") && table.len() < 10_000, "{} bytes", table.len());
    tare.call(["audit"]).ok();
    tare.remove("a");
}

/// LibreChat renews the lease of a session with every execution.
#[test]
fn a_lease_that_is_renewed_hundreds_of_times_keeps_the_record_short() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--pids", "20", "--", "sleep", "1000"]);
    tare.call(["update", "--pids", "30", "a"]).ok();
    for _ in 0..200 {
        tare.call(["update", "--lease", "1s", "a"]).ok();
    }
    tare.call(["update", "--lease", "1h", "a"]).ok();
    let record = fs::metadata(tare.state_root().join("boxes").join(&id).join("record.json"));
    assert!(record.expect("a file").len() < 32 << 10);
    let inspected = tare.call(["inspect", "a"]).ok().stdout_text();
    let inspected: Value = serde_json::from_str(&inspected).expect("JSON");
    assert_eq!(inspected[0]["spec"]["limits"]["pids"], 30, "{inspected}");
    tare_harness::let_pass(Duration::from_secs(1));
    assert_eq!(tare.state(&id), "running", "the last lease counts");
    tare.remove("a");
}

/// The program is there under its own name: its `execve` has happened.
#[test]
fn detached_run_prints_the_id_when_the_command_runs() {
    let tare = tare!();
    for _ in 0..10 {
        let id = tare.idle_box();
        assert_eq!(names(&tare.workload(&id)), ["sleep"]);
        assert_eq!(tare.state(&id), "running");
        tare.remove(&id);
    }
    tare.nothing_left();
}

#[test]
fn a_box_whose_id_cannot_be_printed_is_removed() {
    let tare = tare!();
    let script = "\"$TARE\" run -d -- sleep 1000 > /dev/full";
    tare.shell(script).exited(125).said(&["No space left on device"]);
    tare.nothing_left();
}

#[test]
fn json_prints_the_id_and_the_name() {
    let tare = tare!();
    let named = tare.json(["run", "-d", "--json", "--name", "web", "--", "sleep", "1000"]);
    let unnamed = tare.json(["run", "-d", "--json", "--", "sleep", "1000"]);
    assert_eq!(named["name"], "web");
    assert_eq!(unnamed["name"], Value::Null);
    let ids = [&named, &unnamed].map(|it| it["id"].as_str().expect("an id").to_owned());
    assert_ne!(ids[0], ids[1]);
    ids.iter().for_each(|id| tare.remove(id));
}

/// The test checks before another tare command could clean up.
#[test]
fn a_failed_start_is_an_error_and_leaves_nothing() {
    let tare = tare!();
    let starts: [(i32, &[&str], &str); 6] = [
        (127, &["--", "no-such-program"], "no-such-program"),
        (127, &["--", "/usr/bin/no-such"], "/usr/bin/no-such"),
        (126, &["--", "/etc/passwd"], "/etc/passwd"),
        (125, &["-w", "/no/such", "--", "true"], "/no/such"),
        (125, &["--rootfs", "/no/such", "--", "true"], "/no/such"),
        (125, &["--memory", "x", "--", "true"], "--memory"),
    ];
    for (code, args, mention) in starts {
        let call = ["-d", "--name", "a"].iter().chain(args);
        tare.run(call).exited(code).printed("").said(&[mention]);
        tare.nothing_left();
    }
    assert_eq!(tare.list(), [] as [Value; 0]);
}

/// The caller's session, its terminal and its pipes are not the box's.
#[test]
fn a_box_holds_nothing_of_its_caller() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let script =
        format!("exec 7>{}/held; setsid \"$TARE\" run -d -- sleep 1000 | cat", directory.text());
    // The harness fails the test if a process still holds the pipes.
    let output = tare.spawn_script(&script).wait().ok();
    let id = output.stdout_text().trim().to_owned();
    for process in tare.processes_in(&id) {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", process.pid)).unwrap();
        for descriptor in descriptors.flatten() {
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            assert!(!target.ends_with("held"), "{process:?} holds {target:?}");
        }
    }
    tare.remove(&id);
}

/// Either a complete box is listed, or nothing is left.
#[test]
fn a_creator_killed_during_start_leaves_a_complete_box_or_none() {
    let tare = tare!();
    let (mut whole, mut nothing) = (0, 0);
    for step in 0..80 {
        let creator = tare.spawn_call(["run", "-d", "--name", "a", "--", "sleep", "1000"]);
        tare_harness::let_pass(Duration::from_micros(300 * step));
        creator.signal(Signal::KILL);
        let printed = creator.wait().stdout_text().trim().to_owned();
        eventually("a box is listed as running, or none is", || {
            tare.list().iter().all(|one| one["state"] == "running")
        });
        match tare.list().as_slice() {
            [] => {
                assert_eq!(printed, "", "a box was promised and is not there");
                nothing += 1;
            }
            [one] => {
                let id = one["id"].as_str().expect("an id");
                assert!(printed.is_empty() || printed == id, "{printed} and {one}");
                tare.exec("a", ["true"]).ok();
                tare.remove(id);
                whole += 1;
            }
            more => panic!("one call made {more:?}"),
        }
        tare.nothing_left();
    }
    assert!(nothing > 0, "{whole} boxes, {nothing} times nothing");
}

#[test]
fn a_box_with_rm_is_removed_when_it_ends() {
    let tare = tare!();
    let id = tare.detached(["--rm", "--name", "a", "--", "sh", "-c", "exit 3"]);
    eventually("it is not listed", || tare.listed(&id).is_none());
    tare.assert_gone(&id);
    tare.nothing_left();
    let id = tare.detached(["--rm", "--name", "a", "--", "sleep", "1000"]);
    tare.call(["stop", "-t", "0", "a"]).ok().printed("a\n");
    assert_eq!(tare.listed(&id), None);
    tare.nothing_left();
}

#[test]
fn a_name_that_is_taken_is_refused_until_its_box_is_removed() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    for call in [&["-d", "--name", "a", "--", "true"][..], &["--name", "a", "--", "true"]] {
        tare.run(call).exited(125).printed("").said(&["the name a is taken"]);
    }
    assert_eq!(tare.state(&id), "running");
    tare.remove(&id);
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    tare.remove(&id);
}

#[test]
fn the_lease_ends_a_box_whose_command_is_stopped() {
    let tare = tare!();
    let id = tare.detached(["--lease", "1s", "--", "sh", "-c", "kill -STOP $$"]);
    eventually("everyone in the box is gone", || tare.processes_in(&id).is_empty());
    tare.remove(&id);
}

#[test]
fn invalid_leases_and_retentions_are_refused() {
    let tare = tare!();
    for option in ["--lease", "--retention"] {
        for value in ["", "-1s", "x", "1e400", "NaN", "1y", "18446744073709551616"] {
            tare.run(["-d", option, value, "--", "true"]).exited(125).printed("").said(&[option]);
            tare.nothing_left();
        }
    }
    tare.run(["-d", "--lease", "0", "--", "true"]).exited(125).printed("").said(&["--lease"]);
}

#[test]
fn a_box_that_has_ended_is_kept_for_its_retention() {
    let tare = tare!();
    let started = Instant::now();
    let id = tare.detached(["--retention", "1s", "--name", "a", "--", "true"]);
    tare.ended(&id);
    eventually("it is not listed", || tare.listed(&id).is_none());
    assert!(started.elapsed() >= Duration::from_secs(1));
    tare.assert_gone(&id);
    tare.nothing_left();
}

#[test]
fn an_ended_box_keeps_exit_code_log_and_record_and_nothing_else() {
    let tare = tare!();
    let script = "echo out; echo err >&2; setsid sleep 1000 & exit 7";
    let id = tare.detached(["--name", "a", "--", "sh", "-c", script]);
    eventually("everyone in the box is gone", || tare.processes_in(&id).is_empty());
    let ended = tare.ended(&id);
    assert_eq!(ended["exit_code"], 7, "{ended}");
    assert_eq!(ended["cause"], "exited", "{ended}");
    assert_eq!(ended["oom"], false, "{ended}");
    assert_eq!((&ended["pids"], &ended["memory_bytes"]), (&Value::Null, &Value::Null));
    let ended_at = unix_seconds(ended["ended_at"].as_str().expect("a time"));
    assert!((ended_at - unix_now()).abs() <= 10, "{ended}");
    let only_the_record = |line: &String| {
        line.contains(&format!("boxes/{id}"))
            || line.ends_with("/names/-")
            || line.ends_with("/names/-/a")
    };
    let left = tare.difference_now();
    assert!(left.iter().all(only_the_record), "{}", left.join("\n"));
    tare.call(["logs", "a"]).ok().printed("out\n").said(&["err"]);
    tare.call(["wait", "a"]).ok().printed("7\n");
    tare.call(["rm", "a"]).ok().printed("a\n");
    tare.nothing_left();
}

#[test]
fn inspect_reports_how_a_box_ended() {
    let tare = tare!();
    let hungry = "held = [b'x' * 1048576 for _ in range(1024)]";
    let cases: [(&[&str], &str, i64, bool); 5] = [
        (&["--", "sh", "-c", "kill -9 $$"], "signalled", 137, false),
        (&["--timeout", "500ms", "--", "sleep", "1000"], "timeout", 124, false),
        (&["--memory", "64m", "--", "python3", "-c", hungry], "memory", 137, true),
        (&["--lease", "500ms", "--", "sleep", "1000"], "lease", 0, false),
        (&["--output-limit", "1m", "--output-kill", "--", "yes"], "output_limit", 0, false),
    ];
    for (args, cause, code, oom) in cases {
        let id = tare.detached(args);
        let ended = tare.ended(&id);
        assert_eq!(ended["cause"], cause, "{ended}");
        assert_eq!(ended["oom"], oom, "{ended}");
        // What a lease and a flood end has no code of its own that is promised.
        if code != 0 {
            assert_eq!(ended["exit_code"], code, "{ended}");
        }
        tare.remove(&id);
    }
}

#[test]
fn the_input_of_a_detached_box_is_empty_by_default() {
    let tare = tare!();
    let id = tare.detached(["--", "cat"]);
    assert_eq!(tare.ended(&id)["exit_code"], 0);
    tare.remove(&id);
    let id = tare.detached(["-i", "--", "sh", "-c", "echo ready; cat"]);
    tare.logged(&id, "ready");
    eventually("it reads its input", || names(&tare.workload(&id)).contains(&"cat"));
    assert_eq!(tare.state(&id), "running");
    tare.remove(&id);
}

#[test]
fn a_detached_box_gets_a_terminal_on_request() {
    let tare = tare!();
    let script = "tty; test -t 0 && test -t 1 && test -t 2 && echo all three; sleep 1000";
    let id = tare.detached(["-t", "--", "sh", "-c", script]);
    tare.logged(&id, "all three");
    let log = tare.call(["logs", &id]).ok().stdout_text();
    assert!(log.contains("/dev/pts/"), "{log:?}");
    tare.remove(&id);
}

#[test]
fn only_its_owner_can_read_a_record() {
    let tare = tare!();
    let secret = format!("s3cret-{}", std::process::id());
    let variable = format!("TOKEN={secret}");
    let id = tare.detached(["-e", &variable, "--", "sh", "-c", "echo up; sleep 1000"]);
    tare.logged(&id, "up");
    let mode = |path: &Path| path.symlink_metadata().unwrap().permissions().mode() & 0o777;
    for directory in [tare.state_root(), tare.state_root().join("boxes"), tare.record(&id)] {
        assert_eq!(mode(&directory), 0o700, "{}", directory.display());
    }
    for entry in fs::read_dir(tare.record(&id)).unwrap().flatten() {
        let path = entry.path();
        assert_eq!(mode(&path) & 0o177, 0, "{}", path.display());
    }
    for (path, bytes) in tare.record_files(&id) {
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(&secret), "{} has a secret", path.display());
    }
    tare.remove(&id);
}

/// `tare ARGS` with one kind of system call failing.
#[track_caller]
fn with_failing(tare: &Tare, inject: &str, args: &[&str]) -> Output {
    let mut command = tare.shell_command("exec strace -o /dev/null -e \"$@\"");
    command.arg("sh").arg(format!("inject={inject}")).arg("--");
    command.arg(tare.program()).args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    tare.start_command(command).wait()
}

/// Returns which `fcntl` calls of `tare ARGS` duplicate a descriptor.
fn duplications(tare: &Tare, args: &[&str]) -> Vec<usize> {
    let directory = TemporaryDirectory::new();
    let trace = directory.join("trace");
    let mut command = tare.shell_command("exec strace -e trace=fcntl -o \"$@\"");
    command.arg("sh").arg(&trace).arg("--");
    command.arg(tare.program()).args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    tare.start_command(command).wait().ok();
    let trace = fs::read_to_string(trace).expect("strace wrote it");
    let lines = trace.lines().zip(1..);
    let duplicates = lines.filter(|(line, _)| line.contains("F_DUPFD_CLOEXEC"));
    duplicates.map(|(_, number)| number).collect()
}

#[test]
fn a_start_without_free_descriptors_leaves_no_box() {
    let tare = tare!();
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    let clear = || {
        tare.call(["rm", "-f", "--all"]).ok();
        tare.reap_orphans();
    };
    let call = ["run", "-d", "--", "sleep", "1000"];
    let numbers = duplications(&tare, &call);
    clear();
    assert!(!numbers.is_empty());
    for number in numbers {
        let inject = format!("fcntl:error=EMFILE:when={number}");
        let output = with_failing(&tare, &inject, &call);
        let listed = tare.list();
        match output.code {
            0 => assert_eq!(listed.len(), 1, "call {number}: {output}"),
            _ => assert_eq!(listed.len(), 0, "call {number}: {output}"),
        }
        clear();
    }
}

#[test]
fn a_failed_roll_back_does_not_hide_why_the_box_could_not_be_created() {
    let tare = tare!();
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    let call = ["run", "-d", "--", "no-such-program"];
    let output = with_failing(&tare, "unlinkat:error=EIO", &call).exited(127);
    output.said(&["no-such-program", "there is no such program", "cannot remove"]);
    tare.call(["rm", "-f", "--all"]).ok();
    tare.reap_orphans();
}

/// The creator is stopped between the start of the command and the detachment. The
/// command has ended, and what it left in the background has the box's deadline.
#[test]
fn a_box_whose_creator_is_stopped_ends_with_its_timeout() {
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    let tare = tare!();
    // The signal follows the second message, the go; the third asks to detach.
    let stop = "inject=sendmsg:signal=STOP:when=2";
    let mut command = tare.shell_command("exec strace -o /dev/null -e trace=sendmsg -e \"$@\"");
    command.args(["sh", stop, "--"]).arg(tare.program());
    command.args(["run", "-d", "--timeout", "2s", "--", "sh", "-c", "sleep 1000 & true"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let tracer = tare.start_command(command);
    let mut creator = None;
    let lives = |creator: i32| in_boxes(creator.unsigned_abs());
    eventually("a background process is left, and the creator stopped", || {
        creator = stopped_child(tracer.pid());
        creator.is_some_and(|creator| lives(creator) == 2)
    });
    let creator = creator.expect("it was seen");
    eventually("the box has ended", || lives(creator) == 0);
    let creator = Pid::from_raw(creator).expect("a process");
    kill_process(creator, Signal::CONT).unwrap();
    assert_eq!(tracer.wait().code, 125);
    tare.nothing_left();
}

/// A child of this process that a signal has stopped.
fn stopped_child(pid: u32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let child = children.split_whitespace().next()?.parse().ok()?;
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    matches!(state, 'T' | 't').then_some(child)
}

/// The child of a process that has executed its program, or `None` if the process has ended.
fn keeper_of_creator(creator: u32) -> Option<Pid> {
    loop {
        let stat = fs::read_to_string(format!("/proc/{creator}/stat")).ok()?;
        if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')) {
            return None;
        }
        let children = format!("/proc/{creator}/task/{creator}/children");
        let children = fs::read_to_string(children).unwrap_or_default();
        for child in children.split_whitespace() {
            let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            if !line.is_empty() && !line.windows(4).any(|it| it == b"\0run") {
                return child.parse().ok().and_then(Pid::from_raw);
            }
        }
    }
}

#[test]
fn a_detached_run_ends_at_a_signal_while_its_keeper_is_stopped() {
    let tare = tare!();
    for _ in 0..50 {
        let creator = tare.spawn_call(["run", "-d", "--quiet", "--", "sleep", "1000"]);
        let Some(keeper) = keeper_of_creator(creator.pid()) else {
            tare.remove(creator.wait().ok().stdout_text().trim());
            continue;
        };
        kill_process(keeper, Signal::STOP).ok();
        // The moment is the input: a creator that still waits now waits for its keeper.
        tare_harness::let_pass(Duration::from_millis(200));
        let has_ended = keeper_of_creator(creator.pid()).is_none();
        if has_ended {
            tare.remove(creator.wait().ok().stdout_text().trim());
            continue;
        }
        creator.signal(Signal::TERM);
        let output = creator.wait().exited(143).printed("");
        assert!(output.lasted < Duration::from_secs(20), "{output}");
        tare.nothing_left();
        return;
    }
    panic!("no keeper was stopped before its box had started");
}
