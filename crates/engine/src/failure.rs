//! What a keeper's failure means to a person.

use std::io;

use tare_control::{LaunchStep, SetupStep};
use tare_kernel::spawn::BirthStep;

use crate::error::{Error, ErrorKind};
use crate::spec::Spec;

/// The keeper gave up before it was one.
pub fn birth(step: BirthStep, error: io::Error) -> Error {
    let doing = match step {
        BirthStep::JoinCgroup => "cannot move the box into its cgroups",
        BirthStep::Abandoned => "the box was given up before it started",
        BirthStep::Identity => "cannot take the box's user ids",
        BirthStep::Descriptors => "cannot arrange the box's descriptors",
        BirthStep::Execute => "cannot start the keeper",
    };
    Error::new(ErrorKind::Failed, doing)
        .because(error)
        .with_hint("see 'tare doctor' for what this host can do")
}

/// The box could not be made.
pub fn setup(step: SetupStep, subject: &str, errno: i32) -> Error {
    let shown = subject.escape_debug();
    let (kind, doing, hint) = match step {
        SetupStep::ReadPlan => (
            ErrorKind::Failed,
            "cannot read the keeper's plan".to_owned(),
            "",
        ),
        SetupStep::JoinCgroupNamespace => (
            ErrorKind::Failed,
            "cannot make a cgroup namespace".to_owned(),
            "",
        ),
        SetupStep::PrivateMounts => (
            ErrorKind::Failed,
            "cannot make the box's mounts private".to_owned(),
            "",
        ),
        SetupStep::Scratch => (
            ErrorKind::Failed,
            format!("cannot make the scratch space ({shown})"),
            "",
        ),
        SetupStep::Root => (
            ErrorKind::Failed,
            format!(
                "cannot set up /{} in the box",
                shown.to_string().trim_start_matches('/')
            ),
            "with --rootfs, what tare mounts on must be real directories, not symlinks",
        ),
        SetupStep::Proc => (
            ErrorKind::Failed,
            format!("cannot mount proc ({shown})"),
            "inside another container /proc may be masked; see 'tare doctor'",
        ),
        SetupStep::Dev => (
            ErrorKind::Failed,
            format!("cannot set up {shown} in the box"),
            "",
        ),
        SetupStep::Volume => (
            ErrorKind::BadRequest,
            format!("cannot mount a volume at {shown} in the box"),
            "its parent must be writable there, or the mount point exist",
        ),
        SetupStep::EnterRoot => (
            ErrorKind::Failed,
            "cannot enter the box's root".to_owned(),
            "",
        ),
        SetupStep::Network => (
            ErrorKind::Failed,
            "cannot bring the box's loopback up".to_owned(),
            "",
        ),
        SetupStep::Hostname => (
            ErrorKind::Failed,
            format!("cannot set the box's host name to {shown}"),
            "",
        ),
        SetupStep::Terminal => (
            ErrorKind::Failed,
            format!("cannot open the box's terminal ({shown})"),
            "",
        ),
        SetupStep::Landlock => (
            ErrorKind::Failed,
            "cannot restrict the box with Landlock".to_owned(),
            "",
        ),
        SetupStep::Fork => (
            ErrorKind::Failed,
            format!("cannot start a process in the box ({shown})"),
            "is --pids or --memory too small?",
        ),
    };
    let error = Error::new(kind, doing).because(io::Error::from_raw_os_error(errno));
    match hint {
        "" => error,
        hint => error.with_hint(hint),
    }
}

const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const ENOTDIR: i32 = 20;

/// The command could not be started.
pub fn launch(step: LaunchStep, errno: i32, spec: Option<&Spec>) -> Error {
    let why = io::Error::from_raw_os_error(errno);
    let command = spec.map_or_else(String::new, |spec| {
        spec.command[0].to_string_lossy().escape_debug().to_string()
    });
    match step {
        LaunchStep::Exec => not_started(&command, errno, why),
        LaunchStep::WorkingDirectory => {
            let directory = spec.and_then(|spec| spec.workdir.as_deref());
            let shown = directory.map_or("/work".into(), |path| path.to_string_lossy());
            let message = format!(
                "cannot use {} as the working directory",
                shown.escape_debug()
            );
            Error::new(ErrorKind::BadRequest, message)
                .because(why)
                .with_hint(
                    "-w takes a directory that exists in the box and that its user may enter",
                )
        }
        LaunchStep::Session
        | LaunchStep::Limits
        | LaunchStep::Credentials
        | LaunchStep::Seccomp => {
            let part = match step {
                LaunchStep::Session => "a session",
                LaunchStep::Limits => "its limits",
                LaunchStep::Credentials => "its user",
                LaunchStep::Seccomp | LaunchStep::WorkingDirectory | LaunchStep::Exec => {
                    "its filter"
                }
            };
            Error::new(ErrorKind::Failed, format!("cannot give the command {part}")).because(why)
        }
    }
}

fn not_started(command: &str, errno: i32, why: io::Error) -> Error {
    match errno {
        ENOENT | ENOTDIR => Error::new(
            ErrorKind::CommandNotFound,
            format!("cannot run {command} in the box"),
        )
        .because("there is no such program")
        .with_hint("the box sees the host's /usr, or what --rootfs holds; is the program, or the interpreter it names, there?"),
        EACCES => Error::new(
            ErrorKind::CommandNotExecutable,
            format!("cannot run {command} in the box"),
        )
        .because(why)
        .with_hint("it must be a file that the box's user may execute"),
        _ => Error::new(
            ErrorKind::CommandNotExecutable,
            format!("cannot run {command} in the box"),
        )
        .because(why),
    }
}
