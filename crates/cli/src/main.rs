//! `tare`: the command line. Only this crate prints, and only this crate reads the arguments of
//! the process.
//!
//! The same binary is also the keeper of every box, the first process of every machine, and the
//! program that runs a server's hook. The name under which it is started decides.

mod cli;
mod commands;
mod context;
mod dispatch;
mod error;
mod exit;
mod foreign_words;
mod hint;
mod output;
mod stdio;
mod suggest;
mod usage;

use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tare_kernel::memory::Allocator = tare_kernel::memory::Allocator;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let name = arguments.first().map(|name| name.as_bytes());
    if name == Some(tare_control::KEEPER_NAME.to_bytes()) {
        return tare_keeper::main();
    }
    if name == Some(tare_control::MACHINE_NAME.to_bytes()) {
        return tare_keeper::inner::main();
    }
    if name == Some(tare_server::hook_runner::NAME.to_bytes()) {
        return tare_server::hook_runner::main(&arguments);
    }
    ExitCode::from(dispatch::dispatch(arguments))
}
