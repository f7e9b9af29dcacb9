//! One command, one file; here is which one, and what its failures exit with.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::error::ErrorKind as Clap;
use tare_engine::{Context as _, Error};
use tare_kernel::memory;

use crate::cli::{Cli, Command};
use crate::error::{RUN_FAILED, print_error, print_result, run_code};
use crate::usage;

pub mod attach;
pub mod audit;
pub mod completion;
pub mod cp;
pub mod doctor;
mod each;
pub mod exec;
pub mod explain;
pub mod help;
pub mod inspect;
pub mod kill;
mod lease;
pub mod logs;
pub mod ls;
pub mod pause;
mod process_args;
pub mod rename;
pub mod resume;
pub mod rm;
pub mod run;
pub mod serve;
pub mod stats;
pub mod stop;
pub mod sweep;
pub mod update;
pub mod wait;

const DONE: u8 = 0;
const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

/// For when there is no memory to make a sentence of.
const EXHAUSTED: &str = "tare: cannot go on: Out of memory (the next tare command ends what \
                         this one began)\n";

/// The exit code of a whole command line.
pub fn run(args: Vec<OsString>) -> u8 {
    let command = usage::command_of(&args);
    let is_run = matches!(command.and_then(OsStr::to_str), Some("run" | "exec"));
    let exhausted_code = if is_run { RUN_FAILED } else { FAILED };
    memory::exhausted_means(EXHAUSTED, exhausted_code.into());
    match Cli::understand(&args, command) {
        Ok(cli) => dispatch(cli),
        Err(error) if matches!(error.kind(), Clap::DisplayHelp | Clap::DisplayVersion) => {
            let printed = print_result(&error.render().to_string());
            exit_code(printed.map(|()| DONE), |_| FAILED)
        }
        Err(error) => {
            print_error(&usage::explain(&error, command));
            if is_run { RUN_FAILED } else { WRONG_USAGE }
        }
    }
}

/// `run` and `exec` keep tare's failures apart from the command's own codes.
fn dispatch(cli: Cli) -> u8 {
    let failure_code = if matches!(cli.command, Command::Run(_) | Command::Exec(_)) {
        run_code
    } else {
        |_: &Error| FAILED
    };
    let result = state_root(cli.global.state_root).and_then(|root| perform(&cli.command, root));
    exit_code(result, failure_code)
}

fn perform(command: &Command, state_root: Option<PathBuf>) -> Result<u8, Error> {
    match command {
        Command::Run(args) => run::run(args, state_root),
        Command::Exec(args) => exec::run(args, state_root),
        Command::Cp(args) => cp::run(args, state_root),
        Command::Attach(args) => attach::run(args, state_root),
        Command::Ls(args) => ls::run(args, state_root),
        Command::Logs(args) => logs::run(args, state_root),
        Command::Stats(args) => stats::run(args, state_root),
        Command::Inspect(args) => inspect::run(args, state_root),
        Command::Explain(args) => explain::run(args, state_root),
        Command::Audit(args) => audit::run(args, state_root),
        Command::Sweep(args) => sweep::run(args, state_root),
        Command::Wait(args) => wait::run(args, state_root),
        Command::Stop(args) => stop::run(args, state_root),
        Command::Kill(args) => kill::run(args, state_root),
        Command::Rm(args) => rm::run(args, state_root),
        Command::Pause(args) => pause::run(args, state_root),
        Command::Resume(args) => resume::run(args, state_root),
        Command::Rename(args) => rename::run(args, state_root),
        Command::Update(args) => update::run(args, state_root),
        Command::Serve(args) => serve::run(args, state_root),
        Command::Doctor(args) => doctor::run(args, state_root),
        Command::Completion(args) => completion::run(args),
        Command::Help(args) => help::run(args),
        Command::Version(args) => help::version(args),
    }
}

fn exit_code(result: Result<u8, Error>, failure_code: fn(&Error) -> u8) -> u8 {
    result.unwrap_or_else(|error| {
        print_error(&error);
        failure_code(&error)
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
        .context(|| "cannot make the state root's path absolute".to_owned())
}
