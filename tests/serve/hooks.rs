//! The program of a hook ends at its timeout and with the server, and so does everything that it
//! started.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;
use tare_harness::{Server, Tare, TemporaryDirectory, eventually, tare};

use crate::serve::configured;

/// Starts a process in a session of its own and one that its parent leaves behind, notes
/// the numbers of all, and does not end.
const PROGRAM: &str = "echo $$ >> $0; setsid sleep 1000 & echo $! >> $0;
    (setsid sh -c \"echo \\$\\$ >> $0; exec sleep 1000\" &); sleep 1000";
const PROCESSES: usize = 3;

/// Starts a server whose hook runs the program, and returns the pids of the program's processes.
fn hooked(tare: &Tare, timeout: &str) -> (Server, Vec<u32>, TemporaryDirectory) {
    let (directory, config) = configured("");
    let pids = directory.path().join("pids");
    let program = directory.path().join("hook");
    fs::write(&program, PROGRAM).expect("a file");
    let text = format!(
        "[limits]\nboxes = 2\n[gauges]\nwarn = 40\nalert = 90\nfull = 95\n\
         [hooks]\ncommand = ['sh', '-c', '. {}', '{}']\ntimeout = '{timeout}'\n",
        program.display(),
        pids.display(),
    );
    fs::write(&config, text).expect("a file");
    let server = Server::start(tare, &["--config", &config]);
    server.post("/v1/boxes", &json!({ "name": "a" })).was(201);
    let mut started = Vec::new();
    eventually("the program runs", || {
        let text = fs::read_to_string(&pids).unwrap_or_default();
        started = text.lines().filter_map(|line| line.parse().ok()).collect();
        started.len() == PROCESSES
    });
    (server, started, directory)
}

#[track_caller]
fn all_are_gone(pids: &[u32]) {
    eventually("the program and all that it started are gone", || {
        !pids.iter().any(|pid| Path::new("/proc").join(pid.to_string()).exists())
    });
}

#[test]
fn the_timeout_ends_a_hook_and_its_children() {
    let tare = tare!();
    let (server, pids, _directory) = hooked(&tare, "2s");
    all_are_gone(&pids);
    eventually("the log says so", || server.log().contains("hook_failed"));
    tare.remove("a");
    server.stop().ok();
}

#[test]
fn the_end_of_the_server_ends_a_hook_and_its_children() {
    for signal in [Signal::TERM, Signal::KILL] {
        let tare = tare!();
        let (server, pids, _directory) = hooked(&tare, "500s");
        tare.remove("a");
        server.signal(signal);
        all_are_gone(&pids);
        server.stop();
    }
}

#[test]
fn background_processes_of_a_hook_end_with_it_and_its_failure_is_logged() {
    let tare = tare!();
    let (directory, config) = configured("");
    let pid = directory.path().join("pid");
    let text = format!(
        "[limits]\nboxes = 2\n[gauges]\nwarn = 40\nalert = 90\nfull = 95\n\
         [hooks]\ncommand = ['sh', '-c', 'setsid sleep 1000 & echo $! > {}; exit 3']\n",
        pid.display(),
    );
    fs::write(&config, text).expect("a file");
    let server = Server::start(&tare, &["--config", &config]);
    server.post("/v1/boxes", &json!({ "name": "a" })).was(201);
    eventually("the log has its exit code", || server.log().contains("exit code 3"));
    let pid = fs::read_to_string(&pid).expect("it ran");
    all_are_gone(&[pid.trim().parse().expect("a number")]);
    tare.remove("a");
    server.stop().ok();
}

/// The first call waits until the test lets it go on.
#[test]
fn changes_during_a_call_come_with_the_next_one_each_on_a_line() {
    let tare = tare!();
    let (directory, config) = configured("");
    let [go_on, told] = ["go-on", "told"].map(|name| directory.path().join(name));
    let script = format!(
        "cat >> {told}; echo over >> {told}; while [ ! -e {go_on} ]; do sleep 0.1; done",
        told = told.display(),
        go_on = go_on.display(),
    );
    let text = format!(
        "[limits]\nboxes = 2\n[gauges]\nwarn = 40\nalert = 90\nfull = 95\n\
         [hooks]\ncommand = ['sh', '-c', '{script}']\ntimeout = '500s'\n"
    );
    fs::write(&config, text).expect("a file");
    let server = Server::start(&tare, &["--config", &config]);
    let calls = || fs::read_to_string(&told).unwrap_or_default();
    let of_boxes = |log: &str| log.lines().filter(|line| line.contains("boxes")).count();
    server.post("/v1/boxes", &json!({})).was(201);
    eventually("the first call is made", || calls().contains("over"));
    server.post("/v1/boxes", &json!({})).was(201);
    tare.call(["rm", "-f", "--all"]).ok();
    let changed = || {
        let log = server.log();
        let changes = log.lines().filter(|line| line.contains("gauge_changed"));
        changes.filter(|line| line.contains("\"boxes\"")).count()
    };
    eventually("the gauge falls again", || server.log().contains("to=\"normal\"") && changed() > 1);
    assert_eq!(calls().matches("over").count(), 1, "one call at a time");
    fs::write(&go_on, "").expect("a file");
    eventually("all changes are told", || of_boxes(&calls()) == changed());
    let lines = calls();
    for line in lines.lines().filter(|line| *line != "over") {
        let event: serde_json::Value = serde_json::from_str(line).expect("one event on a line");
        assert_eq!(event["event"], "gauge_changed", "{line}");
    }
    server.stop().ok();
}
