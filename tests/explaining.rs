//! `tare explain` prints the history of a box in order, while the box exists and after its removal.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use tare_harness::skip::is_root;
use tare_harness::{FileServer, Process, Tare, TemporaryDirectory, eventually, skip, tare};

const STUBBORN: &str = "trap '' TERM; echo up; while :; do sleep 1000; done";

#[track_caller]
fn explained(tare: &Tare, reference: &str) -> Value {
    tare.json(["explain", reference, "--json"])
}

/// The events of a box's history.
#[track_caller]
fn events(tare: &Tare, reference: &str) -> Vec<String> {
    let story = explained(tare, reference);
    let steps = story["steps"].as_array().expect("steps are an array");
    let times = steps.iter().map(|step| step["after_ms"].as_u64().expect("a number"));
    assert!(times.is_sorted(), "{story}");
    let event = |step: &Value| step["event"].as_str().expect("a word").to_owned();
    steps.iter().map(event).collect()
}

/// A volume whose file server does not answer.
#[test]
fn a_creation_that_hangs_says_at_which_step_it_is() {
    let tare = tare!();
    let Some(files) = FileServer::new(&tare) else {
        skip!("bindfs or /dev/fuse is not there, or we are not root");
    };
    files.stop();
    let volume = format!("{}:/work/data:ro", files.path().display());
    let creator = tare.spawn_call(["run", "-d", "--name", "slow", "-v", &volume, "--", "true"]);
    eventually("the list says what it waits for", || {
        tare.list().iter().any(|it| it["stuck_on"].is_string())
    });
    let listed = tare.list().remove(0);
    let step = "its creator opens its root and volumes, or starts its keeper, in ";
    assert_eq!(listed["state"], "starting", "{listed}");
    assert!(listed["stuck_on"].as_str().expect("a text").starts_with(step), "{listed}");
    let text = tare.call(["explain", "slow"]).ok().stdout_text();
    assert!(text.contains(&format!("waits: {step}")), "{text}");
    assert!(explained(&tare, "slow")["stuck_on"].is_string());
    files.go_on();
    creator.wait().ok();
    assert!(explained(&tare, "slow")["stuck_on"].is_null());
    tare.call(["rm", "-f", "slow"]).ok();
    drop(files);
    tare.nothing_left();
}

/// The only step with this event.
#[track_caller]
fn step(tare: &Tare, reference: &str, event: &str) -> Value {
    let story = explained(tare, reference);
    let steps = story["steps"].as_array().expect("steps are an array");
    let mut found = steps.iter().filter(|step| step["event"] == event);
    match (found.next(), found.next()) {
        (Some(step), None) => step.clone(),
        _ => panic!("not one {event}: {story}"),
    }
}

#[track_caller]
fn says(tare: &Tare, reference: &str, event: &str, text: &str) {
    let step = step(tare, reference, event);
    let said = step["text"].as_str().expect("a sentence");
    assert!(said.contains(text), "{said}");
}

#[track_caller]
fn kill(process: u32) {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let pidfd = pidfd_open(pid.expect("it has a pid"), PidfdFlags::empty());
    pidfd_send_signal(pidfd.expect("it is there"), Signal::KILL).expect("it can be signalled");
}

const MADE: [&str; 4] = ["created", "go", "started", "detached"];

#[track_caller]
fn assert_story(tare: &Tare, reference: &str, then: &[&str]) {
    let expected: Vec<&str> = MADE.into_iter().chain(then.iter().copied()).collect();
    // A keeper writes down what it did after it has answered.
    eventually(&format!("{reference} has come to {expected:?}"), || {
        events(tare, reference) == expected
    });
}

#[test]
fn explain_shows_a_box_that_ends_by_itself() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sh", "-c", "exit 3"]);
    tare.ended(&id);
    assert_story(&tare, "a", &["command_ended", "emptied"]);
    let story = explained(&tare, &id[..6]);
    assert_eq!(story["id"], *id, "{story}");
    assert_eq!(story["name"], "a", "{story}");
    assert_eq!(story["state"], "exited", "{story}");
    assert_eq!(story["forgotten"], 0, "{story}");
    assert_eq!(story["created_at"], story["steps"][0]["at"], "{story}");
    assert_eq!(step(&tare, "a", "command_ended")["exit_code"], 3);
    tare.remove(&id);
    assert_story(&tare, "a", &["command_ended", "emptied", "removed"]);
    assert_eq!(explained(&tare, &id)["state"], Value::Null);
}

#[test]
fn explain_prints_a_line_for_each_step() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    let output = tare.call(["explain", "a"]).ok().said_nothing();
    let text = output.stdout_text();
    let mut lines = text.lines();
    let first = lines.next().expect("a line");
    assert!(first.starts_with(&format!("{id} (a), running; created at 20")), "{output}");
    assert!(lines.next().is_some_and(|line| line.ends_with("  created: sleep 1000")), "{output}");
    assert!(lines.all(|line| line.starts_with("  +")), "{output}");
    tare.remove(&id);
    let output = tare.call(["explain", "a"]).ok().said_nothing();
    assert!(output.stdout_text().contains("(a), removed (killed);"), "{output}");
}

#[test]
fn explain_distinguishes_a_stop_from_a_kill_after_the_grace() {
    let tare = tare!();
    let polite = tare.detached(["--name", "polite", "--", "sleep", "1000"]);
    tare.call(["stop", "polite"]).ok();
    assert_story(&tare, "polite", &["stop_asked", "command_ended", "emptied"]);
    says(&tare, "polite", "stop_asked", "grace of 10s");
    says(&tare, "polite", "command_ended", "killed by signal 15 (SIGTERM)");
    let stubborn = tare.detached(["--name", "stubborn", "--", "sh", "-c", STUBBORN]);
    tare.logged(&stubborn, "up");
    tare.call(["stop", "-t", "300ms", "stubborn"]).ok();
    assert_story(&tare, "stubborn", &["stop_asked", "killed", "emptied"]);
    says(&tare, "stubborn", "killed", "within its grace");
    assert_eq!(step(&tare, "stubborn", "killed")["exit_code"], 137);
    tare.remove(&polite);
    tare.remove(&stubborn);
}

#[test]
fn explain_does_not_name_the_grace_if_a_box_obeyed_its_stop() {
    let tare = tare!();
    tare.detached(["--rm", "--name", "polite", "--", "sleep", "1000"]);
    tare.call(["stop", "polite"]).ok();
    assert_story(&tare, "polite", &["stop_asked", "command_ended", "emptied", "removed"]);
    says(&tare, "polite", "removed", "it had been stopped, and was not to be kept");
    tare.detached(["--rm", "--name", "stubborn", "--", "sh", "-c", STUBBORN]);
    tare.logged("stubborn", "up");
    tare.call(["stop", "-t", "300ms", "stubborn"]).ok();
    says(&tare, "stubborn", "killed", "it had not stopped within its grace");
}

#[test]
fn explain_shows_a_kill_and_a_forced_removal() {
    let tare = tare!();
    let killed = tare.detached(["--name", "killed", "--", "sleep", "1000"]);
    tare.call(["kill", "-s", "USR1", "killed"]).ok();
    tare.ended(&killed);
    says(&tare, "killed", "signalled", "signal 10 (SIGUSR1)");
    let removed = tare.detached(["--name", "removed", "--", "sleep", "1000"]);
    let caller = tare.spawn_call(["rm", "-f", "removed"]);
    let pid = caller.pid();
    caller.wait().ok();
    assert_story(&tare, "removed", &["killed", "emptied", "removed"]);
    says(&tare, "removed", "killed", "killed by 'tare rm -f' (");
    says(&tare, "removed", "killed", &format!("pid {pid})"));
    says(&tare, "removed", "removed", &format!("pid {pid})"));
    assert_eq!(explained(&tare, &removed)["name"], "removed");
    tare.remove(&killed);
}

#[test]
fn explain_names_the_limit_that_ended_a_box() {
    let tare = tare!();
    for (name, options, why, code) in [
        ("timeout", &["--timeout", "300ms"][..], "its timeout", 124),
        ("lease", &["--lease", "300ms"], "its lease", 124),
        ("output", &["--output-limit", "64k", "--output-kill"], "its output", 137),
    ] {
        let command = ["--name", name, "--", "sh", "-c", "yes & sleep 1000"];
        let id = tare.detached(options.iter().chain(&command));
        tare.ended(&id);
        assert_story(&tare, name, &["killed", "emptied"]);
        says(&tare, name, "killed", why);
        assert_eq!(step(&tare, name, "killed")["exit_code"], code);
        tare.remove(&id);
    }
}

#[test]
fn explain_shows_a_kill_for_memory() {
    let tare = tare!();
    if tare.call(["doctor"]).stdout_text().contains("no writable cgroup") {
        skip!("no cgroup counts memory here");
    }
    let script = "x = bytearray(1 << 28)";
    let id = tare.detached(["--memory", "32m", "--", "python3", "-c", script]);
    tare.ended(&id);
    assert_story(&tare, &id, &["oom", "command_ended", "emptied"]);
    says(&tare, &id, "command_ended", "signal 9");
    tare.remove(&id);
}

#[test]
fn explain_shows_execs_and_copies() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    tare.exec("a", ["sh", "-c", "exit 7"]).exited(7);
    tare.call(["exec", "--timeout", "200ms", "a", "--", "sleep", "1000"]).exited(124);
    tare.exec("a", ["no-such-program"]).exited(127);
    let client = tare.spawn_call(["exec", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    client.see("up");
    client.signal(Signal::KILL);
    client.wait();
    eventually("the keeper has noticed", || {
        explained(&tare, "a")["steps"][10]["cause"] == "client_gone"
    });
    let directory = TemporaryDirectory::new();
    let file = directory.write("file", "text");
    tare.call(["cp", &file.display().to_string(), "a:/work/file"]).ok();
    tare.call(["cp", "a:/work/file", directory.text()]).ok();
    let then = [
        "exec_started",
        "exec_ended",
        "exec_started",
        "exec_ended",
        "exec_failed",
        "exec_started",
        "exec_ended",
        "copy_in",
        "copy_ended",
        "copy_out",
        "copy_ended",
    ];
    assert_story(&tare, "a", &then);
    let story = explained(&tare, "a");
    let steps = story["steps"].as_array().expect("steps are an array");
    let of_execs =
        steps.iter().filter(|step| step["event"] == "exec_ended" || step["event"] == "exec_failed");
    let ends: Vec<_> =
        of_execs.map(|it| (&it["process"], &it["exit_code"], &it["cause"])).collect();
    let expected = [
        (&1.into(), &7.into(), &"exited".into()),
        (&2.into(), &124.into(), &"timeout".into()),
        (&3.into(), &Value::Null, &"start_failed".into()),
        (&4.into(), &137.into(), &"client_gone".into()),
    ];
    assert_eq!(ends, expected);
    says(&tare, "a", "exec_failed", "no-such-program");
    tare.remove(&id);
}

#[test]
fn explain_finds_the_last_box_that_had_a_name() {
    let tare = tare!();
    let old = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    tare.remove(&old);
    assert_eq!(explained(&tare, "web")["id"], *old);
    let renamed = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    tare.call(["rename", "web", "web-old"]).ok();
    let story = explained(&tare, "web");
    assert_eq!((&story["id"], &story["name"]), (&renamed.as_str().into(), &"web-old".into()));
    assert_eq!(story["state"], "running", "{story}");
    let present = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    assert_eq!(explained(&tare, "web")["id"], *present);
    tare.remove(&present);
    tare.remove(&renamed);
    // The last holder of the name, not the last box that was removed.
    assert_eq!(explained(&tare, "web")["id"], *present);
}

/// Makes every time of the boot clock in the stored histories later, as in a boot that lasted longer.
fn move_to_another_boot(tare: &Tare) {
    fn later(value: &mut Value) {
        if let Value::Object(fields) = value {
            for (name, field) in fields {
                if let (true, Some(ns)) = (name.ends_with("_ns"), field.as_u64()) {
                    *field = (ns + 1_000_000_000_000_000_000).into();
                } else if name == "boot_id" {
                    *field = "another-boot".into();
                }
                later(field);
            }
        } else if let Value::Array(values) = value {
            values.iter_mut().for_each(later);
        }
    }
    let path = tare.state_root().join("histories/1");
    let text = fs::read_to_string(&path).expect("a history is stored");
    let moved = text.lines().filter(|line| !line.is_empty()).map(|line| {
        let mut line: Value = serde_json::from_str(line).expect("a line is JSON");
        later(&mut line);
        format!("\n{line}")
    });
    fs::write(&path, moved.collect::<String>()).expect("the state root is the test's");
}

#[test]
fn explain_finds_the_last_box_that_had_a_name_also_after_a_reboot() {
    let tare = tare!();
    let run = |code: &str| tare.run(["--name", "job", "--", "sh", "-c", code]);
    let old = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    tare.call(["rename", "web", "other"]).ok();
    tare.call(["rename", "other", "web"]).ok();
    tare.remove(&old);
    run("exit 0").ok();
    move_to_another_boot(&tare);
    assert_eq!(explained(&tare, "web")["id"], *old);
    let new = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    tare.remove(&new);
    run("exit 3").exited(3);
    assert_eq!(explained(&tare, "web")["id"], *new);
    assert_eq!(explained(&tare, "job")["exit_code"], 3);
    assert_eq!(tare.json(["receipt", "web", "--json"])["id"], *new);
}

#[test]
fn a_name_that_is_the_id_of_a_removed_box_does_not_hide_the_box() {
    let tare = tare!();
    let removed = tare.idle_box();
    tare.remove(&removed);
    let live = tare.detached(["--name", &removed, "--", "sleep", "1000"]);
    assert_eq!(explained(&tare, &removed)["id"], *removed);
    assert_eq!(tare.json(["receipt", &removed, "--json"])["id"], *removed);
    assert_eq!(explained(&tare, &live)["id"], *live);
    // All other commands need a box that exists.
    assert_eq!(tare.json(["inspect", &removed])[0]["id"], *live);
    tare.remove(&live);
}

#[test]
fn explain_shows_pause_rename_and_update() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    let can_pause = tare.call(["pause", "a"]).stderr_text().is_empty();
    tare.call(["resume", "a"]);
    tare.call(["rename", "a", "b"]).ok();
    tare.call(["update", "--lease", "2h", "b"]).ok();
    tare.call(["update", "--lease", "never", "b"]).ok();
    let paused: &[&str] = if can_pause { &["paused", "resumed"] } else { &[] };
    let changed = ["renamed", "updated", "updated"];
    assert_story(&tare, "b", &[paused, &changed].concat());
    says(&tare, "b", "renamed", "renamed to b");
    tare.remove(&id);
    // No box has either name now.
    for name in ["a", "b"] {
        assert_eq!(explained(&tare, name)["id"], *id);
    }
    let next = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    assert_eq!(explained(&tare, "a")["id"], *next);
    tare.remove(&next);
    assert_eq!(explained(&tare, "a")["id"], *next, "the last of that name");
}

#[test]
fn explain_shows_that_the_creator_was_killed() {
    let tare = tare!();
    let creator = tare.spawn(["--name", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    creator.see("up");
    creator.signal(Signal::KILL);
    creator.wait().exited(-9);
    let mut removers = Vec::new();
    eventually("a command removes it", || {
        let remover = tare.spawn_call(["ls", "-aq"]);
        removers.push(remover.pid());
        remover.wait().ok().stdout.is_empty()
    });
    tare.reap_orphans();
    let events = events(&tare, "a");
    assert_eq!(events.first().map(String::as_str), Some("created"));
    assert!(events.ends_with(&["abandoned".into(), "emptied".into(), "removed".into()]));
    says(&tare, "a", "abandoned", "its creator was gone");
    let removed = step(&tare, "a", "removed")["text"].to_string();
    let is_by = |pid: &u32| removed.contains(&format!("(pid {pid}): its creator had ended"));
    assert!(removers.iter().any(is_by), "{removed} {removers:?}");
}

/// No command has removed the box yet.
#[test]
fn explain_says_at_once_that_an_attached_box_ended_with_its_creator() {
    let tare = tare!();
    let creator = tare.spawn(["--name", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    creator.see("up");
    let id = tare.list()[0]["id"].as_str().expect("a text").to_owned();
    creator.signal(Signal::KILL);
    creator.wait().exited(-9);
    eventually("its processes are gone", || tare.processes_in(&id).is_empty());
    let story = explained(&tare, "a");
    assert_eq!((&story["state"], &story["cause"]), (&"stopping".into(), &"client_gone".into()));
    let sentence = story["sentence"].as_str().expect("a sentence");
    assert!(sentence.starts_with("Ended with its creator: 'tare run' ("), "{sentence}");
    assert_eq!(events(&tare, "a"), ["created", "go", "abandoned"]);
    let text = step(&tare, "a", "abandoned")["text"].as_str().expect("a text").to_owned();
    assert!(text.starts_with("its creator was gone; tare did not see when, after 20"), "{text}");
    assert_eq!(explained(&tare, "a")["steps"], story["steps"], "each look finds the same");
    tare.call(["sweep"]).ok();
    tare.reap_orphans();
    assert_eq!(explained(&tare, "a")["cause"], "client_gone");
}

#[test]
fn what_never_started_has_no_exit_code() {
    let tare = tare!();
    tare.run(["--name", "a", "--", "no-such-program"]).exited(127);
    let story = explained(&tare, "a");
    assert_eq!((&story["cause"], &story["exit_code"]), (&"start_failed".into(), &Value::Null));
    assert_eq!(step(&tare, "a", "start_failed")["exit_code"], Value::Null);
}

/// The program ignores the signal of tare, and dies of its own.
#[test]
fn a_signal_that_was_ignored_is_not_named_as_the_one_that_ended_a_box() {
    let tare = tare!();
    let script = "trap '' TERM; echo up; while [ ! -e /work/go ]; do sleep 0.1; done; \
                  trap - TERM; kill -TERM $$";
    let id = tare.detached(["--", "sh", "-c", script]);
    tare.logged(&id, "up");
    tare.call(["kill", "-s", "TERM", &id]).ok();
    tare_harness::let_pass(Duration::from_secs(3));
    tare.exec(&id, ["touch", "/work/go"]).ok();
    tare.ended(&id);
    let story = explained(&tare, &id);
    let sentence = story["sentence"].as_str().expect("a sentence");
    assert_eq!(story["cause"], "signalled", "{story}");
    assert!(sentence.contains("tare had sent this signal") && !sentence.contains("sent by tare"));
    tare.remove(&id);
}

#[test]
fn explain_shows_that_the_keeper_was_killed() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    let Process { pid, .. } = tare.keeper(&id);
    kill(pid);
    tare.ended(&id);
    assert_story(&tare, "a", &["lost", "emptied"]);
    says(&tare, "a", "lost", "killed by another process");
    assert_eq!(step(&tare, "a", "lost")["exit_code"], 137);
    tare.remove(&id);
}

#[test]
fn explain_gives_two_times_for_the_end_of_a_box_whose_keeper_was_killed() {
    let tare = tare!();
    let id = tare.detached(["--", "sh", "-c", "echo up; sleep 1000"]);
    tare.logged(&id, "up");
    let Process { pid, .. } = tare.keeper(&id);
    kill(pid);
    eventually("it is over", || tare.processes_in(&id).is_empty());
    // No command has cleaned up yet: this one only looks, and each look dates the end alike.
    says(&tare, &id, "lost", "between 20");
    let lost = step(&tare, &id, "lost")["at"].clone();
    assert_eq!(step(&tare, &id, "lost")["at"], lost);
    assert_eq!(events(&tare, &id).last().map(String::as_str), Some("lost"));
    let ended = tare.ended(&id);
    let time = |key: &str| ended[key].as_str().unwrap().to_owned();
    assert!(time("created_at") < time("ended_after"), "{ended}");
    assert!(time("ended_after") <= time("ended_at"), "{ended}");
    says(&tare, &id, "lost", &time("ended_after"));
    tare.remove(&id);
    let id = tare.detached(["--", "true"]);
    assert!(tare.ended(&id)["ended_after"].is_null());
    tare.remove(&id);
}

#[test]
fn a_kill_for_memory_is_reported_at_once_and_dated_before_the_end() {
    let tare = tare!();
    if tare.call(["doctor"]).stdout_text().contains("no writable cgroup") {
        skip!("no cgroup counts memory here");
    }
    let script = "python3 -c 'x = bytearray(1 << 28)'; echo killed; read line";
    let options = ["-i", "--memory", "32m", "--", "sh", "-c", script];
    let id = tare.detached(options);
    tare.logged(&id, "killed");
    says(&tare, &id, "oom", "for memory");
    // The clock of the kernel's log differs a little from the boot clock.
    tare_harness::let_pass(Duration::from_secs(1));
    tare.exec(&id, ["true"]).ok();
    let at = |event: &str| events(&tare, &id).iter().position(|it| it == event).unwrap();
    if explained(&tare, &id)["evidence"]["oom_killed"].is_array() {
        assert!(at("oom") < at("exec_started"), "{:?}", events(&tare, &id));
        says(&tare, &id, "oom", "for memory (python3)");
    } else {
        says(&tare, &id, "oom", "before this look");
    }
    tare.call(["stop", &id]).ok();
    assert!(at("oom") < at("command_ended"), "{:?}", events(&tare, &id));
    tare.remove(&id);
}

#[test]
fn exec_names_the_process_that_the_kernel_killed_for_memory() {
    let tare = tare!();
    if tare.call(["doctor"]).stdout_text().contains("no writable cgroup") {
        skip!("no cgroup counts memory here");
    }
    let id = tare.detached(["--memory", "32m", "--", "sleep", "1000"]);
    let output = tare.exec(&id, ["python3", "-c", "x = bytearray(1 << 28)"]).exited(137);
    let is_named = explained(&tare, &id)["evidence"]["oom_killed"].is_array();
    tare.remove(&id);
    if !is_named {
        skip!("the kernel's log cannot be read");
    }
    output.said(&["1 process killed: python3"]);
}

#[test]
fn a_history_is_kept_for_the_retention_of_its_box() {
    let tare = tare!();
    let id = tare.detached(["--retention", "2s", "--name", "a", "--", "sleep", "1000"]);
    tare.remove(&id);
    assert_story(&tare, "a", &["killed", "emptied", "removed"]);
    eventually("its retention passes", || tare.call(["explain", "a"]).code == 1);
    // A box that is not to be kept leaves its story all the same.
    let gone = tare.detached(["--rm", "--", "sh", "-c", "exit 4"]);
    eventually("it is removed", || tare.listed(&gone).is_none());
    says(&tare, &gone, "removed", "was to be removed then");
    assert_eq!(step(&tare, &gone, "command_ended")["exit_code"], 4);
}

#[test]
fn a_successful_attached_run_leaves_one_short_line() {
    let tare = tare!();
    tare.run(["--name", "a", "--", "true"]).ok();
    assert_eq!(events(&tare, "a"), ["created", "command_ended"]);
    let history = fs::read_to_string(tare.state_root().join("histories/1")).unwrap();
    assert!(history.len() < 400, "{}: {history}", history.len());
    tare.run(["--name", "b", "--timeout", "100ms", "--", "sleep", "1000"]).exited(124);
    assert_eq!(events(&tare, "b"), ["created", "go", "killed", "emptied", "removed"]);
}

#[test]
fn explain_of_an_unknown_box_is_a_one_line_error() {
    let tare = tare!();
    for unknown in ["nosuch", "abcdefghij23", "", "\u{1b}[2J"] {
        let output = tare.call(["explain", unknown]).exited(1).printed("");
        let said = output.stderr_text();
        assert!(said.starts_with("tare: there is no box '"), "{output}");
        assert!(said.contains("('tare ls -a' lists all") && !said.contains('\u{1b}'));
        assert_eq!(said.lines().count(), 1, "{output}");
    }
    tare.call(["explain"]).exited(2).printed("");
    tare.call(["explain", "a", "b"]).exited(2).printed("");
}

/// The box chooses the names of its programs.
#[test]
fn explain_prints_no_terminal_control_characters() {
    let tare = tare!();
    let evil = "/tmp/\u{1b}]0;owned\u{7}\u{9b}2J\r\n\u{202e}";
    let script = ": \u{1b}[31m\n\u{9b}; sleep 1000";
    let id = tare.detached(["--name", "a", "--", "sh", "-c", script]);
    let copy = format!("cp /bin/true '{evil}'");
    tare.exec("a", ["sh", "-c", &copy]).ok();
    tare.exec("a", [evil]).ok();
    tare.exec("a", [format!("{evil}{}", "x".repeat(3000))]);
    let check = || {
        for call in [&["explain", "a"][..], &["explain", "a", "--json"]] {
            let output = tare.call(call).ok();
            let text = String::from_utf8(output.stdout).expect("it is text");
            let bad = |it: char| (it.is_control() && it != '\n') || it == '\u{202e}';
            assert!(!text.contains(bad), "{text:?}");
            assert!(text.contains("owned"), "{text}");
        }
    };
    check();
    tare.remove(&id);
    check();
}

/// Readers do not trust what a keeper wrote.
#[test]
fn explain_bounds_what_a_hostile_keeper_wrote() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    let journal = tare.record(&id).join("journal");
    let mut bytes = fs::read(&journal).unwrap();
    assert_eq!(bytes.len(), 4096, "a page, whatever happens");
    let lie = b"4294967242 999999999999999 exec 1 \x1b[2J\xff";
    for at in (256..4096).step_by(64) {
        bytes[at..at + lie.len()].copy_from_slice(lie);
    }
    fs::write(&journal, &bytes).unwrap();
    assert_eq!(tare.state(&id), "running");
    assert_eq!(events(&tare, "a"), ["created", "go"]);
    tare.remove(&id);
    assert_eq!(events(&tare, "a")[..2], ["created", "go"]);
}

#[test]
fn explain_keeps_the_latest_steps_of_a_long_history() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    for _ in 0..40 {
        tare.exec("a", ["true"]).ok();
    }
    tare.exec("a", ["sh", "-c", "exit 9"]).exited(9);
    eventually("the last is written down", || explained(&tare, "a")["steps"][61]["exit_code"] == 9);
    let story = explained(&tare, "a");
    assert_eq!(story["steps"].as_array().unwrap().len(), 62, "{story}");
    assert_eq!(story["forgotten"], 2 + 82 - 60, "{story}");
    let text = tare.call(["explain", "a"]).ok().stdout_text();
    assert!(text.contains("(24 of its steps are not kept any more)"), "{text}");
    tare.remove(&id);
}

#[test]
fn a_foreign_history_file_blocks_no_command() {
    let tare = tare!();
    let histories = tare.state_root().join("histories");
    let directory = TemporaryDirectory::new();
    let target = directory.write("target", "precious");
    symlink(&target, &histories).unwrap();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    assert_story(&tare, "a", &[]);
    tare.remove(&id);
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    tare.call(["explain", "a"]).exited(1).said(&["histories", "remove it"]);
    fs::remove_file(&histories).unwrap();
    fs::create_dir(&histories).unwrap();
    fs::write(histories.join("1"), vec![b'['; 3 << 20]).unwrap();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    tare.remove(&id);
    assert_eq!(explained(&tare, "a")["id"], *id);
}

#[test]
fn concurrently_removed_boxes_all_keep_their_histories() {
    let tare = tare!();
    let ids: Vec<String> = (0..8).map(|_| tare.idle_box()).collect();
    let removers: Vec<_> = ids.iter().map(|id| tare.spawn_call(["rm", "-f", id])).collect();
    removers.into_iter().for_each(|one| drop(one.wait().ok()));
    for id in &ids {
        assert_eq!(events(&tare, id).last().map(String::as_str), Some("removed"));
    }
}

#[test]
fn the_history_of_a_removed_box_is_kept_on_a_full_disk() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can mount a small file system");
    }
    let disk = TemporaryDirectory::new();
    let size = Some(c"size=256k,mode=700");
    mount("tmpfs", disk.path(), "tmpfs", MountFlags::NODEV, size).expect("root can mount");
    let on_disk = |args: &[&str]| {
        let call = ["--state-root", disk.text()].into_iter();
        tare.spawn_call(call.chain(args.iter().copied())).wait()
    };
    let output = on_disk(&["run", "-d", "--name", "a", "--", "sleep", "1000"]).ok();
    let id = output.stdout_text().trim().to_owned();
    fs::write(disk.join("filler"), vec![0; 1 << 20]).expect_err("the disk is small");
    on_disk(&["exec", "a", "--", "true"]).ok();
    eventually("the keeper has written the end of the exec", || {
        on_disk(&["explain", "a"]).ok().stdout_text().contains("exec 1 exited with 0")
    });
    on_disk(&["rm", "-f", "a"]).ok();
    tare.assert_gone(&id);
    let text = on_disk(&["explain", "a"]).ok().stdout_text();
    assert!(text.contains("removed by "), "{text}");
    fs::remove_file(disk.join("filler")).unwrap();
    on_disk(&["run", "-d", "--name", "b", "--", "sleep", "1000"]).ok();
    let output = on_disk(&["rm", "-f", "b"]).ok();
    assert!(output.lasted < Duration::from_secs(10), "{output}");
    on_disk(&["explain", "b"]).ok();
    unmount(disk.path(), UnmountFlags::empty()).expect("no process uses it");
}

/// The client hangs up as soon as the copy has closed its streams, which is before the copy has exited.
#[test]
fn explain_says_that_a_failed_copy_ended_by_itself() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    let directory = TemporaryDirectory::new();
    for _ in 0..10 {
        tare.call(["cp", "a:/work/missing", directory.text()]).exited(1);
    }
    let copies = || {
        let story = explained(&tare, "a");
        let steps = story["steps"].as_array().expect("steps are an array").clone();
        steps.into_iter().filter(|step| step["event"] == "copy_ended").collect::<Vec<_>>()
    };
    eventually("all are written down", || copies().len() == 10);
    for copy in copies() {
        assert_eq!(copy["cause"], "exited", "{copy}");
    }
    tare.remove(&id);
}
