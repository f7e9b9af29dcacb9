//! Who is heard, and what is answered to those who are not.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::json;
use tare_harness::{Running, Server, Tare, TemporaryDirectory, tare};

/// B079
#[test]
fn beyond_this_host_it_does_not_listen_without_a_key() {
    let tare = tare!();
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let refused = tare.call(["serve", "--listen", listen]);
        refused
            .exited(1)
            .said(&["without an API key", "--api-key-file"]);
    }
    tare.call(["serve", "--listen", "8080"])
        .exited(2)
        .said(&["ADDRESS:PORT"]);
}

#[test]
fn a_name_of_this_host_can_be_listened_on() {
    let tare = tare!();
    let running = tare.spawn_call(["serve", "--listen", "localhost:0"]);
    running.see_error("listening");
    running.signal(rustix::process::Signal::TERM);
    running.wait().ok();
    // A resolver takes it for 192.0.0.2.
    tare.call(["serve", "--listen", "192.0.2:80"])
        .exited(2)
        .said(&["not loopback", "write the address itself"]);
}

/// B080
#[test]
fn with_keys_whoever_has_none_is_refused() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let keys = directory.path().join("keys");
    fs::write(&keys, "# ours\nfirst-key\n\nsecond-key\n").expect("a file");
    let keys = keys.display().to_string();
    let server = Server::start(&tare, &["--api-key-file", &keys]);
    let asked = |headers: &[(&str, &str)]| server.ask("GET", "/v1/boxes", headers, b"");
    asked(&[]).refused(401, "unauthorized");
    asked(&[("X-API-Key", "first-ke")]).refused(401, "unauthorized");
    asked(&[("X-API-Key", "first-key")]).was(200);
    asked(&[("Authorization", "Bearer second-key")]).was(200);
    let both = [
        ("X-API-Key", "first-key"),
        ("Authorization", "Bearer second-key"),
    ];
    asked(&both).refused(400, "ambiguous_key");
    server
        .get("/v1/boxes?key=first-key")
        .refused(401, "unauthorized");
    let output = server.stop().ok();
    assert!(
        !output.stderr_text().contains("first-key"),
        "no key in the log"
    );
}

/// B084, B085
#[test]
fn a_web_page_cannot_drive_it() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let body = json!({ "command": ["true"] }).to_string();
    let post = |headers: &[(&str, &str)]| server.ask("POST", "/v1/run", headers, body.as_bytes());
    let json = ("Content-Type", "application/json");
    for origin in ["https://evil.example", "null", "http://localhost:8080"] {
        post(&[json, ("Origin", origin)]).refused(403, "foreign_origin");
    }
    post(&[("Content-Type", "text/plain")]).refused(415, "unsupported_media_type");
    post(&[]).refused(415, "unsupported_media_type");
    let preflight = [("Origin", "https://evil.example")];
    let answer = server
        .ask("OPTIONS", "/v1/run", &preflight, b"")
        .refused(403, "foreign_origin");
    assert_eq!(answer.header("access-control-allow-origin"), None);
    post(&[json]).was(200);
    server.stop().ok();
}

#[test]
fn what_is_not_there_is_said_with_where_to_look() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    server.get("/v2/run").refused(404, "no_such_route");
    server.get("/v1/run").refused(405, "method_not_allowed");
    for id in ["..%2f..%2fetc", "%00", "%2e%2e", &"a".repeat(10_000)] {
        let answer = server.get(&format!("/v1/boxes/{id}"));
        assert!(
            [400, 404].contains(&answer.status),
            "{id:.20}: {}",
            answer.status
        );
    }
    let description = server.get("/openapi.json").was(200).json();
    for path in [
        "/v1/run",
        "/v1/boxes",
        "/v1/boxes/{id}",
        "/health",
        "/ready",
    ] {
        assert!(description["paths"][path].is_object(), "{path}");
    }
    assert!(server.get("/").was(200).text().contains("/v1/boxes/{id}"));
    server.stop().ok();
}

/// A server that listens on a socket of the host, and what it was told to listen on.
fn serve_through(tare: &Tare, path: &Path) -> (Running, String) {
    let listen = format!("unix:{}", path.display());
    let running = tare.spawn_call(["serve", "--listen", &listen]);
    running.see_error("listening");
    (running, listen)
}

#[test]
fn a_socket_is_its_owners_alone() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let path = directory.path().join("tare.sock");
    let (running, listen) = serve_through(&tare, &path);
    let mode = fs::metadata(&path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    tare.call(["serve", "--listen", &listen]).exited(1).said(&[
        "cannot listen",
        "another server listens there",
        "--listen",
    ]);
    running.signal(rustix::process::Signal::TERM);
    running.wait().ok();
    assert!(!path.exists());
}

/// Its clients have to write some name, and no web page reaches it.
#[test]
fn through_a_socket_it_is_asked_by_any_name() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let path = directory.path().join("tare.sock");
    let (running, _) = serve_through(&tare, &path);
    for (header, status) in [("Host: any.example", 200), ("Host: x\r\nOrigin: x", 403)] {
        let mut stream = UnixStream::connect(&path).expect("a socket");
        let request = format!("GET /v1/boxes HTTP/1.1\r\n{header}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{answer}");
    }
    running.signal(rustix::process::Signal::TERM);
    running.wait().ok();
}

#[test]
fn what_is_no_socket_is_not_taken_for_one() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let path = directory.path().join("notes");
    fs::write(&path, "mine").expect("a file");
    tare.call(["serve", "--listen", &format!("unix:{}", path.display())])
        .exited(1)
        .said(&["cannot listen", "no socket"]);
    assert_eq!(fs::read(&path).expect("the file"), b"mine");
}
