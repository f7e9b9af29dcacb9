//! `tare wait`: how boxes ended, as soon as they have.

use clap::Args;
use tare_engine::Error;

use crate::commands::each::{Boxes, in_turn, on_box};
use crate::context::{Context, Purpose};
use crate::exit::ended_code;

const EXAMPLES: &str = "\
Examples:
  tare wait build
  test \"$(tare wait build)\" = 0 || tare logs build";

/// Wait until boxes have ended, and print the exit code of each on a line
///
/// Works for a box that ended while nobody watched, too. The codes come in the
/// order of the boxes: 128+N when signal N ended the command, 124 after its
/// timeout or lease.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct WaitArgs {
    #[command(flatten)]
    boxes: Boxes,
}

pub fn run(args: &WaitArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    let code = in_turn(&args.boxes.boxes, |reference| {
        let ended = on_box(&engine, reference, |id| engine.wait(id))?;
        Ok(ended_code(&ended).to_string())
    });
    Ok(code)
}
