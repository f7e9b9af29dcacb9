//! `tare`: the command line. The only place that prints, and that reads the
//! arguments and the environment of its own process.
//!
//! The same binary is the keeper of every box, under that name.

mod args;
mod cells;
mod commands;
mod error;
mod relay;
mod table;
mod usage;
mod verdict;
mod watch;

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tare_kernel::memory::Allocator = tare_kernel::memory::Allocator;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if arguments
        .first()
        .is_some_and(|name| name.as_bytes() == tare_control::KEEPER_NAME.to_bytes())
    {
        return tare_keeper::main();
    }
    ExitCode::from(commands::run(arguments))
}
