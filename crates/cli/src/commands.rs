//! One command, one file; here is which one, and what its failures exit with.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::Parser;
use clap::error::ErrorKind as Clap;
use tare_engine::{Doing, Error};

use crate::args::{Cli, Command};
use crate::error::{RUN_FAILED, print_error, print_result, run_code};
use crate::usage;

pub mod completion;
pub mod doctor;
mod lease;
mod process;
pub mod run;

const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

/// The exit code of a whole command line.
pub fn run(args: Vec<OsString>) -> u8 {
    let command = usage::command_of(&args);
    match Cli::try_parse_from(&args) {
        Ok(cli) => dispatch(cli),
        Err(error) if matches!(error.kind(), Clap::DisplayHelp | Clap::DisplayVersion) => {
            exit_code(print_result(&error.render().to_string()).map(|()| 0))
        }
        Err(error) => {
            print_error(&usage::explain(&error, command));
            match command.and_then(OsStr::to_str) {
                Some("run") => RUN_FAILED,
                Some(_) | None => WRONG_USAGE,
            }
        }
    }
}

fn dispatch(cli: Cli) -> u8 {
    match cli.command {
        Command::Run(args) => {
            let result = state_root(cli.state_root).and_then(|root| run::run(&args, root));
            result.unwrap_or_else(|error| {
                print_error(&error);
                run_code(&error)
            })
        }
        Command::Doctor(args) => exit_code(doctor::run(&args)),
        Command::Completion(args) => exit_code(completion::run(&args)),
    }
}

fn exit_code(result: Result<u8, Error>) -> u8 {
    result.unwrap_or_else(|error| {
        print_error(&error);
        FAILED
    })
}

/// As asked for, else from the environment, else the engine's own choice.
fn state_root(asked: Option<PathBuf>) -> Result<Option<PathBuf>, Error> {
    let from_env = || std::env::var_os("TARE_STATE_ROOT").map(PathBuf::from);
    asked
        .or_else(from_env)
        .filter(|path| !path.as_os_str().is_empty())
        .map(std::path::absolute)
        .transpose()
        .doing(|| "cannot make the state root's path absolute".to_owned())
}
