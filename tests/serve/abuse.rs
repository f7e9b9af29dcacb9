//! Clients that break the rules of HTTP: the server answers or disconnects them, and is unchanged
//! afterwards.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use tare_harness::{Answer, Server, Tare, Vitals, eventually, tare};

/// A patience that a test can wait for.
const SHORT: &str = "[limits]\nclient = '1s'\n";
const JSON: &str = "Host: localhost\r\nContent-Type: application/json\r\n";

/// The vitals of an idle server.
#[track_caller]
pub fn at_rest(server: &Server) -> Vitals {
    // What is opened once, for the first file and the first exec, is open.
    let files = serde_json::json!([{ "path": "a", "content": "b" }]);
    let request = serde_json::json!({ "command": ["true"], "files": files });
    server.post("/v1/run", &request).was(200);
    // The log is written behind the answers.
    eventually("the run is in the log", || runs(server) > 0);
    server.vitals_at_rest()
}

/// Checks that no connection, box, descriptor or thread is left.
#[track_caller]
pub fn is_at_rest_again(tare: &Tare, server: &Server, before: Vitals) {
    eventually("no box is left", || tare.footprint().records.is_empty());
    eventually("descriptors are back", || server.vitals().descriptors <= before.descriptors);
    eventually("threads are back", || server.vitals().threads <= before.threads);
    assert!(tare.footprint().cgroups.is_empty());
}

/// How many requests to run something were answered with 200.
pub fn runs(server: &Server) -> usize {
    let log = server.log();
    let requests = log.lines().filter(|line| line.contains("path=\"/v1/run\""));
    requests.filter(|line| line.ends_with("status=200")).count()
}

/// Sends these bytes and returns the answer up to the end of the connection.
#[track_caller]
fn answered(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = server.connect();
    // It may have refused by now.
    stream.write_all(bytes).ok();
    stream.shutdown(Shutdown::Write).ok();
    rest_of(stream)
}

#[track_caller]
fn rest_of(mut stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&answer)),
    }
    answer
}

/// Writes a byte now and then until the server has closed; what it had said.
#[track_caller]
fn dribble(mut stream: TcpStream, byte: u8) -> Vec<u8> {
    let step = Some(Duration::from_millis(50));
    stream.set_read_timeout(step).expect("a socket");
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    eventually("the server does not wait for ever", || {
        stream.write_all(&[byte]).ok();
        match stream.read(&mut buffer) {
            Ok(count) => {
                answer.extend_from_slice(&buffer[..count]);
                count == 0
            }
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    });
    answer
}

#[test]
fn a_request_head_that_does_not_arrive_times_out() {
    let tare = tare!();
    let server = Server::start_configured(&tare, SHORT);
    let before = at_rest(&server);
    let silent = server.connect();
    let mut half = server.connect();
    half.write_all(b"GET /health HT").expect("it listens");
    let mut slow = server.connect();
    slow.write_all(b"GET /health HTTP/1.1\r\nX: ").expect("it listens");
    dribble(slow, b'x');
    for stream in [silent, half] {
        assert_eq!(String::from_utf8_lossy(&rest_of(stream)), "");
    }
    server.get("/health").was(200);
    is_at_rest_again(&tare, &server, before);
    server.stop().ok();
}

#[test]
fn a_request_body_that_does_not_arrive_times_out() {
    let tare = tare!();
    let server = Server::start_configured(&tare, SHORT);
    let before = at_rest(&server);
    let begun = |head: &str, body: &[u8]| {
        let head = format!("POST /v1/run HTTP/1.1\r\n{JSON}{head}\r\n");
        let mut stream = server.connect();
        stream.write_all(head.as_bytes()).expect("it listens");
        stream.write_all(body).expect("it listens");
        stream
    };
    let silent = begun("Content-Length: 1000\r\n", b"{");
    Answer::parse(&rest_of(silent)).refused(408, "slow_body");
    let slow = begun("Content-Length: 1000\r\n", b"{");
    Answer::parse(&dribble(slow, b' ')).refused(408, "slow_body");
    let chunked = begun("Transfer-Encoding: chunked\r\n", b"1\r\n{\r\n");
    Answer::parse(&rest_of(chunked)).refused(408, "slow_body");
    let promised = begun("Content-Length: 2\r\nExpect: 100-continue\r\n", b"");
    let answer = rest_of(promised);
    let answer = answer.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n");
    Answer::parse(answer.expect("it is told to go on")).refused(408, "slow_body");
    is_at_rest_again(&tare, &server, before);
    server.stop().ok();
}

#[test]
fn an_incomplete_request_is_ignored() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let before = at_rest(&server);
    let runs_before = runs(&server);
    let body = r#"{"command":["touch","/tmp/ran"]}"#;
    let head = format!("POST /v1/run HTTP/1.1\r\n{JSON}Content-Length: 32\r\n\r\n");
    let whole = [head.as_bytes(), body.as_bytes()].concat();
    assert_eq!(body.len(), 32);
    for cut in (0..whole.len()).step_by(7) {
        let answer = String::from_utf8_lossy(&answered(&server, &whole[..cut])).into_owned();
        let is_refused = answer.is_empty() || answer.starts_with("HTTP/1.1 400 ");
        assert!(is_refused, "cut at {cut}: {answer}");
    }
    assert_eq!(runs(&server), runs_before, "{}", server.log());
    let mut stream = server.connect();
    stream.write_all(&whole).expect("it listens");
    eventually("all of it is one", || runs(&server) > runs_before);
    drop(stream);
    is_at_rest_again(&tare, &server, before);
    server.stop().ok();
}

/// Two that read the same bytes must not see two different requests.
#[test]
fn an_ambiguous_request_is_refused() {
    let tare = tare!();
    let server = Server::start_configured(&tare, SHORT);
    let before = at_rest(&server);
    let both = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n";
    let twice = "Content-Length: 4\r\nContent-Length: 5\r\n";
    for (what, head) in [
        ("both lengths", format!("POST /v1/run HTTP/1.1\r\n{JSON}{both}\r\n0\r\n\r\n")),
        ("two lengths", format!("POST /v1/run HTTP/1.1\r\n{JSON}{twice}\r\nnullx")),
        ("a negative length", format!("POST /v1/run HTTP/1.1\r\n{JSON}Content-Length: -1\r\n\r\n")),
        ("two hosts", "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n".into()),
        ("another host", "GET http://evil/health HTTP/1.1\r\nHost: localhost\r\n\r\n".into()),
        ("a space before the colon", "GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n".into()),
        ("a folded header", "GET /health HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n\r\n".into()),
        ("a bare CR", "GET /health HTTP/1.1\r\nHost: local\rhost\r\n\r\n".into()),
        ("a NUL", "GET /health HTTP/1.1\r\nHost: localhost\r\nA: \0\r\n\r\n".into()),
        ("HTTP/0.9", "GET /health\r\n".into()),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into()),
        ("noise", "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n".into()),
    ] {
        let bytes = answered(&server, head.as_bytes());
        let answer = String::from_utf8_lossy(&bytes);
        let refused = ["400", "403", "505"].map(|code| format!("HTTP/1.1 {code} "));
        let is_refused = refused.iter().any(|start| answer.starts_with(start));
        // A client of another protocol would not understand an answer.
        assert!(is_refused || answer.is_empty(), "{what}: {answer:?}");
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{what}: {answer:?}");
    }
    for method in ["CONNECT", "TRACE", "BREW"] {
        server.ask(method, "/health", &[], b"").refused(405, "method_not_allowed");
    }
    is_at_rest_again(&tare, &server, before);
    server.stop().ok();
}

#[test]
fn a_request_head_that_is_too_large_is_refused() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let before = at_rest(&server);
    let status = |head: &str| {
        let head = format!("GET {head}\r\n\r\n");
        let answer = String::from_utf8_lossy(&answered(&server, head.as_bytes())).into_owned();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let long = "x".repeat(100 << 10);
    assert_eq!(status(&format!("/health HTTP/1.1\r\nA: {long}")), "431");
    let many = "A: b\r\n".repeat(10_000);
    assert_eq!(status(&format!("/health HTTP/1.1\r\n{many}A: b")), "431");
    let path = status(&format!("/{} HTTP/1.1\r\nHost: localhost", &long[..64 << 10]));
    assert!(["414", "431"].contains(&path.as_str()), "{path}");
    is_at_rest_again(&tare, &server, before);
    server.stop().ok();
}

#[test]
fn a_thousand_idle_connections_block_no_other_client() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nclient = '5s'\n");
    let before = at_rest(&server);
    let idle: Vec<_> = (0..1000).map(|_| server.connect()).collect();
    let request = serde_json::json!({ "command": ["true"] });
    server.post("/v1/run", &request).was(200);
    is_at_rest_again(&tare, &server, before);
    drop(idle);
    server.stop().ok();
}

#[test]
fn connections_beyond_the_limit_wait_until_idle_ones_are_closed() {
    let tare = tare!();
    let limits = "[limits]\nconnections = 4\nclient = '1s'\n";
    let server = Server::start_configured(&tare, limits);
    let before = at_rest(&server);
    let idle: Vec<_> = (0..40).map(|_| server.connect()).collect();
    server.get("/health").was(200);
    // Those that may be, the reserve of 16 for operators, and the one of this request.
    let most = before.descriptors + 4 + 16 + 1;
    assert!(server.vitals().descriptors <= most, "{:?}", server.vitals());
    drop(idle);
    is_at_rest_again(&tare, &server, before);
    server.stop().ok();
}
