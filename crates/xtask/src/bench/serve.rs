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
use super::peers::{ASK_FOR_MOUNTS, host_binds, is_installed};
use super::report::save;
use crate::failure::{Doing, Failure};
use crate::workspace::Workspace;
use clap::Args;
use report::{Figures, Row, ServeReport};
use serde_json::json;
use servers::Servers;
use std::path::PathBuf;
use std::process::Command;

/// What wrk sends, and how it says what came of it.
const LOAD: &str = include_str!("serve/load.lua");
/// Before the line that is for us.
const FIGURES: &str = "figures ";
/// Who waits longer than this for an answer counts as failed.
const ANSWER_WITHIN: &str = "30s";

#[derive(Debug, Args)]
pub struct Options {
    /// How long each load lasts
    #[arg(long, default_value_t = 5, value_name = "N")]
    seconds: u32,
    /// How many times each load is put on each server, in turn
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// Requests at once
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_values_t = [1, 8, 64])]
    concurrency: Vec<u32>,
    /// Where the figures are saved [default: target/bench/serve.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is executed: the command that costs nothing, and one that users have.
const COMMANDS: [&[&str]; 2] = [&["/bin/true"], &["/usr/bin/python3", "-c", "pass"]];

pub fn perform(options: &Options) -> Result<(), Failure> {
    for program in ["wrk", "bwrap", "python3"] {
        if !is_installed(program) {
            return Err(Failure::new(format!("{program} is not installed")));
        }
    }
    let workspace = Workspace::alone()?;
    build()?;
    let binary = workspace.target_directory.join("release/tare");
    let environment = servers::python(&workspace.target_directory)?;
    let footprint = Footprint::acquire(Some(&binary))?;
    let script = footprint.directory().join("load.lua");
    std::fs::write(&script, LOAD).doing(|| "cannot write the load".into())?;
    let program = binary.to_string_lossy();
    let words = [&[program.as_ref(), "run", "--"], &ASK_FOR_MOUNTS[..]].concat();
    let state_root = footprint.state_root().to_string_lossy().into_owned();
    let ask = Launch::new(words).with_environment("TARE_STATE_ROOT", state_root);
    let binds = host_binds(&ask);
    let servers = Servers::start(&binary, &environment, &footprint, &binds)?;
    let measured = measure(options, &servers, &script);
    drop(servers);
    let released = footprint.release();
    let report = ServeReport::new(options.seconds, options.rounds, measured?);
    released?;
    println!("{}", report.text());
    let json = options.json.clone();
    let json = json.unwrap_or_else(|| workspace.target_directory.join("bench/serve.json"));
    save(&report, &json)?;
    println!("saved in {}", json.display());
    Ok(())
}

fn measure(
    options: &Options,
    servers: &Servers,
    script: &std::path::Path,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for command in COMMANDS {
        for &concurrency in &options.concurrency {
            let load = |port| load(options.seconds, concurrency, command, port, script);
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _round in 0..options.rounds {
                ours.push(load(servers.tare.port)?);
                theirs.push(load(servers.peer.port)?);
            }
            rows.push(Row {
                command: command.join(" "),
                concurrency,
                tare: Figures::of(&ours),
                fastapi_bwrap: Figures::of(&theirs),
            });
        }
    }
    Ok(rows)
}

/// One load on one server.
fn load(
    seconds: u32,
    concurrency: u32,
    command: &[&str],
    port: u16,
    script: &std::path::Path,
) -> Result<report::Load, Failure> {
    let doing = || "cannot put a load on a server".to_owned();
    let threads = concurrency.min(2);
    let output = Command::new("wrk")
        .args([format!("-t{threads}"), format!("-c{concurrency}")])
        .args([
            format!("-d{seconds}s"),
            format!("--timeout={ANSWER_WITHIN}"),
        ])
        .arg("-s")
        .arg(script)
        .arg(format!("http://127.0.0.1:{port}/v1/run"))
        .env("BODY", json!({ "command": command }).to_string())
        .output()
        .doing(doing)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said.lines().find_map(|line| line.strip_prefix(FIGURES));
    let line = line.ok_or_else(|| Failure::new(format!("wrk said no figures: {said}")))?;
    serde_json::from_str(line).doing(doing)
}
