//! `tare sweep`: removes what `tare audit` finds.

use clap::Args;
use tare_engine::spec::shown::escaped;
use tare_engine::{Duty, Error, Hint, Outcome, Swept, parse_history_bytes};

use crate::context::{Context, Purpose};
use crate::error::{print_json, print_result};
use crate::exit::{DONE, FAILED};
use crate::hint::words;
use crate::output::format::plural;

const EXAMPLES: &str = "\
Examples:
  tare sweep --dry-run
  tare sweep
  tare sweep --json | jq -r '.[] | select(.outcome == \"stuck\") | .id'";

/// Remove leftovers, and finish boxes that have ended
///
/// Removes objects on the host that have no record. Finishes boxes that have ended:
/// removes their last processes and cgroups, and records their end. What a box keeps
/// stays until its retention has passed; then it is removed. A box that is alive, on
/// record and within its lease is never touched, and neither is one of another state root.
///
/// You do not have to run this: every command does a part of it. A box that cannot be
/// ended in time is 'stuck'; its record has the step and the reason. It delays no other
/// box. Later commands try again, less and less often, and so does every sweep.
///
/// Exits with 1 if anything is stuck or was left alone, and with 0 after --dry-run.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SweepArgs {
    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Print a JSON array instead of lines
    #[arg(long)]
    json: bool,

    /// Before the sweep, limit all stored histories together to SIZE; the key with the most loses its oldest
    #[arg(long, value_name = "SIZE", value_parser = parse_history_bytes, conflicts_with = "dry_run")]
    history_bytes: Option<u64>,
}

pub fn run(args: &SweepArgs, context: &Context) -> Result<u8, Error> {
    let swept = if args.dry_run {
        context.engine(Purpose::Look)?.plan_sweep()?
    } else {
        let engine = context.engine(Purpose::Sweep)?;
        if args.history_bytes.is_some() {
            engine.set_history(args.history_bytes, None)?;
        }
        engine.sweep()?
    };
    if args.json {
        print_json(&swept)?
    } else {
        print_result(&as_text(&swept))?
    }
    Ok(if args.dry_run || swept.iter().all(|one| is_well(&one.outcome)) { DONE } else { FAILED })
}

/// A box that another command works on counts as done: that command cleans it up.
fn is_well(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Planned | Outcome::Done | Outcome::Busy => true,
        Outcome::Left | Outcome::Stuck { .. } => false,
    }
}

fn as_text(swept: &[Swept]) -> String {
    if swept.is_empty() {
        return "Nothing to sweep.\n".to_owned();
    }
    let lines: String = swept.iter().map(line).collect();
    lines + &summary(swept)
}

fn line(one: &Swept) -> String {
    let found = escaped(&one.found.join("; "));
    let why = match &one.outcome {
        Outcome::Stuck { step, reason } => escaped(&format!(": {step}: {reason}")),
        Outcome::Left => {
            let remedy = one.remedy.as_ref().unwrap_or(&Hint::Force);
            format!(" ({})", words(remedy))
        }
        Outcome::Planned | Outcome::Done | Outcome::Busy => String::new(),
    };
    format!("{:<12}  {found}{why}\n", word(&one.outcome, one.duty))
}

fn word(outcome: &Outcome, duty: Duty) -> &'static str {
    match (outcome, duty) {
        (Outcome::Stuck { .. }, _) => "stuck",
        (Outcome::Busy, _) => "busy",
        (Outcome::Left, _) | (Outcome::Planned | Outcome::Done, Duty::Leave) => "left",
        (Outcome::Planned, Duty::End(_)) => "would end",
        (Outcome::Planned, Duty::Finish(_)) => "would finish",
        (Outcome::Planned, Duty::Remove(_)) => "would remove",
        (Outcome::Done, Duty::End(_)) => "ended",
        (Outcome::Done, Duty::Finish(_)) => "finished",
        (Outcome::Done, Duty::Remove(_)) => "removed",
    }
}

fn summary(swept: &[Swept]) -> String {
    let count = |wanted: fn(&Outcome) -> bool| {
        let found = swept.iter().filter(|one| wanted(&one.outcome));
        found.count()
    };
    let left = count(|it| matches!(it, Outcome::Left));
    let parts = [
        (count(|it| matches!(it, Outcome::Planned)), "to do; nothing was changed"),
        (count(|it| matches!(it, Outcome::Done)), "done"),
        (count(|it| matches!(it, Outcome::Busy)), "left to another command"),
        (left, "left alone"),
        (count(Outcome::is_stuck), "stuck: later commands try again"),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
    format!("{}: {}.\n", plural(swept.len(), "box", "boxes"), parts.join("; "))
}
