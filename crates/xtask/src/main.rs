//! `cargo xtask`: measures and checks the project. It is not part of the product.
//!
//! This file reads the arguments and prints the failure. Each job is a module. No check depends
//! on the speed of the machine: a bench only informs.

// This tool reports to a terminal, so it prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod failure;
mod fuzz;
mod http;
mod lane;
mod licences;
mod man;
mod notices;
mod sbom;
mod soak;
mod tidy;
mod workspace;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::io::Write as _;
use std::process::ExitCode;

/// Measures and checks tare itself.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    job: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Measure tare beside its peers, interleaved in one run
    Bench(bench::BenchOptions),
    /// (internal) a bench, inside of its lane
    #[command(hide = true)]
    BenchInside(bench::BenchInside),
    /// Try random input for a while
    Fuzz(fuzz::FuzzOptions),
    /// Check that each dependency is under a licence that is allowed
    Licences,
    /// Write the manual pages of tare and of its commands
    Man(man::ManOptions),
    /// Print the licence texts and notices of everything that the binary contains
    Notices,
    /// Print what the binary is built from, as a CycloneDX bill of materials
    Sbom,
    /// Run very many boxes, timeouts and crashes, and count what they leave
    Soak(soak::SoakOptions),
    /// (internal) the driver of a soak, inside of its lane
    #[command(hide = true)]
    SoakInside(soak::Inside),
    /// Check the rules of style that a program can check
    Tidy,
}

fn main() -> ExitCode {
    match perform(Arguments::parse().job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn perform(job: Task) -> Result<(), Failure> {
    match job {
        Task::Bench(options) => bench::perform(&options),
        Task::BenchInside(inside) => bench::serve_inside(&inside),
        Task::Fuzz(options) => fuzz::perform(&options),
        Task::Licences => licences::check(),
        Task::Man(options) => man::write(&options),
        Task::Notices => print(&notices::text()?),
        Task::Sbom => print(&sbom::text()?),
        Task::Soak(options) => soak::perform(&options),
        Task::SoakInside(inside) => soak::serve_inside(&inside),
        Task::Tidy => tidy::check(),
    }
}

/// Prints a document. A reader that has closed the pipe is not an error.
fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot print: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
