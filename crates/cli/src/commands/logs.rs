//! `tare logs`: what a box wrote. A stub until its own branch is merged.

use std::path::PathBuf;

use clap::Args;
use tare_engine::{Error, ErrorKind};

/// Print what a box wrote to stdout and stderr
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// An id, the beginning of one, or a name
    #[arg(value_name = "BOX")]
    reference: String,
}

pub fn run(args: &LogsArgs, _state_root: Option<PathBuf>) -> Result<u8, Error> {
    let message = format!("cannot read the log of {}", args.reference);
    Err(Error::new(ErrorKind::Unsupported, message))
}
