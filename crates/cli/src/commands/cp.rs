//! x
use clap::Args;
use std::path::PathBuf;
use tare_engine::Error;
/// Copy
#[derive(Debug, Args)]
pub struct CpArgs {}
pub fn run(_args: &CpArgs, _state_root: Option<PathBuf>) -> Result<u8, Error> {
    Ok(0)
}
