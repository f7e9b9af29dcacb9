//! `tare explain`: shows what happened to a box, step by step, also after its removal.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use tare_engine::spec::quantity;
use tare_engine::spec::shown::escaped;
use tare_engine::{Error, Explanation, State, Step};

use crate::context::{Context, Purpose};
use crate::error::{print_json, print_result};
use crate::exit::DONE;

const EXAMPLES: &str = "\
Examples:
  tare explain web
  tare explain web --json | jq -r '.steps[] | select(.event == \"killed\").text'";

/// Show what happened to a box, even if it is gone
///
/// Lists every step from the creation of the box to its removal, with the time since the creation:
/// which commands ran and how they ended, what stopped, paused, changed or killed the box, how long
/// its processes took to end, and what removed it and why. The times come from the boot clock.
/// tare keeps the last 60 events of the keeper. After the removal, the history stays for the
/// --retention of the box, at most 1 MiB for all boxes. A box without -d has a history only if its
/// 'tare run' was killed.
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
        print_json(&as_json(&explanation))?
    } else {
        print_result(&as_text(&explanation))?
    }
    Ok(DONE)
}

fn as_json(explanation: &Explanation) -> serde_json::Value {
    let history = &explanation.history;
    json!({
        "id": history.id,
        "name": history.name(),
        "state": explanation.state,
        "created_at": history.created_at,
        "cause": history.cause,
        "steps": history.steps,
        "forgotten": history.forgotten,
    })
}

fn as_text(explanation: &Explanation) -> String {
    let history = &explanation.history;
    let state = explanation.state.map_or("removed", State::as_str);
    let state = match history.cause {
        Some(cause) => format!("{state} ({cause})"),
        None => state.to_owned(),
    };
    let mut text = match history.name() {
        Some(name) => format!("{} ({}), {state}", history.id, escaped(name)),
        None => format!("{}, {state}", history.id),
    };
    text += &format!("; created at {}\n", history.created_at);
    if history.forgotten > 0 {
        text += &format!("({} of its steps are not kept any more)\n", history.forgotten);
    }
    let times: Vec<String> = history.steps.iter().map(time).collect();
    let width = times.iter().map(String::len).max().unwrap_or(0);
    for (time, step) in times.iter().zip(&history.steps) {
        text += &format!("  +{time:<width$}  {}\n", escaped(&step.text));
    }
    text
}

fn time(step: &Step) -> String {
    quantity::show_duration(Duration::from_millis(step.after_ms))
}
