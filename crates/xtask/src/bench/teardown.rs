//! `bench teardown`: how long it takes until nothing is left of a process tree. `Engine::remove` of
//! a box, beside a bare `cgroup.kill` and rmdir of the same tree.

use super::answer::{BWRAP, Bound, Metric, PLAIN, Table};
use super::launch::{Launch, bwrap};
use super::load::{Call, Contender, Plan, interleave, timed};
use super::setup::{BareTree, Setup, until};
use crate::failure::{Context, Failure};
use std::sync::atomic::{AtomicU64, Ordering};
use tare_engine::{Actor, Engine, Purpose};

const TARE: &str = "tare rm -f";

/// A subshell that reads from a terminal without another end costs a fork and no execve, so that a
/// tree is made quickly, and no process exists that is not a part of the tree. None ever reads
/// anything.
const TREE: &str = "exec 3<>/dev/ptmx; \
    i=0; while [ $i -lt $1 ]; do (read line <&3) & i=$((i + 1)); done; read line <&3";

/// Each process starts others until the limit. The first one is not a part of the bomb, and lives.
const BOMB: &str = "f() { while :; do f & done; }; f & exec sleep 1000000";
const BOMB_PIDS: u64 = 64;

struct Tree {
    title: String,
    script: &'static str,
    /// The argument of the script.
    children: u64,
    /// Processes that exist before the teardown.
    processes: u64,
    pids_max: u64,
}

/// The shell counts, and bubblewrap has two processes.
const SPARE_PIDS: u64 = 16;

pub fn answer(setup: &Setup) -> Result<Vec<Table>, Failure> {
    // The first command makes the state root.
    setup.tare(&["ls"]).output().map_err(Failure::new)?;
    let root = setup.directory().join("state");
    let engine = Engine::open(Some(root), Purpose::Serve);
    let engine = engine.context(|| "cannot open the state root".to_owned())?;
    let sizes = [1, 10, 100, 1_000].map(|children| Tree {
        title: format!("teardown of a shell and its children: {children}"),
        script: TREE,
        children,
        // With the shell, the last child exists: the tree is complete.
        processes: children + 1,
        pids_max: children + SPARE_PIDS,
    });
    let bomb = Tree {
        title: "teardown of a fork bomb".into(),
        script: BOMB,
        children: 0,
        processes: BOMB_PIDS / 2,
        pids_max: BOMB_PIDS,
    };
    let trees = sizes.into_iter().chain([bomb]);
    Ok(trees.map(|tree| measure(setup, &engine, &tree)).collect())
}

fn measure(setup: &Setup, engine: &Engine, tree: &Tree) -> Table {
    // A tree of a thousand takes most of a second to make.
    let samples = if tree.processes > 500 { setup.rounds.div_ceil(3) } else { setup.rounds };
    eprintln!("{}: {samples} rounds", tree.title);
    let count = tree.children.to_string();
    let command = ["/bin/sh", "-c", tree.script, "sh", &count];
    let number = AtomicU64::new(0);
    let bare = |launch: Launch, more: u64| {
        let number = &number;
        move || {
            let name = format!("bare-{}", number.fetch_add(1, Ordering::Relaxed));
            let started = BareTree::start(&launch, &name, tree.pids_max)?;
            let grown = until("the tree is complete", || started.pids() >= tree.processes + more);
            let ended = timed(|| started.end());
            grown.and(ended)
        }
    };
    let subjects = [
        Contender::of(PLAIN, bare(Launch::new(command), 0)),
        Contender::of(BWRAP, bare(bwrap(&[], &command), 2)),
        Contender::of(TARE, || remove_box(setup, engine, tree, &command)),
    ];
    let plan = Plan { warm_up: 1, ..Plan::one_at_a_time(samples, 1) };
    let measured = interleave(&subjects, &plan);
    let names = subjects.iter().map(|it| it.name.clone());
    let metrics = [Metric::P50, Metric::P99];
    let table = Table::compare(&tree.title, &metrics, names.zip(measured).collect());
    table.with_quotient([TARE, "p99 ms"], [PLAIN, "p99 ms"], Bound::AtMost(1.5))
}

fn remove_box(
    setup: &Setup,
    engine: &Engine,
    tree: &Tree,
    command: &[&str],
) -> Result<Call, String> {
    let pids = tree.pids_max.to_string();
    let options = ["run", "-d", "--rm", "--name", "tree", "--lease", "10m", "--pids", &pids, "--"];
    setup.tare(&[&options[..], command].concat()).run()?;
    let id = engine.find("tree").map_err(|error| error.to_string())?;
    let count = || engine.usage(&id).ok().and_then(|it| it.pids).unwrap_or(0);
    let grown = until("the tree is complete", || count() >= tree.processes);
    let removed = timed(|| {
        let removed = engine.remove(&id, true, &Actor::command("cargo xtask bench"));
        removed.map(drop).map_err(|error| error.to_string())
    });
    grown.and(removed)
}
