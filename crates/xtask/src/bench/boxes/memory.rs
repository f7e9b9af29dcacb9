//! Measures the memory of an idle box in several ways.
//!
//! No single figure is the truth. `MemAvailable` is what a user misses, and moves
//! with whatever else the host does; the sum of what the kernel accounts by kind
//! is steadier and misses a little; a memory cgroup is charged only for what its
//! own processes asked for. Bare `sleep`s, as many and in the same round, show
//! what the workload alone would cost.

use super::anatomy::Anatomy;
use super::report::Goal;
use super::tare::Tare;
use crate::failure::{Context, Failure};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROUNDS: usize = 3;

/// Long enough for a round. If the bench is killed, no `sleep` stays for longer.
const SLEEP_SECONDS: &str = "300";

/// The host is idle if its memory changes by less than this between two measurements.
const REST_KB: u64 = 256;
const REST_PAUSE: Duration = Duration::from_millis(200);
const REST_LOOKS_MAX: u32 = 50;

const IDLE_BYTES_MAX: f64 = 0.6e6;
const KEEPER_BYTES_MAX: f64 = 0.4e6;
const KEEPER_DESCRIPTORS_MAX: f64 = 24.0;

#[derive(Debug, Serialize)]
pub struct Memory {
    pub boxes: usize,
    pub rounds: usize,
    pub host: Vec<HostRow>,
    pub each: Vec<EachRow>,
    pub goals: Vec<Goal>,
}

/// One way to measure: the median of all rounds, for one box.
#[derive(Debug, Serialize)]
pub struct HostRow {
    pub what: &'static str,
    pub box_bytes: f64,
    pub sleep_bytes: f64,
}

/// One thing that each box has.
#[derive(Debug, Serialize)]
pub struct EachRow {
    pub what: &'static str,
    pub p50: f64,
    pub max: f64,
}

pub fn measure(tare: &mut Tare, boxes: usize) -> Result<Memory, Failure> {
    let (mut of_boxes, mut of_sleeps, mut anatomies) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        eprintln!("memory: {boxes} boxes and {boxes} sleeps, round {round} of {ROUNDS}");
        of_sleeps.push(cost_of_sleeps(boxes)?);
        let (cost, seen) = cost_of_boxes(tare, boxes)?;
        of_boxes.push(cost);
        anatomies = seen;
    }
    Ok(Memory::new(boxes, &of_boxes, &of_sleeps, &anatomies))
}

/// Measures one of `count` sleeps on the host.
fn cost_of_sleeps(count: usize) -> Result<Use, Failure> {
    let before = at_rest()?;
    let mut sleeps = Vec::new();
    let started = (0..count).try_for_each(|_| bare_sleep().map(|it| sleeps.push(it)));
    let after = at_rest();
    for mut sleep in sleeps {
        // It fails only if the process has ended already.
        let _ = sleep.kill();
        let _ = sleep.wait();
    }
    started?;
    Ok(after?.since(&before).each_of(count))
}

fn bare_sleep() -> Result<Child, Failure> {
    Command::new("/bin/sleep")
        .arg(SLEEP_SECONDS)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context(|| "cannot start a sleep".into())
}

fn cost_of_boxes(tare: &mut Tare, count: usize) -> Result<(Use, Vec<Anatomy>), Failure> {
    let before = at_rest()?;
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(tare.run_detached()?.0);
    }
    let after = at_rest()?;
    let anatomies = ids.iter().map(|id| Anatomy::observe(id)).collect::<Result<_, _>>()?;
    tare.remove_all()?;
    tare.expect_gone(&ids)?;
    Ok((after.since(&before).each_of(count), anatomies))
}

/// Waits until what ended before is gone: the kernel frees a network namespace
/// some time after its last process, and there is no event for it.
fn at_rest() -> Result<Meminfo, Failure> {
    let mut last = Meminfo::read()?;
    for _ in 0..REST_LOOKS_MAX {
        #[expect(clippy::disallowed_methods, reason = "bounded by REST_LOOKS_MAX")]
        std::thread::sleep(REST_PAUSE);
        let now = Meminfo::read()?;
        let moved = now.accounted_kb().abs_diff(last.accounted_kb());
        last = now;
        if moved < REST_KB {
            break;
        }
    }
    Ok(last)
}

/// The lines of /proc/meminfo that boxes move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Meminfo {
    available_kb: u64,
    anonymous_kb: u64,
    shared_kb: u64,
    slab_kb: u64,
    stacks_kb: u64,
    tables_kb: u64,
    percpu_kb: u64,
}

impl Meminfo {
    fn read() -> Result<Self, Failure> {
        let text = fs::read_to_string("/proc/meminfo").context(|| "cannot read meminfo".into())?;
        Ok(Self::parse(&text))
    }

    /// A line that this kernel does not have counts as nothing.
    fn parse(text: &str) -> Self {
        let line = |name: &str| {
            let mut lines = text.lines().filter_map(|it| it.split_once(':'));
            let found = lines.find(|it| it.0 == name);
            let number = found.and_then(|it| it.1.split_whitespace().next()?.parse().ok());
            number.unwrap_or(0)
        };
        Self {
            available_kb: line("MemAvailable"),
            anonymous_kb: line("AnonPages"),
            shared_kb: line("Shmem"),
            slab_kb: line("Slab"),
            stacks_kb: line("KernelStack"),
            tables_kb: line("PageTables"),
            percpu_kb: line("Percpu"),
        }
    }

    fn accounted_kb(&self) -> u64 {
        let user = self.anonymous_kb + self.shared_kb;
        user + self.slab_kb + self.stacks_kb + self.tables_kb + self.percpu_kb
    }

    /// Bytes that are in use now and were not before.
    fn since(&self, before: &Self) -> Use {
        let grown = |now: u64, before: u64| (now as f64 - before as f64) * 1024.0;
        Use([
            grown(before.available_kb, self.available_kb),
            grown(self.accounted_kb(), before.accounted_kb()),
            grown(self.anonymous_kb, before.anonymous_kb),
            grown(self.shared_kb, before.shared_kb),
            grown(self.slab_kb, before.slab_kb),
            grown(self.stacks_kb, before.stacks_kb),
            grown(self.tables_kb, before.tables_kb),
            grown(self.percpu_kb, before.percpu_kb),
        ])
    }
}

/// What [`Use`] holds, in its order.
const WAYS: [&str; 8] = [
    "MemAvailable, less",
    "accounted, sum of:",
    "  anonymous pages",
    "  tmpfs (records, roots)",
    "  slab",
    "  kernel stacks",
    "  page tables",
    "  per CPU",
];

/// Bytes for each way to measure.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Use([f64; WAYS.len()]);

impl Use {
    fn each_of(self, count: usize) -> Self {
        Self(self.0.map(|bytes| bytes / count as f64))
    }
}

impl Memory {
    fn new(boxes: usize, of_boxes: &[Use], of_sleeps: &[Use], anatomies: &[Anatomy]) -> Self {
        let middle = |uses: &[Use], way: usize| median(uses.iter().map(|it| it.0[way]));
        let host = WAYS.iter().enumerate().map(|(way, what)| HostRow {
            what,
            box_bytes: middle(of_boxes, way),
            sleep_bytes: middle(of_sleeps, way),
        });
        let host: Vec<HostRow> = host.collect();
        let each = each(anatomies);
        let goals = goals(&host, &each);
        Self { boxes, rounds: of_boxes.len(), host, each, goals }
    }

    pub fn table(&self) -> String {
        let mut text = format!(
            "memory of one idle box of {}, its keeper and its sleep included; KB, median of {} rounds\n  {:<26}{:>10}{:>14}{:>10}\n",
            self.boxes, self.rounds, "", "box", "bare sleep", "without"
        );
        let kb = |bytes: f64| bytes / 1e3;
        for row in &self.host {
            let (of_box, of_sleep) = (kb(row.box_bytes), kb(row.sleep_bytes));
            let without = of_box - of_sleep;
            let _ =
                writeln!(text, "  {:<26}{of_box:>10.1}{of_sleep:>14.1}{without:>10.1}", row.what);
        }
        let _ = writeln!(text, "  {:<26}{:>10}{:>14}", "each box", "p50", "max");
        for row in &self.each {
            let scale = if row.what.ends_with("KB") { 1e3 } else { 1.0 };
            let (p50, max) = (row.p50 / scale, row.max / scale);
            let _ = writeln!(text, "  {:<26}{p50:>10.1}{max:>14.1}", row.what);
        }
        text.extend(self.goals.iter().map(Goal::line));
        text
    }
}

const KEEPER_PRIVATE: &str = "keeper's private KB";
const KEEPER_DESCRIPTORS: &str = "keeper's descriptors";

fn each(anatomies: &[Anatomy]) -> Vec<EachRow> {
    let row = |what, of: &dyn Fn(&Anatomy) -> Option<u64>| {
        let values: Vec<f64> = anatomies.iter().filter_map(of).map(|it| it as f64).collect();
        (!values.is_empty()).then(|| EachRow {
            what,
            p50: median(values.iter().copied()),
            max: values.iter().copied().fold(f64::MIN, f64::max),
        })
    };
    let rows = [
        row("memory cgroup, KB", &|it| it.cgroup_bytes),
        row("  its kernel part, KB", &|it| it.cgroup_kernel_bytes),
        row(KEEPER_PRIVATE, &|it| Some(it.keeper_private_bytes)),
        row(KEEPER_DESCRIPTORS, &|it| Some(it.keeper_descriptors)),
        row("descriptors, all processes", &|it| Some(it.descriptors)),
        row("pids", &|it| Some(it.pids)),
    ];
    rows.into_iter().flatten().collect()
}

fn goals(host: &[HostRow], each: &[EachRow]) -> Vec<Goal> {
    let available = host.first();
    let max_of = |what: &str| each.iter().find(|it| it.what == what).map(|it| it.max);
    let megabytes = |bytes: f64| bytes / 1e6;
    vec![
        Goal::new(
            "MemAvailable less per box, MB",
            megabytes(IDLE_BYTES_MAX),
            available.map(|it| megabytes(it.box_bytes)),
        ),
        Goal::new(
            "the same without its sleep, MB",
            megabytes(IDLE_BYTES_MAX),
            available.map(|it| megabytes(it.box_bytes - it.sleep_bytes)),
        ),
        Goal::new(
            "keeper's private memory, MB",
            megabytes(KEEPER_BYTES_MAX),
            max_of(KEEPER_PRIVATE).map(megabytes),
        ),
        Goal::new(KEEPER_DESCRIPTORS, KEEPER_DESCRIPTORS_MAX, max_of(KEEPER_DESCRIPTORS)),
    ]
}

/// The median by nearest rank; 0 without values.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
MemTotal:       24681600 kB
MemAvailable:   20000000 kB
AnonPages:          1000 kB
Shmem:               100 kB
KernelStack:        2000 kB
PageTables:          300 kB
Slab:              50000 kB
Percpu:              700 kB
";

    fn after() -> Meminfo {
        let before = Meminfo::parse(BEFORE);
        Meminfo {
            available_kb: before.available_kb - 1000,
            slab_kb: before.slab_kb + 600,
            stacks_kb: before.stacks_kb + 200,
            ..before
        }
    }

    #[test]
    fn meminfo_is_read_by_name_and_what_it_lacks_is_nothing() {
        let meminfo = Meminfo::parse(BEFORE);
        assert_eq!((meminfo.available_kb, meminfo.percpu_kb), (20_000_000, 700));
        assert_eq!(meminfo.accounted_kb(), 54_100);
        assert_eq!(Meminfo::parse("x"), Meminfo::default());
        assert!(Meminfo::read().unwrap().slab_kb > 0);
    }

    #[test]
    fn use_is_what_is_less_available_and_more_accounted() {
        let used = after().since(&Meminfo::parse(BEFORE)).each_of(10);
        assert_eq!(used.0[..2], [102_400.0, 81_920.0]);
        assert_eq!(used.0[4], 61_440.0);
        let freed = Meminfo::parse(BEFORE).since(&after());
        assert_eq!(freed.0[0], -1_024_000.0);
    }

    #[test]
    fn the_table_shows_box_sleep_and_goals() {
        let used = |bytes: f64| Use([bytes; WAYS.len()]);
        let of_boxes = [used(9e6), used(500e3), used(400e3)];
        let anatomy = Anatomy {
            pids: 2,
            descriptors: 15,
            keeper_descriptors: 12,
            keeper_private_bytes: 410_000,
            cgroup_bytes: Some(300_000),
            cgroup_kernel_bytes: None,
        };
        let memory = Memory::new(200, &of_boxes, &[used(90e3)], &[anatomy; 3]);
        let table = memory.table();
        for line in [
            "  MemAvailable, less             500.0          90.0     410.0\n",
            "  memory cgroup, KB              300.0         300.0\n",
            "  keeper's descriptors            12.0          12.0\n",
            "  goal: MemAvailable less per box, MB <= 0.6: 0.50 met\n",
            "  goal: keeper's private memory, MB <= 0.4: 0.41 not met\n",
            "  goal: keeper's descriptors <= 24: 12.00 met\n",
        ] {
            assert!(table.contains(line), "no {line:?} in\n{table}");
        }
        assert!(!table.contains("kernel part"), "{table}");
    }

    #[test]
    fn the_median_is_one_that_was_measured() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 1.0);
        assert_eq!(median([].into_iter()), 0.0);
    }
}
