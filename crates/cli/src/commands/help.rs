//! `tare help` and `tare version`: the same as `--help` and `--version`.

use std::ffi::OsString;

use clap::Args;

/// Show the help of tare, or of a command
///
/// The same as 'tare --help' and 'tare COMMAND --help'.
#[derive(Debug, Args)]
pub struct HelpArgs {
    /// The command whose help is wanted, such as run, or vm kernel use
    pub command: Vec<OsString>,
}

/// Show the version of tare
///
/// The same as 'tare --version'.
#[derive(Debug, Args)]
pub struct VersionArgs {}

impl VersionArgs {
    /// The command line that prints the version.
    pub fn line(&self) -> Vec<OsString> {
        vec!["tare".into(), "--version".into()]
    }
}
