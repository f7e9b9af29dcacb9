//! The servers under load: `tare serve`, and what users have today, a small FastAPI server that
//! starts bubblewrap for each request. Dropping a server ends it.

use super::answer::FASTAPI;
use super::launch::{Launch, bwrap};
use super::load::{Call, Contender};
use super::setup::{Setup, tare, until};
use crate::failure::{Context, Failure};
use crate::http::Connection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

const PEER: &str = include_str!("peer.py");
/// The packages of the peer.
const PEER_PACKAGES: [&str; 2] = ["fastapi==0.162.4", "uvicorn==0.54.0"];

/// The network belongs to the lane, so every port is free.
static NEXT_PORT: AtomicU16 = AtomicU16::new(8001);

/// A request without an answer after this time has failed.
const ANSWER_MAX: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct Server {
    child: Child,
    port: u16,
    /// The state root of a tare.
    pub state_root: PathBuf,
    /// Removes the boxes that outlive a tare, such as those of sessions.
    remove_boxes: Option<Launch>,
}

/// A request and its expected output: a server that fails quickly must not look fast.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: &'static str,
    pub body: Value,
    pub printed: &'static str,
}

impl Server {
    /// `packages` is visible in boxes; `settings` are further lines of the configuration.
    pub fn tare(
        setup: &Setup,
        binary: &Path,
        name: &str,
        packages: Option<&Path>,
        settings: &str,
    ) -> Result<Self, Failure> {
        let directory = setup.directory();
        let files = directory.join(format!("{name}-files"));
        let mut text = format!("[files]\ndirectory = '{}'\n", files.display());
        if let Some(packages) = packages.map(Path::display) {
            text += &format!("[boxes]\npackages = '{packages}'\n");
            text += &format!("[librechat.boxes]\npackages = '{packages}'\n");
        }
        let file = directory.join(format!("{name}.toml"));
        fs::write(&file, text + settings).context(|| format!("cannot write {}", file.display()))?;
        let file = file.to_string_lossy().into_owned();
        let state_root = directory.join(format!("{name}-state"));
        let root = state_root.clone();
        let mut server = Self::start(setup, name, state_root, |port| {
            let address = format!("127.0.0.1:{port}");
            tare(binary, &root, &["serve", "--listen", &address, "--config", &file]).command()
        })?;
        server.remove_boxes = Some(tare(binary, &root, &["rm", "-f", "--all"]));
        Ok(server)
    }

    pub fn fastapi(setup: &Setup, packages: Option<&Path>) -> Result<Self, Failure> {
        let doing = || "cannot prepare the FastAPI server".to_owned();
        fs::write(setup.directory().join("peer.py"), PEER).context(doing)?;
        let launch = bwrap(&words(&bwrap_options(packages)), &[]);
        let prefix: Vec<&String> = [&launch.program].into_iter().chain(&launch.arguments).collect();
        let prefix = serde_json::to_string(&prefix).context(doing)?;
        Self::start(setup, FASTAPI, PathBuf::new(), |port| {
            let mut command = Command::new(setup.fastapi.join("bin/uvicorn"));
            command.args(["peer:app", "--log-level", "info", "--port", &port.to_string()]);
            command.env("BWRAP", prefix).env("PYTHONDONTWRITEBYTECODE", "1");
            command
        })
    }

    /// Starts a server whose log goes to a file, as usual, and waits until it listens.
    fn start(
        setup: &Setup,
        name: &str,
        state_root: PathBuf,
        command: impl FnOnce(u16) -> Command,
    ) -> Result<Self, Failure> {
        let doing = || format!("cannot start {name}");
        let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let log = setup.directory().join(format!("{port}.log"));
        let file = File::create(&log).context(doing)?;
        let child = command(port)
            .current_dir(setup.directory())
            .stdin(Stdio::null())
            .stdout(file.try_clone().context(doing)?)
            .stderr(file)
            .spawn()
            .context(doing)?;
        let mut server = Self { child, port, state_root, remove_boxes: None };
        let mut has_ended = false;
        until(&format!("{name} listens"), || {
            has_ended = server.child.try_wait().is_ok_and(|it| it.is_some());
            has_ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
        })
        .map_err(Failure::new)?;
        if has_ended {
            let said = fs::read_to_string(&log).unwrap_or_default();
            return Err(Failure::new(format!("{name} has ended: {}", said.trim())));
        }
        Ok(server)
    }

    pub fn connect(&self) -> Result<Connection<TcpStream>, String> {
        let connected = TcpStream::connect(("127.0.0.1", self.port)).and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_MAX))?;
            Ok(Connection::new(stream))
        });
        connected.map_err(|error| format!("cannot connect: {error}"))
    }

    /// A subject that sends this request over and over. Each caller has a connection of its own.
    pub fn subject<'a>(&'a self, name: &str, request: Request) -> Contender<'a> {
        let body = request.body.to_string();
        Contender::new(name, move || {
            let mut connection = self.connect()?;
            let (request, body) = (request.clone(), body.clone());
            Ok(Box::new(move || {
                let start = Instant::now();
                let answer = connection.ask("POST", request.path, &body);
                let took = start.elapsed();
                let answer = answer.map_err(|error| error.to_string())?;
                if answer["stdout"] != request.printed {
                    return Err(format!("it did not print {:?}: {answer}", request.printed));
                }
                Ok(Call { took, warm: answer["warm"].as_str().map(str::to_owned) })
            }))
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that has ended already must be reaped too.
        kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
        self.child.wait().ok();
        if let Some(remove) = &self.remove_boxes {
            // If it fails, the lane names what is left.
            remove.output().ok();
        }
    }
}

/// The options of bubblewrap that show packages as a box shows them.
pub fn bwrap_options(packages: Option<&Path>) -> Vec<String> {
    let Some(packages) = packages else {
        return Vec::new();
    };
    let options = ["--ro-bind", &packages.to_string_lossy(), "/opt/packages"];
    let variable = ["--setenv", "PYTHONPATH", "/opt/packages/python"];
    options.into_iter().chain(variable).map(str::to_owned).collect()
}

pub fn words(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

/// Installs the packages of the peer. They are kept from one bench to the next.
pub fn install_peer(target: &Path) -> Result<PathBuf, Failure> {
    let directory = target.join("fastapi");
    if directory.join("bin/uvicorn").exists() {
        return Ok(directory);
    }
    let run = |command: &mut Command| {
        let status = command.status().context(|| "cannot install fastapi".into())?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::new(format!("cannot install fastapi: {status}")))
        }
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
    run(Command::new(directory.join("bin/pip")).args(["install", "-q"]).args(PEER_PACKAGES))?;
    Ok(directory)
}
