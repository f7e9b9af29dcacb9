//! `cargo xtask bench QUESTION`: measures tare beside its peers, and answers one question.
//!
//! A figure from one machine means little and a ratio from one run means much, so every bench runs
//! its subjects in turn ([`load`]) and reports ratios ([`answer`]). No bench fails because of a
//! time. Each runs in a [`lane`](crate::lane) of its own, saves its answer as JSON, and
//! [`report`] makes the tables and plots of docs/performance.md from all of them.

pub mod answer;
mod boxes;
mod calls;
pub mod launch;
mod load;
mod memory;
mod report;
mod run;
mod servers;
pub mod setup;
pub mod statistics;
mod svg;
mod teardown;
mod vm;
mod work;

use crate::failure::{Context, Failure};
use crate::lane;
use crate::workspace::{Workspace, cargo};
use answer::{Answer, Machine, Table, save};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use setup::Setup;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

#[derive(Debug, Args)]
pub struct BenchOptions {
    question: Question,
    /// How many calls of each subject are measured, at least
    #[arg(long, default_value_t = 300, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Measure this tare too, for example one of an earlier commit (run, and calls over HTTP)
    #[arg(long, value_name = "TARE")]
    earlier: Option<PathBuf>,
    /// Numbers of boxes (boxes)
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_values_t = [10, 100, 1_000, 5_000],
          value_parser = clap::value_parser!(u64).range(1..))]
    sizes: Vec<u64>,
    /// Where the JSON of all questions is [default: target/bench]
    #[arg(long, value_name = "DIRECTORY")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Question {
    /// How long is the life of one command? tare run, bwrap
    Run,
    /// How long is a call of print(1) in Python over HTTP?
    Python,
    /// The same with numpy
    Numpy,
    /// How many calls fit into a second, with 8 and 64 clients?
    Rate,
    /// How long do 100 calls at once take, with numpy?
    Burst,
    /// What does a template with a heap of 64 MiB cost?
    Heap,
    /// How long is a call of LibreChat?
    Librechat,
    /// How much processor time does a call take?
    Cpu,
    /// How much memory does a call take?
    Memory,
    /// How long does it take to end 1 to 1,000 processes, and a fork bomb?
    Teardown,
    /// What do 10 to 5,000 boxes cost?
    Boxes,
    /// What does a box in a virtual machine cost, beside plain QEMU?
    Vm,
    /// Answer all questions
    All,
    /// Write docs/performance.md and its plots from the answers
    Report,
}

/// One question, as the process inside of the lane gets it.
#[derive(Debug, Serialize, Deserialize)]
struct BenchOrders {
    question: Question,
    setup: Setup,
    json: PathBuf,
}

pub fn perform(options: &BenchOptions) -> Result<(), Failure> {
    let workspace = Workspace::alone()?;
    let saved = options.json.clone();
    let saved = saved.unwrap_or_else(|| workspace.target_directory.join("bench"));
    let chosen = options.question;
    if chosen == Question::Report {
        return report::write(&workspace, &saved);
    }
    let all = Question::value_variants().iter().copied();
    let all = all.filter(|it| !matches!(it, Question::All | Question::Report));
    let asked = all.filter(|it| chosen == Question::All || *it == chosen);
    answer_each(&workspace, options, saved, &asked.collect::<Vec<_>>())
}

fn answer_each(
    workspace: &Workspace,
    options: &BenchOptions,
    saved: PathBuf,
    questions: &[Question],
) -> Result<(), Failure> {
    build()?;
    let setup = prepare(workspace, options)?;
    lane::remove_dead(workspace);
    let start = Instant::now();
    let mut failed = Vec::new();
    for (index, &question) in questions.iter().enumerate() {
        let (name, of) = (question.name(), questions.len());
        let seconds = start.elapsed().as_secs();
        eprintln!("== {name}: question {} of {of}, after {seconds} s", index + 1);
        let json = saved.join(format!("{name}.json"));
        if let Err(failure) =
            in_lane(workspace, &BenchOrders { question, setup: setup.clone(), json })
        {
            eprintln!("{name}: {failure}");
            failed.push(name);
        }
    }
    eprintln!("== done after {} s", start.elapsed().as_secs());
    match failed.as_slice() {
        [] => Ok(()),
        failed => Err(Failure::new(format!("no answer to: {}", failed.join(", ")))),
    }
}

/// Finds what all questions need, outside of the lane, where there is a network.
fn prepare(workspace: &Workspace, options: &BenchOptions) -> Result<Setup, Failure> {
    let target = &workspace.target_directory;
    let packages = target.join("packages");
    let packages = packages.canonicalize().unwrap_or(packages);
    if !packages.join("python/numpy").exists() {
        return Err(Failure::new("numpy is not installed in target/packages: ./check installs it"));
    }
    let size = |it: &u64| usize::try_from(*it).unwrap_or(usize::MAX);
    Ok(Setup {
        tare: installed(target, &target.join("release/tare"), "tare")?,
        earlier: options
            .earlier
            .as_deref()
            .map(|it| installed(target, it, "earlier-tare"))
            .transpose()?,
        packages,
        fastapi: servers::install_peer(target)?,
        kernel_package: target.join("kernel-package/unpacked"),
        rounds: size(&options.rounds),
        sizes: options.sizes.iter().map(size).collect(),
    })
}

/// Copies a binary as an installation does: to a disk, and as one file in one go. The kernel keeps
/// such a file in larger pieces than one that a linker wrote or that is on a tmpfs, and starts it
/// faster by a tenth. A lane shows the place, and no build replaces the file while a bench runs.
fn installed(target: &Path, binary: &Path, name: &str) -> Result<PathBuf, Failure> {
    let copy = target.join("bench").join(name);
    let doing = || format!("cannot copy {}", binary.display());
    fs::create_dir_all(target.join("bench")).context(doing)?;
    fs::copy(binary, &copy).context(doing)?;
    Ok(copy)
}

fn in_lane(workspace: &Workspace, orders: &BenchOrders) -> Result<(), Failure> {
    let text = serde_json::to_string(orders).context(|| "cannot write the orders".into())?;
    let mut command = lane::command(workspace)?;
    command.args(["bench-inside", &text]).stdin(Stdio::null());
    let status = command.status().context(|| "cannot start a lane".into())?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("the bench failed: {status}"))) }
}

/// (internal) a bench, inside of its lane
#[derive(Debug, Args)]
pub struct BenchInside {
    orders: String,
}

pub fn serve_inside(inside: &BenchInside) -> Result<(), Failure> {
    let orders: BenchOrders =
        serde_json::from_str(&inside.orders).context(|| "cannot read the orders".into())?;
    let BenchOrders { question, setup, json } = orders;
    let machine = Machine::observe();
    setup.make_directory()?;
    let tables = question.answer(&setup)?;
    let answer = Answer { question: question.name(), machine, tables };
    println!("\n{}", answer.markdown());
    save(&answer, &json)?;
    println!("saved in {}", json.display());
    Ok(())
}

impl Question {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |it| it.get_name().to_owned())
    }

    fn answer(self, setup: &Setup) -> Result<Vec<Table>, Failure> {
        match self {
            Self::Run => run::answer(setup),
            Self::Python => calls::python(setup),
            Self::Numpy => calls::numpy(setup),
            Self::Rate => calls::rate(setup),
            Self::Burst => calls::burst(setup),
            Self::Heap => calls::heap(setup),
            Self::Librechat => calls::librechat(setup),
            Self::Cpu => calls::cpu(setup),
            Self::Memory => calls::memory(setup),
            Self::Teardown => teardown::answer(setup),
            Self::Boxes => boxes::answer(setup),
            Self::Vm => vm::answer(setup),
            Self::All | Self::Report => Err(Failure::new("this is not a question")),
        }
    }
}

/// Builds the binary that is measured, in its place under target/.
pub fn build() -> Result<(), Failure> {
    let mut command = cargo();
    command.args(["build", "--release", "--locked", "--package", "tare"]);
    let status = command.status().context(|| "cannot start cargo build".into())?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::new(format!("cargo build --release: {status}")))
    }
}
