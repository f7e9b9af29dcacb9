//! `cargo xtask fuzz`: runs a test of random input for longer than `./check` does.
//!
//! The test makes every input from a seed and prints it. To try one again: `TARE_SEED=SEED`.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use std::process::{Command, Stdio};

#[derive(Debug, Args)]
pub struct FuzzOptions {
    /// What gets the input
    subject: FuzzSubject,
    /// How long
    #[arg(long, default_value_t = 60)]
    minutes: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FuzzSubject {
    /// The frames that a machine sends
    Relay,
}

pub fn perform(options: &FuzzOptions) -> Result<(), Failure> {
    let (package, test) = match options.subject {
        FuzzSubject::Relay => {
            ("tare-control", "port::tests::hostile_peers_get_an_error_and_no_memory")
        }
    };
    let cargo = || {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--release", "--package", package, "--lib", "--", "--exact", test]);
        cargo
    };
    let failed = |error| Failure::new(format!("cannot run cargo: {error}"));
    // A test that has another name now would not run, and cargo would succeed.
    let listed = cargo().arg("--list").stderr(Stdio::inherit()).output().map_err(failed)?;
    if !String::from_utf8_lossy(&listed.stdout).contains(&format!("{test}: test")) {
        return Err(Failure::new(format!("{package} has no test {test}")));
    }
    let status = cargo()
        .arg("--nocapture")
        .env("TARE_FUZZ_SECONDS", (60 * options.minutes).to_string())
        .status()
        .map_err(failed)?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("{test} failed"))) }
}
