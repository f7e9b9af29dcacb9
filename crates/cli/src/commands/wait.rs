//! `tare wait`: waits until boxes have ended, and prints their exit codes.

use clap::Args;
use tare_engine::Error;

use crate::commands::each::{Boxes, in_turn, on_box};
use crate::context::{Context, Purpose};
use crate::exit::print_lost_machine;

const EXAMPLES: &str = "\
Examples:
  tare wait build
  test \"$(tare wait build)\" = 0 || tare logs build";

/// Wait until boxes have ended, and print the exit code of each
///
/// Prints the codes in the order of the boxes: 128+N if signal N ended the command, 124 after a
/// timeout or the end of a lease. Boxes that ended earlier have a code, too.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct WaitArgs {
    #[command(flatten)]
    boxes: Boxes,
}

pub fn run(args: &WaitArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    let code = in_turn(&args.boxes.boxes, |reference| {
        let end = on_box(&engine, reference, |id| {
            engine.wait(id).inspect(|end| print_lost_machine(*end, id))
        })?;
        Ok(end.code().to_string())
    });
    Ok(code)
}
