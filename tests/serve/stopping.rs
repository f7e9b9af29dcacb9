//! Stops over HTTP: a stop that waits delays no other request, and the stop of a box that keeps
//! nothing succeeds.

use std::io::{ErrorKind, Read};

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::{Answer, Process, Server, Tare, eventually, tare};

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
/// More stops than the server has threads for the engine with this many descriptors.
const STOPS: usize = 12;
const DESCRIPTORS: usize = 160;
/// Longer than any test: a stop that returns has seen the box end.
const GRACE: &str = "{\"grace_ms\":500000}";

/// A box that ignores SIGTERM.
fn stubborn(tare: &Tare, server: &Server) -> String {
    let command = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1000; done"];
    let made = server.post("/v1/boxes", &json!({ "command": command }));
    let id = made.was(201).json()["id"].as_str().expect("an id").to_owned();
    tare.logged(&id, "up");
    id
}

fn boxes(server: &Server) -> Vec<Value> {
    let listed = server.get("/v1/boxes").was(200).json();
    listed["boxes"].as_array().expect("boxes").clone()
}

#[test]
fn many_stops_in_their_grace_delay_no_other_request() {
    let tare = tare!();
    let script = format!(
        "exec prlimit --nofile={DESCRIPTORS}:{DESCRIPTORS} \"$TARE\" serve --listen 127.0.0.1:0"
    );
    let server = Server::start_command(&tare, tare.shell_command(&script));
    let ids: Vec<String> = (0..STOPS).map(|_| stubborn(&tare, &server)).collect();
    let stop = |id: &String| {
        let path = format!("/v1/boxes/{id}/stop");
        server.send("POST", &path, &JSON, GRACE.as_bytes())
    };
    let stops: Vec<_> = ids.iter().map(stop).collect();
    let stopping = || boxes(&server).iter().all(|one| one["state"] == "stopping");
    eventually("all of them are being stopped", stopping);
    server.post("/v1/run", &json!({ "command": ["true"] })).was(200);
    let wait = format!("/v1/boxes/{}/wait?timeout_ms=10", ids[0]);
    assert_eq!(server.get(&wait).was(200).json()["ended"], false);
    assert!(stopping());
    for id in &ids {
        server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
    }
    for mut stop in stops {
        let mut bytes = Vec::new();
        stop.read_to_end(&mut bytes).expect("an answer");
        assert_eq!(Answer::parse(&bytes).was(200).json()["state"], "exited");
    }
    server.stop().ok();
}

/// Each of them waits for ten seconds, and there are more of them than calling threads.
#[test]
fn requests_to_a_stopped_keeper_delay_no_other_request() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let made = server.post("/v1/boxes", &json!({ "command": ["sleep", "1000"] }));
    let id = made.was(201).json()["id"].as_str().expect("an id").to_owned();
    let keeper = tare.keeper(&id);
    keeper.signal(Signal::STOP);
    let files = format!("/v1/boxes/{id}/files/work/file");
    let asked: Vec<_> = (0..80).map(|_| server.send("GET", &files, &[], b"")).collect();
    server.get("/v1/boxes").was(200);
    let run = json!({ "command": ["true"] });
    server.post("/v1/run", &run).was(200);
    for stream in &asked {
        stream.set_nonblocking(true).expect("a socket");
        let waits = stream.peek(&mut [0]).expect_err("no answer yet");
        assert_eq!(waits.kind(), ErrorKind::WouldBlock);
    }
    keeper.signal(Signal::CONT);
    for mut stream in asked {
        stream.set_nonblocking(false).expect("a socket");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("an answer");
    }
    server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
    server.stop().ok();
}

#[test]
fn stop_of_a_run_or_of_a_box_that_removes_itself_succeeds() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let sleep = json!({ "command": ["sleep", "1000"] }).to_string();
    for _ in 0..3 {
        let mut run = server.send("POST", "/v1/run", &JSON, sleep.as_bytes());
        let mut id = String::new();
        eventually("it runs", || {
            let listed = boxes(&server);
            let found = listed.first().and_then(|one| one["id"].as_str());
            id = found.unwrap_or_default().to_owned();
            let is_sleep = |one: &Process| one.program.as_deref() == Some("sleep");
            !id.is_empty() && tare.workload(&id).iter().any(is_sleep)
        });
        let stopped = server.post(&format!("/v1/boxes/{id}/stop"), &json!({})).was(200);
        assert_eq!(stopped.json()["state"], "exited");
        assert_eq!(stopped.json()["id"], id.as_str());
        let mut bytes = Vec::new();
        run.read_to_end(&mut bytes).expect("an answer");
        assert_eq!(Answer::parse(&bytes).was(200).json()["exit_code"], 143);
    }
    let request = json!({ "command": ["sleep", "1000"], "name": "a", "remove": true });
    server.post("/v1/boxes", &request).was(201);
    let stopped = server.post("/v1/boxes/a/stop", &json!({})).was(200).json();
    assert_eq!(stopped["state"], "exited");
    assert_eq!((&stopped["exit_code"], &stopped["cause"]), (&json!(143), &json!("stopped")));
    assert!(tare.footprint().records.is_empty());
    server.stop().ok();
}
