//! The options of `tare run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tare_engine::spec::{Cpus, Name, User, quantity, volume};

use crate::commands::process_args::ProcessArgs;
use crate::commands::run::detach::DetachArgs;

const EXAMPLES: &str = "\
Examples:
  tare run -- python3 -c 'print(1 + 1)'
  tare run --timeout 30s --memory 256m --pids 64 -v .:/src:ro -w /src -- ./judge submission
  tare run -v ./project:/work:ro -w /work -- make test
  tare run -it -- bash
  tare run --json --timeout 5s -- node - < script.js
  tare run -d --name web --lease 2h -- python3 -m http.server
  tare run --contain --timeout 1h -- bwrap --ro-bind / / sh";

const EXIT_CODES: &str = "\
Exit codes:
  the command's own; 128+N when signal N ended it; 124 after the timeout;
  125 when tare failed or was used wrongly; 126 when the command cannot be
  executed; 127 when there is no such command.

Sizes are bytes or 64k, 512m, 1.5g (binary). Durations are 500ms, 30s, 1h30m,
or bare seconds. The first SIGINT or SIGTERM goes to the command, a second one
ends the box.";

/// Run a command in a fresh box
///
/// The box has its own processes, files, network and users. It sees the host's
/// programs read-only, no other file of the host, no network, and none of the
/// host's environment. Whatever it started ends with it.
///
/// Without --detach, tare stays with the box and leaves nothing behind. With
/// it, the box lives on by itself, and its id is printed once the command runs;
/// without a command it waits for 'tare exec'.
#[derive(Debug, Args)]
#[command(mut_arg("command", |arg| arg.required(false).required_unless_present("detach")))]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct RunArgs {
    /// End the box after this time, with exit code 124 [default: none]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = quantity::duration,
        allow_hyphen_values = true,
        help_heading = "Limits"
    )]
    pub timeout: Option<Duration>,

    /// Memory of the whole box, at least 6m [default: 512m]
    #[arg(
        short,
        long,
        value_name = "SIZE",
        value_parser = quantity::memory_bytes,
        allow_hyphen_values = true,
        help_heading = "Limits"
    )]
    pub memory: Option<u64>,

    /// Processors' worth of time, such as 0.5 [default: all]
    #[arg(
        long,
        value_name = "N",
        value_parser = quantity::cpus,
        allow_hyphen_values = true,
        help_heading = "Limits"
    )]
    pub cpus: Option<Cpus>,

    /// Processes and threads that the box may have at once [default: 256]
    #[arg(
        long,
        value_name = "N",
        value_parser = quantity::pids,
        allow_hyphen_values = true,
        help_heading = "Limits"
    )]
    pub pids: Option<u32>,

    /// Open descriptors of each process [default: 1024]
    #[arg(
        long,
        value_name = "N",
        value_parser = quantity::nofile,
        allow_hyphen_values = true,
        help_heading = "Limits"
    )]
    pub nofile: Option<u32>,

    /// Writable space: /tmp, the working directory, changes to the root; gone
    /// with the box, unless --keep [default: 256m]
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = quantity::scratch_bytes,
        allow_hyphen_values = true,
        help_heading = "Limits"
    )]
    pub scratch: Option<u64>,

    /// How much output is passed on, stdout and stderr together; the rest is
    /// dropped, and that is said [default: 64m]. With --detach, how much of the
    /// newest is kept for 'tare logs', at most a quarter of --memory
    /// [default: 16m]
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = quantity::output_bytes,
        allow_hyphen_values = true,
        help_heading = "Limits"
    )]
    pub output_limit: Option<u64>,

    /// End the box when its output passes the limit, with exit code 137
    #[arg(long, help_heading = "Limits")]
    pub output_kill: bool,

    #[command(flatten)]
    pub process: ProcessArgs,

    /// Working directory inside the box [default: the workspace, or /work]
    #[arg(short, long, value_name = "DIR", help_heading = "Command")]
    pub workdir: Option<PathBuf>,

    /// User and group inside the box, in digits; even 0 has no power there
    /// without --root [default: 1000:1000]
    #[arg(
        short,
        long,
        value_name = "UID[:GID]",
        value_parser = User::parse,
        allow_hyphen_values = true,
        help_heading = "Command"
    )]
    pub user: Option<User>,

    /// Put a directory or file of the host into the box; it acts there as the
    /// owner of what it is given; may be repeated
    #[arg(short, long, value_name = "HOST:BOX[:ro]", help_heading = "Files and network")]
    pub volume: Vec<OsString>,

    /// Show the box its own writable directory, /work, in this place too
    #[arg(
        long,
        value_name = "DIR",
        value_parser = PathBufValueParser::new().try_map(volume::workspace),
        help_heading = "Files and network"
    )]
    pub workspace: Option<PathBuf>,

    /// Use this directory as the box's root; it is never changed [default: the
    /// host's programs and libraries, read-only]
    #[arg(long, value_name = "DIR", help_heading = "Files and network")]
    pub rootfs: Option<PathBuf>,

    /// The network: none has only a loopback of its own [default: none]
    #[arg(
        long,
        value_enum,
        value_name = "none|host",
        hide_possible_values = true,
        help_heading = "Files and network"
    )]
    pub net: Option<Net>,

    /// Run as uid 0 of the box, with the capabilities to change owners and
    /// users inside it; on the host it is nobody
    #[arg(long, conflicts_with = "user", help_heading = "Isolation")]
    pub root: bool,

    /// Which system calls there are: debug adds ptrace, strict takes away SysV
    /// IPC, unconfined filters nothing but set-id bits on volumes [default: default]
    #[arg(long, value_enum, value_name = "PROFILE", help_heading = "Isolation")]
    pub seccomp: Option<Seccomp>,

    /// Only contain processes: limits and the one way out around a launcher
    /// such as bwrap or qemu; the host's files, network and user stay as they are
    #[arg(
        long,
        conflicts_with_all = ["rootfs", "workspace", "volume", "net", "root", "user", "seccomp", "scratch", "keep"],
        help_heading = "Isolation"
    )]
    pub contain: bool,

    #[command(flatten)]
    pub detached: DetachArgs,

    /// A name for the box, which no other box has
    #[arg(
        long,
        value_name = "NAME",
        value_parser = Name::parse,
        allow_hyphen_values = true,
        help_heading = "Box"
    )]
    pub name: Option<Name>,

    /// A label for the box; may be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Box")]
    pub label: Vec<String>,

    /// Say nothing of tare's own on stderr but errors
    #[arg(long, help_heading = "Box")]
    pub quiet: bool,

    /// Pass no output on; print one JSON object with it at the end, or with
    /// --detach one with the box's id and name
    #[arg(long, conflicts_with = "tty", help_heading = "Box")]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Net {
    None,
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Seccomp {
    Default,
    Debug,
    Strict,
    Unconfined,
}
