//! stub
use clap::Args;
use tare_engine::Error;
/// Say what this host can do
#[derive(Debug, Args)]
pub struct DoctorArgs {}
pub fn run(_args: &DoctorArgs) -> Result<u8, Error> {
    Ok(0)
}
