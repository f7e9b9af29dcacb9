//! `cargo xtask soak`: very many boxes, and what of them is left.
//!
//! tare lives through a mix of short runs, timeouts, out-of-memory kills, fork
//! bombs, execs and crashes of tare itself. Every so often everybody waits, the
//! next tare command runs, and what is there is counted: it has to be what was
//! there before the first box. The same mix may be given to bwrap under a naive
//! supervisor, so that one sees what such counting finds; and [`librechat`] is the
//! soak of a server, by what users of LibreChat run.
//!
//! Each of the two has a [`ground`] of its own (PID and mount namespace, cgroup
//! directories, state root in memory), so that nothing of anybody else is
//! counted and nothing of theirs is left on the host. Inside, [`driver`] drives a
//! [`subject`] through the [`mix`] and takes [`sample`]s; out here, [`drift`]
//! judges them, [`report`] writes the table and [`plot`] the picture.

mod commands;
mod count;
mod drift;
mod driver;
mod ground;
mod librechat;
mod measure;
mod mix;
mod naive;
mod plot;
mod report;
mod sample;
mod series;
mod subject;
mod tare;

use crate::bench::report::{save, save_text};
use crate::failure::Failure;
use crate::workspace::Workspace;
use clap::{Args, ValueEnum};
use driver::Orders;
use ground::Ground;
pub use ground::{Inside, serve_inside};
use report::Report;
use series::Series;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use subject::Kind;

#[derive(Debug, Args)]
pub struct Options {
    /// How many boxes
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    boxes: u64,
    /// End after this time, however many boxes there were (the peer has as much again)
    #[arg(long, default_value_t = 10, value_name = "M")]
    minutes: u64,
    /// Do the same to a peer, driven by a supervisor that kills the pid it knows
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Soak tare serve instead, with what the users of a LibreChat run
    #[arg(long, conflicts_with = "peer")]
    librechat: bool,
    /// How many are driven at once
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    workers: u64,
    /// Where soak.svg, soak.txt and soak.json go [default: target/soak]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What decides the mix and the moment of every crash [default: the time]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    Bwrap,
}

pub fn perform(options: &Options) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            "a soak needs root: its namespaces and cgroups are what keeps it apart from the host",
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
    let mut all = vec![soak(&orders(first))?];
    match options.peer {
        Some(Peer::Bwrap) => all.push(soak(&orders(Kind::Bwrap))?),
        None => {}
    }
    let report = Report::new(seed, all);
    let text = report.text();
    println!("\n{text}");
    let out = match &options.out {
        Some(path) => path.clone(),
        None => workspace.target_directory.join("soak"),
    };
    save(&report, &out.join("soak.json"))?;
    save_text(&text, &out.join("soak.txt"))?;
    save_text(&report.plot(), &out.join("soak.svg"))?;
    println!("saved in {}: soak.svg, soak.txt, soak.json", out.display());
    match report.complaints().as_slice() {
        [] => Ok(()),
        complaints => Err(Failure::new(format!("soak: {}", complaints.join("; ")))),
    }
}

/// One subject on a ground of its own. That ground is gone when this returns.
fn soak(orders: &Orders) -> Result<Series, Failure> {
    let ground = Ground::acquire()?;
    let soaked = ground.run(orders);
    let released = ground.release();
    let series = soaked?;
    released?;
    Ok(series)
}

fn seed_from_clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |it| it.as_secs())
}
