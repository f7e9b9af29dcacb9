//! `tare serve`: boxes over HTTP.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tare_engine::vm::MachineSettings;
use tare_engine::{Error, ErrorKind, parse_history_bytes};
use tare_kernel::signals;
use tare_server::{Listen, LogFormat, Options};

use crate::context::Context;
use crate::exit::DONE;

const EXAMPLES: &str = "\
Examples:
  tare serve
  curl -s localhost:8080/v1/run -H 'Content-Type: application/json' \\
      -d '{\"language\": \"python\", \"code\": \"print(6 * 7)\"}'
  tare serve --listen 0.0.0.0:8080 --api-key-file keys
  tare serve --listen unix:/run/tare.sock --config tare.toml";

/// Serve boxes over HTTP
///
/// GET / lists the routes, and GET /openapi.json describes them. At SIGTERM the server waits for
/// running commands, up to a grace, and leaves other boxes running. At SIGHUP it reads its
/// configuration again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Where to listen: ADDRESS:PORT, localhost:PORT or unix:PATH [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Listen>,

    /// TOML file with limits, keys and more, described in docs/serve.md
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// File with one API key per line; requests without one of them are refused
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Size of all histories of removed boxes together, for this state root [default: 64m]
    #[arg(long, value_name = "SIZE", value_parser = parse_history_bytes)]
    history_bytes: Option<u64>,

    /// Format of the log on stderr [default: human]
    #[arg(long, value_name = "FORMAT")]
    log: Option<Format>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Human,
    Json,
}

pub fn run(args: &ServeArgs, context: &Context) -> Result<u8, Error> {
    signals::keep_ended_children();
    signals::fail_past_file_limit();
    tare_server::serve(Options {
        state_root: context.state_root(),
        config: args.config.clone(),
        listen: args.listen.clone(),
        api_key_file: args.api_key_file.clone(),
        history_bytes: args.history_bytes,
        machines: machines(context)?,
        log: args.log.map(|format| match format {
            Format::Human => LogFormat::Human,
            Format::Json => LogFormat::Json,
        }),
    })?;
    Ok(DONE)
}

/// The settings for machines from the environment. A user without a home directory has no kernels, and can
/// serve native boxes.
fn machines(context: &Context) -> Result<Option<MachineSettings>, Error> {
    match context.machines() {
        Ok(settings) => Ok(Some(settings)),
        Err(error) if error.kind() == ErrorKind::BadRequest => Err(error),
        Err(_) => Ok(None),
    }
}
