//! Turns the failures that a keeper reports into errors for users.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use tare_control::{LaunchStep, SetupStep};
use tare_kernel::spawn::SpawnStep;

use crate::error::{BootFailure, Error, ErrorKind, Hint, LimitName};
use crate::host::obstacle::{self, FailedStep};
use crate::spec::quantity;
use crate::spec::shown::{escaped, quoted};

/// How long a box may take to start its command. A file system that does not answer must not block
/// the caller for ever.
pub const START_WITHIN: Duration = Duration::from_secs(60);

/// A longer command is quoted, which cuts it.
const COMMAND_BYTES_MAX: usize = 64;

/// Returns the error for a box that took longer than it may: [`START_WITHIN`], and the boot of a machine.
pub fn started_late(within: Duration) -> Error {
    Error::new(ErrorKind::NoAnswer, "the box did not start in time")
        .caused_by(format!("it took more than {} s", within.as_secs()))
        .with_hint("does the file system of its root and of each volume answer?")
}

/// Returns the error for a process that failed before it became the keeper.
pub fn birth(step: SpawnStep, error: io::Error) -> Error {
    let doing = match step {
        SpawnStep::JoinCgroup => "cannot move the box into its cgroups",
        SpawnStep::Abandoned => "the creator gave up before the box started",
        SpawnStep::Identity => "cannot take the box's user ids",
        SpawnStep::Descriptors => "cannot arrange the box's descriptors",
        SpawnStep::Execute => "cannot start the keeper",
    };
    let hint = match step {
        SpawnStep::Descriptors => {
            "is the caller's limit on open descriptors (ulimit -n) too low?".into()
        }
        SpawnStep::JoinCgroup | SpawnStep::Abandoned | SpawnStep::Identity | SpawnStep::Execute => {
            Hint::SeeDoctor
        }
    };
    Error::failed(doing).caused_by(error).with_hint(hint)
}

/// Returns the error for a box that could not be made. `boot_within` is the deadline of its machine.
pub fn setup(step: SetupStep, subject: &str, errno: i32, boot_within: Duration) -> Error {
    let kind = if step == SetupStep::Volume { ErrorKind::BadRequest } else { ErrorKind::Failed };
    let doing = setup_message(step, &escaped(subject));
    if step == SetupStep::Boot {
        return boot(doing, subject, errno, boot_within);
    }
    let error = Error::new(kind, doing);
    if step == SetupStep::Volume && errno == Errno::LOOP.raw_os_error() {
        return error
            .caused_by("a symlink on the way leads to another file system, or is in one")
            .with_hint("name the place without symlinks: no link in a volume is followed");
    }
    let error = error.caused_by(io::Error::from_raw_os_error(errno));
    let error = match setup_hint(step, errno) {
        Some(hint) => error.with_hint(hint),
        None => error,
    };
    obstacle::explained(error, FailedStep::Setup(step))
}

/// The subject is what the machine and its monitor printed last.
fn boot(doing: String, printed: &str, errno: i32, within: Duration) -> Error {
    let lines: Vec<String> = printed.lines().map(escaped).filter(|it| !it.is_empty()).collect();
    let last = if lines.is_empty() {
        "it printed nothing".to_owned()
    } else {
        format!("its last lines: {}", lines.join(" | "))
    };
    // A machine may report any number, so the number is compared and not converted.
    let is = |known: Errno| known.raw_os_error() == errno;
    let (failure, why) = if is(Errno::TIMEDOUT) {
        let within = quantity::show_duration(within);
        (BootFailure::Timeout, format!("its keeper did not answer within {within}"))
    } else if is(Errno::PROTO) {
        (BootFailure::Protocol, "its first process is not this tare's".to_owned())
    } else if is(Errno::CHILD) || is(Errno::PIPE) {
        (BootFailure::MonitorEnded, "its monitor ended".to_owned())
    } else {
        (BootFailure::Setup, "it could not be set up".to_owned())
    };
    let hint = match failure {
        BootFailure::Timeout => Hint::MoreTimeToBoot,
        BootFailure::MonitorEnded | BootFailure::Protocol | BootFailure::Setup => Hint::SeeDoctor,
    };
    Error::new(ErrorKind::Boot(failure), doing).caused_by(format!("{why}; {last}")).with_hint(hint)
}

fn setup_message(step: SetupStep, subject: &str) -> String {
    match step {
        SetupStep::ReadPlan => "cannot read the keeper's plan".to_owned(),
        SetupStep::JoinCgroupNamespace => "cannot make a cgroup namespace".to_owned(),
        SetupStep::PrivateMounts => "cannot make the box's mounts private".to_owned(),
        SetupStep::Scratch => format!("cannot make the scratch space ({subject})"),
        SetupStep::Root => {
            let path = subject.trim_start_matches('/');
            format!("cannot set up /{path} in the box")
        }
        SetupStep::Proc => format!("cannot mount proc ({subject})"),
        SetupStep::Dev => format!("cannot set up {subject} in the box"),
        SetupStep::Volume => format!("cannot mount a volume at {subject} in the box"),
        SetupStep::EnterRoot => "cannot enter the box's root".to_owned(),
        SetupStep::Network => format!("cannot make the box's network ({subject})"),
        SetupStep::Hostname => format!("cannot set the box's host name to {subject}"),
        SetupStep::Terminal => format!("cannot open the box's terminal ({subject})"),
        SetupStep::Landlock => "cannot restrict the box with Landlock".to_owned(),
        SetupStep::Streams => format!("cannot connect the command's streams ({subject})"),
        SetupStep::Fork => format!("cannot start a process in the box ({subject})"),
        SetupStep::Detach => "cannot detach the box".to_owned(),
        SetupStep::Boot => "the machine did not start".to_owned(),
    }
}

fn setup_hint(step: SetupStep, errno: i32) -> Option<Hint> {
    let text = match step {
        // The new process was stopped before its execve.
        SetupStep::Fork if errno == Errno::INTR.raw_os_error() => {
            Some("it was stopped before it ran: does a program in the box stop other processes?")
        }
        SetupStep::Root => {
            Some("in another root, the directories that tare mounts on must not be symlinks")
        }
        SetupStep::Proc => Some("inside another container /proc may be masked"),
        SetupStep::Volume => {
            Some("below /usr and in another volume the path must exist: tare creates nothing there")
        }
        SetupStep::Fork => {
            return Some(Hint::TooSmall(&[LimitName::Pids, LimitName::Memory]));
        }
        SetupStep::ReadPlan
        | SetupStep::JoinCgroupNamespace
        | SetupStep::PrivateMounts
        | SetupStep::Scratch
        | SetupStep::Dev
        | SetupStep::EnterRoot
        | SetupStep::Network
        | SetupStep::Hostname
        | SetupStep::Terminal
        | SetupStep::Landlock
        | SetupStep::Streams
        | SetupStep::Boot
        | SetupStep::Detach => None,
    };
    text.map(Hint::from)
}

/// The command of a failed start, for its error.
#[derive(Debug, Clone, Copy)]
pub struct LaunchSubject<'a> {
    pub command: Option<&'a OsString>,
    pub workdir: Option<&'a Path>,
}

/// Returns the error for a command that could not be started.
pub fn launch(step: LaunchStep, errno: i32, subject: LaunchSubject<'_>) -> Error {
    let why = io::Error::from_raw_os_error(errno);
    match step {
        LaunchStep::Exec => {
            let command = subject.command.map(|command| command.to_string_lossy());
            not_started(&escaped(&command.unwrap_or_default()), errno, why)
        }
        LaunchStep::WorkingDirectory => {
            let shown = subject.workdir;
            let shown = shown.map_or("/work".into(), |path| path.to_string_lossy());
            let message = format!("cannot use {} as the working directory", escaped(&shown));
            Error::bad_request(message).caused_by(why).with_hint(Hint::OtherWorkdir)
        }
        LaunchStep::Mark => failed("cannot mark the command's process tree", why),
        LaunchStep::Session => failed("cannot give the command a session", why),
        LaunchStep::Limits => failed("cannot set the command's limits", why),
        LaunchStep::Credentials => {
            failed("cannot give the command its user", why).with_hint(Hint::LeaveUserOut)
        }
        LaunchStep::Seccomp => failed("cannot filter the command's system calls", why),
    }
}

fn failed(doing: &str, why: io::Error) -> Error {
    Error::failed(doing).caused_by(why)
}

fn not_started(command: &str, errno: i32, why: io::Error) -> Error {
    let is_plain = !command.contains(' ') && command.len() <= COMMAND_BYTES_MAX;
    let shown = if is_plain { command.to_owned() } else { quoted(command) };
    let message = format!("cannot run {shown} in the box");
    // A keeper may report any number, so the number is compared and not converted.
    let is = |known: Errno| known.raw_os_error() == errno;
    if is(Errno::NOENT) || is(Errno::NOTDIR) {
        let hint = if command.contains(' ') {
            "give the program and its arguments as separate words, or use sh -c".into()
        } else {
            Hint::ProgramInBox
        };
        return Error::new(ErrorKind::CommandNotFound, message)
            .caused_by("there is no such program")
            .with_hint(hint);
    }
    let error = Error::new(ErrorKind::CommandNotExecutable, message).caused_by(why);
    if is(Errno::ACCESS) {
        error.with_hint("it must be a file that the box's user may execute")
    } else {
        error
    }
}
