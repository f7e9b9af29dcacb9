//! `tare`: the command line. The only place that prints, and that reads the
//! arguments and the environment of its own process.

mod args;
mod commands;
mod error;
mod relay;
mod usage;

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(commands::run(std::env::args_os().collect()))
}
