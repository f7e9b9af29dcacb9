//! `tare rm`: nothing of a box is left.

use clap::Args;
use tare_engine::{Engine, Error};

use crate::commands::each::each;
use crate::context::{Context, Purpose};

const EXAMPLES: &str = "\
Examples:
  tare rm web
  tare ls -q --filter label=team=blue | xargs -r tare rm -f
  tare rm -f --all";

/// Remove boxes: record, log, exit code and kept scratch
///
/// A box that runs is refused without --force. Works on a box in any state, one
/// that is stuck or half made too, and returns when nothing of it is left.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RmArgs {
    /// End a box that still runs, without grace
    #[arg(short, long)]
    force: bool,

    /// Remove every box of this state root; those that run need --force
    #[arg(long, conflicts_with = "boxes")]
    all: bool,

    /// Ids, beginnings of ids that no other box shares, or names
    #[arg(required_unless_present = "all", value_name = "BOX")]
    boxes: Vec<String>,
}

pub fn run(args: &RmArgs, context: &Context) -> Result<u8, Error> {
    // A box is looked up before others are looked after: one that has just ended by
    // itself is found, and is then as it was asked to be.
    let engine = context.engine(Purpose::CreateOrEnd)?;
    let boxes = if args.all { every_box(&engine)? } else { args.boxes.clone() };
    Ok(each(&engine, &boxes, |id| engine.remove(id, args.force)))
}

fn every_box(engine: &Engine) -> Result<Vec<String>, Error> {
    let boxes = engine.list()?;
    Ok(boxes.iter().map(|status| status.id.to_string()).collect())
}
