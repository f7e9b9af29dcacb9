//! `tare rename`: another name for a box.

use clap::Args;
use tare_engine::Error;
use tare_engine::spec::Name;

use crate::commands::each::{on_box, print_line};
use crate::context::{Context, Purpose};
use crate::exit::DONE;

/// Give a box another name
///
/// A name belongs to one box at a time; one that is taken is refused.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tare rename web web-old")]
pub struct RenameArgs {
    /// An id, the beginning of one, or a name
    #[arg(value_name = "BOX")]
    reference: String,

    /// The name that it is to have
    #[arg(value_name = "NAME", value_parser = Name::parse, allow_hyphen_values = true)]
    name: Name,
}

pub fn run(args: &RenameArgs, context: &Context) -> Result<u8, Error> {
    let engine = context.engine(Purpose::Use)?;
    on_box(&engine, &args.reference, |id| engine.rename(id, &args.name))?;
    print_line(args.name.as_str())?;
    Ok(DONE)
}
