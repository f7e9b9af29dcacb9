//! Detached boxes without privileges: the same commands work, with the keeper's PID namespace in
//! place of cgroups.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::process::Signal;
use tare_harness::{Tare, TemporaryDirectory, box_processes, eventually, unprivileged};

#[track_caller]
fn start(tare: &Tare, options: &[&str], script: &str) -> String {
    let command = ["--quiet", "--name", "a", "--", "sh", "-c", script];
    tare.detached(options.iter().chain(&command))
}

/// How many processes are alive in boxes of ours: keepers are our orphans, the
/// rest is in their PID namespaces.
fn alive() -> usize {
    let all = box_processes();
    let is_keeper = |pid: u32| pid == std::process::id();
    let spaces: Vec<_> = all
        .iter()
        .filter(|one| is_keeper(one.parent))
        .map(|one| one.pid_namespace.clone())
        .collect();
    let inside = all.iter().filter(|one| !one.is_zombie);
    inside.filter(|one| spaces.contains(&one.pid_namespace)).count()
}

#[test]
fn a_rootless_detached_box_is_used_and_removed() {
    let tare = unprivileged!();
    let id = start(&tare, &[], "echo up; setsid sleep 1000 & sleep 1000");
    tare.logged(&id, "up");
    assert!(alive() >= 3);
    assert_eq!(tare.state(&id), "running");
    tare.exec("a", ["sh", "-c", "echo out; echo err >&2; exit 3"])
        .exited(3)
        .printed("out\n")
        .said(&["err"]);
    tare.call(["exec", "--timeout", "500ms", "a", "--", "sleep", "1000"]).exited(124);
    tare.call(["rm", "a"]).exited(1).said(&["is running"]);
    tare.remove(&id);
    assert_eq!(alive(), 0);
    tare.nothing_left();
}

#[test]
fn an_ended_rootless_box_is_kept_until_it_is_removed() {
    let tare = unprivileged!();
    let id = start(&tare, &[], "echo out; setsid sleep 1000 & exit 7");
    eventually("everyone in the box is gone", || alive() == 0);
    assert_eq!(tare.ended(&id)["exit_code"], 7);
    tare.call(["logs", "a"]).ok().printed("out\n");
    tare.call(["wait", "a"]).ok().printed("7\n");
    tare.call(["rm", "a"]).ok();
    tare.nothing_left();
}

#[test]
fn stop_kill_and_lease_end_all_processes_of_a_rootless_box() {
    let tare = unprivileged!();
    let stubborn =
        "trap '' TERM HUP INT; (setsid sleep 1000) & echo up; while :; do sleep 1000; done";
    let calls = [
        (&["stop", "-t", "500ms", "a"][..], Some("stopped")),
        (&["kill", "a"], Some("killed")),
        (&["rm", "-f", "a"], None),
    ];
    for (call, cause) in calls {
        let id = start(&tare, &[], stubborn);
        tare.logged(&id, "up");
        tare.call(call).ok().printed("a\n");
        assert_eq!(alive(), 0, "{call:?}");
        if let Some(cause) = cause {
            assert_eq!(tare.look(&id)["cause"], cause);
            tare.remove(&id);
        }
        tare.nothing_left();
    }
    let id = start(&tare, &["--lease", "1s"], stubborn);
    eventually("everyone in the box is gone", || alive() == 0);
    assert_eq!(tare.ended(&id)["cause"], "lease");
    tare.remove(&id);
}

#[test]
fn a_rootless_exec_client_that_disappears_takes_its_tree_along() {
    let tare = unprivileged!();
    let id = start(&tare, &[], "echo up; exec sleep 1000");
    tare.logged(&id, "up");
    let before = alive();
    let script = "setsid sh -c 'sleep 1000 & wait' & echo ready; sleep 1000";
    let client = tare.spawn_call(["exec", "a", "--", "sh", "-c", script]);
    client.see("ready").signal(Signal::KILL);
    client.wait().exited(-9);
    eventually("the tree of the client is gone", || alive() == before);
    tare.remove(&id);
}

#[test]
fn a_rootless_creator_killed_during_start_leaves_a_complete_box_or_none() {
    let tare = unprivileged!();
    for step in 0..30 {
        let call = ["run", "-d", "--quiet", "--name", "a", "--", "sleep", "1000"];
        let creator = tare.spawn_call(call);
        tare_harness::let_pass(Duration::from_micros(700 * step));
        creator.signal(Signal::KILL);
        creator.wait();
        eventually("a box is listed as running, or none is", || {
            tare.list().iter().all(|one| one["state"] == "running")
        });
        if let [one] = tare.list().as_slice() {
            tare.remove(one["id"].as_str().expect("an id"));
        }
        // A dying process gives up the record's lock before it is gone.
        eventually("the keeper is dead", || tare.footprint().processes.is_empty());
        tare.nothing_left();
    }
}

#[test]
fn cp_works_without_root() {
    let tare = unprivileged!();
    let id = start(&tare, &[], "sleep 1000");
    let directory = TemporaryDirectory::new();
    let file = directory.write("file", "content\n");
    let file = file.to_str().unwrap();
    tare.call(["cp", file, "a:/work/in"]).ok().said_nothing();
    tare.exec("a", ["cat", "/work/in"]).ok().printed("content\n");
    let stream = tare.call(["cp", "a:/work/in", "-"]).ok();
    assert!(stream.stdout.windows(8).any(|it| it == b"content\n"));
    let out = format!("{}/out", tare.state_root().parent().unwrap().display());
    // The user may not write there, and is told so.
    tare.call(["cp", "a:/work/in", &out]).exited(1).said(&[&out]);
    tare.remove(&id);
}

/// Commands that need a cgroup report it and change nothing.
#[test]
fn features_that_need_root_are_refused_with_the_reason() {
    let tare = unprivileged!();
    let id = start(&tare, &[], "sleep 1000");
    for (call, said) in [
        (&["pause", "a"][..], "box a cannot be paused: this host gives you no cgroup"),
        (&["update", "--memory", "64m", "a"], "cannot change the memory limit on this host"),
    ] {
        tare.call(call).exited(1).printed("").said(&[said]);
    }
    assert_eq!(tare.state(&id), "running");
    let owner = tare.record(&id).metadata().unwrap().uid();
    assert_ne!(owner, 0);
    tare.remove(&id);
}
