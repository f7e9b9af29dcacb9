//! `tare pause`: freezes every process of a box.

use clap::Args;
use tare_engine::Error;

use crate::commands::each::{Boxes, each};
use crate::context::{Context, Purpose};

/// Freeze every process of a box
///
/// The box stays frozen until 'tare resume'. Its lease and its timeout keep running. A paused box
/// can be inspected, updated, stopped and removed, but refuses exec, cp, attach and signals.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tare pause web && sleep 60 && tare resume web")]
pub struct PauseArgs {
    #[command(flatten)]
    boxes: Boxes,
}

pub fn run(args: &PauseArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    Ok(each(&engine, &args.boxes.boxes, |id| engine.pause(id)))
}
