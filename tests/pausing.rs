//! `pause` and `resume`: the workload of a box is frozen, its keeper is not.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tare_harness::{Tare, TemporaryDirectory, eventually, skip, tare};

/// Adds a byte to its own file of the volume, for ever.
const COUNTER: &str =
    "(trap '' TERM; setsid sleep 1000) & while :; do printf x >> /out/$0; sleep 0.005; done";

/// A box that counts in `directory`.
#[track_caller]
fn counting(tare: &Tare, directory: &TemporaryDirectory, options: &[&str], name: &str) -> String {
    let volume = format!("{}:/out", directory.text());
    let command = ["-v", &volume, "--name", name, "--", "sh", "-c", COUNTER, name];
    let id = tare.detached(options.iter().chain(&command));
    eventually("it counts", || count(&directory.join(name)) > 0);
    id
}

fn count(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |metadata| metadata.len())
}

/// The box's cgroups of version 2, where they can be frozen.
fn freezers(tare: &Tare, id: &str) -> Vec<PathBuf> {
    let cgroups = tare.cgroups_of(id).into_iter();
    let all = cgroups.flat_map(|cgroup| [cgroup.join("work"), cgroup]);
    all.filter(|cgroup| cgroup.join("cgroup.freeze").exists()).collect()
}

fn is_frozen(cgroup: &Path) -> bool {
    let events = fs::read_to_string(cgroup.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "frozen 1")
}

macro_rules! frozen {
    ($tare:expr, $id:expr) => {{
        let freezers = freezers(&$tare, &$id);
        if freezers.is_empty() {
            $tare.remove(&$id);
            skip!("boxes have no cgroup of version 2 here");
        }
        freezers
    }};
}

/// `ls` asks the kernel only about boxes whose record says that they may be paused.
#[test]
fn frequent_pauses_do_not_grow_the_record() {
    let tare = tare!();
    let (id, never_paused) = (tare.idle_box(), tare.idle_box());
    frozen!(tare, id);
    let record_bytes = || count(&tare.record(&id).join("record.json"));
    let listed = || {
        let boxes = tare.list();
        let state = |id: &str| {
            let found = boxes.iter().find(|it| it["id"] == id).expect("it is there");
            found["state"].as_str().map(str::to_owned)
        };
        assert_eq!(state(&never_paused).as_deref(), Some("running"));
        state(&id)
    };
    assert_eq!(listed().as_deref(), Some("running"));
    let mut sizes = Vec::new();
    for _ in 0..10 {
        tare.call(["pause", &id]).ok();
        assert_eq!(listed().as_deref(), Some("paused"));
        tare.call(["resume", &id]).ok();
        assert_eq!(listed().as_deref(), Some("running"));
        sizes.push(record_bytes());
    }
    assert_eq!(sizes, vec![sizes[0]; 10]);
    tare.remove(&id);
    tare.remove(&never_paused);
}

/// Another box is the clock: while it counts, the paused one does not.
#[test]
fn a_paused_box_is_frozen_until_it_is_resumed() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let paused = counting(&tare, &directory, &[], "paused");
    let freezers = frozen!(tare, paused);
    let clock = counting(&tare, &directory, &[], "clock");
    let count_of = |name: &str| count(&directory.join(name));
    for _ in 0..3 {
        tare.call(["pause", "paused"]).ok().printed("paused\n").said_nothing();
        assert_eq!(tare.state(&paused), "paused");
        assert!(freezers.iter().any(|one| is_frozen(one)));
        let (still, time) = (count_of("paused"), count_of("clock"));
        eventually("time passes", || count_of("clock") > time + 50);
        assert_eq!(count_of("paused"), still);
        tare.call(["resume", "paused"]).ok().printed("paused\n");
        assert_eq!(tare.state(&paused), "running");
        eventually("it counts again", || count_of("paused") > still + 5);
    }
    assert!(!freezers.iter().any(|one| is_frozen(one)));
    tare.remove(&paused);
    tare.remove(&clock);
}

#[test]
fn a_paused_box_can_be_inspected() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let id = counting(&tare, &directory, &[], "a");
    frozen!(tare, id);
    tare.call(["pause", "a"]).ok();
    let listed = tare.look(&id);
    assert!(listed["pids"].as_u64() >= Some(2), "{listed}");
    tare.json(["inspect", "a"]);
    tare.json(["stats", "--json", "a"]);
    tare.call(["logs", "a"]).ok();
    tare.call(["rm", "a"]).exited(1).said(&["a", "rm -f"]);
    tare.remove(&id);
}

#[test]
fn a_paused_box_is_stopped_killed_and_removed_without_being_resumed() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let calls = [
        (&["stop", "-t", "1s", "a"][..], Some("stopped")),
        (&["kill", "a"], Some("killed")),
        (&["rm", "-f", "a"], None),
    ];
    for (call, cause) in calls {
        let id = counting(&tare, &directory, &[], "a");
        frozen!(tare, id);
        tare.call(["pause", "a"]).ok();
        let output = tare.call(call).ok().printed("a\n").said_nothing();
        assert!(output.lasted < Duration::from_secs(9), "{output}");
        let processes = tare.processes_in(&id);
        assert!(processes.is_empty(), "{processes:?}");
        if let Some(cause) = cause {
            assert_eq!(tare.look(&id)["cause"], cause);
            tare.remove(&id);
        }
        tare.assert_gone(&id);
    }
}

/// The keeper goes on, and so does the time that the box has.
#[test]
fn a_paused_box_ends_at_its_lease_and_its_timeout() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    for (option, cause) in [("--lease", "lease"), ("--timeout", "timeout")] {
        let id = counting(&tare, &directory, &[option, "2s"], "a");
        frozen!(tare, id);
        tare.call(["pause", "a"]).ok();
        eventually("everyone in the box is gone", || tare.processes_in(&id).is_empty());
        assert_eq!(tare.ended(&id)["cause"], cause);
        tare.remove(&id);
    }
}

#[test]
fn an_ended_box_can_be_neither_paused_nor_resumed() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "true"]);
    tare.ended(&id);
    for command in ["pause", "resume"] {
        tare.call([command, "a"]).exited(1).printed("").said(&["a"]);
    }
    tare.remove(&id);
}

/// A process that is stopped before it starts does not block the keeper that waits for it: the box
/// answers, keeps its lease and can be resumed.
#[test]
fn a_box_paused_during_an_exec_start_still_answers() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    let _ = frozen!(tare, id);
    for _ in 0..40 {
        let starting: Vec<_> =
            (0..3).map(|_| tare.spawn_call(["exec", "a", "--", "true"])).collect();
        let output = tare.call(["pause", "a"]).ok();
        assert!(output.lasted < Duration::from_secs(5), "{output}");
        let usage = tare.json(["stats", "--json", "a"])[0].clone();
        assert!(usage["scratch_bytes"].is_u64(), "its keeper is silent: {usage}");
        tare.call(["resume", "a"]).ok();
        for one in starting {
            let output = one.wait();
            match output.code {
                0 => {}
                // It came too late to begin.
                _ => drop(output.exited(125).said(&["paused"])),
            }
        }
    }
    tare.remove(&id);
}

/// A stopping box needs its processes to run.
#[test]
fn a_stopping_box_cannot_be_paused() {
    let tare = tare!();
    let script = "trap 'echo asked' TERM; echo up; while :; do sleep 0.02; done";
    let id = tare.detached(["--name", "a", "--", "sh", "-c", script]);
    tare.logged(&id, "up");
    let stopping = tare.spawn_call(["stop", "-t", "30s", "a"]);
    tare.logged(&id, "asked");
    tare.call(["pause", "a"]).exited(1).said(&["stopping"]);
    tare.call(["resume", "a"]).ok();
    tare.call(["stop", "-t", "0", "a"]).ok();
    stopping.wait().ok();
    tare.remove(&id);
}

/// Its keeper would stand still with it, and with that its timeout.
#[test]
fn an_attached_box_cannot_be_paused() {
    let tare = tare!();
    let attached = tare.spawn(["--name", "a", "--", "sh", "-c", "echo up; sleep 1000"]);
    attached.see("up");
    for call in [["pause", "a"], ["resume", "a"]] {
        tare.call(call)
            .exited(1)
            .said(&["attached to the process that started it", "'tare run -d'"]);
    }
    assert_eq!(tare.list()[0]["state"], "running");
    tare.call(["rm", "-f", "a"]).ok();
    attached.wait();
}

/// The box runs: it must not be reported as ended.
#[test]
fn a_box_without_its_socket_is_reported_as_unreachable() {
    let tare = tare!();
    let id = tare.idle_box();
    fs::remove_file(tare.record(&id).join("control")).unwrap();
    for (call, code) in [(&["exec", &id, "--", "true"][..], 125), (&["pause", &id], 1)] {
        let output = tare.call(call).exited(code);
        output.said(&["cannot be reached", "control socket is missing"]);
    }
    assert_eq!(tare.state(&id), "running");
    tare.call(["rm", "-f", &id]).ok();
    tare.assert_gone(&id);
}
