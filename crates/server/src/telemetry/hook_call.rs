//! One call of a hook, within its time.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use tare_engine::{Context as _, Error};

use crate::telemetry::hook::Hooks;
use crate::telemetry::hook_runner;

/// This very program, also after another one was installed in its place.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// `http://HOST[:PORT][/PATH]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// With its port.
    authority: String,
    path: String,
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            let message = format!("{text:?} is no URL that can be called");
            Error::bad_request(message)
                .with_hint("give http://HOST[:PORT][/PATH]; for https let a command call it")
        };
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        let rest = text.strip_prefix("http://").filter(|_| is_plain);
        let rest = rest.ok_or_else(wrong)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty() || authority.contains('@') {
            return Err(wrong());
        }
        let has_port =
            authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        Ok(Self {
            authority: if has_port { authority.to_owned() } else { format!("{authority}:80") },
            path: if path.is_empty() { "/".to_owned() } else { path.to_owned() },
        })
    }
}

/// Runs a program with this on its stdin. A process of ours between it and the server
/// ends everything that the program started, after this time and with the server
/// ([`runner`]).
pub fn command(hooks: &Hooks, argv: &[String], stdin: &str, within: Duration) -> Result<(), Error> {
    let [program, ..] = argv else {
        return Ok(());
    };
    let doing = || format!("cannot call {program}");
    let mut command = Command::new(OWN_PROGRAM);
    command
        .arg0(OsStr::from_bytes(hook_runner::NAME.to_bytes()))
        .arg(std::process::id().to_string())
        .arg(within.as_millis().to_string())
        .args(argv)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let Some(mut child) = hooks.begin(&mut command).context(doing)? else {
        return Ok(());
    };
    if let Some(mut pipe) = child.stdin.take() {
        // A pipe holds more than this: a program that does not read holds nothing up.
        pipe.write_all(stdin.as_bytes()).ok();
    }
    let status = child.wait();
    hooks.ended();
    let status = status.context(doing)?;
    let failed = |why: String| Error::failed(doing()).caused_by(why);
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(()),
        Some(hook_runner::LATE) => {
            Err(failed("it was killed at its timeout, or exited with 124".into()))
        }
        Some(hook_runner::NOT_STARTED) => {
            Err(failed("it could not be started, or exited with 125".into()))
        }
        Some(code) => Err(failed(format!("it ended with exit code {code}"))),
        None => Err(failed(format!("it ended with {status}"))),
    }
}

/// Posts this as JSON.
pub fn post(url: &Url, body: &str, within: Duration) -> Result<(), Error> {
    let doing = || format!("cannot post to http://{}{}", url.authority, url.path);
    let status = exchange(url, body, within).context(doing)?;
    match status {
        200..300 => Ok(()),
        status => {
            let why = format!("it answered {status}");
            Err(Error::failed(doing()).caused_by(why))
        }
    }
}

/// The status of the answer.
fn exchange(url: &Url, body: &str, within: Duration) -> io::Result<u16> {
    let until = Instant::now() + within;
    // A timeout of nothing is none at all.
    let left = || (until - Instant::now()).max(Duration::from_millis(1));
    let address = url.authority.to_socket_addrs()?.next();
    let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut stream = TcpStream::connect_timeout(&address, left())?;
    stream.set_write_timeout(Some(left()))?;
    let (path, host, length) = (&url.path, &url.authority, body.len());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes())?;
    // `HTTP/1.1 204` is all that matters.
    let mut answer = [0; 12];
    let mut got = 0;
    while got < answer.len() {
        stream.set_read_timeout(Some(left()))?;
        match stream.read(&mut answer[got..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => got += count,
        }
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    let status = std::str::from_utf8(&answer[9..]).ok();
    let status = status.and_then(|status| status.parse().ok());
    status.ok_or(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn only_plain_http_is_called() {
        let url = |text: &str| text.parse::<Url>();
        let full = url("http://localhost:9000/a/b?c").expect("a URL");
        assert_eq!((&*full.authority, &*full.path), ("localhost:9000", "/a/b?c"));
        let short = url("http://example").expect("a URL");
        assert_eq!((&*short.authority, &*short.path), ("example:80", "/"));
        for wrong in ["https://x", "http://", "x", "http://a@b/", "http://a/\r\nX: y"] {
            assert!(url(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_answer_is_waited_for_and_not_for_ever() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let url: Url = format!("http://{address}/hook").parse().expect("a URL");
        let late = post(&url, "{}", Duration::from_millis(50));
        assert!(late.is_err(), "nobody answers");
        let answering = std::thread::spawn(move || {
            // The one that gave up, then the one that waits.
            let streams = listener.incoming().take(2);
            for mut stream in streams.flatten() {
                let mut request = [0; 1024];
                let count = stream.read(&mut request).unwrap_or(0);
                stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok();
                assert!(request[..count].starts_with(b"POST /hook HTTP/1.1\r\n"));
            }
        });
        post(&url, "{}", SOON).expect("it answers");
        answering.join().expect("it was asked as it should be");
    }
}
