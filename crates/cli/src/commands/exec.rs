//! `tare exec`: runs another command in a running box.
//!
//! The box's keeper starts the command. When this process ends, the command and every process that
//! it started end too; the box keeps running. With `--detach` the command belongs to the box. This
//! command never creates a box and never ends one.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use tare_engine::spec::{Terminal, User, command, quantity};
use tare_engine::{BoxId, Circumstances, Engine, Error, ExecSpec, Stdin, Subject};
use tare_kernel::signals;

use crate::commands::each::on_box;
use crate::commands::process_args::{self, ProcessArgs, hyphen_values};
use crate::context::{Context, Purpose};
use crate::exit::{DONE, ExitReport};
use crate::stdio::{self, Output, PastLimit, Settings, Writers};

const EXAMPLES: &str = "\
Examples:
  tare exec web -- ps aux
  tare exec -it web bash
  tare exec --timeout 10s -e MODE=test web -- pytest -q
  echo 'print(1 + 1)' | tare exec web python3";

const DETAILS: &str = "\
Exit codes:
  0-255  the exit code of the command
  128+N  signal N ended the command
  124    the timeout ended the command
  125    tare failed, or the command line is wrong
  126    the command is not executable
  127    the command does not exist in the box

Signals:
  The first SIGINT or SIGTERM is passed to the command; when the command ends
  after it, every process that it started is killed. The second one kills the
  command and every process that it started.";

/// Run another command in a running box
///
/// The command shares the box's limits, files and network, and gets the environment of the box's
/// own command. When its timeout passes, or when tare is ended, the command and every process that
/// it started are killed. Processes that it leaves in the background when it exits by itself stay
/// in the box. The box keeps running in every case.
#[derive(Debug, Args)]
#[command(mut_args(hyphen_values))]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{DETAILS}"))]
pub struct ExecArgs {
    /// Return when the command runs, and send its output to the box's log
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,

    /// Kill the command after this time, and exit with 124 [default: no timeout]
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
    timeout: Option<Duration>,

    /// Id, unique beginning of an id, or name of the box
    #[arg(value_name = "BOX")]
    reference: String,

    #[command(flatten)]
    process: ProcessArgs,

    /// Working directory in the box [default: that of the box's command]
    #[arg(
        short,
        long,
        value_name = "DIR",
        value_parser = PathBufValueParser::new().try_map(process_args::workdir),
        help_heading = "Command"
    )]
    workdir: Option<PathBuf>,

    /// Numeric user and group in the box [default: those of the box's command]
    #[arg(short, long, value_name = "UID[:GID]", value_parser = User::parse, help_heading = "Command")]
    user: Option<User>,
}

pub fn run(args: &ExecArgs, context: &Context) -> Result<u8, Error> {
    let window = stdio::callers_window()?;
    let spec = spec(args, args.process.terminal(window)?, std::env::var_os("TERM"))?;
    if args.detach {
        let engine = context.engine(Purpose::Use)?;
        return on_box(&engine, &args.reference, |id| leave(&engine, id, &spec));
    }
    let taken = stdio::take_over()?;
    signals::fail_past_file_limit();
    let engine = context.engine(Purpose::Use)?;
    let session =
        on_box(&engine, &args.reference, |id| engine.exec(id, &spec, args.process.stdin(window)))?;
    let relayed = stdio::relay(session, SETTINGS, &taken)?;
    let circumstances = Circumstances {
        evidence: relayed.ended.as_ref().map(|ended| &ended.evidence),
        timeout: args.timeout,
        ..Circumstances::of(relayed.end, Subject::Exec)
    };
    let mut report = match relayed.result {
        Ok(()) => ExitReport::of(&circumstances),
        Err(error) => ExitReport::failed(error),
    };
    report.print(false);
    if let Some(error) = relayed.relay.output_failure() {
        report = ExitReport::failed(error);
        report.print(false);
    }
    Ok(report.code)
}

/// exec passes on all output, without a limit.
const SETTINGS: Settings = Settings {
    output: Output::Pass,
    output_bytes_max: u64::MAX,
    past_limit: PastLimit::Truncate,
    writers: Writers::MayLive,
};

/// Starts the command, and returns when it runs.
fn leave(engine: &Engine, id: &BoxId, spec: &ExecSpec) -> Result<u8, Error> {
    let mut session = engine.exec(id, spec, Stdin::Empty)?;
    session.wait_started()?;
    Ok(DONE)
}

/// Builds the request. `term` is the caller's `TERM`.
fn spec(args: &ExecArgs, terminal: Terminal, term: Option<OsString>) -> Result<ExecSpec, Error> {
    let mut pairs: Vec<command::Variable> = Vec::new();
    if args.process.tty {
        let term = term.unwrap_or_else(|| process_args::TERM.into());
        pairs.push(("TERM".into(), term));
    }
    pairs.extend(args.process.variables()?);
    let env = command::later_wins(pairs);
    command::check(&args.process.command, &env)?;
    Ok(ExecSpec {
        command: args.process.command.clone(),
        env,
        workdir: args.workdir.clone(),
        user: args.user,
        terminal,
        timeout: args.timeout,
        detached: args.detach,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn exec(words: &[&str]) -> ExecArgs {
        let line = ["tare", "exec"].iter().chain(words);
        let Command::Exec(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not exec");
        };
        *args
    }

    #[test]
    fn everything_after_the_command_is_its_own() {
        for words in [
            &["-e", "A=1", "web", "--", "ls", "-t", "--help"][..],
            &["-e", "A=1", "web", "ls", "-t", "--help"],
            &["web", "-e", "A=1", "ls", "-t", "--help"],
        ] {
            let args = exec(words);
            assert_eq!(args.reference, "web");
            assert_eq!(args.process.command, ["ls", "-t", "--help"]);
            assert_eq!(args.process.env, [("A".into(), "1".into())]);
            assert!(!args.process.tty);
        }
    }

    #[test]
    fn omitted_options_use_the_settings_of_the_box() {
        let spec = spec(&exec(&["web", "true"]), Terminal::Pipes, None).unwrap();
        assert_eq!((spec.workdir, spec.user, spec.timeout), (None, None, None));
        assert!(spec.env.is_empty() && !spec.detached);
    }

    #[test]
    fn a_terminal_brings_its_name_and_env_wins_over_it() {
        let terminal = Terminal::Pty { rows: 24, columns: 80 };
        let given = exec(&["-it", "web", "sh"]);
        let made = spec(&given, terminal, Some("vt220".into())).unwrap();
        assert_eq!(made.env, [("TERM".into(), "vt220".into())]);
        let given = exec(&["-it", "-e", "TERM=dumb", "web", "sh"]);
        let made = spec(&given, terminal, None).unwrap();
        assert_eq!(made.env, [("TERM".into(), "dumb".into())]);
    }
}
