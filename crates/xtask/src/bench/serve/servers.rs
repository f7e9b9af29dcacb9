//! The two servers under load. Each has a port of its own and ends with its value.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::bench::footprint::Footprint;
use crate::bench::peers::bwrap;
use crate::failure::{Doing, Failure};

const PEER: &str = include_str!("peer.py");
/// What the peer is made of.
const PACKAGES: [&str; 2] = ["fastapi==0.162.4", "uvicorn==0.54.0"];
/// For a server to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Servers {
    pub tare: Server,
    pub peer: Server,
}

#[derive(Debug)]
pub struct Server {
    child: Child,
    pub port: u16,
}

/// An environment with the packages of the peer, kept from one run to the next.
pub fn python(target: &Path) -> Result<PathBuf, Failure> {
    let directory = target.join("fastapi");
    if directory.join("bin/uvicorn").exists() {
        return Ok(directory);
    }
    let make = Command::new("python3")
        .args(["-m", "venv"])
        .arg(&directory)
        .status();
    let install = || {
        let pip = directory.join("bin/pip");
        Command::new(pip)
            .args(["install", "-q"])
            .args(PACKAGES)
            .status()
    };
    for step in [make, install()] {
        let status = step.doing(|| "cannot install fastapi".into())?;
        if !status.success() {
            return Err(Failure::new(format!("cannot install fastapi: {status}")));
        }
    }
    Ok(directory)
}

impl Servers {
    pub fn start(
        tare: &Path,
        python: &Path,
        footprint: &Footprint,
        binds: &[String],
    ) -> Result<Self, Failure> {
        let directory = footprint.directory();
        let peer = directory.join("peer.py");
        std::fs::write(&peer, PEER).doing(|| "cannot write the peer".into())?;
        let words = bwrap(binds, &[]);
        let words: Vec<&String> = [&words.program]
            .into_iter()
            .chain(&words.arguments)
            .collect();
        let words = serde_json::to_string(&words).doing(|| "cannot tell the peer".into())?;
        Ok(Self {
            tare: Server::start(&directory, "tare", |port| {
                let mut command = Command::new(tare);
                command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
                command.env("TARE_STATE_ROOT", footprint.state_root());
                command
            })?,
            peer: Server::start(&directory, "peer", |port| {
                let mut command = Command::new(python.join("bin/uvicorn"));
                command.args([
                    "peer:app",
                    "--log-level",
                    "info",
                    "--port",
                    &port.to_string(),
                ]);
                command
                    .env("BWRAP", &words)
                    .env("PYTHONDONTWRITEBYTECODE", "1");
                command
            })?,
        })
    }
}

impl Server {
    /// Its log is a file, as it would be.
    fn start(
        directory: &Path,
        name: &str,
        command: impl FnOnce(u16) -> Command,
    ) -> Result<Self, Failure> {
        let doing = || format!("cannot start {name}");
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr());
        let port = free.doing(doing)?.port();
        let log = File::create(directory.join(format!("{name}.log"))).doing(doing)?;
        let child = command(port)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().doing(doing)?)
            .stderr(log)
            .spawn()
            .doing(doing)?;
        let server = Self { child, port };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if started.elapsed() > LISTENS_WITHIN {
                return Err(Failure::new(format!("{name} does not listen")));
            }
            // Bounded by the check above.
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whoever has ended already is reaped all the same.
        kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
        self.child.wait().ok();
    }
}
