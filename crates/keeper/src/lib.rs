//! The keeper: PID 1 of a box.
//!
//! It makes the box from a plan, starts the command, reaps whoever ends, and
//! reports. It cannot outlive its box and its box cannot outlive it: when it
//! exits, for whatever reason, the kernel kills everyone in its PID namespace.
//! It has no threads, no secrets, and nothing in memory but its own needs.
//!
//! ```text
//! plan ─▶ setup ─▶ go ─▶ fork ─▶ supervise ─▶ exit (and the box with it)
//!           │             │         ├─ the command ended      Exited
//!           │             │         ├─ the deadline passed    TimedOut
//!      SetupFailed        │         └─ the creator is gone    (nobody to tell)
//!                     LaunchFailed
//! ```

mod devices;
mod filesystem;
mod landlock;
mod link;
mod procfs;
mod setup;
mod supervise;
mod terminal;
mod workload;

use std::process::ExitCode;

use link::Link;
use setup::{Failing, Failure, Setup};
use tare_control::{Report, SetupStep};
use tare_kernel::launch;

/// A keeper's whole life; its process does nothing else.
pub fn main() -> ExitCode {
    let Ok(mut link) = Link::inherit() else {
        return ExitCode::FAILURE;
    };
    match keep(&mut link) {
        Ok(()) => ExitCode::SUCCESS,
        Err(report) => {
            link.report(&report);
            ExitCode::FAILURE
        }
    }
}

fn keep(link: &mut Link) -> Result<(), Report> {
    let network = setup::start_network().map_err(Failure::into_report)?;
    let plan = link.read_plan().map_err(Failure::into_report)?;
    let Setup { terminal } = setup::make_box(&plan, network, link).map_err(Failure::into_report)?;
    if !link.wait_for_go() {
        return Ok(());
    }
    // Before there is a child, so that no end of one is missed.
    let child_signal = launch::child_signal()
        .failing(SetupStep::Fork, "signals")
        .map_err(Failure::into_report)?;
    let command = workload::start(&plan.workload, terminal)?;
    link.report(&Report::Started);
    supervise::supervise(link, &child_signal, command, plan.deadline_ns);
    Ok(())
}
