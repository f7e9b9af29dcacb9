//! `tare rm`: removes boxes with everything that belongs to them.

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
/// Removes a running box only with --force. Works on boxes in any state, also stuck and half-made
/// ones, and returns when nothing of the box is left.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RmArgs {
    /// Kill a running box, without grace
    #[arg(short, long)]
    force: bool,

    /// Remove every box of this state root; running ones need --force
    #[arg(long, conflicts_with = "boxes")]
    all: bool,

    /// Ids, unique beginnings of ids, or names of boxes
    #[arg(required_unless_present = "all", value_name = "BOX")]
    boxes: Vec<String>,
}

pub fn run(args: &RmArgs, context: &Context) -> Result<u8, Error> {
    // CreateOrEnd finds the named box before it cleans up others. So a box that has just ended by
    // itself is still found, and the command succeeds.
    let engine = context.engine(Purpose::CreateOrEnd)?;
    let boxes = if args.all { every_box(&engine)? } else { args.boxes.clone() };
    Ok(each(&engine, &boxes, |id| engine.remove(id, args.force)))
}

fn every_box(engine: &Engine) -> Result<Vec<String>, Error> {
    let boxes = engine.list()?;
    Ok(boxes.iter().map(|status| status.id.to_string()).collect())
}
