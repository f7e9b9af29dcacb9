//! `cargo xtask soak`: runs very many boxes, and counts what they leave.
//!
//! A mix of short runs, timeouts, out-of-memory kills, fork bombs, execs and crashes of tare
//! runs. From time to time all workers wait, the next tare command runs, and everything that is
//! left is counted: it has to be what was there before the first box. The same mix can run with
//! bwrap under a naive supervisor, which shows what the counting finds. [`librechat`] soaks a
//! server with the requests of LibreChat users.
//!
//! Each subject has a [`lane`] of its own. Inside, [`driver`] drives a [`subject`] through the
//! [`mix`] and takes [`sample`]s. Outside, [`drift`] judges them, and [`report`] prints a table and
//! writes JSON. `tools/plot-soak` draws the JSON.

mod commands;
mod count;
mod drift;
mod driver;
mod lane;
mod librechat;
mod measure;
mod mix;
mod naive;
mod orders;
mod report;
mod sample;
mod series;
mod site;
mod subject;
mod tare;

use crate::bench::answer::save;
use crate::failure::Failure;
use crate::workspace::Workspace;
use clap::{Args, ValueEnum};
pub use lane::{Inside, serve_inside};
use orders::Orders;
use report::SoakReport;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use subject::Kind;

#[derive(Debug, Args)]
pub struct SoakOptions {
    /// How many boxes
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    boxes: u64,
    /// End after this many minutes, also if there were fewer boxes; the peer gets the same time again
    #[arg(long, default_value_t = 10, value_name = "M")]
    minutes: u64,
    /// Run the same mix with a peer, under a supervisor that only kills the pid that it knows
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Soak tare serve instead, with requests of LibreChat users
    #[arg(long, conflicts_with = "peer")]
    librechat: bool,
    /// How many boxes run at the same time
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    workers: u64,
    /// Where to save the report [default: target/soak.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed of the mix and of the moment of every crash [default: the time]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    Bwrap,
}

pub fn perform(options: &SoakOptions) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            "a soak needs root, for namespaces and cgroups that separate it from the host",
        ));
    }
    let workspace = Workspace::alone()?;
    crate::bench::build()?;
    let seed = options.seed.unwrap_or_else(seed_from_clock);
    println!("seed {seed}");
    let orders = |subject| Orders {
        subject,
        boxes: options.boxes,
        seconds_max: options.minutes * 60,
        workers: options.workers,
        seed,
        tare: workspace.target_directory.join("release/tare"),
        packages: workspace.target_directory.join("packages"),
    };
    let first = if options.librechat { Kind::LibreChat } else { Kind::Tare };
    let mut all = vec![lane::run(&workspace, &orders(first))?];
    match options.peer {
        Some(Peer::Bwrap) => all.push(lane::run(&workspace, &orders(Kind::Bwrap))?),
        None => {}
    }
    let report = SoakReport::new(seed, all);
    println!("\n{}", report.text());
    let default = || workspace.target_directory.join("soak.json");
    let json = options.json.clone().unwrap_or_else(default);
    save(&report, &json)?;
    println!("saved in {}", json.display());
    match report.complaints().as_slice() {
        [] => Ok(()),
        complaints => Err(Failure::new(format!("soak: {}", complaints.join("; ")))),
    }
}

fn seed_from_clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |it| it.as_secs())
}
