//! What can be typed after `tare`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::commands::{
    attach, completion, cp, doctor, exec, inspect, kill, logs, ls, pause, rename, resume, rm, run,
    stats, stop, update, wait,
};

/// Runs code that nobody trusts, and leaves nothing behind.
#[derive(Debug, Parser)]
#[command(
    name = "tare",
    version,
    disable_help_subcommand = true,
    subcommand_required = true,
    after_help = "Try 'tare run -- echo hello', or 'tare run --help' for all that a box can be given."
)]
pub struct Cli {
    /// Where boxes are recorded [env: TARE_STATE_ROOT] [default: /run/tare, or
    /// a private directory of the user]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        help_heading = "Global options"
    )]
    pub state_root: Option<PathBuf>,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Box<run::RunArgs>),
    Exec(Box<exec::ExecArgs>),
    Cp(cp::CpArgs),
    Attach(attach::AttachArgs),
    #[command(visible_alias = "ps")]
    Ls(ls::LsArgs),
    Logs(logs::LogsArgs),
    Stats(stats::StatsArgs),
    Inspect(inspect::InspectArgs),
    Wait(wait::WaitArgs),
    Stop(stop::StopArgs),
    Kill(kill::KillArgs),
    Rm(rm::RmArgs),
    Pause(pause::PauseArgs),
    Resume(resume::ResumeArgs),
    Rename(rename::RenameArgs),
    Update(update::UpdateArgs),
    Doctor(doctor::DoctorArgs),
    Completion(completion::CompletionArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Everything after COMMAND belongs to it, with or without `--`.
    #[test]
    fn options_after_the_command_are_its_own() {
        for line in [
            &["tare", "run", "--quiet", "ls", "--memory", "-t", "--help"][..],
            &[
                "tare", "run", "--quiet", "--", "ls", "--memory", "-t", "--help",
            ],
        ] {
            let Command::Run(args) = Cli::parse_from(line).command else {
                panic!("not run");
            };
            assert_eq!(args.process.command, ["ls", "--memory", "-t", "--help"]);
            assert!(args.quiet && !args.process.tty && args.memory.is_none());
        }
    }

    #[test]
    fn the_state_root_may_stand_before_or_after_the_command() {
        for line in [
            ["tare", "--state-root", "/s", "run", "true"],
            ["tare", "run", "--state-root", "/s", "true"],
        ] {
            assert_eq!(Cli::parse_from(line).state_root, Some("/s".into()));
        }
    }

    #[test]
    fn arguments_need_not_be_text() {
        use std::os::unix::ffi::OsStrExt;
        let raw = std::ffi::OsStr::from_bytes(b"\xff\xfe");
        let line = ["tare".as_ref(), "run".as_ref(), "echo".as_ref(), raw];
        let Command::Run(args) = Cli::parse_from(line).command else {
            panic!("not run");
        };
        assert_eq!(args.process.command[1], raw);
    }
}
