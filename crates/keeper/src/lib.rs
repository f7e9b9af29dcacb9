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
use setup::Setup;

/// The name under which the binary is a keeper.
pub const NAME: &std::ffi::CStr = c"tare-keeper";

/// A keeper's whole life; its process does nothing else.
pub fn main() -> ExitCode {
    let Ok(mut link) = Link::inherit() else {
        return ExitCode::FAILURE;
    };
    match keep(&mut link) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            link.report(&failure.into_report());
            ExitCode::FAILURE
        }
    }
}

fn keep(link: &mut Link) -> Result<(), setup::Failure> {
    let plan = link.read_plan()?;
    let Setup { terminal } = setup::make_box(&plan, link)?;
    if !link.wait_for_go() {
        return Ok(());
    }
    let child = workload::start(&plan.workload, terminal)?;
    supervise::supervise(link, &child, plan.deadline_ns);
    Ok(())
}
