//! `bench run`: the whole life of one command, in tare and in its peers.
//!
//! Every subject starts as a fresh process with the same environment and no
//! streams, and has what a box has by default as far as it can be told: all of
//! them the seven namespaces, a read-only view of /usr, a fresh /proc, /dev and
//! /tmp; crun also the masks and seccomp, once with and once without. Only tare
//! has limits, Landlock and a teardown that looks.
//!
//! Before anything is timed each subject has to return the exit code of a
//! command that it ran: a peer that fails quickly must not look fast.

use super::crun::{PURE_CGROUP2, Profile, write_bundle};
use super::footprint::Footprint;
use super::launch::{CONTROL, CONTROL_ENDING, Ending, Launch, Starter};
use super::peers::{ASK_FOR_MOUNTS, View, bwrap, is_installed, unshare};
use super::report::{Comparison, Hope, Report, save};
use super::{Outcome, RunOnce, build, interleave};
use crate::failure::Failure;
use crate::workspace::Workspace;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

const COMMANDS: [&[&str]; 2] = [&["/bin/true"], &["/usr/bin/python3", "-c", "pass"]];

/// The goals for the first command. The second one is mostly the start of Python.
const HOPES: [Hope; 2] = [("tare", 0.8, "bwrap"), ("tare", 0.5, "crun")];

#[derive(Debug, Args)]
pub struct RunOptions {
    /// How many times each subject is measured
    #[arg(long, default_value_t = 200, value_name = "N")]
    runs: usize,
    /// Where the figures are saved [default: target/bench/run.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure only these
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SUBJECT,...")]
    only: Vec<Variant>,
    /// Measure this tare too, for example one built from an earlier commit
    #[arg(long, value_name = "TARE")]
    earlier: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Variant {
    Plain,
    Tare,
    Earlier,
    Bwrap,
    Unshare,
    Crun,
    CrunBare,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Tare => "tare",
            Self::Earlier => "earlier",
            Self::Bwrap => "bwrap",
            Self::Unshare => "unshare",
            Self::Crun => "crun",
            Self::CrunBare => "crun-bare",
        }
    }

    /// The peer's program, where there is one to be installed.
    fn needs(self) -> Option<&'static str> {
        match self {
            Self::Plain | Self::Tare | Self::Earlier => None,
            Self::Bwrap | Self::Unshare | Self::Crun => Some(self.name()),
            Self::CrunBare => Self::Crun.needs(),
        }
    }
}

pub fn perform(options: &RunOptions) -> Result<(), Failure> {
    let workspace = Workspace::alone()?;
    build()?;
    let footprint = Footprint::acquire(None)?;
    let mut ground = Ground {
        tare: workspace.target_directory.join("release/tare"),
        earlier: options.earlier.clone(),
        directory: footprint.directory(),
        name: footprint.name().to_owned(),
        view: View::default(),
    };
    ground.view = View::ask(&ground.tare_run(&ground.tare, "state", &ASK_FOR_MOUNTS));
    let done = measure(options, &workspace, &ground);
    footprint.release()?;
    done
}

fn measure(options: &RunOptions, workspace: &Workspace, ground: &Ground) -> Result<(), Failure> {
    let chosen = match options.only.as_slice() {
        [] => Variant::value_variants(),
        only => only,
    };
    let chosen: Vec<Variant> = chosen
        .iter()
        .copied()
        .filter(|it| *it != Variant::Earlier || options.earlier.is_some())
        .collect();
    let comparisons = COMMANDS.iter().enumerate().map(|(index, command)| {
        let hopes = if index == 0 { &HOPES[..] } else { &[] };
        compare(ground, &chosen, command, options.runs, hopes)
    });
    let report = Report::new("run", options.runs, comparisons.collect::<Result<_, _>>()?);
    let path = match &options.json {
        Some(path) => path.clone(),
        None => workspace.target_directory.join("bench/run.json"),
    };
    println!("{}", report.text());
    save(&report, &path)?;
    println!("saved in {}", path.display());
    Ok(())
}

/// All the chosen subjects with one command.
fn compare(
    ground: &Ground,
    chosen: &[Variant],
    command: &[&str],
    rounds: usize,
    hopes: &[Hope],
) -> Result<Comparison, Failure> {
    let mut ready: Vec<_> = chosen.iter().map(|it| ready(ground, *it, command)).collect();
    let mut subjects: Vec<RunOnce<'_>> = Vec::new();
    for (starter, launch) in ready.iter_mut().flatten() {
        subjects.push(Box::new(|| starter.time(launch)));
    }
    let mut measured = interleave(&mut subjects, rounds).into_iter();
    drop(subjects);
    let mut outcomes = Vec::new();
    for (variant, ready) in chosen.iter().zip(ready) {
        let outcome = match ready {
            Ok((starter, _)) => starter.end().map(|()| measured.next())?,
            Err(reason) => Some(Outcome::Absent { reason: reason.to_string() }),
        };
        let outcome = outcome.expect("interleave gives one outcome for each subject");
        outcomes.push((variant.name(), outcome));
    }
    Ok(Comparison::new(command.join(" "), outcomes, &["plain", "bwrap", "earlier"], hopes))
}

/// A starter and a launch that were seen to work, or why there are none.
fn ready(
    ground: &Ground,
    variant: Variant,
    command: &[&str],
) -> Result<(Starter, Launch), Failure> {
    if let Some(program) = variant.needs().filter(|it| !is_installed(it)) {
        return Err(Failure::new(format!("not installed ({program} is not in PATH)")));
    }
    let mut starter = match variant {
        Variant::Plain | Variant::Tare | Variant::Earlier | Variant::Bwrap | Variant::Unshare => {
            Starter::Here
        }
        Variant::Crun | Variant::CrunBare => Starter::elsewhere(&PURE_CGROUP2)?,
    };
    let control = ground.launch(variant, CONTROL)?;
    let launch = ground.launch(variant, command)?;
    let works = starter
        .expect(&control, &CONTROL_ENDING)
        .and_then(|()| starter.expect(&launch, &Ending::Exited(0)));
    match works {
        Ok(()) => Ok((starter, launch)),
        Err(failure) => starter.end().and(Err(failure)),
    }
}

/// What the subjects need: the binary, and a directory that is removed afterwards.
struct Ground {
    tare: PathBuf,
    /// Another tare to compare with.
    earlier: Option<PathBuf>,
    directory: PathBuf,
    name: String,
    /// The view of the host that every isolated subject has.
    view: View,
}

impl Ground {
    fn launch(&self, variant: Variant, command: &[&str]) -> Result<Launch, Failure> {
        match variant {
            Variant::Plain => Ok(Launch::new(command.iter().copied())),
            Variant::Tare => Ok(self.tare_run(&self.tare, "state", command)),
            Variant::Earlier => match &self.earlier {
                Some(tare) => Ok(self.tare_run(tare, "earlier-state", command)),
                None => Err(Failure::new("--earlier names no tare")),
            },
            Variant::Bwrap => Ok(bwrap(&self.view.binds, command)),
            Variant::Unshare => Ok(unshare(command)),
            Variant::Crun => self.crun(command, Profile::OfABox),
            Variant::CrunBare => self.crun(command, Profile::Bare),
        }
    }

    /// `tare run` with its default profile, on a state root below the bench's directory.
    fn tare_run(&self, tare: &Path, state: &str, command: &[&str]) -> Launch {
        let words = [&tare.to_string_lossy(), "run", "--quiet", "--"];
        Launch::new(words.into_iter().chain(command.iter().copied()))
            .with_environment("TARE_STATE_ROOT", text(&self.directory.join(state)))
    }

    fn crun(&self, command: &[&str], profile: Profile) -> Result<Launch, Failure> {
        let words = command.join(" ").replace('/', "_");
        let directory = self.directory.join(format!("crun-{profile:?}{words}"));
        if !directory.exists() {
            write_bundle(&directory, command, &self.name, &self.view, profile)?;
        }
        let root = text(&self.directory.join("crun-state"));
        let bundle = text(&directory);
        let words =
            ["crun", "--root", &root, "--cgroup-manager=cgroupfs", "run", "--bundle", &bundle];
        Ok(Launch::new(words.into_iter().chain([self.name.as_str()])))
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tare_runs_its_default_profile_on_a_state_root_of_its_own() {
        let ground = Ground {
            tare: "/t/tare".into(),
            earlier: None,
            directory: "/tmp/b".into(),
            name: "b".into(),
            view: View::default(),
        };
        let launch = ground.tare_run(&ground.tare, "state", &["/bin/true"]);
        assert_eq!(launch.program, "/t/tare");
        assert_eq!(launch.arguments, ["run", "--quiet", "--", "/bin/true"]);
        assert_eq!(launch.environment, [("TARE_STATE_ROOT".into(), "/tmp/b/state".into())]);
    }
}
