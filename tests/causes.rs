//! Every end has one cause, and every command gives it the same word.

use rustix::process::Signal;
use serde_json::Value;
use tare_harness::{Tare, eventually, skip, tare};

const HUNGRY: &str = "held = [b'x' * 1048576 for _ in range(1024)]";

fn counts_memory(tare: &Tare) -> bool {
    !tare.call(["doctor"]).stdout_text().contains("no writable cgroup")
}

#[track_caller]
fn explained(tare: &Tare, reference: &str) -> Value {
    tare.json(["explain", reference, "--json"])
}

/// Checks the word in the table and in all JSON, then removes the box and checks its history.
#[track_caller]
fn assert_cause(tare: &Tare, id: &str, cause: &str) {
    let ended = tare.ended(id);
    assert_eq!(ended["cause"], cause, "{ended}");
    assert_eq!(tare.look(id)["cause"], cause);
    assert_eq!(explained(tare, id)["cause"], cause);
    let table = tare.call(["ls", "-a"]).ok().stdout_text();
    let shown = match cause {
        "exited" => format!("exited({})", ended["exit_code"]),
        _ => format!("exited({}, {cause})", ended["exit_code"]),
    };
    assert!(table.contains(&shown), "{table}");
    tare.remove(id);
    assert_eq!(explained(tare, id)["cause"], cause);
    let text = tare.call(["explain", id]).ok().stdout_text();
    assert!(text.contains(&format!("removed ({cause});")), "{text}");
}

#[test]
fn every_command_names_the_cause_of_an_end_with_the_same_word() {
    let tare = tare!();
    let cases: [(&[&str], &str); 6] = [
        (&["--", "sh", "-c", "exit 3"], "exited"),
        (&["--", "sh", "-c", "kill -SEGV $$"], "signalled"),
        (&["--timeout", "300ms", "--", "sleep", "1000"], "timeout"),
        (&["--lease", "300ms", "--", "sleep", "1000"], "lease"),
        (&["--output-limit", "1m", "--output-kill", "--", "yes"], "output_limit"),
        (&["--memory", "64m", "--", "python3", "-c", HUNGRY], "memory"),
    ];
    for (args, cause) in cases {
        if cause == "memory" && !counts_memory(&tare) {
            continue;
        }
        assert_cause(&tare, &tare.detached(args), cause);
    }
    for (call, cause) in [
        (&["stop"][..], "stopped"),
        (&["stop", "-t", "0"], "stopped"),
        (&["kill"], "killed"),
        (&["kill", "-s", "TERM"], "signalled"),
    ] {
        let id = tare.detached(["--", "sleep", "1000"]);
        tare.call(call.iter().chain(&[id.as_str()])).ok();
        assert_cause(&tare, &id, cause);
    }
    let id = tare.detached(["--", "sleep", "1000"]);
    tare.keeper(&id).signal(Signal::KILL);
    assert_cause(&tare, &id, "keeper_lost");
}

/// The keeper of a stopped box does not answer: the command that kills it names the cause.
#[test]
fn a_stop_that_has_to_kill_the_keeper_is_a_stop() {
    let tare = tare!();
    let id = tare.detached(["--", "sleep", "1000"]);
    tare.keeper(&id).signal(Signal::STOP);
    tare.call(["stop", "-t", "0", &id]).ok();
    assert_cause(&tare, &id, "stopped");
}

#[test]
fn the_history_distinguishes_a_forced_removal_from_a_killed_creator() {
    let tare = tare!();
    let id = tare.detached(["--", "sleep", "1000"]);
    tare.call(["rm", "-f", &id]).ok();
    assert_eq!(explained(&tare, &id)["cause"], "killed");
    let creator = tare.spawn(["--name", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    creator.see("up");
    creator.signal(Signal::KILL);
    creator.wait().exited(-9);
    eventually("a command removes it", || tare.call(["ls", "-aq"]).ok().stdout.is_empty());
    tare.reap_orphans();
    assert_eq!(explained(&tare, "a")["cause"], "client_gone");
}

#[track_caller]
fn report(output: &tare_harness::Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

#[test]
fn the_report_of_a_run_names_the_cause() {
    let tare = tare!();
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--", "sh", "-c", "exit 3"], 3, "exited"),
        (&["--", "sh", "-c", "kill -TERM $$"], 143, "signalled"),
        (&["--timeout", "300ms", "--", "sleep", "1000"], 124, "timeout"),
        (&["--output-limit", "1m", "--output-kill", "--", "yes"], 137, "output_limit"),
        (&["--memory", "64m", "--", "python3", "-c", HUNGRY], 137, "memory"),
    ];
    for (args, code, cause) in cases {
        if cause == "memory" && !counts_memory(&tare) {
            continue;
        }
        let output = tare.run([&["--json"], args].concat()).exited(code);
        assert_eq!(report(&output)["cause"], cause);
    }
}

/// With cgroup v2 the kernel kills the whole box, otherwise only the child.
#[test]
fn a_child_killed_for_memory_is_the_cause_only_if_the_command_fails() {
    let tare = tare!();
    if !counts_memory(&tare) {
        skip!("no cgroup counts memory here");
    }
    for code in [0, 3] {
        let script = format!("python3 -c \"{HUNGRY}\"; exit {code}");
        let output = tare.run(["--json", "--memory", "64m", "--", "sh", "-c", &script]);
        let cause = if output.code == 0 { "exited" } else { "memory" };
        let report = report(&output.said(&["memory limit of 64 MiB"]));
        assert_eq!((&report["cause"], &report["oom"]), (&cause.into(), &true.into()));
    }
}

#[test]
fn a_run_names_what_another_process_did_to_its_box() {
    let tare = tare!();
    let attached = || {
        let script =
            "trap 'exit 7' TERM; trap '' INT; touch /work/up; while :; do sleep 0.02; done";
        let running = tare.spawn(["--json", "--name", "a", "--", "sh", "-c", script]);
        eventually("it runs", || tare.exec("a", ["test", "-e", "/work/up"]).code == 0);
        running
    };
    for (call, code, cause, said) in [
        (&["stop", "a"][..], 7, "stopped", "Stopped by 'tare stop' ("),
        (&["kill", "a"], 137, "killed", "Killed by 'tare kill' ("),
        (&["rm", "-f", "a"], 137, "killed", "Killed by 'tare rm -f' ("),
    ] {
        let running = attached();
        tare.call(call).ok();
        let output = running.wait().exited(code).said(&[said]);
        assert_eq!(report(&output)["cause"], cause, "{call:?}");
    }
    let running = attached();
    let id = tare.list()[0]["id"].as_str().expect("an id").to_owned();
    tare.keeper(&id).signal(Signal::KILL);
    let output = running.wait().exited(137).said(&["The keeper ended without a report"]);
    assert_eq!(report(&output)["cause"], "keeper_lost");
    let running = attached();
    running.signal(Signal::INT);
    running.signal(Signal::TERM);
    let output = running.wait().exited(143).said(&["Killed by tare at the second signal"]);
    assert_eq!(report(&output)["cause"], "killed");
    let explained = tare.call(["explain", "a"]).ok().stdout_text();
    assert!(explained.contains("killed by tare: a second signal came\n"), "{explained}");
    assert!(!explained.contains("its command was killed by"), "{explained}");
}

#[test]
fn a_killed_exec_says_that_its_box_reached_its_memory_limit() {
    let tare = tare!();
    if !counts_memory(&tare) {
        skip!("no cgroup counts memory here");
    }
    let id = tare.detached(["--memory", "64m", "--", "sleep", "1000"]);
    tare.exec(&id, ["python3", "-c", HUNGRY]).exited(137).said(&["memory limit of its box"]);
    tare.remove(&id);
    let id = tare.detached(["--", "sleep", "1000"]);
    tare.exec(&id, ["sh", "-c", "kill -9 $$"]).exited(137).said_nothing();
    tare.remove(&id);
}

/// The error quotes the command, which may be as long as the kernel allows.
#[test]
fn a_box_whose_command_has_a_long_name_has_a_history() {
    let tare = tare!();
    for command in ["a".repeat(20_000), format!("/{}", "\u{1}/".repeat(2000))] {
        let code = tare.run(["--name", "a", "--", &command]).code;
        assert!([125, 126, 127].contains(&code), "{code}");
        let explained = explained(&tare, "a");
        assert_eq!(explained["cause"], "start_failed", "{explained}");
    }
}

/// `tare run` passes a signal on, and the command may get the same signal from another process later.
#[test]
fn a_signal_that_was_passed_on_long_before_is_not_named_as_the_cause() {
    let tare = tare!();
    let code = "import os, signal, time
caught = []
signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
print('ready', flush=True)
while not caught: time.sleep(0.01)
time.sleep(2.5)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(1000)";
    let run = tare.spawn(["--name", "late", "--", "python3", "-c", code]);
    run.see("ready").signal(Signal::TERM);
    run.wait().exited(143);
    let explained = explained(&tare, "late");
    let sentence = explained["sentence"].as_str().expect("a text");
    assert!(sentence.contains("tare had sent this signal"), "{explained}");
}
