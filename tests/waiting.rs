//! Boxes without a command: they wait for execs.

use std::time::Duration;

use tare_harness::{eventually_within, tare};

#[test]
fn a_box_without_a_command_waits_for_execs() {
    let tare = tare!();
    let id = tare.detached(["--name", "agent"]);
    assert!(tare.workload(&id).is_empty(), "the box has no workload");
    assert_eq!(tare.state(&id), "running");
    tare.exec("agent", ["sh", "-c", "echo one > /work/file"]).ok();
    assert!(tare.workload(&id).is_empty(), "the workload has ended");
    tare.exec("agent", ["cat", "/work/file"]).ok().printed("one\n");
    tare.remove(&id);
}

/// The exec that handles TERM ends by the signal, not at the end of the grace period.
#[test]
fn stop_of_a_box_without_a_command_stops_its_execs() {
    let tare = tare!();
    let id = tare.detached(["--name", "agent"]);
    let script = "trap 'echo asked; exit' TERM; echo ready; while :; do sleep 0.01; done";
    let running = tare.spawn_call(["exec", "agent", "--", "sh", "-c", script]);
    running.see("ready");
    tare.call(["stop", "-t", "600s", "agent"]).ok();
    running.wait().ok().printed("ready\nasked\n");
    let ended = tare.ended(&id);
    assert_eq!((&ended["exit_code"], &ended["cause"]), (&0.into(), &"stopped".into()));
    tare.remove(&id);
}

#[test]
fn stop_kills_execs_that_ignore_term_after_the_grace() {
    let tare = tare!();
    let id = tare.detached(["--name", "agent"]);
    let script = "trap '' TERM; echo ready; while :; do sleep 1; done";
    let running = tare.spawn_call(["exec", "agent", "--", "sh", "-c", script]);
    running.see("ready");
    tare.call(["stop", "-t", "100ms", "agent"]).ok();
    assert_eq!(tare.ended(&id)["exit_code"], 137);
    running.wait();
    tare.remove(&id);
}

#[test]
fn the_lease_ends_a_box_without_a_command() {
    let tare = tare!();
    let id = tare.detached(["--lease", "100ms"]);
    eventually_within(Duration::from_secs(5), "its lease has passed", || {
        tare.state(&id) == "exited"
    });
    assert_eq!(tare.ended(&id)["cause"], "lease");
    tare.remove(&id);
}
