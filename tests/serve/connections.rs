//! Connections: clients that only listen have a share of them, and operators can always connect.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use tare_harness::{Server, TemporaryDirectory, eventually, tare};

use crate::serve::watching::read_until;

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// A box called `web` that does nothing, and a detached process in it.
fn with_box(server: &Server) -> String {
    server.post("/v1/boxes", &json!({ "name": "web" })).was(201);
    let exec = json!({ "command": ["sleep", "1000"], "detach": true });
    let exec = server.post("/v1/boxes/web/exec", &exec).was(202).json();
    exec["id"].as_str().expect("an id").to_owned()
}

fn events(server: &Server, headers: &[(&str, &str)]) -> TcpStream {
    let mut stream = server.send("GET", "/v1/events", headers, b"");
    read_until(&mut stream, "alive");
    stream
}

#[test]
fn listeners_leave_half_of_the_connections_to_others() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nconnections = 8\n");
    let exec = with_box(&server);
    let listeners: Vec<_> = (0..4).map(|_| events(&server, &[])).collect();
    let listens = [
        "/v1/events".to_owned(),
        "/v1/boxes/web/logs?follow=true".to_owned(),
        "/v1/boxes/web/wait".to_owned(),
        format!("/v1/boxes/web/execs/{exec}/stream"),
    ];
    for path in &listens {
        let refused = server.get(path).refused(503, "streams_full");
        assert!(refused.header("retry-after").is_some(), "{path}");
    }
    let command = json!({ "command": ["true"] }).to_string();
    let streamed = [JSON, ("Accept", "text/event-stream")];
    server
        .ask("POST", "/v1/boxes/web/exec", &streamed, command.as_bytes())
        .refused(503, "streams_full");
    let mut terminal = server.connect();
    let upgrade = "GET /v1/boxes/web/exec/ws?command=sh HTTP/1.1\r\nHost: localhost\r\n\
                   Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    terminal.write_all(upgrade.as_bytes()).expect("it reads");
    read_until(&mut terminal, "streams_full");
    drop(terminal);
    server.get("/v1/boxes").was(200);
    server.get("/v1/boxes/web/logs").was(200);
    server.post("/v1/run", &json!({ "command": ["true"] })).was(200);
    drop(listeners);
    eventually("others may listen", || server.get("/v1/boxes/web/wait?timeout_ms=1").status == 200);
    server.delete("/v1/boxes/web?force=true").was(204);
    server.stop().ok();
}

#[test]
fn a_key_may_open_half_of_the_streams_that_other_keys_leave() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let keys = directory.join("keys");
    fs::write(&keys, "first-key\nsecond-key\nthird-key\n").expect("a file");
    let config = directory.join("tare.toml");
    fs::write(&config, "[limits]\nstreams = 4\n").expect("a file");
    let show = |path: &PathBuf| path.display().to_string();
    let args = ["--config", &show(&config), "--api-key-file", &show(&keys)];
    let server = Server::start(&tare, &args);
    let [first, second, third] =
        ["first-key", "second-key", "third-key"].map(|key| ("X-API-Key", key));
    let held = [first, first, second].map(|key| events(&server, &[key]));
    for key in [first, second] {
        let refused = server.ask("GET", "/v1/events", &[key], b"").refused(429, "quota_streams");
        assert!(refused.header("retry-after").is_some());
    }
    let last = events(&server, &[third]);
    drop((held, last));
    server.stop().ok();
}

#[test]
fn with_every_connection_taken_health_metrics_stop_and_rm_are_answered() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nconnections = 4\n");
    with_box(&server);
    let sleep = json!({ "command": ["sleep", "1000"], "timeout_ms": 600_000 }).to_string();
    let run = || {
        let stream = server.send("POST", "/v1/run", &[JSON], sleep.as_bytes());
        stream.set_nonblocking(true).expect("a socket");
        stream
    };
    let mut taken: Vec<_> = (0..4).map(|_| run()).collect();
    eventually("all run", || {
        // The connection that created the box may still count, and then one run is refused.
        for refused in taken.iter_mut().filter(|stream| stream.peek(&mut [0]).is_ok()) {
            *refused = run();
        }
        tare.footprint().records.len() == 5
    });
    for path in ["/health", "/v1/health", "/metrics"] {
        let answer = server.get(path).was(200);
        assert_eq!(answer.header("connection"), Some("close"), "{path}");
    }
    for path in ["/v1/boxes", "/v1/boxes/web", "/v1/events", "/", "/nowhere"] {
        let refused = server.get(path).refused(503, "connections_full");
        assert!(refused.header("retry-after").is_some(), "{path}");
    }
    server.post("/v1/run", &json!({ "command": ["true"] })).refused(503, "connections_full");
    let grace = json!({ "grace_ms": 0 });
    server.post("/v1/boxes/web/stop", &grace).was(200);
    server.delete("/v1/boxes/web").was(204);
    drop(taken);
    eventually("there are connections again", || server.get("/v1/boxes").status == 200);
    server.stop().ok();
}

/// Idle connections in the backlog and in the reserve must not delay an operator.
#[test]
fn with_many_idle_connections_health_is_answered_at_once() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nconnections = 8\n");
    let idle: Vec<_> = (0..100).map(|_| server.connect()).collect();
    for path in ["/health", "/metrics", "/v1/health"] {
        let start = Instant::now();
        server.get(path).was(200);
        // A connection of the reserve may take two seconds for its request.
        assert!(start.elapsed() < Duration::from_secs(1), "{path}: {:?}", start.elapsed());
    }
    drop(idle);
    eventually("there are connections again", || server.get("/v1/boxes").status == 200);
    server.stop().ok();
}

/// How many files each inotify descriptor of a process watches.
fn inotify(pid: u32) -> Vec<usize> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let descriptors = descriptors.flatten().filter(|entry| {
        let target = fs::read_link(entry.path());
        target.is_ok_and(|target| target.to_string_lossy() == "anon_inode:inotify")
    });
    let watched = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{name}")).ok()?;
        let watches = info.lines().filter(|line| line.starts_with("inotify wd:"));
        Some(watches.count())
    };
    descriptors.filter_map(watched).collect()
}

/// More than the inotify instances that a user of the host has.
const FOLLOWERS: usize = 150;

#[test]
fn all_followers_of_logs_share_one_inotify_instance() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    for name in ["one", "two"] {
        let script =
            format!("until [ -e /work/go ]; do sleep 0.05; done; echo hello of {name}; sleep 1000");
        let request = json!({ "name": name, "command": ["sh", "-c", script] });
        server.post("/v1/boxes", &request).was(201);
    }
    let follow = |name: &str| {
        let path = format!("/v1/boxes/{name}/logs?follow=true");
        let lines = [("Accept", "application/x-ndjson")];
        server.send("GET", &path, &lines, b"")
    };
    let followers = (0..FOLLOWERS).map(|_| follow("one"));
    let mut followers: Vec<TcpStream> = followers.chain([follow("two")]).collect();
    eventually("all are counted", || {
        let metrics = server.get("/metrics").text();
        metrics.contains(&format!("tare_streams_open {}\n", FOLLOWERS + 1))
    });
    // Two descriptors of one instance, one of them for the runtime; two files of each log.
    eventually("two logs are watched", || inotify(server.pid()) == [4, 4]);
    for name in ["one", "two"] {
        let path = format!("/v1/boxes/{name}/files/work/go");
        server.ask("PUT", &path, &[], b"x").was(204);
    }
    let last = followers.pop();
    for stream in &mut followers {
        read_until(stream, "hello of one");
    }
    read_until(&mut last.expect("one follows the other"), "hello of two");
    drop(followers);
    eventually("nothing is watched", || inotify(server.pid()) == [0, 0]);
    server.stop().ok();
    tare.call(["rm", "-f", "--all"]).ok();
}
