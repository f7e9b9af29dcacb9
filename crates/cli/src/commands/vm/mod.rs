//! `tare vm`: what boxes in virtual machines are made of.

mod kernel;

use clap::{Args, Subcommand};
use tare_engine::Error;

use crate::context::Context;

const EXAMPLES: &str = "\
Examples:
  tare vm kernel fetch
  tare vm kernel ls";

/// Manage the kernels of virtual machines
///
/// docs/vm.md says what virtual machines are for, and what exists of them.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct VmArgs {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    Kernel(kernel::KernelArgs),
}

pub fn run(args: &VmArgs, context: &Context) -> Result<u8, Error> {
    match &args.part {
        Part::Kernel(args) => kernel::run(args, context),
    }
}
