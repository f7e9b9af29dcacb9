//! `bench run`: the whole life of one command, from the start of a process until it is reaped.
//!
//! Each subject has a fresh process, the same environment and no streams. bubblewrap has its
//! shortest list of binds, and no limits, no seccomp and no cgroup.

use super::answer::{BWRAP, Bound, Metric, PLAIN, Table, ratio_column};
use super::launch::{Launch, bwrap};
use super::load::{Contender, Plan, interleave, timed};
use super::setup::{Setup, tare};
use crate::failure::Failure;

pub const TARE: &str = "tare run";
const EARLIER: &str = "earlier tare run";

/// Proves that a subject runs what it is given: one that fails quickly must not look fast.
const CONTROL: &[&str] = &["/bin/echo", "1"];

pub fn answer(setup: &Setup) -> Result<Vec<Table>, Failure> {
    for (name, launch) in subjects(setup, CONTROL) {
        let works = launch.prints("1\n");
        works.map_err(|why| Failure::new(format!("{name} does not work: {why}")))?;
    }
    let table = |title: &str, command: &[&str]| compare(setup, title, command);
    let bound = Bound::AtMost(0.8);
    Ok(vec![
        table("/bin/true", &["/bin/true"]).with_goal(TARE, &ratio_column(BWRAP), bound),
        table("python3 -c pass", &["/usr/bin/python3", "-c", "pass"]),
    ])
}

fn compare(setup: &Setup, title: &str, command: &[&str]) -> Table {
    eprintln!("{title}");
    let all = subjects(setup, command);
    let subjects: Vec<Contender<'_>> =
        all.iter().map(|(name, launch)| Contender::of(name, || timed(|| launch.run()))).collect();
    let measured = interleave(&subjects, &Plan::one_at_a_time(setup.rounds, 1));
    let names = all.iter().map(|it| it.0.to_owned());
    Table::compare(title, &[Metric::P50, Metric::P99], names.zip(measured).collect())
}

fn subjects(setup: &Setup, command: &[&str]) -> Vec<(&'static str, Launch)> {
    let words = [&["run", "--quiet", "--"], command].concat();
    let mut all = vec![
        (PLAIN, Launch::new(command.iter().copied())),
        (BWRAP, bwrap(&[], command)),
        (TARE, setup.tare(&words)),
    ];
    let state = setup.directory().join("earlier-state");
    all.extend(setup.earlier.as_ref().map(|binary| (EARLIER, tare(binary, &state, &words))));
    all
}
