//! Ending boxes: `stop`, `kill`, `rm`. Each returns after tare has seen the end, and works in every
//! state.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tare_harness::skip::has_program;
use tare_harness::{Tare, TemporaryDirectory, eventually, skip, tare};

/// Ends on TERM with a code of its own; those it started do not.
const POLITE: &str = "trap 'exit 7' TERM; (trap '' TERM HUP; setsid sleep 1000) & echo up; while :; do sleep 0.02; done";

const STUBBORN: &str =
    "trap '' TERM INT HUP; (setsid sleep 1000) & echo up; while :; do sleep 1000; done";

/// A box of the name `a` that runs this script and has said `up`.
#[track_caller]
fn started(tare: &Tare, options: &[&str], script: &str) -> String {
    let command = ["--name", "a", "--", "sh", "-c", script];
    let id = tare.detached(options.iter().chain(&command));
    tare.logged(&id, "up");
    id
}

/// Checks that no process is left and that the box is listed as ended.
#[track_caller]
fn assert_ended(tare: &Tare, id: &str, cause: &str, code: i64) {
    // Before another call of tare could have helped.
    let processes = tare.processes_in(id);
    assert!(processes.is_empty(), "{processes:?}");
    assert_eq!(tare.cgroups_of(id), [] as [&Path; 0]);
    let ended = tare.look(id);
    assert_eq!(ended["state"], "exited", "{ended}");
    assert_eq!(ended["cause"], cause, "{ended}");
    assert_eq!(ended["exit_code"], code, "{ended}");
}

/// The failure of another runtime: it killed the launcher and left the tree.
#[test]
fn stop_returns_when_all_processes_are_gone() {
    let tare = tare!();
    let id = started(&tare, &[], POLITE);
    let output = tare.call(["stop", "a"]).ok().printed("a\n").said_nothing();
    assert!(output.lasted < Duration::from_secs(8), "{output}");
    assert_ended(&tare, &id, "stopped", 7);
    tare.remove(&id);
}

#[test]
fn stop_kills_a_command_that_ignores_term_after_the_grace() {
    let tare = tare!();
    for (grace, least) in [("1s", 1), ("0", 0), ("500ms", 0)] {
        let id = started(&tare, &[], STUBBORN);
        let output = tare.call(["stop", "-t", grace, "a"]).ok().printed("a\n");
        assert!(output.lasted >= Duration::from_secs(least), "{output}");
        assert!(output.lasted < Duration::from_secs(9), "{output}");
        assert_ended(&tare, &id, "stopped", 137);
        tare.remove(&id);
    }
    for bad in ["x", "-1s", ""] {
        tare.call(["stop", "-t", bad, "a"]).exited(2).printed("");
    }
}

#[test]
fn kill_s_sends_a_signal_to_the_command() {
    let tare = tare!();
    let script =
        "trap 'echo one' USR1; trap 'echo two; exit 3' USR2; echo up; while :; do sleep 0.02; done";
    let id = started(&tare, &[], script);
    for (round, name) in ["USR1", "SIGUSR1", "usr1", "10"].iter().enumerate() {
        tare.call(["kill", "-s", name, "a"]).ok().printed("a\n").said_nothing();
        tare.logged(&id, &"one\n".repeat(round + 1));
    }
    assert_eq!(tare.state(&id), "running");
    for bad in ["", "NONSENSE", "0", "65", "-1", "SIG"] {
        tare.call(["kill", "-s", bad, "a"]).exited(2).printed("");
    }
    tare.call(["kill", "-s", "USR2", "a"]).ok();
    let ended = tare.ended(&id);
    assert_eq!(ended["exit_code"], 3, "{ended}");
    tare.remove(&id);
}

#[test]
fn kill_ends_the_box_by_default() {
    let tare = tare!();
    for call in [&["kill", "a"][..], &["kill", "-s", "KILL", "a"]] {
        let id = started(&tare, &[], STUBBORN);
        tare.call(call).ok().printed("a\n").said_nothing();
        assert_ended(&tare, &id, "killed", 137);
        tare.remove(&id);
    }
}

#[test]
fn rm_of_a_running_box_needs_force() {
    let tare = tare!();
    let id = started(&tare, &[], STUBBORN);
    tare.call(["rm", "a"]).exited(1).printed("").said(&["a", "is running", "rm -f"]);
    tare.exec("a", ["true"]).ok();
    tare.call(["rm", "-f", "a"]).ok().printed("a\n");
    tare.assert_gone(&id);
    tare.nothing_left();
    tare.call(["rm", "-f", "a"]).exited(1).said(&["there is no box 'a'"]);
}

/// `rm` comes at random moments of the start: afterwards both calls have ended, and listed boxes
/// are complete.
#[test]
fn rm_force_removes_a_starting_box() {
    let tare = tare!();
    for step in 0..40 {
        let creator = tare.spawn_call(["run", "-d", "--name", "a", "--", "sleep", "1000"]);
        tare_harness::let_pass(Duration::from_micros(500 * step));
        let removed = tare.call(["rm", "-f", "a"]);
        let created = creator.wait();
        assert!([0, 1].contains(&removed.code), "{removed}");
        assert!([0, 125].contains(&created.code), "{created}");
        if created.code == 125 {
            assert!(created.stderr_text().contains("removed by 'tare rm -f'"), "{created}");
        }
        match tare.list().as_slice() {
            [] => {}
            [one] => {
                assert_eq!((&one["state"], created.code), (&"running".into(), 0));
                tare.call(["rm", "-f", "a"]).ok();
            }
            more => panic!("one call made {more:?}"),
        }
        tare.nothing_left();
    }
}

#[test]
fn rm_all_removes_every_box() {
    let tare = tare!();
    let make = || {
        for name in ["a", "b"] {
            tare.detached(["--name", name, "--", "sleep", "1000"]);
        }
        let id = tare.detached(["--", "true"]);
        tare.ended(&id);
    };
    tare.call(["rm", "--all"]).ok().printed("");
    make();
    let output = tare.call(["rm", "--all"]).exited(1);
    assert_eq!(output.stdout_text().lines().count(), 1, "{output}");
    assert_eq!(output.stderr_text().lines().count(), 2, "{output}");
    assert_eq!(tare.list().len(), 2);
    let output = tare.call(["rm", "-f", "--all"]).ok().said_nothing();
    assert_eq!(output.stdout_text().lines().count(), 2, "{output}");
    assert_eq!(tare.list(), [] as [Value; 0]);
    tare.nothing_left();
    tare.call(["rm"]).exited(2);
    tare.call(["rm", "--all", "a"]).exited(2);
}

/// Its maker got no further than the name of the record.
#[test]
fn rm_removes_an_empty_record() {
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    for content in [None, Some("record.json"), Some("journal")] {
        let id = "aaaabbbbcccc";
        fs::create_dir(tare.record(id)).unwrap();
        if let Some(name) = content {
            fs::write(tare.record(id).join(name), "").unwrap();
        }
        tare.remove(id);
        tare.nothing_left();
    }
}

/// Damages a file in one of several ways.
fn damage(path: &Path, round: usize) {
    let content = fs::read(path).unwrap_or_default();
    let damaged = match round {
        0 => fs::write(path, ""),
        1 => fs::write(path, b"\xff\x00garbage{\n\n}"),
        2 => fs::write(path, &content[..content.len() / 2]),
        3 => fs::write(path, &content[..content.len().saturating_sub(1)]),
        4 => fs::remove_file(path),
        _ => fs::write(path, "{\"boot_id\":7}\n".repeat(1000)),
    };
    damaged.expect("the record is ours");
}

#[test]
fn a_live_box_with_a_damaged_record_is_removed() {
    let tare = tare!();
    for file in ["record.json", "journal"] {
        for round in 0..6 {
            let id = started(&tare, &[], STUBBORN);
            damage(&tare.record(&id).join(file), round);
            let listed = tare.call(["ls", "-a"]).ok().stdout_text();
            assert!(listed.contains(&id), "{file}, {round}: {listed}");
            tare.remove(&id);
            tare.nothing_left();
        }
    }
}

#[test]
fn stop_of_a_box_with_a_damaged_record_says_that_it_keeps_nothing() {
    let tare = tare!();
    let id = tare.detached(["--name", "web", "--", "sleep", "1000"]);
    fs::write(tare.record(&id).join("record.json"), "garbage\n").unwrap();
    let output = tare.call(["stop", "web"]).ok().printed("web\n");
    output.said(&["nothing of box web is kept, because its record is damaged"]);
    tare.nothing_left();
    let kept = tare.detached(["--", "sleep", "1000"]);
    tare.call(["stop", &kept]).ok().said_nothing();
    tare.remove(&kept);
}

#[test]
fn an_ended_box_with_a_damaged_record_is_removed() {
    let tare = tare!();
    for round in 0..6 {
        let id = tare.detached(["--name", "a", "--", "true"]);
        tare.ended(&id);
        for (path, _) in tare.record_files(&id) {
            damage(&path, round);
        }
        tare.call(["ls", "-a"]).ok();
        // A record that says nothing at all is that of a box which was never
        // made, and gone by now.
        if tare.record(&id).exists() {
            tare.remove(&id);
        }
        tare.nothing_left();
    }
}

/// `rm` touches nothing outside the record, whatever the record points at.
#[test]
fn rm_of_a_forged_record_touches_nothing_else() {
    let tare = tare!();
    let victim = TemporaryDirectory::new();
    let precious = victim.write("precious", "precious\n");
    let files = ["record.json", "journal", "log.0", "log.1", "control", "scratch"];
    for ended in [true, false] {
        let script = if ended { "echo up" } else { STUBBORN };
        let id = started(&tare, &[], script);
        if ended {
            tare.ended(&id);
        }
        for name in files {
            let path = tare.record(&id).join(name);
            let _ = fs::remove_file(&path);
            symlink(&precious, &path).unwrap();
        }
        symlink(victim.path(), tare.record(&id).join("directory")).unwrap();
        tare.call(["ls", "-a"]).ok();
        tare.remove(&id);
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious\n");
        tare.nothing_left();
    }
    // The record itself.
    let id = "aaaabbbbcccc";
    symlink(victim.path(), tare.record(id)).unwrap();
    tare.call(["rm", "-f", id]);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious\n");
    let _ = fs::remove_file(tare.record(id));
}

#[test]
fn stop_kill_and_rm_work_on_an_attached_box() {
    let tare = tare!();
    for (call, code) in [(&["stop", "a"][..], 7), (&["kill", "a"], 137), (&["rm", "-f", "a"], 137)]
    {
        let attached = tare.spawn(["--name", "a", "--", "sh", "-c", POLITE]);
        attached.see("up");
        tare.call(call).ok().printed("a\n").said_nothing();
        assert_eq!(attached.wait().code, code, "{call:?}");
        tare.nothing_left();
    }
}

/// A keeper that called listen(2) after it had started the command refused the call, and
/// `stop` killed the box without its grace.
#[test]
fn stop_reaches_a_command_as_soon_as_its_output_is_seen() {
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    let tare = tare!();
    let delay = "inject=listen:delay_enter=300000";
    let mut command = tare.shell_command("exec strace -f -o /dev/null -e \"$@\"");
    command.arg("sh").arg(delay).arg(tare.program());
    command.args(["run", "--name", "a", "--", "sh", "-c", POLITE]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let attached = tare.start_command(command);
    attached.see("up");
    tare.call(["stop", "a"]).ok().printed("a\n").said_nothing();
    assert_eq!(attached.wait().code, 7);
    tare.nothing_left();
}

/// Ten seconds for each of many boxes would be minutes for all of them.
#[test]
fn stop_asks_all_boxes_before_it_waits_for_the_first() {
    let tare = tare!();
    let script = "trap 'echo asked' TERM; echo up; while :; do sleep 0.02; done";
    let ids = [(); 4].map(|()| {
        let id = tare.detached(["--", "sh", "-c", script]);
        tare.logged(&id, "up");
        id
    });
    let references = ids.iter().map(String::as_str);
    let words: Vec<&str> = ["stop", "-t", "2s"].into_iter().chain(references).collect();
    let output = tare.call(words).ok();
    assert_eq!(output.stdout_text().lines().collect::<Vec<_>>(), ids);
    let text = |value: &Value| value.as_str().expect("a time").to_owned();
    let ended = ids.iter().map(|id| text(&tare.look(id)["ended_at"]));
    let asked = ids.iter().map(|id| {
        let log = tare.call(["logs", "--timestamps", id]).ok().stdout_text();
        let line = log.lines().find(|line| line.ends_with("asked"));
        let line = line.expect("it was asked").to_owned();
        line.split(' ').next().expect("a time").to_owned()
    });
    // RFC 3339 in UTC sorts as text.
    assert!(asked.max() < ended.min());
    ids.iter().for_each(|id| tare.remove(id));
}

#[test]
fn stop_of_an_attached_box_succeeds_while_its_creator_removes_it() {
    let tare = tare!();
    for _ in 0..8 {
        let attached = tare.spawn(["--name", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
        attached.see("up");
        // On a busy host the command may get the signal late; nothing is to kill it.
        tare.call(["stop", "-t", "50s", "a"]).ok().printed("a\n");
        assert_eq!(attached.wait().code, 143);
    }
}

/// The first command that sees an ended `--rm` box removes it: here `stop` or `rm` itself.
#[test]
fn stop_and_rm_of_an_ended_box_with_rm_succeed() {
    let tare = tare!();
    for (number, call) in
        [&["stop", "web"][..], &["stop", "-t", "0", "web"], &["rm", "web"], &["rm", "-f", "web"]]
            .into_iter()
            .enumerate()
    {
        for by_name in [true, false] {
            let id = tare.detached(["--rm", "--name", "web", "--", "sleep", "0.1"]);
            eventually("it is over", || tare.processes_in(&id).is_empty());
            let mut call = call.to_vec();
            if !by_name {
                call.pop();
                call.push(&id);
            }
            let output = tare.call(&call);
            assert_eq!(output.code, 0, "{number}: {output}");
            tare.assert_gone(&id);
        }
    }
    tare.call(["stop", "web"]).exited(1).said(&["there is no box"]);
}

#[test]
fn kill_of_an_ended_box_is_an_error() {
    let tare = tare!();
    let id = started(&tare, &[], "echo up");
    tare.ended(&id);
    for command in [&["kill"][..], &["kill", "-s", "TERM"]] {
        let words: Vec<&str> = command.iter().copied().chain([id.as_str()]).collect();
        tare.call(words).exited(1).said(&["ended"]);
    }
    tare.remove(&id);
}
