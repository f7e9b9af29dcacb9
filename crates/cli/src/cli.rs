//! All commands as clap sees them. `run` is also parsed by itself, because that is faster.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands::{
    attach, audit, completion, cp, doctor, exec, explain, help, inspect, kill, logs, ls, pause,
    receipt, rename, resume, rm, run, serve, stats, stop, sweep, update, vm, wait,
};

/// Runs untrusted code, and leaves nothing behind.
#[derive(Debug, Parser)]
#[command(
    name = "tare",
    version = tare_engine::version::TEXT,
    disable_help_subcommand = true,
    subcommand_required = true,
    after_help = "Try 'tare run -- echo hello', or 'tare run -d --name web -- python3 -m http.server' for a\nbox that keeps running. BOX is an id, the unique beginning of an id, or a name. Where several\nAPI keys have a box of that name, it is KEY:NAME, or :NAME for a box of the command line."
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Args)]
pub struct Global {
    /// Where boxes are recorded [env: TARE_STATE_ROOT] [default: /run/tare;
    /// without root $XDG_RUNTIME_DIR/tare, or /tmp/tare-UID]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    pub state_root: Option<PathBuf>,
}

/// The command line with `run` alone.
#[derive(Debug, Parser)]
struct OnlyRun {
    #[command(flatten)]
    global: Global,

    #[command(subcommand)]
    command: RunCommand,
}

#[derive(Debug, Subcommand)]
enum RunCommand {
    Run(Box<run::RunArgs>),
}

impl Cli {
    /// Parses a command line whose command is `command`. Building the arguments of all commands
    /// takes as long as building the root directory of a box, so `run` has a parser of its own.
    /// If that parser fails, the parser of all commands decides.
    pub fn parse_line(args: &[OsString], command: Option<&OsStr>) -> Result<Self, clap::Error> {
        if command == Some(OsStr::new("run"))
            && let Ok(OnlyRun { global, command }) = OnlyRun::try_parse_from(args)
        {
            let RunCommand::Run(args) = command;
            let command = Command::Run(args);
            return Ok(Self { global, command });
        }
        Self::try_parse_from(args)
    }
}

/// Every command, with its one-line help. The options are built when a command needs them.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// Run a command in a new box
    Run(Box<run::RunArgs>),
    /// Run another command in a running box
    Exec(Box<exec::ExecArgs>),
    /// Copy files between the host and a box, or as a tar stream
    Cp(cp::CpArgs),
    /// Show the output of a box from now on, and send it input
    Attach(attach::AttachArgs),
    /// List boxes, the oldest first
    #[command(visible_alias = "ps")]
    Ls(ls::LsArgs),
    /// Show the output of a box
    Logs(logs::LogsArgs),
    /// Show the memory, processor time, processes, scratch space and output of boxes
    Stats(stats::StatsArgs),
    /// Print everything that is known about boxes, as a JSON array
    Inspect(inspect::InspectArgs),
    /// Show why a box ended and what happened to it, even if it is gone
    Explain(explain::ExplainArgs),
    /// Show what a removed box had held, and when it was seen gone
    Receipt(receipt::ReceiptArgs),
    /// Prove that nothing is left: compare records and host
    Audit(audit::AuditArgs),
    /// Remove leftovers, and finish boxes that have ended
    Sweep(sweep::SweepArgs),
    /// Wait until boxes have ended, and print the exit code of each
    Wait(wait::WaitArgs),
    /// Stop boxes: SIGTERM to the command, a grace, then SIGKILL to every process
    Stop(stop::StopArgs),
    /// Send a signal to the command of a box; by default, kill the whole box
    Kill(kill::KillArgs),
    /// Remove boxes: record, log, exit code and kept scratch
    Rm(rm::RmArgs),
    /// Freeze every process of a box
    Pause(pause::PauseArgs),
    /// Continue a paused box
    Resume(resume::ResumeArgs),
    /// Rename a box
    Rename(rename::RenameArgs),
    /// Change the limits or the lease of running boxes
    Update(update::UpdateArgs),
    /// Manage the kernels of virtual machines
    Vm(vm::VmArgs),
    /// Serve boxes over HTTP
    Serve(serve::ServeArgs),
    /// Check what this host can do, and say what tare does about each missing feature
    Doctor(doctor::DoctorArgs),
    /// Print a completion script for a shell
    Completion(completion::CompletionArgs),
    /// Show the help of tare, or of a command
    Help(help::HelpArgs),
    /// Show the version of tare
    Version(help::VersionArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_is_listed_as_it_describes_itself() {
        for listed in Cli::command().get_subcommands() {
            let mut own = listed.clone();
            own.build();
            let texts = [listed, &own].map(|it| it.get_about().map(ToString::to_string));
            assert!(texts[0].is_some() && texts[0] == texts[1], "{texts:?}");
        }
    }

    /// Everything after COMMAND belongs to it, with or without `--`.
    #[test]
    fn options_after_the_command_are_its_own() {
        for line in [
            &["tare", "run", "--quiet", "ls", "--memory", "-t", "--help"][..],
            &["tare", "run", "--quiet", "--", "ls", "--memory", "-t", "--help"],
        ] {
            let Command::Run(args) = Cli::parse_from(line).command else {
                panic!("not run");
            };
            assert_eq!(args.process.command, ["ls", "--memory", "-t", "--help"]);
            assert!(args.labels.quiet && !args.process.tty && args.limits.memory.is_none());
        }
    }

    #[test]
    fn the_state_root_may_stand_before_or_after_the_command() {
        for line in [
            ["tare", "--state-root", "/s", "run", "true"],
            ["tare", "run", "--state-root", "/s", "true"],
        ] {
            assert_eq!(Cli::parse_from(line).global.state_root, Some("/s".into()));
        }
    }

    /// Both parsers accept the same lines with the same meaning.
    #[test]
    fn a_run_that_is_read_by_itself_is_the_same_run() {
        let lines: [&[&str]; 6] = [
            &["tare", "run", "true"],
            &["tare", "--state-root", "/s", "run", "--", "ls", "-l"],
            &["tare", "run", "-d", "--name", "a", "--state-root", "/s", "x"],
            &["tare", "run", "-it", "-e", "A=b", "--memory", "64m", "sh", "-c", "--help"],
            &["tare", "run", "--memory", "banana", "true"],
            &["tare", "run", "--help"],
        ];
        for line in lines {
            let args: Vec<OsString> = line.iter().map(OsString::from).collect();
            let quick = Cli::parse_line(&args, Some(OsStr::new("run")));
            let whole = Cli::try_parse_from(&args);
            let shown = |it: Result<Cli, clap::Error>| match it {
                Ok(cli) => format!("{cli:?}"),
                Err(error) => error.render().to_string(),
            };
            assert_eq!(shown(quick), shown(whole), "{line:?}");
        }
    }

    /// Short options and aliases that users know from other tools.
    #[test]
    fn frequent_options_have_a_letter() {
        let Command::Run(args) = Cli::parse_from(["tare", "run", "-m", "64m", "true"]).command
        else {
            panic!("not run");
        };
        assert_eq!(args.limits.memory, Some(64 << 20));
        for line in
            [&["tare", "update", "-m", "64m", "web"][..], &["tare", "serve", "-c", "tare.toml"]]
        {
            assert!(Cli::try_parse_from(line).is_ok(), "{line:?}");
        }
    }

    #[test]
    fn arguments_need_not_be_text() {
        use std::os::unix::ffi::OsStrExt;
        let raw = OsStr::from_bytes(b"\xff\xfe");
        let line = ["tare".as_ref(), "run".as_ref(), "echo".as_ref(), raw];
        let Command::Run(args) = Cli::parse_from(line).command else {
            panic!("not run");
        };
        assert_eq!(args.process.command[1], raw);
    }
}
