//! `tare resume`: continues a paused box.

use clap::Args;
use tare_engine::Error;

use crate::commands::each::{Boxes, each};
use crate::context::{Context, Purpose};

/// Continue a paused box
///
/// Does nothing to a box that is not paused.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tare resume web")]
pub struct ResumeArgs {
    #[command(flatten)]
    boxes: Boxes,
}

pub fn run(args: &ResumeArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    Ok(each(&engine, &args.boxes.boxes, |id| engine.resume(id)))
}
