//! The life of a server: its start, its end, and what outlives it.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Server, TemporaryDirectory, eventually, eventually_within, skip, tare};

#[test]
fn health_and_ready_report_that_the_server_can_run_a_box() {
    let tare = tare!();
    let id = tare.idle_box();
    let server = Server::start(&tare, &[]);
    eventually("it has looked at what was there", || {
        server.get("/health").was(200).json()["recovery"]["done"] == true
    });
    assert_eq!(server.get("/health").json()["recovery"]["boxes"], 1);
    assert_eq!(server.get("/ready").was(200).json()["status"], "ready");
    server.stop().ok();
    tare.remove(&id);
}

/// The kernel call that makes the box's root its own does not return.
#[test]
fn ready_names_the_step_at_which_a_box_hangs() {
    let tare = tare!();
    if !has_program("strace") || !is_root() {
        skip!("strace is not installed, or may not trace a keeper");
    }
    // strace lets a killed process go only after the delay: until then its box is stuck.
    let hang = "inject=pivot_root:delay_enter=20000000";
    let script = format!(
        "exec strace -D -f -o /dev/null -e trace=pivot_root -e {hang} \
         \"$TARE\" serve --listen 127.0.0.1:0"
    );
    let server = Server::start_command(&tare, tare.shell_command(&script));
    let asked = Instant::now();
    let answer = server.get("/ready").refused(503, "not_ready");
    assert!(asked.elapsed() < Duration::from_secs(30));
    assert!(answer.text().contains("pivot_root"), "{}", answer.text());
    eventually_within(Duration::from_secs(60), "nothing is left of its box", || {
        tare.footprint().records.is_empty()
    });
    server.stop().ok();
}

#[test]
fn a_killed_server_ends_its_runs_and_leaves_boxes_alone() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let made = server.post("/v1/boxes", &json!({ "name": "stays" })).was(201).json();
    let body = json!({ "command": ["sleep", "1000"] }).to_string();
    let json = [("Content-Type", "application/json")];
    let stream = server.send("POST", "/v1/run", &json, body.as_bytes());
    eventually("it runs", || tare.footprint().records.len() == 2);
    server.kill();
    drop(stream);
    let server = Server::start(&tare, &[]);
    eventually("only the box is left", || tare.footprint().records.len() == 1);
    let found = server.get("/v1/boxes/stays").was(200).json();
    assert_eq!((&found["id"], &found["state"]), (&made["id"], &"running".into()));
    tare.exec("stays", ["true"]).ok();
    server.delete("/v1/boxes/stays?force=true").was(204);
    server.stop().ok();
}

#[test]
fn a_draining_server_lets_runs_finish() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let body = json!({ "command": ["sh", "-c", "sleep 0.5; echo done"] }).to_string();
    let json = [("Content-Type", "application/json")];
    let mut stream = server.send("POST", "/v1/run", &json, body.as_bytes());
    eventually("it runs", || !tare.footprint().records.is_empty());
    server.signal(Signal::TERM);
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut bytes).expect("an answer");
    let answer = tare_harness::Answer::parse(&bytes).was(200).json();
    assert_eq!(answer["stdout"], "done\n");
    server.stop().ok();
}

#[test]
fn a_draining_server_ends_runs_after_the_drain_time() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let config = directory.path().join("tare.toml");
    fs::write(&config, "[limits]\ndrain = '100ms'\n").expect("a file");
    let server = Server::start(&tare, &["--config", &config.display().to_string()]);
    let body = json!({ "command": ["sleep", "1000"], "timeout_ms": 500_000 }).to_string();
    let json = [("Content-Type", "application/json")];
    let mut stream = server.send("POST", "/v1/run", &json, body.as_bytes());
    eventually("it runs", || !tare.footprint().records.is_empty());
    let log = server.stop().ok().stderr_text();
    assert!(log.contains("drained ended=1\n"), "{log}");
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut bytes).expect("an answer");
    tare_harness::Answer::parse(&bytes).refused(503, "stopping");
    assert!(tare.footprint().records.is_empty());
}

#[test]
fn a_reload_with_an_invalid_configuration_keeps_the_old_one() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let path = directory.path().join("tare.toml");
    let write = |text: &str| fs::write(&path, text).expect("a file");
    let config = path.display().to_string();
    write("[limits]\ntimeot = '1s'\n");
    let refused = tare.call(["serve", "--listen", "127.0.0.1:0", "--config", &config]);
    refused.exited(1).said(&["timeot"]);
    for (text, key) in [
        ("[hooks]\ncommand = ['/nope']\n", "[hooks] command"),
        ("[files]\ndirectory = '/dev/null/x'\n", "[files] directory"),
    ] {
        write(text);
        let refused = tare.call(["serve", "--listen", "127.0.0.1:0", "--config", &config]);
        refused.exited(1).said(&[key]);
    }
    write("[limits]\ntimeout_max = '1s'\ntimeout = '1s'\n");
    let server = Server::start(&tare, &["--config", &config]);
    let two_seconds = json!({ "command": ["true"], "timeout_ms": 2000 });
    server.post("/v1/run", &two_seconds).refused(400, "invalid");
    write("[limits]\ntimeout_max = 'banana'\n");
    server.signal(Signal::HUP);
    eventually("it says so", || server.log().contains("reload_refused"));
    server.post("/v1/run", &two_seconds).refused(400, "invalid");
    write("[limits]\ntimeout_max = '3s'\ntimeout = '1s'\n");
    server.signal(Signal::HUP);
    eventually("it is taken", || server.log().contains(" reloaded"));
    server.post("/v1/run", &two_seconds).was(200);
    server.stop().ok();
}
