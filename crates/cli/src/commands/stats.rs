//! `tare stats`: shows how much of their limits boxes use.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tare_engine::spec::quantity;
use tare_engine::{BoxId, Engine, Error, State, Usage};

use crate::commands::each::{gather, on_box};
use crate::context::{Context, Purpose};
use crate::error::to_json_line;
use crate::exit::DONE;
use crate::output::format;
use crate::output::table::{self, Column};
use crate::output::watch::{self, Times};

const EXAMPLES: &str = "\
Examples:
  tare stats
  tare stats --watch web database
  tare stats --json | jq -r '.[] | [.id, .memory_bytes] | @tsv'";

const COLUMNS: [Column; 7] = [
    Column::whole("ID"),
    Column::cut("NAME", 12),
    Column::whole("MEMORY"),
    Column::whole("CPU"),
    Column::whole("PROCESSES"),
    Column::whole("SCRATCH"),
    Column::whole("OUTPUT"),
];

/// Show the memory, processor time, processes, scratch space and output of boxes
///
/// Without BOX, shows all boxes that have not ended. A value that this host cannot measure is '-',
/// or null in JSON.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatsArgs {
    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,

    /// Repeat every second, until interrupted
    #[arg(long)]
    watch: bool,

    /// Ids, unique beginnings of ids, or names of boxes
    #[arg(value_name = "BOX")]
    boxes: Vec<String>,
}

/// How long the command waits for all keepers that do not answer, together.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize)]
struct Sample {
    id: BoxId,
    name: Option<String>,
    #[serde(flatten)]
    usage: Usage,
}

pub fn run(args: &StatsArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    let mut code = DONE;
    watch::show(Times::watch(args.watch), || {
        if args.boxes.is_empty() {
            return Ok(Some(render(args.json, &of_all(&engine)?)));
        }
        let until = Instant::now() + ANSWERS_WITHIN;
        let (samples, worst) = gather(&args.boxes, |reference| sample(&engine, reference, until));
        code = worst;
        // A table without rows is not printed. An empty array is.
        Ok((args.json || !samples.is_empty()).then(|| render(args.json, &samples)))
    })?;
    Ok(code)
}

fn sample(engine: &Engine, reference: &str, until: Instant) -> Result<Sample, Error> {
    on_box(engine, reference, |id| {
        let (name, usage) = (engine.status(id)?.name, engine.usage_until(id, until)?);
        Ok(Sample { id: id.clone(), name, usage })
    })
}

/// Measures all boxes that have not ended. A box that ends meanwhile is left out.
fn of_all(engine: &Engine) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    let until = Instant::now() + ANSWERS_WITHIN;
    for status in engine.list()? {
        if status.state == State::Exited {
            continue;
        }
        let (id, name) = (status.id, status.name);
        match engine.usage_until(&id, until) {
            Ok(usage) => samples.push(Sample { id, name, usage }),
            Err(error) => {
                let still = engine.status(&id).map(|status| status.state);
                if still.is_ok_and(|state| state != State::Exited) {
                    return Err(error);
                }
            }
        }
    }
    Ok(samples)
}

fn render(json: bool, samples: &[Sample]) -> String {
    if json {
        to_json_line(&samples)
    } else {
        let rows: Vec<_> = samples.iter().map(row).collect();
        table::render(&COLUMNS, &rows, table::columns_of_stdout())
    }
}

fn row(sample: &Sample) -> [String; 7] {
    let usage = &sample.usage;
    [
        sample.id.to_string(),
        format::text(sample.name.as_deref()),
        of_limit(usage.memory_bytes, usage.memory_limit_bytes, format::size),
        usage.cpu_us.map_or(format::EMPTY_CELL.to_owned(), cpu_time),
        of_limit(usage.pids, usage.pids_limit, format::count),
        of_limit(usage.scratch_bytes, usage.scratch_limit_bytes, format::size),
        output(usage),
    ]
}

/// `3 MiB/512 MiB`, or `3 MiB` without a limit.
fn of_limit(used: Option<u64>, limit: Option<u64>, show: fn(Option<u64>) -> String) -> String {
    match limit {
        Some(_) => format!("{}/{}", show(used), show(limit)),
        None => show(used),
    }
}

/// Seconds to the hundredth, as `time` prints them.
fn cpu_time(micros: u64) -> String {
    format!("{}.{:02}s", micros / 1_000_000, micros / 10_000 % 100)
}

fn output(usage: &Usage) -> String {
    let written = format::size(usage.output_bytes);
    match usage.output_dropped_bytes {
        Some(dropped) if dropped > 0 => {
            format!("{written}, {} dropped", quantity::show_bytes(dropped))
        }
        Some(_) | None => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_use_and_limit_where_they_are_known() {
        let sample =
            |id: &str, usage: Usage| Sample { id: BoxId::parse(id).unwrap(), name: None, usage };
        let known = Usage {
            memory_bytes: Some(3 << 20),
            memory_limit_bytes: Some(512 << 20),
            cpu_us: Some(1_239_999),
            pids: Some(2),
            pids_limit: Some(256),
            scratch_bytes: Some(4096),
            scratch_limit_bytes: Some(256 << 20),
            output_bytes: Some(1 << 20),
            output_dropped_bytes: Some(1024),
        };
        let unlimited = Usage { pids: Some(1), ..Usage::default() };
        let samples = [sample("aaaaaaaaaaaa", known), sample("bbbbbbbbbbbb", unlimited)];
        let expected = "\
ID            NAME  MEMORY         CPU    PROCESSES  SCRATCH        OUTPUT
aaaaaaaaaaaa  -     3 MiB/512 MiB  1.23s  2/256      4 KiB/256 MiB  1 MiB, 1 KiB dropped
bbbbbbbbbbbb  -     -              -      1          -              -
";
        assert_eq!(table::render(&COLUMNS, &samples.each_ref().map(row), None), expected);
    }

    #[test]
    fn the_json_is_flat() {
        let sample = Sample {
            id: BoxId::parse("aaaaaaaaaaaa").unwrap(),
            name: Some("web".into()),
            usage: Usage::default(),
        };
        let json = serde_json::to_value(&sample).unwrap();
        assert_eq!(json["id"], "aaaaaaaaaaaa");
        assert!(json["memory_bytes"].is_null() && json.get("cpu_us").is_some());
    }
}
