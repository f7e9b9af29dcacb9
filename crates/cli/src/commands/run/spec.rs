//! Turns the options of `tare run` into a spec: sets defaults and refuses what cannot work.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tare_engine::spec::{
    Accel, Isolation, Limit, Limits, MachineSpec, Network, Privilege, Root, SeccompProfile, Spec,
    Tenant, Terminal, User, Volume, command, defaults, name, volume,
};
use tare_engine::{Error, Stdin};

use crate::commands::process_args::{self, Window};
use crate::commands::run::args::{AccelArg, Driver, MachineArgs, Net, RunArgs, Seccomp};
use crate::error::of_option;
use crate::stdio::{self, Output, PastLimit, Writers};

const ROOT_HOME: &str = "/root";

/// Facts about the process that started tare.
#[derive(Debug, Clone)]
pub struct CallerContext {
    /// `None`: the directory was removed.
    pub current_dir: Option<PathBuf>,
    pub user: User,
    /// The size of the terminal, if standard input is one.
    pub window: Option<Window>,
    /// PATH, HOME, LANG and TERM, as far as they are set.
    pub env: Vec<command::Variable>,
}

/// A spec, and how tare connects the caller to the box.
#[derive(Debug)]
pub struct RunPlan {
    pub spec: Spec,
    pub stdin: Stdin,
    pub relay: stdio::Settings,
    pub quiet: bool,
}

impl CallerContext {
    fn current_dir(&self) -> Result<&Path, Error> {
        let message = "cannot find the current directory";
        self.current_dir.as_deref().ok_or_else(|| {
            Error::bad_request(message)
                .caused_by("it has been removed")
                .with_hint("change to one that exists, or give absolute paths")
        })
    }

    /// Makes a path absolute, from the directory in which tare was started.
    fn resolve(&self, path: &Path) -> Result<PathBuf, Error> {
        if path.is_absolute() { Ok(path.to_owned()) } else { Ok(self.current_dir()?.join(path)) }
    }
}

pub fn plan(args: &RunArgs, caller: &CallerContext) -> Result<RunPlan, Error> {
    Ok(RunPlan {
        spec: spec(args, caller)?,
        stdin: args.process.stdin(caller.window),
        relay: stdio::Settings {
            output: if args.labels.json { Output::Keep } else { Output::Pass },
            output_bytes_max: args.limits.output_limit.unwrap_or(defaults::OUTPUT_BYTES),
            past_limit: if args.limits.output_kill { PastLimit::Kill } else { PastLimit::Truncate },
            writers: Writers::Dead,
        },
        quiet: args.labels.quiet,
    })
}

fn spec(args: &RunArgs, caller: &CallerContext) -> Result<Spec, Error> {
    let env = environment(args, caller)?;
    command::check(&args.process.command, &env)?;
    let labels = name::labels(args.labels.label.iter().map(String::as_str));
    Ok(Spec {
        command: args.process.command.clone(),
        tenant: Tenant::default(),
        name: args.labels.name.clone(),
        labels: labels.map_err(|error| of_option("--label", error))?,
        env,
        workdir: workdir(args, caller)?,
        workspace: args.files.workspace.clone(),
        user: user_of(args, caller),
        privilege: if args.isolation.root { Privilege::BoxRoot } else { Privilege::Unprivileged },
        limits: limits(args),
        timeout: args.limits.timeout,
        root: match &args.files.rootfs {
            Some(path) => Root::Directory(caller.resolve(path)?),
            None => Root::HostView,
        },
        volumes: volumes(args, caller)?,
        network: network(args),
        isolation: isolation(args),
        seccomp: seccomp(args),
        terminal: terminal(args, caller)?,
        machine: machine(&args.machine)?,
    })
}

/// The machine of the box, if it has one.
fn machine(args: &MachineArgs) -> Result<Option<MachineSpec>, Error> {
    let of_machines = [("--accel", args.accel.is_some()), ("--kernel", args.kernel.is_some())];
    if args.driver != Some(Driver::Vm) {
        return match of_machines.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => {
                let message = format!("{option} is for boxes in machines");
                Err(Error::bad_request(message).with_hint("add --driver vm"))
            }
            None => Ok(None),
        };
    }
    let accel = match args.accel {
        None | Some(AccelArg::Kvm) => Accel::Kvm,
        Some(AccelArg::Tcg) => Accel::Tcg,
        Some(AccelArg::Auto) => Accel::Auto,
    };
    Ok(Some(MachineSpec { accel, kernel: args.kernel.clone() }))
}

fn limits(args: &RunArgs) -> Limits {
    Limits {
        memory_bytes: limit(args.limits.memory, defaults::MEMORY_BYTES),
        cpus: args.limits.cpus,
        pids: limit(args.limits.pids, defaults::PIDS),
        nofile: args.limits.nofile.unwrap_or(defaults::NOFILE),
        scratch_bytes: limit(args.limits.scratch, defaults::SCRATCH_BYTES),
    }
}

fn limit<T>(asked: Option<T>, default: T) -> Limit<T> {
    asked.map_or(Limit::Default(default), Limit::Asked)
}

/// The user in the box. With `--contain`, the user of the caller.
fn user_of(args: &RunArgs, caller: &CallerContext) -> User {
    match (args.isolation.contain, args.isolation.root) {
        (true, _) => caller.user,
        (false, true) => defaults::BOX_ROOT,
        (false, false) => args.user.unwrap_or(defaults::USER),
    }
}

fn network(args: &RunArgs) -> Network {
    match (args.isolation.contain, args.files.net) {
        (true, _) | (_, Some(Net::Host)) => Network::Host,
        (false, Some(Net::None) | None) => Network::None,
    }
}

/// With `--contain` there is no filter by default: launchers need the calls that it forbids.
fn seccomp(args: &RunArgs) -> SeccompProfile {
    match (args.isolation.contain, args.isolation.seccomp) {
        (true, _) | (_, Some(Seccomp::Unconfined)) => SeccompProfile::Unconfined,
        (false, Some(Seccomp::Default) | None) => SeccompProfile::Default,
        (false, Some(Seccomp::Debug)) => SeccompProfile::Debug,
        (false, Some(Seccomp::Strict)) => SeccompProfile::Strict,
    }
}

/// The terminal of a detached box has a default size: no client may be attached yet.
fn terminal(args: &RunArgs, caller: &CallerContext) -> Result<Terminal, Error> {
    let unseen = args.detached.detach.then_some(stdio::WINDOW_DEFAULT);
    args.process.terminal(caller.window.or(unseen))
}

fn isolation(args: &RunArgs) -> Isolation {
    if args.isolation.contain { Isolation::Contain } else { Isolation::Full }
}

fn workdir(args: &RunArgs, caller: &CallerContext) -> Result<Option<PathBuf>, Error> {
    match (&args.workdir, args.isolation.contain) {
        (Some(path), true) => Ok(Some(caller.resolve(path)?)),
        (None, true) => Ok(Some(caller.current_dir()?.to_owned())),
        (Some(path), false) => process_args::workdir(path.clone())
            .map(Some)
            .map_err(|error| of_option("--workdir", error)),
        (None, false) => Ok(None),
    }
}

fn volumes(args: &RunArgs, caller: &CallerContext) -> Result<Vec<Volume>, Error> {
    let parse = |text: &OsString| {
        let base =
            if Path::new(text).is_absolute() { Path::new("/") } else { caller.current_dir()? };
        volume::parse(text, base)
    };
    let volumes: Result<Vec<_>, _> = args.files.volume.iter().map(parse).collect();
    volumes
        .and_then(|volumes| volume::check(&volumes).map(|()| volumes))
        .map_err(|error| of_option("--volume", error))
}

/// The defaults, then the files, then `--env`: the later wins.
fn environment(args: &RunArgs, caller: &CallerContext) -> Result<Vec<command::Variable>, Error> {
    let mut pairs = default_environment(args, caller);
    pairs.extend(args.process.variables()?);
    Ok(command::later_wins(pairs))
}

fn default_environment(args: &RunArgs, caller: &CallerContext) -> Vec<command::Variable> {
    let home = match (args.isolation.root, &args.files.rootfs) {
        (true, Some(_)) => ROOT_HOME,
        (true, None) | (false, _) => defaults::HOME,
    };
    let mut pairs = defaults::env(home, isolation(args));
    if args.process.tty {
        pairs.push(("TERM".into(), process_args::TERM.into()));
    }
    let from_caller = |key: &OsString| {
        if args.isolation.contain {
            key != "TERM" || args.process.tty
        } else {
            key == "TERM" && args.process.tty
        }
    };
    let callers = caller.env.iter().filter(|(key, _)| from_caller(key));
    pairs.extend(callers.cloned());
    pairs
}

#[cfg(test)]
#[path = "spec_tests.rs"]
pub mod tests;
