//! Picks the command of a command line, and its exit code on failure.

use std::ffi::{OsStr, OsString};

use clap::CommandFactory;
use clap::error::ErrorKind as Clap;
use tare_engine::Error;
use tare_kernel::memory;

use crate::cli::{Cli, Command};
use crate::commands::{
    attach, audit, completion, cp, doctor, exec, explain, inspect, kill, logs, ls, pause, receipt,
    rename, resume, rm, run, serve, stats, stop, sweep, update, vm, wait,
};
use crate::context::Context;
use crate::error::{print_error, print_result};
use crate::exit::{DONE, FAILED, RUN_FAILED, WRONG_USAGE, run_code};
use crate::usage;

/// Printed when no memory is left to format an error.
const EXHAUSTED: &str = "tare: cannot go on: Out of memory (the next tare command cleans up \
                         what this one began)\n";

/// Carries out a command line and returns its exit code.
pub fn dispatch(args: Vec<OsString>) -> u8 {
    let command = usage::command_of(&args);
    let is_run = matches!(command.and_then(OsStr::to_str), Some("run" | "exec" | "attach"));
    let exhausted_code = if is_run { RUN_FAILED } else { FAILED };
    memory::exhausted_means(EXHAUSTED, exhausted_code.into());
    match Cli::parse_line(&args, command) {
        Ok(cli) => carry_out(cli),
        Err(error) if matches!(error.kind(), Clap::DisplayHelp | Clap::DisplayVersion) => {
            let printed = print_result(&error.render().to_string());
            exit_code(printed.map(|()| DONE), |_| FAILED)
        }
        Err(error) => {
            print_error(&usage::explain(&error, &args));
            if is_run { RUN_FAILED } else { WRONG_USAGE }
        }
    }
}

/// `run`, `exec` and `attach` exit with the command's code, so their own failures have other codes.
fn carry_out(cli: Cli) -> u8 {
    let runs = matches!(cli.command, Command::Run(_) | Command::Exec(_) | Command::Attach(_));
    let failure_code = if runs { run_code } else { |_: &Error| FAILED };
    let context = Context::new(cli.global.state_root);
    let result = context.and_then(|context| perform(&cli.command, &context));
    exit_code(result, failure_code)
}

fn perform(command: &Command, context: &Context) -> Result<u8, Error> {
    match command {
        Command::Run(args) => run::run(args, context),
        Command::Exec(args) => exec::run(args, context),
        Command::Cp(args) => cp::run(args, context),
        Command::Attach(args) => attach::run(args, context),
        Command::Ls(args) => ls::run(args, context),
        Command::Logs(args) => logs::run(args, context),
        Command::Stats(args) => stats::run(args, context),
        Command::Inspect(args) => inspect::run(args, context),
        Command::Explain(args) => explain::run(args, context),
        Command::Receipt(args) => receipt::run(args, context),
        Command::Audit(args) => audit::run(args, context),
        Command::Sweep(args) => sweep::run(args, context),
        Command::Wait(args) => wait::run(args, context),
        Command::Stop(args) => stop::run(args, context),
        Command::Kill(args) => kill::run(args, context),
        Command::Rm(args) => rm::run(args, context),
        Command::Pause(args) => pause::run(args, context),
        Command::Resume(args) => resume::run(args, context),
        Command::Rename(args) => rename::run(args, context),
        Command::Update(args) => update::run(args, context),
        Command::Vm(args) => vm::run(args, context),
        Command::Serve(args) => serve::run(args, context),
        Command::Doctor(args) => doctor::run(args, context),
        Command::Completion(args) => completion::run(args, Cli::command(), context),
        Command::Help(args) => Ok(match usage::help_line(&args.command) {
            Ok(line) => dispatch(line),
            Err(error) => {
                print_error(&error);
                WRONG_USAGE
            }
        }),
        Command::Version(args) => Ok(dispatch(args.line())),
    }
}

fn exit_code(result: Result<u8, Error>, failure_code: fn(&Error) -> u8) -> u8 {
    result.unwrap_or_else(|error| {
        print_error(&error);
        failure_code(&error)
    })
}
