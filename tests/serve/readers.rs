//! Readers of streams: fast ones, stalled ones, and ones that disconnect.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::time::Duration;

use serde_json::json;
use tare_harness::random::shown_seed;
use tare_harness::{Random, Server, eventually, tare};

use crate::serve::abuse::{at_rest, is_at_rest_again, runs};

const STREAM: [(&str, &str); 2] =
    [("Content-Type", "application/json"), ("Accept", "application/x-ndjson")];

/// A command that never stops writing, and the connection that it writes to.
fn flood(server: &Server) -> TcpStream {
    let body = json!({ "command": ["yes"], "timeout_ms": 600_000 }).to_string();
    server.send("POST", "/v1/run", &STREAM, body.as_bytes())
}

/// Reads and discards this many bytes.
#[track_caller]
fn read(stream: &mut TcpStream, bytes: u64) {
    let count = std::io::copy(&mut stream.take(bytes), &mut std::io::sink());
    assert_eq!(count.expect("frames come"), bytes);
}

/// Unread bytes hide the end of the connection.
#[test]
fn a_client_that_hangs_up_with_unread_bytes_ends_its_run() {
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let body = json!({ "command": ["sleep", "1000"], "timeout_ms": 600_000 }).to_string();
    let json = [("Content-Type", "application/json")];
    let next = "GET /v1/boxes HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (accept, more) in
        [("application/json", "G"), ("application/json", next), ("text/event-stream", "\r\n")]
    {
        let headers = [json[0], ("Accept", accept)];
        let mut stream = server.send("POST", "/v1/run", &headers, body.as_bytes());
        stream.write_all(more.as_bytes()).expect("it listens");
        eventually("it runs", || !tare.footprint().records.is_empty());
        drop(stream);
        eventually("it is ended", || tare.footprint().records.is_empty());
    }
    server.stop().ok();
}

#[test]
fn a_client_that_never_reads_is_disconnected() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nclient = '1s'\n");
    let before = at_rest(&server);
    let stream = flood(&server);
    eventually("it runs", || !tare.footprint().records.is_empty());
    // While the client still holds its end.
    is_at_rest_again(&tare, &server, before);
    drop(stream);
    let body = json!({ "command": ["sh", "-c", "yes | head -c 8000000"] }).to_string();
    let runs_before = runs(&server);
    let whole = server.send("POST", "/v1/run", &STREAM[..1], body.as_bytes());
    eventually("it is answered", || runs(&server) > runs_before);
    is_at_rest_again(&tare, &server, before);
    drop(whole);
    server.stop().ok();
}

/// How much of an endless stream is read before and after the first look at the memory.
const READ_BYTES: u64 = 64 << 20;
/// A channel's worth of chunks may be on its way at one moment and not at another.
const FLAT_BYTES: u64 = 2 << 20;

#[test]
fn an_endless_stream_is_read_in_constant_memory() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\noutput_bytes = '1TiB'\n");
    let before = at_rest(&server);
    let mut stream = flood(&server);
    read(&mut stream, READ_BYTES);
    let first = server.vitals().resident_bytes;
    let mut most = first;
    for _part in 0..16 {
        read(&mut stream, READ_BYTES / 16);
        most = most.max(server.vitals().resident_bytes);
    }
    assert!(most <= first + FLAT_BYTES, "from {first} to {most} bytes");
    drop(stream);
    is_at_rest_again(&tare, &server, before);
    server.stop().ok();
}

/// One of them takes nothing.
const READERS: usize = 64;
const READ_EACH_BYTES: u64 = 1 << 20;

#[test]
fn a_stalled_reader_does_not_affect_other_readers() {
    let tare = tare!();
    let server = Server::start_configured(&tare, "[limits]\nclient = '10m'\n");
    let before = at_rest(&server);
    let stalled = flood(&server);
    let all_have_read = Barrier::new(READERS - 1);
    std::thread::scope(|threads| {
        for _reader in 1..READERS {
            threads.spawn(|| {
                let mut stream = flood(&server);
                read(&mut stream, READ_EACH_BYTES);
                all_have_read.wait();
            });
        }
    });
    eventually("only the box of the one who stalls is left", || {
        tare.footprint().records.len() == 1
    });
    drop(stalled);
    is_at_rest_again(&tare, &server, before);
    server.stop().ok();
}

/// The number of clients that hang up at the same time.
const CLIENTS: u64 = 20;
/// Longer than the whole life of a box.
const HANGS_UP_WITHIN_MS: u64 = 200;

#[test]
fn clients_that_hang_up_at_any_moment_leave_nothing() {
    let seed = shown_seed("TARE_SERVE_SEED");
    let tare = tare!();
    let server = Server::start(&tare, &[]);
    let before = at_rest(&server);
    std::thread::scope(|threads| {
        for client in 0..CLIENTS {
            let mut random = Random::seeded(seed ^ client);
            let server = &server;
            threads.spawn(move || hang_up(server, &mut random));
        }
    });
    is_at_rest_again(&tare, &server, before);
    server.stop().ok();
}

fn hang_up(server: &Server, random: &mut Random) {
    let command = *random.pick(&["yes", "true", "sleep 100", "head -c 3000000 /dev/zero"]);
    let mut request = json!({ "command": ["sh", "-c", command] });
    if random.once_in(2) {
        request["files"] = json!([{ "path": "a/b", "content": "x".repeat(100_000) }]);
    }
    let headers = &STREAM[..*random.pick(&[1, 2])];
    let body = request.to_string();
    let stream = server.send("POST", "/v1/run", headers, body.as_bytes());
    tare_harness::let_pass(Duration::from_millis(random.below(HANGS_UP_WITHIN_MS)));
    drop(stream);
}
