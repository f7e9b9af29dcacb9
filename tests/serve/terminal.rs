//! `GET /v1/boxes/{id}/exec/ws`: a terminal over a WebSocket, written by hand (RFC 6455).

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;
use tare_harness::{Server, Tare, eventually, tare};

const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
const CLOSE: u8 = 8;

pub struct Socket {
    stream: TcpStream,
    /// Text that was read and not matched yet.
    seen: String,
}

impl Socket {
    #[track_caller]
    pub fn open(server: &Server, query: &str) -> Self {
        let mut stream = server.connect();
        let head = format!(
            "GET /v1/boxes/web/exec/ws?{query} HTTP/1.1\r\nHost: localhost\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            answer.push(byte[0]);
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        Self { stream, seen: String::new() }
    }

    /// With a mask of zeros, which is a mask.
    pub fn send(&mut self, kind: u8, bytes: &[u8]) {
        let mut frame = vec![0x80 | kind];
        match u8::try_from(bytes.len()) {
            Ok(length) if length < 126 => frame.push(0x80 | length),
            Ok(_) | Err(_) => {
                frame.push(0x80 | 127);
                frame.extend((bytes.len() as u64).to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(bytes);
        self.stream.write_all(&frame).expect("it reads");
    }

    fn next(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head).expect("a frame");
        let mut length = u64::from(head[1] & 0x7f);
        if length == 126 {
            let mut bytes = [0; 2];
            self.stream.read_exact(&mut bytes).expect("a length");
            length = u64::from(u16::from_be_bytes(bytes));
        } else if length == 127 {
            let mut bytes = [0; 8];
            self.stream.read_exact(&mut bytes).expect("a length");
            length = u64::from_be_bytes(bytes);
        }
        let mut bytes = vec![0; usize::try_from(length).expect("a length")];
        self.stream.read_exact(&mut bytes).expect("a frame");
        (head[0] & 0x0f, bytes)
    }

    #[track_caller]
    pub fn read_until(&mut self, wanted: &str) {
        loop {
            if let Some(at) = self.seen.find(wanted) {
                self.seen.drain(..at + wanted.len());
                return;
            }
            let (kind, bytes) = self.next();
            assert_eq!(kind, BINARY, "{}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
}

fn with_box(tare: &Tare) -> Server {
    let server = Server::start(tare, &[]);
    server.post("/v1/boxes", &json!({ "name": "web" })).was(201);
    server
}

fn end(server: Server) {
    server.delete("/v1/boxes/web?force=true").was(204);
    server.stop().ok();
}

#[test]
fn a_websocket_terminal_takes_input_and_size_and_reports_the_end() {
    let tare = tare!();
    let server = with_box(&tare);
    let mut socket = Socket::open(&server, "command=sh&rows=9&columns=40&env=A=b+c");
    socket.send(BINARY, b"stty size; echo [$A]\n");
    socket.read_until("9 40");
    socket.read_until("[b c]");
    socket.send(TEXT, br#"{"resize":[5,6]}"#);
    socket.send(BINARY, b"stty size\n");
    socket.read_until("5 6");
    socket.send(BINARY, b"exit 3\n");
    let told = loop {
        match socket.next() {
            (BINARY, _) => {}
            (kind, bytes) => break (kind, bytes),
        }
    };
    let result: serde_json::Value = serde_json::from_slice(&told.1).expect("JSON");
    assert_eq!((told.0, &result["exit_code"]), (TEXT, &3.into()));
    assert_eq!(socket.next().0, CLOSE);
    end(server);
}

#[test]
fn a_websocket_forwards_signals_and_its_disconnect_ends_the_process() {
    let tare = tare!();
    let server = with_box(&tare);
    let id = server.get("/v1/boxes/web").json()["id"].clone();
    let id = id.as_str().expect("an id");
    let processes = || tare.look(id)["pids"].as_u64().expect("a number");
    let before = processes();
    let mut socket = Socket::open(&server, "command=sleep&command=1000");
    eventually("it runs", || processes() == before + 1);
    socket.send(TEXT, br#"{"signal":15}"#);
    let (kind, bytes) = socket.next();
    assert_eq!(kind, TEXT);
    assert!(String::from_utf8_lossy(&bytes).contains("143"));
    eventually("it is gone", || processes() == before);
    let socket = Socket::open(&server, "command=sleep&command=1000");
    eventually("it runs", || processes() == before + 1);
    drop(socket);
    eventually("it ends with its client", || processes() == before);
    end(server);
}

#[test]
fn a_malformed_control_frame_closes_the_websocket() {
    let tare = tare!();
    let server = with_box(&tare);
    for wrong in [&b"{}"[..], b"resize", b"{\"signal\":99}"] {
        let mut socket = Socket::open(&server, "command=sleep&command=1000");
        socket.send(TEXT, wrong);
        assert_eq!(socket.next().0, CLOSE);
    }
    let mut socket = Socket::open(&server, "command=cat");
    socket.send(BINARY, &vec![b'x'; 100 << 10]);
    let mut rest = Vec::new();
    // It ends, in whatever words.
    socket.stream.read_to_end(&mut rest).ok();
    end(server);
}

#[test]
fn a_terminal_that_cannot_open_is_refused_before_the_upgrade() {
    let tare = tare!();
    let server = with_box(&tare);
    let path = "/v1/boxes/web/exec/ws";
    server.get(&format!("{path}?command=sh")).refused(426, "websocket_required");
    let extent = "is not a whole number from 1 to 65535";
    for (wrong, why) in [
        ("rows=x", format!("rows: \"x\" {extent}")),
        ("rows=0", format!("rows: \"0\" {extent}")),
        ("columns=65536", format!("columns: \"65536\" {extent}")),
        ("env=HOME", "env: \"HOME\" is not KEY=VALUE".to_owned()),
    ] {
        let refused =
            server.get(&format!("{path}?command=sh&{wrong}")).refused(400, "invalid_query");
        assert_eq!(refused.json()["error"]["message"], why);
    }
    server.get(&format!("{path}?nope=1")).refused(400, "invalid_query");
    end(server);
}
