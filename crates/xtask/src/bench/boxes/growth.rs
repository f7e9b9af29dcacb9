//! create, `ls --json` and `rm -f`, by the number of idle boxes.
//!
//! Each size begins and ends without boxes, the smallest first. A size that would bring the host near
//! one of its limits is left out, with the reason.

use super::anatomy::Anatomy;
use super::beside::Beside;
use super::limits::{self, Limit};
use super::report::Goal;
use super::tare::{Spent, Tare};
use crate::failure::Failure;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// A small size is repeated until about this many boxes were created.
const BOXES_PER_SIZE: usize = 200;
const REPEATS_MAX: usize = 10;

/// How often the boxes are listed. The median counts.
const LISTS: usize = 7;

/// How many boxes are examined to find the cost of one.
const SAMPLE_BOXES: usize = 5;

/// The goal: a list of this many boxes takes at most this much processor time.
const GOAL_BOXES: usize = 1_000;
const GOAL_LIST_CPU_MS: f64 = 50.0;

#[derive(Debug, Serialize)]
pub struct Growth {
    pub limits: Vec<Limit>,
    pub sizes: Vec<Size>,
    pub goals: Vec<Goal>,
}

#[derive(Debug, Serialize)]
pub struct Size {
    pub boxes: usize,
    #[serde(flatten)]
    pub outcome: SizeOutcome,
}

#[derive(Debug, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum SizeOutcome {
    Measured(Costs),
    /// Why there are no numbers.
    Absent {
        reason: String,
    },
}

/// The costs of one size: the medians of all repeats.
#[derive(Debug, Clone, Serialize)]
pub struct Costs {
    pub repeats: usize,
    pub create: Cost,
    pub ls: Cost,
    pub rm: Cost,
    pub beside: Beside,
}

/// The cost of all boxes together. The processor time is that of the commands.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    pub wall_ms: f64,
    pub cpu_ms: f64,
}

impl From<Spent> for Cost {
    fn from(spent: Spent) -> Self {
        let ms = |it: Duration| it.as_nanos() as f64 / 1e6;
        Self { wall_ms: ms(spent.wall), cpu_ms: ms(spent.cpu) }
    }
}

pub fn measure(tare: &mut Tare, sizes: &[usize]) -> Result<Growth, Failure> {
    let limits = limits::observe(&dearest_of_a_sample(tare)?);
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let mut measured = Vec::new();
    for boxes in sizes {
        let outcome = match limits::stop(&limits, boxes) {
            Some(reason) => SizeOutcome::Absent { reason },
            None => measure_size(tare, boxes)?,
        };
        if let SizeOutcome::Absent { reason } = &outcome {
            eprintln!("growth: {boxes} boxes: {reason}");
        }
        measured.push(Size { boxes, outcome });
    }
    Ok(Growth::new(limits, measured))
}

/// The largest value of each kind in a few boxes.
fn dearest_of_a_sample(tare: &mut Tare) -> Result<Anatomy, Failure> {
    let mut dearest = Anatomy::default();
    let mut ids = Vec::new();
    for _ in 0..SAMPLE_BOXES {
        let (id, _) = tare.run_detached()?;
        let anatomy = Anatomy::observe(&id)?;
        dearest.pids = dearest.pids.max(anatomy.pids);
        dearest.descriptors = dearest.descriptors.max(anatomy.descriptors);
        dearest.cgroup_bytes = dearest.cgroup_bytes.max(anatomy.cgroup_bytes);
        ids.push(id);
    }
    tare.remove_all()?;
    tare.expect_gone(&ids)?;
    Ok(dearest)
}

fn measure_size(tare: &mut Tare, boxes: usize) -> Result<SizeOutcome, Failure> {
    let repeats = (BOXES_PER_SIZE / boxes).clamp(1, REPEATS_MAX);
    eprintln!("growth: {boxes} boxes, {repeats} times");
    let (mut creates, mut lists, mut removals) = (Vec::new(), Vec::new(), Vec::new());
    let mut each = Vec::new();
    let mut beside = None;
    for _ in 0..repeats {
        let first = tare.made().len();
        match create(tare, boxes, &mut each) {
            Ok(spent) => creates.push(spent),
            Err(why) => {
                tare.remove_all()?;
                let reason = format!("box {}: {why}", tare.made().len() - first + 1);
                return Ok(SizeOutcome::Absent { reason });
            }
        }
        expect_running(tare, boxes)?;
        for _ in 0..LISTS {
            lists.push(tare.time_list()?);
        }
        beside = Some(Beside::measure(&each)?);
        removals.push(tare.remove_all()?);
        tare.expect_gone(&tare.made()[first..])?;
    }
    Ok(SizeOutcome::Measured(Costs {
        repeats,
        create: median(creates),
        ls: median(lists),
        rm: median(removals),
        beside: beside.expect("each size is made once at least"),
    }))
}

fn create(tare: &mut Tare, boxes: usize, each: &mut Vec<Duration>) -> Result<Spent, Failure> {
    let mut all = Spent::default();
    for _ in 0..boxes {
        let (_, spent) = tare.run_detached()?;
        each.push(spent.wall);
        all += spent;
    }
    Ok(all)
}

/// Checks that the list has all boxes: an incomplete list must not look fast.
fn expect_running(tare: &Tare, boxes: usize) -> Result<(), Failure> {
    let listed = tare.list()?;
    let running = listed.iter().filter(|it| it.state == "running").count();
    match (listed.len(), running) == (boxes, boxes) {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "of {boxes} boxes {} are listed, {running} of them as running",
            listed.len()
        ))),
    }
}

/// The medians of wall time and of processor time, by nearest rank.
fn median(series: Vec<Spent>) -> Cost {
    let middle = |of: fn(&Spent) -> Duration| {
        let mut values: Vec<Duration> = series.iter().map(of).collect();
        values.sort_unstable();
        values[(values.len() - 1) / 2]
    };
    Cost::from(Spent { wall: middle(|it| it.wall), cpu: middle(|it| it.cpu) })
}

impl Growth {
    fn new(limits: Vec<Limit>, sizes: Vec<Size>) -> Self {
        let listed = sizes.iter().filter_map(Size::costs).find(|it| it.0 == GOAL_BOXES);
        let goal = Goal::new(
            format!("ls --json of {GOAL_BOXES} boxes, ms of CPU"),
            GOAL_LIST_CPU_MS,
            listed.map(|it| it.1.ls.cpu_ms),
        );
        Self { goals: vec![goal], limits, sizes }
    }

    pub fn table(&self) -> String {
        let mut text =
            String::from("idle boxes: made one by one, listed, removed by one command\n");
        let _ =
            writeln!(text, "  {:>6}{:>28}{:>30}{:>30}", "", "create", "ls --json", "rm -f --all");
        let columns = format!("{:>10}{:>10}{:>10}", "ms", "CPU ms", "us/box");
        let _ = writeln!(text, "  {:>6}{}", "boxes", columns.repeat(3));
        text.extend(self.sizes.iter().map(Size::line));
        for (boxes, costs) in self.sizes.iter().filter_map(Size::costs) {
            text.push_str(&costs.beside.line(boxes));
        }
        for limit in &self.limits {
            let _ = writeln!(text, "  a box costs {limit}");
        }
        text.extend(self.goals.iter().map(Goal::line));
        text
    }
}

impl Size {
    fn costs(&self) -> Option<(usize, &Costs)> {
        match &self.outcome {
            SizeOutcome::Measured(costs) => Some((self.boxes, costs)),
            SizeOutcome::Absent { .. } => None,
        }
    }

    fn line(&self) -> String {
        let mut line = format!("  {:>6}", self.boxes);
        match &self.outcome {
            SizeOutcome::Absent { reason } => {
                let _ = write!(line, "    {}", reason.lines().next().unwrap_or_default());
            }
            SizeOutcome::Measured(costs) => {
                for cost in [costs.create, costs.ls, costs.rm] {
                    let each_us = cost.wall_ms * 1e3 / self.boxes as f64;
                    let Cost { wall_ms, cpu_ms } = cost;
                    let _ = write!(line, "{wall_ms:>10.1}{cpu_ms:>10.1}{each_us:>10.0}");
                }
            }
        }
        line + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(boxes: usize, scale: f64) -> Size {
        let cost = |ms: f64| Cost { wall_ms: ms * scale, cpu_ms: ms * scale / 2.0 };
        let outcome = SizeOutcome::Measured(Costs {
            repeats: 1,
            create: cost(80.0),
            ls: cost(1.0),
            rm: cost(40.0),
            beside: Beside { create_us: 80.0 * scale, bwrap_us: Some(100.0 * scale) },
        });
        Size { boxes, outcome }
    }

    fn growth() -> Growth {
        let absent = Size {
            boxes: 5_000,
            outcome: SizeOutcome::Absent { reason: "not made: too many".into() },
        };
        let pids = Limit { what: "pids", in_use: 110, per_box: 2, limit: 32_768 };
        let sizes = vec![measured(10, 1.0), measured(1_000, 120.0), absent];
        Growth::new(vec![pids], sizes)
    }

    #[test]
    fn the_table_shows_totals_shares_limits_and_goals() {
        let expected = "\
idle boxes: made one by one, listed, removed by one command
                              create                     ls --json                   rm -f --all
   boxes        ms    CPU ms    us/box        ms    CPU ms    us/box        ms    CPU ms    us/box
      10      80.0      40.0      8000       1.0       0.5       100      40.0      20.0      4000
    1000    9600.0    4800.0      9600     120.0      60.0       120    4800.0    2400.0      4800
    5000    not made: too many
  beside 10 boxes: create 80 us, bwrap 100 us: 0.80 x
  beside 1000 boxes: create 9600 us, bwrap 12000 us: 0.80 x
  a box costs 2 each of 32768 pids (110 in use)
  goal: ls --json of 1000 boxes, ms of CPU <= 50: 60.00 not met
";
        assert_eq!(growth().table(), expected);
    }

    #[test]
    fn the_median_takes_wall_and_processor_each_by_itself() {
        let spent = |wall, cpu| Spent {
            wall: Duration::from_millis(wall),
            cpu: Duration::from_millis(cpu),
        };
        let cost = median(vec![spent(9, 1), spent(1, 2), spent(5, 3)]);
        assert_eq!((cost.wall_ms, cost.cpu_ms), (5.0, 2.0));
    }

    #[test]
    fn absent_sizes_are_saved_with_their_reason() {
        let json = serde_json::to_value(growth()).unwrap();
        assert_eq!(json["sizes"][0]["status"], "measured");
        assert_eq!(json["sizes"][0]["create"]["wall_ms"], 80.0);
        assert_eq!(json["sizes"][2]["reason"], "not made: too many");
        assert_eq!(json["goals"][0]["met"], false);
    }
}
