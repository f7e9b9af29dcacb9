//! `tare rename`: gives a box a new name.

use clap::Args;
use tare_engine::Error;
use tare_engine::spec::Name;

use crate::commands::each::{on_box, print_line};
use crate::context::{Context, Purpose};
use crate::exit::DONE;

/// Rename a box
///
/// Fails if another box has the name.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tare rename web web-old")]
pub struct RenameArgs {
    /// Id, unique beginning of an id, or name of the box
    #[arg(value_name = "BOX")]
    reference: String,

    /// The new name
    #[arg(value_name = "NAME", value_parser = Name::parse, allow_hyphen_values = true)]
    name: Name,
}

pub fn run(args: &RenameArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    on_box(&engine, &args.reference, |id| engine.rename(id, &args.name))?;
    print_line(args.name.as_str())?;
    Ok(DONE)
}
