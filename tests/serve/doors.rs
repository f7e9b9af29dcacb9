//! Authentication, `Host` and `Origin`: which requests the server accepts, and what it answers to
//! others.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use tare_harness::skip::has_program;
use tare_harness::{Answer, Running, Server, Tare, TemporaryDirectory, eventually, skip, tare};

#[test]
fn the_server_does_not_listen_beyond_loopback_without_a_key() {
    let tare = tare!();
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let refused = tare.call(["serve", "--listen", listen]);
        refused.exited(1).said(&["without an API key", "--api-key-file"]);
    }
    tare.call(["serve", "--listen", "8080"]).exited(2).said(&["ADDRESS:PORT"]);
}

#[test]
fn the_server_listens_on_localhost_by_name() {
    let tare = tare!();
    let running = tare.spawn_call(["serve", "--listen", "localhost:0"]);
    running.see_error("listening");
    running.signal(rustix::process::Signal::TERM);
    running.wait().ok();
    // Another name would be looked up, and the text would not show which clients can connect.
    tare.call(["serve", "--listen", "ip6-localhost:80"])
        .exited(2)
        .said(&["not an address to listen on", "localhost:PORT"]);
}

#[test]
fn with_keys_a_request_without_a_valid_key_gets_401() {
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
    let both = [("X-API-Key", "first-key"), ("Authorization", "Bearer second-key")];
    asked(&both).refused(400, "ambiguous_key");
    server.get("/v1/boxes?key=first-key").refused(401, "unauthorized");
    let output = server.stop().ok();
    assert!(!output.stderr_text().contains("first-key"), "no key in the log");
}

#[test]
fn a_web_page_cannot_use_the_api() {
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
    let answer = server.ask("OPTIONS", "/v1/run", &preflight, b"").refused(403, "foreign_origin");
    assert_eq!(answer.header("access-control-allow-origin"), None);
    post(&[json]).was(200);
    server.stop().ok();
}

#[test]
fn an_unknown_route_gets_404_with_a_hint() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let missing = server.get("/v1/boxes/web/stopp").refused(404, "no_such_route").text();
    for said in ["there is no route GET /v1/boxes/web/stopp", "POST /v1/boxes/{id}/stop"] {
        assert!(missing.contains(said), "{missing}");
    }
    server.get("/v2/run").refused(404, "no_such_route");
    let wrong = server.get("/v1/run").refused(405, "method_not_allowed");
    assert_eq!(wrong.header("allow"), Some("POST"));
    assert!(wrong.text().contains("use POST"), "{}", wrong.text());
    for route in ["/v1/exec", "/v1/upload"] {
        let answer = server.get(route).was(405).json();
        assert_eq!(answer["code"], "method_not_allowed", "{route}: {answer}");
    }
    let headers = [("Content-Type", "application/json")];
    let answer = server.ask("POST", "/v1/exec", &headers, b"{bad").was(400).text();
    assert!(!answer.contains("openapi"), "{answer}");
    for id in ["..%2f..%2fetc", "%00", "%2e%2e", &"a".repeat(10_000)] {
        let answer = server.get(&format!("/v1/boxes/{id}"));
        assert!([400, 404].contains(&answer.status), "{id:.20}: {}", answer.status);
    }
    let description = server.get("/openapi.json").was(200).json();
    for path in ["/v1/run", "/v1/boxes", "/v1/boxes/{id}", "/health", "/ready"] {
        assert!(description["paths"][path].is_object(), "{path}");
    }
    assert!(server.get("/").was(200).text().contains("/v1/boxes/{id}"));
    server.stop().ok();
}

/// Starts a server on a unix socket, and returns it with its `--listen` value.
fn serve_through(tare: &Tare, path: &Path) -> (Running, String) {
    let listen = format!("unix:{}", path.display());
    let running = tare.spawn_call(["serve", "--listen", &listen]);
    running.see_error("listening");
    (running, listen)
}

#[test]
fn only_its_owner_can_use_the_unix_socket() {
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

/// A server that SIGKILL ends on its way to the socket leaves no other path, and the next one
/// starts.
#[test]
fn server_killed_while_it_binds_leaves_only_the_socket_that_it_was_given() {
    if !has_program("strace") {
        skip!("strace is not installed");
    }
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let path = directory.path().join("tare.sock");
    for call in ["fchmod,chmod", "listen"] {
        let mut command = tare.shell_command("exec strace -f -o /dev/null -e \"$@\"");
        command.arg("sh").arg(format!("inject={call}:signal=KILL")).arg(tare.program());
        command.args(["serve", "--listen", &format!("unix:{}", path.display())]);
        let output = tare.start_command(with_pipes(command)).wait();
        assert_eq!(output.code, -9, "{call}: {output}");
        let found = fs::read_dir(directory.path()).expect("a directory");
        let found: Vec<_> = found.map(|it| it.expect("an entry").path()).collect();
        assert!(found.iter().all(|it| *it == path), "{call}: {found:?}");
    }
    let (running, _) = serve_through(&tare, &path);
    running.signal(rustix::process::Signal::TERM);
    running.wait().ok();
}

fn with_pipes(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Its clients have to write some name, and no web page reaches it.
#[test]
fn a_unix_socket_accepts_every_host_header() {
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
fn a_listen_path_that_is_not_a_socket_is_left_alone() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let path = directory.path().join("notes");
    fs::write(&path, "mine").expect("a file");
    tare.call(["serve", "--listen", &format!("unix:{}", path.display())])
        .exited(1)
        .said(&["cannot listen", "not a socket"]);
    assert_eq!(fs::read(&path).expect("the file"), b"mine");
}

/// The status of a GET with this `Host`.
#[track_caller]
fn asked_as(server: &Server, path: &str, host: &str) -> u16 {
    let mut stream = server.connect();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    Answer::parse(&answer).status
}

#[test]
fn a_foreign_host_or_port_is_refused_on_every_route() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "allowed_hosts = ['proxy', 'localhost:9']\n");
    let port = server.address().port();
    for path in ["/v1/health", "/health", "/v1/boxes", "/v1/files/x", "/"] {
        let asked = |host: &str| asked_as(&server, path, host);
        for foreign in ["evil.example", "localhost:1", "127.0.0.1:80", "[::1]:1"] {
            assert_eq!(asked(foreign), 403, "{path} as {foreign}");
        }
        // A session that has no such id, for one.
        let ours = asked("localhost");
        assert_ne!(ours, 403, "{path}");
        for own in [
            &format!("localhost:{port}"),
            &format!("127.0.0.1:{port}"),
            "proxy",
            "proxy:8443",
            "localhost:9",
        ] {
            assert_eq!(asked(own), ours, "{path} as {own}");
        }
    }
    server.stop().ok();
}

/// With keys, a web page cannot authenticate, so every `Host` is accepted.
#[test]
fn with_keys_librechats_health_answers_to_any_host() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let keys = directory.path().join("keys");
    fs::write(&keys, "first-key\n").expect("a file");
    let server = Server::start(&tare, &["--api-key-file", &keys.display().to_string()]);
    assert_eq!(asked_as(&server, "/v1/health", "tare:8080"), 200);
    server.stop().ok();
}

#[test]
fn answers_with_bytes_of_a_box_are_sandboxed_in_a_browser() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let page = "<script>alert(1)</script>";
    let write = format!("echo '{page}' | tee /work/page.html; sleep 1000");
    let command = json!({ "name": "web", "command": ["sh", "-c", write] });
    server.post("/v1/boxes", &command).was(201);
    let echo = json!({ "command": ["echo", page], "detach": true });
    let exec = server.post("/v1/boxes/web/exec", &echo).was(202).json();
    let exec = exec["id"].as_str().expect("an id").to_owned();
    eventually("it wrote", || {
        let listed = server.get("/v1/boxes/web/files/work?list=true");
        listed.text().contains("page.html")
    });
    let safe = |answer: Answer| {
        let said = answer.text();
        assert_eq!(answer.header("content-security-policy"), Some("sandbox"), "{said}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{said}");
        answer
    };
    for path in [
        "/files/work/page.html",
        "/files/work/page.html?tar=true",
        "/files/work?list=true",
        "/logs",
        "/logs?timestamps=true",
        &format!("/execs/{exec}/stream"),
        &format!("/execs/{exec}"),
        "",
    ] {
        safe(server.get(&format!("/v1/boxes/web{path}")).was(200));
    }
    let run = json!({ "command": ["echo", page] });
    safe(server.post("/v1/boxes/web/exec", &run).was(200));
    safe(server.post("/v1/run", &run).was(200));
    let code = json!({ "lang": "bash", "code": format!("echo '{page}'") });
    safe(server.post("/v1/exec", &code).was(200));
    for accept in ["text/event-stream", "application/x-ndjson"] {
        let headers = [("Content-Type", "application/json"), ("Accept", accept)];
        let run = run.to_string();
        for path in ["/v1/run", "/v1/boxes/web/exec"] {
            safe(server.ask("POST", path, &headers, run.as_bytes()).was(200));
        }
        let logs = server.ask("GET", "/v1/boxes/web/logs", &headers[1..], b"");
        safe(logs.was(200));
    }
    safe(server.get("/v1/boxes/%3Cscript%3E").was(404));
    safe(server.get("/").was(200));
    server.stop().ok();
    tare.call(["rm", "-f", "--all"]).ok();
}

/// A box with the host's network reaches the loopback that the server listens on.
#[test]
fn host_network_without_keys_needs_a_unix_socket() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let path = directory.path().join("tare.toml");
    let config = path.display().to_string();
    let refused = "host_network gives boxes this API: set [[keys]] or listen on unix:PATH";
    for settings in ["[limits]\nhost_network = true\n", "[librechat.boxes]\nhost_network = true\n"]
    {
        fs::write(&path, settings).expect("a file");
        tare.call(["serve", "--listen", "127.0.0.1:0", "--config", &config])
            .exited(1)
            .said(&[refused]);
        let keys = directory.path().join("keys");
        fs::write(&keys, "first-key\n").expect("a file");
        let keys = keys.display().to_string();
        Server::start(&tare, &["--config", &config, "--api-key-file", &keys]).stop().ok();
        fs::write(&path, format!("[librechat]\nanonymous_exec = true\n{settings}"))
            .expect("a file");
        tare.call(["serve", "--config", &config, "--api-key-file", &keys])
            .exited(1)
            .said(&[refused, "anonymous_exec"]);
        fs::write(&path, settings).expect("a file");
        let socket = format!("unix:{}", directory.path().join("tare.sock").display());
        let running = tare.spawn_call(["serve", "--listen", &socket, "--config", &config]);
        running.see_error("listening");
        running.signal(rustix::process::Signal::TERM);
        running.wait().ok();
    }
}

/// A reload does not change the listening address.
#[test]
fn a_reload_that_would_let_boxes_use_the_api_is_refused() {
    let tare = tare!();
    let (directory, config) = crate::serve::configured("");
    let server = Server::start(&tare, &["--config", &config]);
    for settings in ["", "listen = 'unix:/run/tare.sock'\n"] {
        let settings = format!("{settings}[limits]\nhost_network = true\n");
        fs::write(&config, settings).expect("a file");
        let refused = server.post("/v1/reload", &json!(null)).refused(400, "invalid");
        assert!(refused.text().contains("set [[keys]]"), "{}", refused.text());
    }
    server.stop().ok();
    drop(directory);
}
