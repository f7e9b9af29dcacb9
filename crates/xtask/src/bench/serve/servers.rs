//! The two servers under load. Each has its own port. Dropping the value ends the server.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::bench::footprint::Footprint;
use crate::bench::peers::bwrap;
use crate::failure::{Context, Failure};

const PEER: &str = include_str!("peer.py");
/// The packages of the peer.
const PACKAGES: [&str; 2] = ["fastapi==0.162.4", "uvicorn==0.54.0"];
/// How long a server may take to listen.
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
    let make = Command::new("python3").args(["-m", "venv"]).arg(&directory).status();
    let install = || {
        let pip = directory.join("bin/pip");
        Command::new(pip).args(["install", "-q"]).args(PACKAGES).status()
    };
    for step in [make, install()] {
        let status = step.context(|| "cannot install fastapi".into())?;
        if !status.success() {
            return Err(Failure::new(format!("cannot install fastapi: {status}")));
        }
    }
    Ok(directory)
}

/// What both servers need.
#[derive(Debug)]
pub struct Setting<'a> {
    pub tare: &'a Path,
    /// An environment with the packages of the peer.
    pub python: &'a Path,
    pub footprint: &'a Footprint,
    /// Paths of the host that every command can see.
    pub binds: Vec<String>,
    /// A directory with packages for Python.
    pub packages: Option<&'a Path>,
    /// The tare that is the peer, instead of FastAPI and bwrap.
    pub earlier: Option<&'a Path>,
}

impl Servers {
    pub fn start(setting: &Setting<'_>) -> Result<Self, Failure> {
        let directory = setting.footprint.directory();
        let peer = directory.join("peer.py");
        std::fs::write(&peer, PEER).context(|| "cannot write the peer".into())?;
        let configuration = directory.join("tare.toml");
        std::fs::write(&configuration, setting.configuration())
            .context(|| "cannot write the configuration".into())?;
        let tare = |binary: &Path, state_root: &Path, port: u16| {
            let mut command = Command::new(binary);
            command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
            command.arg("--config").arg(&configuration);
            command.env("TARE_STATE_ROOT", state_root);
            command
        };
        let words = setting.bwrap()?;
        Ok(Self {
            tare: Server::start(&directory, "tare", |port| {
                tare(setting.tare, &setting.footprint.state_root(), port)
            })?,
            peer: Server::start(&directory, "peer", |port| match setting.earlier {
                Some(earlier) => tare(earlier, &directory.join("earlier-state"), port),
                None => setting.fastapi(&words, port),
            })?,
        })
    }
}

impl Setting<'_> {
    /// Its files are separate from those of a server on this host.
    fn configuration(&self) -> String {
        let files = self.footprint.directory().join("files");
        // An earlier tare may not know pools.
        let pool = if self.earlier.is_some() { "" } else { "[pool.python]\nwarm = 8\n" };
        let files = format!("{pool}[files]\ndirectory = '{}'\n", files.display());
        match self.packages.map(Path::display) {
            Some(packages) => format!("{files}[librechat.boxes]\npackages = '{packages}'\n"),
            None => files,
        }
    }

    fn fastapi(&self, words: &str, port: u16) -> Command {
        let mut command = Command::new(self.python.join("bin/uvicorn"));
        command.args(["peer:app", "--log-level", "info"]);
        command.args(["--port", &port.to_string()]);
        command.env("BWRAP", words).env("PYTHONDONTWRITEBYTECODE", "1");
        if let Some(packages) = self.packages {
            command.env("PYTHONPATH", packages.join("python"));
        }
        command
    }

    /// The words that the peer puts before a command.
    fn bwrap(&self) -> Result<String, Failure> {
        let packages = self.packages.map(|it| it.to_string_lossy().into_owned());
        let binds: Vec<String> = self.binds.iter().cloned().chain(packages).collect();
        let launch = bwrap(&binds, &[]);
        let words: Vec<&String> = [&launch.program].into_iter().chain(&launch.arguments).collect();
        serde_json::to_string(&words).context(|| "cannot tell the peer".into())
    }
}

impl Server {
    /// The log goes to a file, as usual.
    fn start(
        directory: &Path,
        name: &str,
        command: impl FnOnce(u16) -> Command,
    ) -> Result<Self, Failure> {
        let doing = || format!("cannot start {name}");
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr());
        let port = free.context(doing)?.port();
        let log = File::create(directory.join(format!("{name}.log"))).context(doing)?;
        let child = command(port)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context(doing)?)
            .stderr(log)
            .spawn()
            .context(doing)?;
        let server = Self { child, port };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if started.elapsed() > LISTENS_WITHIN {
                return Err(Failure::new(format!("{name} does not listen")));
            }
            #[expect(clippy::disallowed_methods, reason = "bounded by the check above")]
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that has ended already must be reaped too.
        kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
        self.child.wait().ok();
    }
}
