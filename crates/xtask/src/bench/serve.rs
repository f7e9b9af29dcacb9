//! `bench serve`: executions over HTTP. `tare serve` beside what users have today, a
//! small FastAPI server that starts bubblewrap for each request.
//!
//! The load is wrk's. An answer of tare comes when nothing is left of its box, so its
//! whole life is in the time that is measured; bubblewrap's ends with its process.

mod report;
mod servers;

use super::build;
use super::footprint::Footprint;
use super::launch::Launch;
use super::peers::{ASK_FOR_MOUNTS, View, is_installed};
use super::report::save;
use crate::failure::{Context, Failure};
use crate::http;
use crate::workspace::Workspace;
use clap::Args;
use report::{Figures, ServeReport, ServeRow};
use serde_json::{Value, json};
use servers::{Servers, Setting};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The script of wrk: what it sends, and how it prints the result.
const LOAD: &str = include_str!("serve/load.lua");
/// The beginning of the line with the result.
const FIGURES: &str = "figures ";
/// A request without an answer after this time has failed.
const ANSWER_WITHIN: &str = "30s";

#[derive(Debug, Args)]
pub struct ServeOptions {
    #[command(flatten)]
    load: Load,
    /// Requests at the same time
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_values_t = [1, 8, 64])]
    concurrency: Vec<u32>,
    /// Compare with `serve` of this tare, not with FastAPI and bwrap
    #[arg(long, value_name = "TARE")]
    earlier: Option<PathBuf>,
    /// Where the figures are saved [default: target/bench/serve.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Args)]
pub struct Load {
    /// How long each load lasts
    #[arg(long, default_value_t = 5, value_name = "N")]
    seconds: u32,
    /// How many times each load is put on each server, in turn
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
}

/// What is executed: a command that costs nothing, and a typical one.
const COMMANDS: [&[&str]; 2] = [&["/bin/true"], &["/usr/bin/python3", "-c", "pass"]];

pub fn perform(options: &ServeOptions) -> Result<(), Failure> {
    let work = |command: &[&str]| Work {
        name: command.join(" "),
        printed: "",
        tare: Request::run(command),
        peer: Request::run(command),
        concurrency: None,
    };
    let code =
        || Request { path: "/v1/run", body: json!({ "language": "python", "code": "print(1)" }) };
    let printing = Work {
        name: "python print(1), waiting".to_owned(),
        printed: "1\n",
        tare: code(),
        peer: match options.earlier {
            Some(_) => code(),
            None => Request::run(&["/usr/bin/python3", "-c", "print(1)"]),
        },
        concurrency: None,
    };
    let comparison = ServeComparison {
        name: "serve",
        load: options.load,
        concurrency: &options.concurrency,
        packages: None,
        earlier: options.earlier.as_deref(),
        work: COMMANDS.map(work).into_iter().chain([printing]).collect(),
    };
    comparison.perform(&Workspace::alone()?, options.json.clone())
}

/// The same work for both servers, under the same load.
#[derive(Debug)]
pub struct ServeComparison<'a> {
    pub name: &'static str,
    pub load: Load,
    pub concurrency: &'a [u32],
    /// Directories of the host that are visible, in addition to its programs.
    pub packages: Option<&'a Path>,
    /// The tare that is the peer, instead of FastAPI and bwrap.
    pub earlier: Option<&'a Path>,
    pub work: Vec<Work>,
}

/// A task, as a request to each server.
#[derive(Debug)]
pub struct Work {
    pub name: String,
    /// The expected output: a server that fails quickly must not look fast.
    pub printed: &'static str,
    pub tare: Request,
    pub peer: Request,
    /// Requests at once, if not as many as for the other work.
    pub concurrency: Option<u32>,
}

#[derive(Debug)]
pub struct Request {
    pub path: &'static str,
    pub body: Value,
}

impl Request {
    /// Both servers know it.
    pub fn run(command: &[&str]) -> Self {
        Self { path: "/v1/run", body: json!({ "command": command }) }
    }

    fn check(&self, port: u16, printed: &str) -> Result<(), Failure> {
        let doing = || format!("cannot ask for {}", self.path);
        let stream = TcpStream::connect(("127.0.0.1", port)).context(doing)?;
        let answer = http::ask(stream, "POST", self.path, &self.body.to_string()).context(doing)?;
        if answer["stdout"] == printed {
            Ok(())
        } else {
            Err(Failure::new(format!("it did not print {printed:?}: {answer}")))
        }
    }
}

impl ServeComparison<'_> {
    pub fn perform(&self, workspace: &Workspace, json: Option<PathBuf>) -> Result<(), Failure> {
        for program in ["wrk", "bwrap", "python3"] {
            if !is_installed(program) {
                return Err(Failure::new(format!("{program} is not installed")));
            }
        }
        build()?;
        let target = &workspace.target_directory;
        let rows = self.rows(&target.join("release/tare"), &servers::python(target)?)?;
        let Load { seconds, rounds } = self.load;
        let peer = if self.earlier.is_some() { "earlier tare" } else { "fastapi+bwrap" };
        let report = ServeReport::new(self.name, peer, seconds, rounds, rows);
        println!("{}", report.text());
        let json = json.unwrap_or_else(|| target.join(format!("bench/{}.json", self.name)));
        save(&report, &json)?;
        println!("saved in {}", json.display());
        Ok(())
    }

    /// Runs in its own directory, and leaves nothing.
    fn rows(&self, binary: &Path, python: &Path) -> Result<Vec<ServeRow>, Failure> {
        let footprint = Footprint::acquire(Some(binary))?;
        let script = footprint.directory().join("load.lua");
        std::fs::write(&script, LOAD).context(|| "cannot write the load".into())?;
        let program = binary.to_string_lossy();
        let words = [&[program.as_ref(), "run", "--"], &ASK_FOR_MOUNTS[..]].concat();
        let state_root = footprint.state_root().to_string_lossy().into_owned();
        let ask = Launch::new(words).with_environment("TARE_STATE_ROOT", state_root);
        let servers = Servers::start(&Setting {
            tare: binary,
            python,
            footprint: &footprint,
            binds: View::ask(&ask).binds,
            packages: self.packages,
            earlier: self.earlier,
        })?;
        let measured = self.measure(&servers, &script);
        drop(servers);
        footprint.release()?;
        measured
    }

    fn measure(&self, servers: &Servers, script: &Path) -> Result<Vec<ServeRow>, Failure> {
        let (tare, peer) = (servers.tare.port, servers.peer.port);
        let mut rows = Vec::new();
        for work in &self.work {
            work.tare.check(tare, work.printed)?;
            work.peer.check(peer, work.printed)?;
            let own = work.concurrency.as_slice();
            for &concurrency in if own.is_empty() { self.concurrency } else { own } {
                let load = |what, port| load(self.load.seconds, concurrency, what, port, script);
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                for _round in 0..self.load.rounds {
                    ours.push(load(&work.tare, tare)?);
                    theirs.push(load(&work.peer, peer)?);
                }
                rows.push(ServeRow {
                    command: work.name.clone(),
                    concurrency,
                    tare: Figures::of(&ours),
                    peer: Figures::of(&theirs),
                });
            }
        }
        Ok(rows)
    }
}

/// One load on one server.
fn load(
    seconds: u32,
    concurrency: u32,
    what: &Request,
    port: u16,
    script: &Path,
) -> Result<report::LoadResult, Failure> {
    let doing = || "cannot put a load on a server".to_owned();
    let threads = concurrency.min(2);
    let output = Command::new("wrk")
        .args([format!("-t{threads}"), format!("-c{concurrency}")])
        .args([format!("-d{seconds}s"), format!("--timeout={ANSWER_WITHIN}")])
        .arg("-s")
        .arg(script)
        .arg(format!("http://127.0.0.1:{port}{}", what.path))
        .env("BODY", what.body.to_string())
        .output()
        .context(doing)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said.lines().find_map(|line| line.strip_prefix(FIGURES));
    let line = line.ok_or_else(|| Failure::new(format!("wrk said no figures: {said}")))?;
    serde_json::from_str(line).context(doing)
}
