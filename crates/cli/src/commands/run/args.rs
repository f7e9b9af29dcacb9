//! The options of `tare run`, in the groups that its help shows.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tare_engine::CgroupParent;
use tare_engine::spec::{Cpus, Name, User, quantity, volume};

use crate::commands::lease::{self, Lease};
use crate::commands::process_args::{ProcessArgs, hyphen_values};

const EXAMPLES: &str = "\
Examples:
  tare run -- python3 -c 'print(1 + 1)'
  tare run --timeout 30s --memory 256m --pids 64 -v .:/src:ro -w /src -- ./judge submission
  tare run -v ./project:/work:ro -w /work -- make test
  tare run -it -- bash
  tare run --json --timeout 5s -- node - < script.js
  tare run -d --name web --lease 2h -- python3 -m http.server
  tare run --contain --timeout 1h -- bwrap --ro-bind / / sh";

const DETAILS: &str = "\
Exit codes:
  0-255  the exit code of the command
  128+N  signal N ended the command
  124    the timeout or the lease ended the box
  125    tare failed, or the command line is wrong
  126    the command is not executable
  127    the command does not exist in the box

Sizes are bytes, or 64k, 512m, 1.5g (binary). Durations are 500ms, 30s, 1h30m,
or seconds without a unit.

Signals:
  The first SIGINT or SIGTERM is passed to the command. The second one kills the
  box. If the terminal hangs up, tare kills a command that still runs after 10 s.";

/// Run a command in a new box
///
/// The box has its own processes, files, network and users. It sees the programs of the host
/// read-only. It has no other file, no network and no environment variable of the host. When the
/// command ends, every process that it started is killed.
///
/// Without --detach, tare waits for the command and leaves nothing behind. With --detach, tare
/// prints the box's id when the command runs, and the box keeps running; without a command, it
/// waits for 'tare exec'.
#[derive(Debug, Args)]
#[command(mut_arg("command", |arg| arg.required(false).required_unless_present("detach")))]
#[command(mut_args(hyphen_values))]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{DETAILS}"))]
pub struct RunArgs {
    // First: a positional argument after a group would be shown below the heading of the group.
    #[command(flatten)]
    pub process: ProcessArgs,

    /// Working directory in the box [default: the workspace, or /work]
    #[arg(short, long, value_name = "DIR", help_heading = "Command")]
    pub workdir: Option<PathBuf>,

    /// Numeric user and group in the box; without --root, even user 0 has no
    /// privileges [default: 1000:1000]
    #[arg(short, long, value_name = "UID[:GID]", value_parser = User::parse, help_heading = "Command")]
    pub user: Option<User>,

    #[command(flatten)]
    pub limits: LimitArgs,

    #[command(flatten)]
    pub files: FileArgs,

    #[command(flatten)]
    pub isolation: IsolationArgs,

    #[command(flatten)]
    pub machine: MachineArgs,

    #[command(flatten)]
    pub detached: DetachArgs,

    #[command(flatten)]
    pub labels: BoxArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Kill the box after this time, and exit with 124 [default: no timeout]
    #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
    pub timeout: Option<Duration>,

    /// Memory of the whole box, at least 6m [default: 512m]
    #[arg(short, long, value_name = "SIZE", value_parser = quantity::memory_bytes)]
    pub memory: Option<u64>,

    /// Processor time, such as 0.5 for half a processor [default: all]
    #[arg(long, value_name = "N", value_parser = quantity::cpus)]
    pub cpus: Option<Cpus>,

    /// Processes and threads in the box at the same time [default: 256]
    #[arg(long, value_name = "N", value_parser = quantity::pids)]
    pub pids: Option<u32>,

    /// Open descriptors of each process [default: 1024]
    #[arg(long, value_name = "N", value_parser = quantity::nofile)]
    pub nofile: Option<u32>,

    /// Space for /tmp, the working directory and changes to the root; removed
    /// with the box, unless --keep is given [default: 256m]
    #[arg(long, value_name = "SIZE", value_parser = quantity::scratch_bytes)]
    pub scratch: Option<u64>,

    /// Output to pass on, stdout and stderr together; tare drops the rest and
    /// prints a note [default: 64m]. With --detach, the newest output that
    /// 'tare logs' can show, at most a quarter of --memory [default: 16m]
    #[arg(long, value_name = "SIZE", value_parser = quantity::output_bytes)]
    pub output_limit: Option<u64>,

    /// Kill the box when its output exceeds the limit, and exit with 137
    #[arg(long)]
    pub output_kill: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Files and network")]
pub struct FileArgs {
    /// Mount a directory or file of the host in the box. The
    /// box accesses it as its owner; may be repeated
    #[arg(short, long, value_name = "HOST:BOX[:ro]")]
    pub volume: Vec<OsString>,

    /// Show the box's own writable directory, /work, at this path too
    #[arg(
        long,
        value_name = "DIR",
        value_parser = PathBufValueParser::new().try_map(volume::place),
    )]
    pub workspace: Option<PathBuf>,

    /// Use this directory as the root of the box; tare never changes it
    /// [default: the host's programs and libraries, read-only]
    #[arg(long, value_name = "DIR")]
    pub rootfs: Option<PathBuf>,

    /// Network: none is a loopback device of the box's own [default: none]
    #[arg(long, value_enum, value_name = "none|host", hide_possible_values = true)]
    pub net: Option<Net>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Isolation")]
pub struct IsolationArgs {
    /// Run as uid 0 of the box, with the capabilities to change owners and
    /// users in it; on the host, this user has no privileges
    #[arg(long, conflicts_with = "user")]
    pub root: bool,

    /// Allowed system calls: debug adds ptrace, strict removes SysV IPC,
    /// unconfined filters only set-id bits on volumes [default: default]
    #[arg(long, value_enum, value_name = "PROFILE")]
    pub seccomp: Option<Seccomp>,

    /// Only limit and end the processes of a launcher such as bwrap or qemu;
    /// it has the files, the network and the user of the host
    #[arg(
        long,
        conflicts_with_all = ["rootfs", "workspace", "volume", "net", "root", "user", "seccomp", "scratch", "keep"],
    )]
    pub contain: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Virtual machine")]
pub struct MachineArgs {
    /// The kernel that runs the box: the host's, or one of its own in a virtual
    /// machine (docs/vm.md) [default: native]
    #[arg(long, value_enum, value_name = "native|vm", hide_possible_values = true)]
    pub driver: Option<Driver>,

    /// What runs the machine: KVM, or emulation, which is slow and not a
    /// security boundary; auto is KVM where it works [default: kvm]
    #[arg(long, value_enum, value_name = "kvm|tcg|auto", hide_possible_values = true)]
    pub accel: Option<AccelArg>,

    /// The machine's kernel: a name that 'tare vm kernel ls' prints, or the path
    /// of a file [default: the chosen one]
    #[arg(long, value_name = "NAME|FILE")]
    pub kernel: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Driver {
    Native,
    Vm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AccelArg {
    Kvm,
    Tcg,
    Auto,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Box")]
pub struct BoxArgs {
    /// Name of the box; no other box of the command line may have it
    #[arg(long, value_name = "NAME", value_parser = Name::parse)]
    pub name: Option<Name>,

    /// Label of the box; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<String>,

    /// Print no notes on stderr, only errors
    #[arg(long)]
    pub quiet: bool,

    /// Print one JSON object with the output at the end, or with --detach one
    /// with the id and name of the box; if the command cannot be started, print
    /// only the error
    #[arg(long, conflicts_with = "tty")]
    pub json: bool,

    /// When the box is gone, print what it had held and when tare saw each
    /// object gone, as one line of JSON on stderr, with --json in the object, or write it
    /// to FILE; 'tare receipt' shows it again. Detached boxes always have one
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        conflicts_with = "detach",
    )]
    pub receipt: Option<OsString>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Detached box")]
pub struct DetachArgs {
    /// Print the id of the box when its command runs, and leave the box running
    #[arg(short, long)]
    pub detach: bool,

    /// Kill the box after this time, with exit code 124, or never; 'tare update'
    /// can change it [default: 24h]
    #[arg(long, requires = "detach", value_name = "DURATION|never", value_parser = lease::parse)]
    pub lease: Option<Lease>,

    /// Keep nothing of the box when it has ended, neither log nor exit code;
    /// a box without --detach never leaves anything
    #[arg(long, conflicts_with_all = ["keep", "retention"])]
    pub rm: bool,

    /// Keep the files that the box wrote as long as its record: 'tare cp' copies
    /// them, 'tare inspect' shows where they are (holdings, scratch)
    #[arg(long, requires = "detach")]
    pub keep: bool,

    /// How long an ended box stays listed, with its log and exit code
    /// [default: 24h]
    #[arg(long, requires = "detach", value_name = "DURATION", value_parser = quantity::duration)]
    pub retention: Option<Duration>,

    /// Make the box below this cgroup, which must exist, such as tare.slice
    /// [default: the root of each hierarchy]
    #[arg(long, requires = "detach", value_name = "PATH", value_parser = CgroupParent::parse)]
    pub cgroup_parent: Option<CgroupParent>,
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
