//! Runs the driver of a soak in a lane (`tests/in-lane`): in namespaces, cgroups and
//! directories of its own, so that only the soak is counted.
//!
//! The lane ends everything that is left and removes its cgroups, also those of a naive
//! supervisor. It fails if tare has left a process or a cgroup. The driver stops in order
//! when its stdin closes, which happens when this process ends or is killed.

use super::driver;
use super::orders::Orders;
use super::series::{Event, Series};
use super::site::Site;
use super::subject::Kind;
use crate::failure::{Context, Failure};
use crate::workspace::Workspace;
use clap::Args;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Runs one subject in a lane and returns its samples.
pub fn run(workspace: &Workspace, orders: &Orders) -> Result<Series, Failure> {
    let program = std::env::current_exe().context(|| "cannot find this program".into())?;
    let text = serde_json::to_string(orders).context(|| "cannot write the orders".into())?;
    let mut child = Command::new(workspace.workspace_root.join("tests/in-lane"))
        .arg(program)
        .args(["soak-inside", &text])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context(|| "cannot start a lane".into())?;
    let _keeps_it_running = child.stdin.take();
    let events = child.stdout.take().expect("it was requested as a pipe");
    let mut series = Series::new(orders);
    for line in BufReader::new(events).lines() {
        series.note(Event::from_json(&line.context(|| "cannot read from the driver".into())?)?);
    }
    let status = child.wait().context(|| "cannot wait for the lane".into())?;
    match orders.subject {
        _ if !series.is_complete() => {
            Err(Failure::new(format!("the driver ended early: {status}")))
        }
        Kind::Tare | Kind::LibreChat if !status.success() => {
            Err(Failure::new(format!("the lane failed: {status}")))
        }
        Kind::Tare | Kind::LibreChat | Kind::Bwrap => Ok(series),
    }
}

/// (internal) the driver, inside of the lane
#[derive(Debug, Args)]
pub struct Inside {
    orders: String,
}

pub fn serve_inside(inside: &Inside) -> Result<(), Failure> {
    let orders: Orders = serde_json::from_str(&inside.orders)
        .context(|| "cannot read the orders of the soak".into())?;
    driver::drive(&Site::prepare(orders)?)
}
