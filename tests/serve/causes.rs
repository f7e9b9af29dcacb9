//! Answers, events and metrics name the cause of every end with the same word.

use std::io::Read;
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::{Answer, Server, Tare, eventually, tare};

use crate::serve::operating::{events, value};

const LIMITS: &str = "log = 'json'\n[limits]\ndrain = '100ms'\n";

fn counts_memory(tare: &Tare) -> bool {
    !tare.call(["doctor"]).stdout_text().contains("no writable cgroup")
}

fn greedy() -> Value {
    json!(["python3", "-c", "held = [b'x' * 1048576 for _ in range(1024)]"])
}

/// Sends a request for a run that lasts, and waits until its command runs.
fn begin(tare: &Tare, server: &Server) -> (TcpStream, String) {
    let started = || {
        let text = server.get("/metrics").was(200).text();
        value(&text, "tare_run_phase_seconds_count{phase=\"start\"}")
    };
    let before = started();
    let body = json!({ "command": ["sleep", "1000"] }).to_string();
    let json = [("Content-Type", "application/json")];
    let stream = server.send("POST", "/v1/run", &json, body.as_bytes());
    eventually("it runs", || started() > before);
    let id = tare.boxes_of_calls().first().cloned();
    (stream, id.expect("the run has a box"))
}

fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    Answer::parse(&bytes)
}

/// The causes of the events of this name, in order.
fn causes(server: &Server, event: &str) -> Vec<String> {
    let cause = |event: &Value| event["cause"].as_str().unwrap_or("none").to_owned();
    events(server, event).iter().map(cause).collect()
}

#[track_caller]
fn assert_counted(server: &Server, cause: &str, times: f64) {
    let series = format!("tare_ends_total{{cause=\"{cause}\"}}");
    eventually(&format!("{series} is {times}"), || {
        value(&server.get("/metrics").was(200).text(), &series) == Some(times)
    });
}

#[test]
fn the_end_of_a_run_has_the_same_cause_in_answer_event_and_metric() {
    let tare = tare!();
    let server = Server::start_configured(&tare, LIMITS);
    let run = |request: Value| server.post("/v1/run", &request).was(200).json();
    let mut requests = vec![
        (json!({ "command": ["false"] }), "exited"),
        (json!({ "command": ["sh", "-c", "kill -SEGV $$"] }), "signalled"),
        (json!({ "command": ["sleep", "1000"], "timeout_ms": 200 }), "timeout"),
        (json!({ "language": "bash", "code": "sleep 1000", "timeout_ms": 200 }), "timeout"),
    ];
    if counts_memory(&tare) {
        let limits = json!({ "memory_bytes": 64 << 20 });
        requests.push((json!({ "command": greedy(), "limits": limits }), "memory"));
        let code = "held = [b'x' * 1048576 for _ in range(1024)]";
        let request = json!({ "language": "python", "code": code, "limits": limits });
        requests.push((request, "memory"));
    }
    let mut expected = Vec::new();
    for (request, cause) in requests {
        let result = run(request);
        assert_eq!(result["cause"], cause, "{result}");
        expected.push(cause);
    }
    let large = json!([{ "path": "x", "content": "x".repeat(3 << 20) }]);
    let scratch = json!({ "scratch_bytes": 1 << 20 });
    for (request, said) in [
        (json!({ "command": ["nope"] }), "there is no such program"),
        (json!({ "command": ["nope"], "outputs": ["x"] }), "there is no such program"),
        (json!({ "command": ["true"], "files": large, "limits": scratch }), "No space left"),
    ] {
        let error = server.post("/v1/run", &request).json()["error"].clone();
        let id = error["box_id"].as_str().unwrap_or_else(|| panic!("no box in {error}"));
        let explained = tare.json(["explain", "--json", id]);
        assert_eq!(error["cause"], "start_failed", "{error}");
        assert_eq!(error["sentence"], explained["sentence"], "{error}");
        let sentence = error["sentence"].as_str().expect("a text");
        assert!(sentence.starts_with("Never started: ") && sentence.contains(said), "{error}");
        expected.push("start_failed");
    }
    for (call, cause) in [(&["stop"][..], "stopped"), (&["rm", "-f"], "killed")] {
        let (stream, id) = begin(&tare, &server);
        tare.call(call.iter().chain(&[id.as_str()])).ok();
        assert_eq!(answer(stream).was(200).json()["cause"], cause);
        expected.push(cause);
    }
    let (stream, id) = begin(&tare, &server);
    tare.keeper(&id).signal(Signal::KILL);
    assert_eq!(answer(stream).was(200).json()["cause"], "keeper_lost");
    expected.push("keeper_lost");
    drop(begin(&tare, &server));
    expected.push("client_gone");
    eventually("all are logged", || causes(&server, "run_ended") == expected);
    for cause in &expected {
        let times = expected.iter().filter(|one| one == &cause).count();
        assert_counted(&server, cause, times as f64);
    }
    let (stream, id) = begin(&tare, &server);
    let log = server.stop().ok().stderr_text();
    assert!(log.contains("\"cause\":\"server_stopping\""), "{log}");
    let error = answer(stream).was(503).json()["error"].clone();
    assert_eq!((&error["code"], &error["box_id"]), (&json!("stopping"), &json!(id)), "{error}");
    let explained = tare.json(["explain", "--json", &id]);
    for field in ["cause", "sentence"] {
        assert_eq!(error[field], explained[field], "{error} {explained}");
    }
}

#[test]
fn the_end_of_a_box_has_the_same_cause_in_answers_event_and_metric() {
    let tare = tare!();
    let server = Server::start_configured(&tare, LIMITS);
    let mut expected = Vec::new();
    for (request, path, cause) in [
        (json!({ "command": ["true"] }), None, "exited"),
        (json!({ "command": ["sleep", "1000"], "lease_ms": 300 }), None, "lease"),
        (json!({ "command": ["sleep", "1000"] }), Some("stop"), "stopped"),
        (json!({ "command": ["sleep", "1000"] }), Some("keeper"), "keeper_lost"),
    ] {
        let made = server.post("/v1/boxes", &request).was(201).json();
        let id = made["id"].as_str().expect("an id");
        match path {
            Some("keeper") => tare.keeper(id).signal(Signal::KILL),
            Some(path) => {
                server.post(&format!("/v1/boxes/{id}/{path}"), &json!({})).was(200);
            }
            None => {}
        }
        let waited = server.get(&format!("/v1/boxes/{id}/wait")).was(200).json();
        assert_eq!(waited["cause"], cause, "{waited}");
        assert_eq!(server.get(&format!("/v1/boxes/{id}")).was(200).json()["cause"], cause);
        expected.push(cause);
        eventually("it is logged", || causes(&server, "box_ended") == expected);
        assert_counted(&server, cause, 1.0);
        server.delete(&format!("/v1/boxes/{id}")).was(204);
    }
    // Each end is one event, also of a box that a request or a command removes at once.
    for round in 1..=10 {
        let made = server.post("/v1/boxes", &json!({ "command": ["sleep", "1000"] })).was(201);
        let id = made.json()["id"].as_str().expect("an id").to_owned();
        if round % 2 == 0 {
            server.delete(&format!("/v1/boxes/{id}?force=true")).was(204);
        } else {
            tare.call(["rm", "-f", &id]).ok();
        }
        expected.push("killed");
        eventually("it is logged", || causes(&server, "box_ended") == expected);
        assert_counted(&server, "killed", f64::from(round));
    }
    server.stop().ok();
}

#[test]
fn the_end_of_an_exec_has_the_same_cause_in_answer_and_metric() {
    let tare = tare!();
    let server = Server::start_configured(&tare, LIMITS);
    let limits = json!({ "memory_bytes": 64 << 20 });
    server.post("/v1/boxes", &json!({ "name": "web", "limits": limits })).was(201);
    let mut execs = vec![
        (json!({ "command": ["false"] }), "exited"),
        (json!({ "command": ["sh", "-c", "kill -SEGV $$"] }), "signalled"),
        (json!({ "command": ["sleep", "1000"], "timeout_ms": 200 }), "timeout"),
    ];
    if counts_memory(&tare) {
        execs.push((json!({ "command": greedy() }), "memory"));
    }
    for (request, cause) in execs {
        let result = server.post("/v1/boxes/web/exec", &request).was(200).json();
        assert_eq!(result["cause"], cause, "{result}");
        assert_counted(&server, cause, 1.0);
    }
    let body = json!({ "command": ["sleep", "1000"] }).to_string();
    let json = [("Content-Type", "application/json")];
    let gone = server.send("POST", "/v1/boxes/web/exec", &json, body.as_bytes());
    eventually("it runs", || server.get("/v1/boxes/web/stats").json()["pids"] == 1);
    drop(gone);
    assert_counted(&server, "client_gone", 1.0);
    server.delete("/v1/boxes/web?force=true").was(204);
    server.stop().ok();
}
