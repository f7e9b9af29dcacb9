//! `bench boxes`: what happens with the number of boxes. Creates, lists, audits and removes up to
//! thousands, and recovers from a crash in which all of their processes die.

use super::answer::{BWRAP, Metric, PLAIN, Plot, Row, Table};
use super::launch::{Launch, bwrap};
use super::load::{Contender, Plan, interleave, milliseconds, timed};
use super::setup::{Setup, until};
use super::statistics::{exponent, median};
use crate::failure::Failure;
use crate::lane::cgroup_roots;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// Milliseconds for all boxes, and the memory that the host misses with them.
const COSTS: [&str; 6] = ["create", "ls", "audit", "teardown", "recovery", "memory, MiB"];

/// Small sizes are repeated until there were about this many boxes.
const BOXES_PER_SIZE: usize = 200;
const REPEATS_MAX: usize = 10;
/// How often boxes are listed and audited.
const LOOKS: usize = 5;

/// A box has a keeper and a command, and its creation needs a process more.
const PIDS_PER_BOX: u64 = 3;
/// With all that a box has: its processes, its record, its cgroups and its mounts.
const KIB_PER_BOX: u64 = 1024;
/// The share of the host that boxes may use.
const SHARE_MAX: f64 = 0.8;

pub fn answer(setup: &Setup) -> Result<Vec<Table>, Failure> {
    let mut sizes = setup.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    if let Some(size) = sizes.iter().find(|it| **it as u64 > boxes_max()) {
        return Err(Failure::new(format!(
            "{size} boxes are too many for this host, which has room for {}: use --sizes",
            boxes_max()
        )));
    }
    let mut totals = Vec::new();
    let mut tables = Vec::new();
    for &size in &sizes {
        let repeats = (BOXES_PER_SIZE / size).clamp(1, REPEATS_MAX);
        eprintln!("{size} boxes, {repeats} times");
        let (costs, beside) = of_size(setup, size, repeats).map_err(Failure::new)?;
        totals.push(costs);
        tables.push(beside);
    }
    tables.insert(0, growth(&sizes, &totals));
    Ok(tables)
}

/// How many boxes the host has room for.
fn boxes_max() -> u64 {
    let pids =
        number("/proc/sys/kernel/pid_max", "").min(number("/proc/sys/kernel/threads-max", ""));
    let rooms = [pids / PIDS_PER_BOX, available_kib() / KIB_PER_BOX];
    (rooms.into_iter().min().unwrap_or(0) as f64 * SHARE_MAX) as u64
}

fn available_kib() -> u64 {
    number("/proc/meminfo", "MemAvailable:")
}

/// The number in a file of the kernel, after this name.
fn number(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines().filter_map(|it| it.strip_prefix(name));
    let word = lines.next().and_then(|it| it.split_whitespace().next());
    word.and_then(|it| it.parse().ok()).unwrap_or(u64::MAX)
}

/// What was measured of each cost.
type Costs = [Vec<f64>; COSTS.len()];

fn of_size(setup: &Setup, size: usize, repeats: usize) -> Result<(Costs, Table), String> {
    let mut series = Costs::default();
    let mut beside = None;
    for repeat in 0..repeats {
        let available = available_kib() as f64;
        series[0].push(took(|| create(setup, size))?);
        series[5].push((available - available_kib() as f64) / 1024.0);
        expect_listed(setup, size)?;
        for _ in 0..LOOKS {
            series[1].push(took(|| setup.tare(&["ls", "--json"]).run())?);
            series[2].push(took(|| setup.tare(&["audit"]).run())?);
        }
        if repeat == 0 {
            beside = Some(next_box(setup, size));
        }
        series[3].push(took(|| setup.tare(&["rm", "-f", "--all"]).run())?);
        expect_listed(setup, 0)?;
        create(setup, size)?;
        crash()?;
        series[4].push(took(|| setup.tare(&["sweep"]).run())?);
        expect_listed(setup, 0)?;
    }
    Ok((series, beside.ok_or("there was no repeat")?))
}

fn took(run: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let start = Instant::now();
    run().map(|()| milliseconds(start.elapsed()))
}

/// Creates boxes one after another. They leave no record when they are gone.
fn create(setup: &Setup, size: usize) -> Result<(), String> {
    (0..size).try_for_each(|number| one_box(setup, &format!("n{number}")).run())
}

fn one_box(setup: &Setup, name: &str) -> Launch {
    let options = ["run", "-d", "--rm", "--lease", "1h", "--name", name, "--"];
    setup.tare(&[&options[..], &["/bin/sleep", "infinity"]].concat())
}

/// Checks that the list is complete: an incomplete list must not look fast.
fn expect_listed(setup: &Setup, size: usize) -> Result<(), String> {
    match setup.tare(&["ls", "-a", "-q"]).output()?.lines().count() {
        listed if listed == size => Ok(()),
        listed => Err(format!("{listed} boxes are listed, not {size}")),
    }
}

/// Kills every process of every box, as a host does that runs out of memory.
fn crash() -> Result<(), String> {
    let of_tare = |root: PathBuf| {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        entries
            .filter(|it| it.file_name().as_encoded_bytes().starts_with(b"tare"))
            .map(|it| it.path())
    };
    let cgroups: Vec<PathBuf> = cgroup_roots().into_iter().flat_map(of_tare).collect();
    let v2: Vec<&PathBuf> = cgroups.iter().filter(|it| it.join("cgroup.kill").exists()).collect();
    for cgroup in &v2 {
        let killed = fs::write(cgroup.join("cgroup.kill"), "1");
        killed.map_err(|error| format!("cannot kill {}: {error}", cgroup.display()))?;
    }
    let is_empty = |cgroup: &PathBuf| {
        let events = fs::read_to_string(cgroup.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|it| it == "populated 0")
    };
    until("all boxes are dead", || v2.iter().all(|it| is_empty(it)))
}

/// One more box beside so many others. bubblewrap pays for the growth of the kernel too: pivot_root
/// visits every process of the host.
fn next_box(setup: &Setup, size: usize) -> Table {
    let command = ["/bin/true"];
    let create = one_box(setup, "next");
    let subjects = [
        Contender::of(PLAIN, || timed(|| Launch::new(command).run())),
        Contender::of(BWRAP, || timed(|| bwrap(&[], &command).run())),
        Contender::of("tare run", || timed(|| setup.tare(&["run", "--", "/bin/true"]).run())),
        Contender::of("tare run -d", || {
            let created = timed(|| create.run());
            setup.tare(&["rm", "-f", "next"]).run().and(created)
        }),
    ];
    let measured = interleave(&subjects, &Plan::one_at_a_time(setup.rounds, 1));
    let names = subjects.iter().map(|it| it.name.clone());
    let title = format!("one more box beside {size}");
    Table::compare(&title, &[Metric::P50, Metric::P99], names.zip(measured).collect())
}

fn growth(sizes: &[usize], totals: &[Costs]) -> Table {
    let row = |(index, name): (usize, &&str)| {
        let all = || totals.iter().map(|it| &it[index]);
        let values: Vec<f64> = all().map(|it| median(it).unwrap_or(f64::NAN)).collect();
        let points: Vec<(f64, f64)> =
            sizes.iter().map(|it| *it as f64).zip(values.iter().copied()).collect();
        let values = values.into_iter().map(Some).chain([exponent(&points)]);
        Row {
            name: (*name).to_owned(),
            warm: None,
            samples: all().map(Vec::len).sum(),
            values: values.collect(),
            absent: None,
        }
    };
    Table {
        title: "all boxes together: milliseconds by their number, and the exponent".into(),
        columns: sizes.iter().map(usize::to_string).chain(["exponent".to_owned()]).collect(),
        rows: COSTS.iter().enumerate().map(row).collect(),
        goals: Vec::new(),
        plot: Plot::Growth,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_growth_of_each_operation_has_its_exponent() {
        let few = [1.0, 2.0, 3.0, 4.0, 5.0, -6.0].map(|it| vec![it]);
        let many = [10.0, 2.0, 300.0, 40.0, 50.0, 60.0].map(|it| vec![it; 3]);
        let table = growth(&[10, 100], &[few, many]);
        assert_eq!(table.rows[0].samples, 4);
        assert_eq!(table.columns, ["10", "100", "exponent"]);
        let close = |row: &str, expected: f64| {
            let found = table.value(row, "exponent").unwrap();
            assert!((found - expected).abs() < 1e-9, "{row}: {found}");
        };
        close("create", 1.0);
        close("ls", 0.0);
        close("audit", 2.0);
        assert_eq!(table.value("recovery", "100"), Some(50.0));
        assert_eq!(table.value("memory, MiB", "exponent"), None, "less than nothing has none");
    }

    #[test]
    fn this_host_has_room_for_some_boxes_and_not_for_all() {
        assert!((1..10_000_000).contains(&boxes_max()), "{}", boxes_max());
    }
}
