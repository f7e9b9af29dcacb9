//! `tare resume`: a paused box goes on.

use std::path::PathBuf;

use clap::Args;
use tare_engine::{Engine, Error};

use crate::commands::each::{Boxes, each};

/// Let a paused box go on
///
/// A box that is not paused is left as it is.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tare resume web")]
pub struct ResumeArgs {
    #[command(flatten)]
    boxes: Boxes,
}

pub fn run(args: &ResumeArgs, state_root: Option<PathBuf>) -> Result<u8, Error> {
    let engine = Engine::open(state_root)?;
    Ok(each(&engine, &args.boxes.boxes, |id| engine.resume(id)))
}
