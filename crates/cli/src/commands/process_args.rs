//! Options that `run` and `exec` share: the command, its environment, its streams.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Arg, Args};
use tare_engine::spec::shown::quoted;
use tare_engine::spec::{Terminal, command};
use tare_engine::{Error, Stdin};

use crate::error::{bad, of_option};

/// How much of an `--env-file` is read: as much as a command can have, and one byte to notice that
/// there is more.
const ENV_FILE_BYTES_MAX: u64 = command::ARGUMENTS_BYTES_MAX as u64;

/// `TERM` of the command if the caller has none.
pub const TERM: &str = "xterm";

/// Makes `--timeout -1` a bad value instead of an unknown option.
pub fn hyphen_values(argument: Arg) -> Arg {
    let takes_value = argument.get_action().takes_values() && !argument.is_positional();
    if takes_value { argument.allow_hyphen_values(true) } else { argument }
}

/// Rows and columns of the caller's terminal.
pub type Window = (u16, u16);

#[derive(Debug, Args)]
pub struct ProcessArgs {
    /// Set a variable of the command's environment; may be repeated
    #[arg(
        short,
        long,
        value_name = "KEY=VALUE",
        value_parser = OsStringValueParser::new().try_map(|text| command::variable(&text)),
        help_heading = "Command"
    )]
    pub env: Vec<command::Variable>,

    /// Read variables from a file, one KEY=VALUE per line; may be repeated;
    /// --env overrides it
    #[arg(long, value_name = "FILE", help_heading = "Command")]
    pub env_file: Vec<PathBuf>,

    /// Pass standard input to the command even if it is a terminal; with
    /// 'run -d', keep it open for 'tare attach'
    #[arg(short, long, help_heading = "Command")]
    pub interactive: bool,

    /// Give the command its own terminal
    #[arg(short, long, help_heading = "Command")]
    pub tty: bool,

    /// The command and its arguments; tare does not read options after it
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl ProcessArgs {
    /// Returns the variables of the files, then those of `--env`. The later one wins.
    pub fn variables(&self) -> Result<Vec<command::Variable>, Error> {
        let mut pairs = Vec::new();
        for path in &self.env_file {
            pairs.extend(env_file(path).map_err(|error| of_option("--env-file", error))?);
        }
        pairs.extend(self.env.iter().cloned());
        Ok(pairs)
    }

    /// Returns a terminal as large as the caller's.
    pub fn terminal(&self, window: Option<Window>) -> Result<Terminal, Error> {
        match (self.tty, window) {
            (false, _) => Ok(Terminal::Pipes),
            (true, Some((rows, columns))) => Ok(Terminal::Pty { rows, columns }),
            (true, None) => Err(bad(
                "--tty needs a terminal, and standard input is not one",
                "leave -t out; output then comes through pipes",
            )),
        }
    }

    /// The command gets the input of a terminal only with `-i`.
    pub fn stdin(&self, window: Option<Window>) -> Stdin {
        if window.is_none() || self.interactive { Stdin::Pipe } else { Stdin::Empty }
    }
}

/// Parses a working directory in the box.
pub fn workdir(path: PathBuf) -> Result<PathBuf, Error> {
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(bad(
            format!("{} is not absolute", quoted(&path)),
            "name a directory of the box, such as /work",
        ))
    }
}

fn env_file(path: &Path) -> Result<Vec<command::Variable>, Error> {
    let failed = |error: std::io::Error| {
        let message = format!("cannot read {}", quoted(path));
        Error::bad_request(message).caused_by(error)
    };
    let mut content = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(ENV_FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > ENV_FILE_BYTES_MAX {
        return Err(bad(
            format!("{} is too large, an environment has at most 2 MiB", quoted(path)),
            "pass large values in a file or on standard input",
        ));
    }
    command::variables_in_file(path, &content)
}
