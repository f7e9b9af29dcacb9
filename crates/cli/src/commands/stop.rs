//! `tare stop`: asks boxes to end, and kills those that do not.

use std::time::Duration;

use clap::Args;
use tare_engine::spec::quantity;
use tare_engine::{Actor, BoxId, Error, STOP_GRACE};

use crate::commands::each::{Boxes, gather, named, on_box, print_line};
use crate::context::{Context, Purpose};
use crate::error::print_note;

const EXAMPLES: &str = "\
Examples:
  tare stop web
  tare stop -t 1m database web
  tare ls -q --filter label=team=blue | xargs -r tare stop";

/// Stop boxes: SIGTERM to the command, a grace, then SIGKILL to every process
///
/// Returns when no process of the box is left. The record, exit code and log are kept until
/// 'tare rm' or the end of the retention.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StopArgs {
    /// How long the command may take to end by itself; 0 kills it at once
    /// [default: 10s]
    #[arg(
        short = 't',
        long = "time",
        value_name = "DURATION",
        value_parser = grace,
        allow_hyphen_values = true
    )]
    grace: Option<Duration>,

    #[command(flatten)]
    boxes: Boxes,
}

pub fn run(args: &StopArgs, context: &Context) -> Result<u8, Error> {
    // CreateOrEnd finds the named box before it cleans up others. So a box that has just ended by
    // itself is still found, and the command succeeds.
    let engine = context.engine(Purpose::CreateOrEnd)?;
    let grace = args.grace.unwrap_or(STOP_GRACE);
    let by = Actor::command("tare stop");
    // Ask all boxes before waiting for one, so that their grace periods run at the same time.
    let (stopping, not_asked) = gather(&args.boxes.boxes, |reference| {
        let begin = |id: &BoxId| Ok((id.clone(), engine.begin_stop(id, grace, &by)?));
        Ok((reference, on_box(&engine, reference, begin)?))
    });
    let (_, not_stopped) = gather(stopping, |(reference, (id, stopping))| {
        let ended = engine.end_stop(&stopping);
        if let Some(why) = ended.map_err(|error| named(error, &id, reference))? {
            print_note(&format!("nothing of box {reference} is kept, because {why}"));
        }
        print_line(reference)
    });
    Ok(not_asked.max(not_stopped))
}

/// Parses a duration. Unlike a timeout, it may be 0.
fn grace(text: &str) -> Result<Duration, Error> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        _ => quantity::duration(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_of_zero_is_accepted() {
        assert_eq!(grace("0").unwrap(), Duration::ZERO);
        assert_eq!(grace("0s").unwrap(), Duration::ZERO);
        assert_eq!(grace("1m").unwrap(), Duration::from_secs(60));
        assert!(grace("-1").is_err());
    }
}
