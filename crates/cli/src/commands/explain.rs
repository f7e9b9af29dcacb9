//! `tare explain`: shows what happened to a box, step by step, also after its removal.

use std::time::Duration;

use clap::Args;
use tare_engine::spec::quantity;
use tare_engine::spec::shown::escaped;
use tare_engine::{Error, Evidence, Explanation, State, Step};

use crate::context::{Context, Purpose};
use crate::error::{print_json, print_result};
use crate::exit::DONE;
use crate::hint::words;

const EXAMPLES: &str = "\
Examples:
  tare explain web
  tare explain web --json | jq -r '.steps[] | select(.event == \"killed\").text'";

/// Show why a box ended and what happened to it, even if it is gone
///
/// Opens with one sentence about the end. Then lists every step from the creation of the box to its removal, with the time since the creation:
/// which commands ran and how they ended, what stopped, paused, changed or killed the box, how long
/// its processes took to end, and what removed it and why. The times come from the boot clock.
/// Last come the kernel's numbers by the end, and the last 2 KiB of stderr. tare keeps the last 60
/// events of the keeper. After the removal, the history stays for the --retention of the box, for a
/// day if it had no -d. All histories together have a size; the key with the most loses its oldest. Of a
/// box without -d that exited with 0, only its command, its times and its exit code are kept.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// Id, unique beginning of an id, or present or former name of the box
    #[arg(value_name = "BOX")]
    reference: String,

    /// Print it as one line of JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &ExplainArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Look)?;
    let explanation = engine.explain(&args.reference)?;
    if args.json {
        print_json(&explanation.to_json(words))?
    } else {
        print_result(&as_text(&explanation))?
    }
    Ok(DONE)
}

fn as_text(explanation: &Explanation) -> String {
    let history = &explanation.history;
    let state = explanation.state.map_or("removed", State::as_str);
    let state = match history.end {
        Some(end) => format!("{state} ({})", end.cause),
        None => state.to_owned(),
    };
    let sentence = explanation.sentence.as_ref().map(|it| it.with_advice(words));
    let mut text = sentence.map(|it| escaped(&it) + "\n").unwrap_or_default();
    text += &match history.name() {
        Some(name) => format!("{} ({}), {state}", history.id, escaped(name)),
        None => format!("{}, {state}", history.id),
    };
    text += &format!("; created at {}\n", history.created_at);
    if let Some(stuck_on) = &explanation.stuck_on {
        text += &format!("waits: {}\n", escaped(stuck_on));
    }
    if history.forgotten > 0 {
        text += &format!("({} of its steps are not kept any more)\n", history.forgotten);
    }
    let times: Vec<String> = history.steps.iter().map(time).collect();
    let width = times.iter().map(String::len).max().unwrap_or(0);
    for (time, step) in times.iter().zip(&history.steps) {
        text += &format!("  +{time:<width$}  {}\n", escaped(&step.text));
    }
    // 'tare stats' shows the use of a box that lives.
    if let (Some(evidence), Some(_)) = (&explanation.evidence, &explanation.sentence) {
        text += &counted(evidence);
    }
    if let Some(stderr) = &explanation.stderr {
        text += "the end of its stderr:\n";
        stderr.lines().for_each(|line| text += &format!("  {}\n", escaped(line)));
    }
    text
}

/// The counts of the kernel at the end of the box, on one line; empty if it counted nothing.
fn counted(evidence: &Evidence) -> String {
    let bytes = |it: Option<u64>| it.map_or("?".to_owned(), quantity::show_bytes);
    let number = |it: Option<u64>| it.map_or("?".to_owned(), |it| it.to_string());
    let time = |us: u64| quantity::show_duration(Duration::from_micros(us));
    let memory = evidence.memory_peak_bytes.map(|peak| {
        let limit = bytes(evidence.memory_limit_bytes);
        // Some kernels count no failure where a process was killed.
        let reached = match evidence.memory_limit_reached {
            None | Some(0) => String::new(),
            Some(1) => ", limit reached once".to_owned(),
            Some(reached) => format!(", limit reached {reached} times"),
        };
        let kills = number(evidence.oom_kills);
        format!("memory {} of {limit}{reached}, {kills} killed", quantity::show_bytes(peak))
    });
    let pids = evidence.pids_peak.map(|peak| {
        let refused = number(evidence.pids_refused);
        format!("processes {peak} of {}, {refused} refused", number(evidence.pids_limit))
    });
    let cpu = evidence.cpu_us.map(|us| format!("cpu {}", time(us)));
    let throttled = evidence.cpu_throttled_us.map(|us| format!("throttled for {}", time(us)));
    let parts: Vec<String> = [memory, pids, cpu, throttled].into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!("at most: {}\n", parts.join("; ")) }
}

fn time(step: &Step) -> String {
    quantity::show_duration(Duration::from_millis(step.after_ms))
}
