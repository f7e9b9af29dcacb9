//! `tare inspect`: prints everything that is known about boxes, for programs.

use clap::Args;
use tare_engine::Error;
use tare_engine::spec::shown::escaped_json;

use crate::commands::each::{Boxes, gather, on_box};
use crate::context::{Context, Purpose};
use crate::error::print_result;

const EXAMPLES: &str = "\
Examples:
  tare inspect web
  tare inspect web | jq '.[0].usage.memory_bytes'";

/// Print everything that is known about boxes, as a JSON array
///
/// Prints what 'tare ls --json' prints, and the spec, the use of each limit, and what the box holds
/// on the host. The spec has the names of environment variables, never their values.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    #[command(flatten)]
    boxes: Boxes,

    /// Has no effect: the output is JSON in any case
    #[arg(long = "json")]
    _json: bool,
}

pub fn run(args: &InspectArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    let (found, code) =
        gather(&args.boxes.boxes, |reference| on_box(&engine, reference, |id| engine.details(id)));
    let json = serde_json::to_string_pretty(&found).expect("texts, numbers and lists are JSON");
    print_result(&(escaped_json(&json) + "\n"))?;
    Ok(code)
}
