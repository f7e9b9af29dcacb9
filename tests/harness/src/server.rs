//! A `tare serve` under test, and HTTP written by hand: a test decides which bytes it sends, and
//! when.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::running::{Output, Running};
use crate::tare::Tare;
use crate::temporary::TemporaryDirectory;
use crate::vitals::Vitals;
use crate::wait::eventually;

/// The longest time for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A server on its own port. Dropping it kills the server.
#[derive(Debug)]
pub struct Server {
    running: Running,
    address: SocketAddr,
}

/// The answer of a server.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Server {
    /// Starts `tare serve ARGS`, and returns when it listens.
    #[track_caller]
    pub fn start(tare: &Tare, args: &[&str]) -> Self {
        let args = ["serve", "--listen", "127.0.0.1:0"].iter().chain(args);
        Self::start_command(tare, tare.command(args))
    }

    /// Starts a server with this configuration, which it reads only at the start.
    #[track_caller]
    pub fn start_configured(tare: &Tare, configuration: &str) -> Self {
        let directory = TemporaryDirectory::new();
        let path = directory.join("tare.toml");
        std::fs::write(&path, configuration).expect("a fresh directory takes a file");
        Self::start(tare, &["--config", &path.display().to_string()])
    }

    /// The command that starts such a server.
    #[track_caller]
    pub fn start_command(tare: &Tare, mut command: Command) -> Self {
        tare.expect_lasting_boxes();
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = tare.start_command(command);
        let mut address = None;
        eventually("the server listens", || {
            address = listening_on(&running.stderr_so_far());
            address.is_some() || running.has_ended()
        });
        let Some(address) = address else {
            panic!("the server ended: {}", running.stderr_so_far());
        };
        Self { running, address }
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The log of the server so far.
    pub fn log(&self) -> String {
        self.running.stderr_so_far()
    }

    /// What the server costs now.
    #[track_caller]
    pub fn vitals(&self) -> Vitals {
        Vitals::of(self.pid())
    }

    /// What the server costs once it has closed what it opened for the last answer.
    #[track_caller]
    pub fn vitals_at_rest(&self) -> Vitals {
        let mut rest = self.vitals();
        eventually("it has closed what it opened", || {
            let before = std::mem::replace(&mut rest, self.vitals());
            before.descriptors == rest.descriptors
        });
        rest
    }

    pub fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// Sends SIGTERM, waits for the end, and returns how the server ended.
    #[track_caller]
    pub fn stop(self) -> Output {
        self.running.signal(Signal::TERM);
        self.running.wait_from_now()
    }

    /// Sends SIGKILL, and returns when the server is dead.
    pub fn kill(self) -> Output {
        self.running.signal(Signal::KILL);
        self.running.wait_from_now()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server accepts");
        stream.set_read_timeout(Some(ANSWER_MAX)).expect("a socket");
        stream
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        let json = ("Content-Type", "application/json");
        self.ask("POST", path, &[json], body.to_string().as_bytes())
    }

    /// Sends one request over its own connection, and returns the answer.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.send(method, path, headers, body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("an answer");
        Answer::parse(&bytes)
    }

    /// Sends a request without waiting for the answer.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TcpStream {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut stream = self.connect();
        stream.write_all(head.as_bytes()).expect("the server reads");
        // The server may have refused the request already, and its answer says so.
        stream.write_all(body).ok();
        stream
    }
}

impl Answer {
    #[track_caller]
    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let pair = |line: &str| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_ascii_lowercase(), value.to_owned()))
        };
        let mut answer = Self {
            status: status.unwrap_or_else(|| panic!("no status: {head}")),
            headers: lines.filter_map(pair).collect(),
            body: bytes[end + 4..].to_vec(),
        };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = unchunked(&answer.body);
        }
        answer
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find_map(|(one, value)| (one == name).then_some(value.as_str()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn was(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// Checks that this is an error of the native API with this status and code.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Self {
        let answer = self.was(status);
        let error = &answer.json()["error"];
        assert_eq!(error["code"], code, "{error}");
        assert!(error["message"].is_string() && error["request_id"].is_string());
        answer
    }
}

/// The address in the log line that names it.
pub fn listening_on(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once("http://")?;
    let end = rest.find('"')?;
    rest[..end].parse().ok()
}

/// Decodes a chunked body. A truncated body is returned as it is.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let size = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let rest = &bytes[end + 2..];
        if size == 0 || rest.len() < size {
            break;
        }
        whole.extend_from_slice(&rest[..size]);
        bytes = rest[size..].strip_prefix(b"\r\n").unwrap_or(&[]);
    }
    whole
}
