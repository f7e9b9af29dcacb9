//! `tare help` and `tare version`: other words for `--help` and `--version`.

use std::ffi::OsString;

use clap::Args;
use tare_engine::Error;

/// Show the help of tare, or of a command
///
/// The same as 'tare --help' and 'tare COMMAND --help'.
#[derive(Debug, Args)]
pub struct HelpArgs {
    /// The command whose help is wanted
    command: Option<OsString>,
}

/// Show the version of tare
///
/// The same as 'tare --version'.
#[derive(Debug, Args)]
pub struct VersionArgs {}

pub fn run(args: &HelpArgs) -> Result<u8, Error> {
    let words = args.command.iter().cloned().chain(["--help".into()]);
    Ok(instead(words.collect()))
}

pub fn version(_: &VersionArgs) -> Result<u8, Error> {
    Ok(instead(vec!["--version".into()]))
}

/// What tare does with these words, with its refusals.
fn instead(words: Vec<OsString>) -> u8 {
    let mut line = vec!["tare".into()];
    line.extend(words);
    crate::commands::run(line)
}
