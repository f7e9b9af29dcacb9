//! `tare pause`: the processes of a box stand still until they are resumed.

use clap::Args;
use tare_engine::Error;

use crate::commands::each::{Boxes, each};
use crate::context::{Context, Purpose};

/// Freeze every process of a box
///
/// The box stays as it is until 'tare resume'. Its lease and its timeout go on.
/// It can be looked at, updated, stopped and removed without being resumed; exec,
/// cp, attach and signals are refused until then.
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
