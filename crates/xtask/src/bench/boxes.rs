//! `bench boxes`: detached boxes. Measures the cost of an exec, of an idle box, and of creating,
//! listing and removing thousands of boxes.
//!
//! All boxes are on a state root of the bench's own, which belongs to the
//! [`Footprint`]: however this ends, they are ended. That nothing of them is left
//! is the one thing here that can fail the bench; a time never does.

mod anatomy;
mod beside;
mod exec;
mod growth;
mod library;
mod limits;
mod memory;
mod report;
mod tare;

use super::build;
use super::footprint::{Footprint, cgroups_of};
use super::report::save;
use crate::failure::Failure;
use crate::workspace::Workspace;
use clap::{Args, ValueEnum};
use report::{BoxesReport, Part};
use std::path::PathBuf;
use tare::Tare;

#[derive(Debug, Args)]
pub struct BoxesOptions {
    /// How many times each way to exec is measured
    #[arg(long, default_value_t = 200, value_name = "N")]
    runs: usize,
    /// How many idle boxes are created to measure the memory of one
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = at_least_one)]
    idle: usize,
    /// How many boxes are made, listed and removed
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = at_least_one,
          default_values_t = [10, 100, 1_000, 5_000])]
    sizes: Vec<usize>,
    /// Measurement only these
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,...")]
    only: Vec<Measurement>,
    /// Where the figures are saved [default: target/bench/boxes.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least one box".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// /bin/true in a live box, against plain fork+exec, crun and podman
    Exec,
    /// What an idle box costs the host
    Memory,
    /// create, ls --json and rm -f by the number of boxes
    Growth,
}

pub fn perform(options: &BoxesOptions) -> Result<(), Failure> {
    let workspace = Workspace::alone()?;
    build()?;
    let binary = workspace.target_directory.join("release/tare");
    let footprint = Footprint::acquire(Some(&binary))?;
    let mut tare = Tare::new(binary, footprint.directory(), footprint.state_root());
    let measured = measure(options, &mut tare, footprint.name());
    // Remove everything first, also after a failure. If that fails, the janitor reports it.
    let released = footprint.release();
    let report = measured?;
    released?;
    nothing_left(&tare)?;
    println!("{}", report.text());
    let json = match &options.json {
        Some(path) => path.clone(),
        None => workspace.target_directory.join("bench/boxes.json"),
    };
    save(&report, &json)?;
    println!("saved in {}", json.display());
    println!(
        "the host is as before: of {} boxes none is listed and no cgroup is left",
        tare.made().len()
    );
    Ok(())
}

/// Measures all parts. Fails if a box is left at the end.
fn measure(options: &BoxesOptions, tare: &mut Tare, name: &str) -> Result<BoxesReport, Failure> {
    let wanted = |part| options.only.is_empty() || options.only.contains(&part);
    let exec = part(wanted(Measurement::Exec), || exec::measure(tare, name, options.runs))?;
    let memory = part(wanted(Measurement::Memory), || memory::measure(tare, options.idle))?;
    let growth = part(wanted(Measurement::Growth), || growth::measure(tare, &options.sizes))?;
    tare.expect_empty()?;
    Ok(BoxesReport::new(options.runs, exec, memory, growth))
}

fn part<T>(wanted: bool, measure: impl FnOnce() -> Result<T, Failure>) -> Result<Part<T>, Failure> {
    if wanted { measure().map(Part::Measured) } else { Ok(Part::NotAsked) }
}

fn nothing_left(tare: &Tare) -> Result<(), Failure> {
    let left = cgroups_of(tare.made().iter().map(String::as_str));
    match left.first() {
        None => Ok(()),
        Some(first) => Err(Failure::new(format!(
            "{} cgroups are left of boxes that were removed, the first is {}",
            left.len(),
            first.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{FromArgMatches, Parser};

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        options: BoxesOptions,
    }

    fn parse(words: &[&str]) -> Result<BoxesOptions, clap::Error> {
        let command = <Alone as clap::CommandFactory>::command();
        let matches = command.try_get_matches_from([&["boxes"], words].concat())?;
        Alone::from_arg_matches(&matches).map(|it| it.options)
    }

    #[test]
    fn sizes_are_a_list_and_no_size_is_nothing() {
        assert_eq!(parse(&[]).unwrap().sizes, [10, 100, 1_000, 5_000]);
        assert_eq!(parse(&["--sizes", "10,100"]).unwrap().sizes, [10, 100]);
        assert!(parse(&["--sizes", "10,0"]).is_err());
        assert!(parse(&["--idle", "0"]).is_err());
    }

    #[test]
    fn a_part_that_was_not_asked_for_is_not_measured() {
        let not_asked = part(false, || -> Result<(), Failure> { panic!("measured") });
        assert!(matches!(not_asked, Ok(Part::NotAsked)));
    }
}
