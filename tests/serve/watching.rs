//! Logs, use and events of boxes, and audit and sweep over HTTP.

use std::fs;
use std::io::Read;
use std::net::TcpStream;

use serde_json::{Value, json};
use tare_harness::{Server, Tare, eventually, tare};

pub fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).expect("something comes");
        assert_ne!(count, 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    seen
}

/// A box called `web` with this command.
fn start(server: &Server, script: &str) {
    let request = json!({ "name": "web", "command": ["sh", "-c", script] });
    server.post("/v1/boxes", &request).was(201);
}

#[test]
fn a_log_is_read_in_full_in_part_and_in_frames() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    start(&server, "echo one; echo two >&2; echo three; printf '\\303'; sleep 1000");
    let logs = |query: &str| server.get(&format!("/v1/boxes/web/logs{query}"));
    eventually("it is written", || {
        let body = logs("").was(200).body;
        body.contains(&0xc3) && String::from_utf8_lossy(&body).contains("two")
    });
    let text = logs("");
    assert!(text.header("content-type").is_some_and(|it| it.starts_with("text/plain")));
    for line in ["one\n", "two\n", "three\n"] {
        assert!(text.text().contains(line), "{}", text.text());
    }
    assert_eq!(logs("?tail=1").text(), "\u{fffd}");
    assert_eq!(logs("?tail=0").text(), "");
    assert_eq!(logs("?since=2999-01-01T00:00:00Z").text(), "");
    assert!(logs("?since=1h").text().contains("one"));
    let timed = logs("?timestamps=true").text();
    assert!(timed.lines().all(|line| line.contains("Z ")), "{timed}");
    let lines = [("Accept", "application/x-ndjson")];
    let framed = server.ask("GET", "/v1/boxes/web/logs", &lines, b"");
    let frames: Vec<Value> =
        framed.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let two = frames.iter().find(|frame| frame["data"] == "two\n");
    let two = two.unwrap_or_else(|| panic!("{frames:?}"));
    assert_eq!(two["type"], "stderr");
    assert!(two["time"].is_string());
    assert_eq!(frames.last().map(|frame| &frame["type"]), Some(&"end".into()));
    logs("?since=soon").refused(400, "invalid_query");
    logs("?tail=-1").refused(400, "invalid_query");
    server.get("/v1/boxes/nope/logs").refused(404, "no_such_box");
    server.delete("/v1/boxes/web?force=true").was(204);
    server.stop().ok();
}

#[test]
fn a_log_is_followed_to_the_end_of_its_box() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    start(&server, "echo first; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo last");
    let mut stream = server.send("GET", "/v1/boxes/web/logs?follow=true", &[], b"");
    read_until(&mut stream, "first");
    tare.exec("web", ["touch", "/tmp/go"]).ok();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("it ends");
    assert!(rest.contains("last"), "{rest}");
    server.delete("/v1/boxes/web").was(204);
    server.stop().ok();
}

/// A server that shuts down does not wait for clients that only listen.
#[test]
fn event_and_log_streams_end_when_the_server_shuts_down() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    start(&server, "echo first; sleep 1000");
    let mut log = server.send("GET", "/v1/boxes/web/logs?follow=true", &[], b"");
    let mut events = server.send("GET", "/v1/events", &[], b"");
    let wait = server.send("GET", "/v1/boxes/web/wait?timeout_ms=600000", &[], b"");
    read_until(&mut log, "first");
    read_until(&mut events, "alive");
    server.stop().ok();
    for mut stream in [log, events, wait] {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("it ends");
        assert!(!rest.is_empty(), "with a whole answer");
    }
    tare.call(["rm", "-f", "web"]).ok();
}

#[test]
fn stats_and_wait_report_use_and_end_of_a_box() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    start(&server, "while [ ! -e /tmp/go ]; do sleep 0.05; done; exit 7");
    let stats = server.get("/v1/boxes/web/stats").was(200).json();
    assert!(stats["pids_limit"].is_number(), "{stats}");
    let wait = |query: &str| server.get(&format!("/v1/boxes/web/wait{query}"));
    assert_eq!(wait("?timeout_ms=1").was(200).json()["ended"], false);
    let mut waiting = server.send("GET", "/v1/boxes/web/wait", &[], b"");
    // The box may end before the process that let it.
    tare.exec("web", ["touch", "/tmp/go"]);
    let answer = read_until(&mut waiting, "oom");
    assert!(answer.contains("\"exit_code\":7"), "{answer}");
    assert_eq!(wait("").was(200).json()["exit_code"], 7);
    wait("?timeout_ms=0").refused(400, "invalid");
    server.get("/v1/boxes/web/stats").refused(409, "conflict");
    server.delete("/v1/boxes/web").was(204);
    server.stop().ok();
}

#[test]
fn events_report_the_life_of_every_box() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let lines = [("Accept", "application/x-ndjson")];
    let mut events = server.send("GET", "/v1/events", &lines, b"");
    let mut others = server.send("GET", "/v1/events", &[], b"");
    read_until(&mut events, "alive");
    read_until(&mut others, "event: alive");
    start(&server, "exit 7");
    let seen = read_until(&mut events, "box_ended");
    assert!(seen.contains("box_created") && seen.contains("\"exit_code\":7"), "{seen}");
    server.delete("/v1/boxes/web").was(204);
    let seen = read_until(&mut events, "box_removed");
    assert!(!seen.contains("\"request\""), "{seen}");
    read_until(&mut others, "event: box_removed");
    server.stop().ok();
}

#[test]
fn events_and_metrics_report_a_box_that_keeps_nothing() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let lines = [("Accept", "application/x-ndjson")];
    let mut events = server.send("GET", "/v1/events", &lines, b"");
    read_until(&mut events, "alive");
    let create = |command: &str| {
        let request = json!({ "name": "brief", "command": ["sh", "-c", command], "remove": true });
        server.post("/v1/boxes", &request).was(201)
    };
    create("exit 7");
    let seen = read_until(&mut events, "box_removed");
    assert!(seen.contains("box_ended") && seen.contains("\"exit_code\":7"), "{seen}");
    create("sleep 1000");
    server.post("/v1/boxes/brief/stop", &json!({})).was(200);
    let seen = read_until(&mut events, "box_removed");
    assert!(seen.contains("box_ended") && seen.contains("\"cause\":\"stopped\""), "{seen}");
    let metrics = server.get("/metrics").was(200).text();
    for series in ["tare_boxes_ended_total 2", "tare_boxes_removed_total 2"] {
        assert!(metrics.contains(series), "{metrics}");
    }
    server.stop().ok();
}

#[test]
fn audit_works_over_http() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    start(&server, "sleep 1000");
    let audit = server.get("/v1/audit").was(200).json();
    assert_eq!(audit["clean"], true, "{audit}");
    assert_eq!(audit["boxes"][0]["name"], "web");
    assert_eq!(audit["boxes"][0]["kept_by"]["kind"], "keeper");
    let swept = server.ask("POST", "/v1/sweep", &[], b"").was(200).json();
    assert_eq!(swept["swept"], json!([]));
    server.get("/v1/audit?waitt=1").refused(400, "invalid_query");
    server.delete("/v1/boxes/web?force=true").was(204);
    assert_eq!(server.get("/v1/audit?wait=true").was(200).json()["boxes"], json!([]));
    server.stop().ok();
}

/// Audit reports a box whose record is gone, and sweep removes it.
#[test]
fn sweep_removes_box_without_record() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    start(&server, "sleep 1000");
    let id = server.get("/v1/boxes/web").json()["id"].clone();
    let id = id.as_str().expect("an id");
    // The test removes the record directly.
    let record = tare.state_root().join("boxes").join(id);
    fs::remove_dir_all(record).expect("it is there");
    let audit = server.get("/v1/audit").was(200).json();
    assert_eq!(audit["clean"], false, "{audit}");
    let planned = "/v1/sweep?dry_run=true";
    let planned = server.ask("POST", planned, &[], b"").was(200).json();
    assert_eq!(planned["swept"][0]["outcome"], "planned", "{planned}");
    let swept = server.ask("POST", "/v1/sweep", &[], b"").was(200).json();
    assert_eq!(swept["swept"][0]["outcome"], "done", "{swept}");
    assert_eq!(server.get("/v1/audit").json()["clean"], true);
    server.stop().ok();
}

#[test]
fn events_report_pause_resume_and_lease_changes() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    start(&server, "sleep 1000");
    let id = server.get("/v1/boxes/web").json()["id"].clone();
    let id = id.as_str().expect("an id");
    let mut events = server.send("GET", "/v1/events", &[], b"");
    read_until(&mut events, "alive");
    let ask = |what: &str| server.post(&format!("/v1/boxes/web/{what}"), &json!({}));
    for what in ["pause", "pause", "resume", "resume"] {
        ask(what).was(200);
    }
    let lease = json!({ "lease_ms": 3_600_000 });
    let leased = server.post("/v1/boxes/web/lease", &lease).was(200).json();
    let refused = json!({ "lease_ms": 0 });
    let refused = server.post("/v1/boxes/web/lease", &refused);
    assert_eq!(refused.status, 400, "{}", refused.text());
    server.delete("/v1/boxes/web?force=true").was(204);
    ask("pause").refused(404, "no_such_box");
    start(&server, "sleep 1000");
    let told = read_until(&mut events, "box_created");
    for event in ["box_paused", "box_resumed", "box_lease_changed"] {
        assert_eq!(times_told(&told, event, id), 1, "{event}: {told}");
    }
    let ends_at = leased["lease_ends_at"].as_str().expect("a time");
    let ends_at = format!("\"lease_ends_at\":\"{ends_at}\"");
    assert!(told.contains(&ends_at), "{told}");
    server.delete("/v1/boxes/web?force=true").was(204);
    server.stop().ok();
}

/// Kills a `tare run`, which leaves a record, and returns its id.
fn leftover(tare: &Tare) -> String {
    let before = tare.footprint().records;
    let killed = tare.spawn(["--", "sh", "-c", "echo runs; sleep 1000"]);
    killed.see("runs");
    killed.signal(rustix::process::Signal::KILL);
    killed.wait();
    let left = tare.footprint().records;
    let mut left = left.into_iter().filter(|id| !before.contains(id));
    left.next().expect("it left a record")
}

/// How often a stream of events says this of a box.
fn times_told(told: &str, event: &str, id: &str) -> usize {
    let events = told.lines().filter(|line| line.starts_with("data:"));
    let of_box = events.filter(|line| line.contains(&format!("\"box_id\":\"{id}\"")));
    let event = format!("\"event\":\"{event}\"");
    of_box.filter(|line| line.contains(&event)).count()
}

/// Different calls remove the leftover: a list, an inspect, a create with its name, a sweep.
#[test]
fn every_reclaimed_leftover_is_reported_once() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    eventually("it has looked", || server.log().contains("recovered"));
    let mut events = server.send("GET", "/v1/events", &[], b"");
    read_until(&mut events, "alive");
    let listed = leftover(&tare);
    server.get("/v1/boxes").was(200);
    let looked_at = leftover(&tare);
    server.get(&format!("/v1/boxes/{looked_at}")).refused(404, "no_such_box");
    let swept = leftover(&tare);
    server.post("/v1/sweep", &json!({})).was(200);
    // Nothing of it is on record.
    let unrecorded = tare.idle_box();
    fs::remove_dir_all(tare.record(&unrecorded)).expect("its record");
    server.post("/v1/sweep", &json!({})).was(200);
    // What is over is no leftover, whether or not it is kept.
    let over = tare.detached(["--", "true"]);
    let not_kept = tare.detached(["--rm", "--", "true"]);
    eventually("it is gone", || {
        server.get("/v1/boxes").was(200);
        !tare.footprint().records.contains(&not_kept)
    });
    server.post("/v1/sweep", &json!({})).was(200);
    server.delete(&format!("/v1/boxes/{over}")).was(204);
    let told = read_until(&mut events, "box_removed");
    for id in [&listed, &looked_at, &swept, &unrecorded] {
        assert_eq!(times_told(&told, "orphan_reclaimed", id), 1, "{id}: {told}");
    }
    for id in [&over, &not_kept] {
        assert_eq!(times_told(&told, "orphan_reclaimed", id), 0, "{id}: {told}");
    }
    server.stop().ok();
}
