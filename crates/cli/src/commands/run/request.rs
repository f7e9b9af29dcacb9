//! From the options of `tare run` to a spec: defaults, and every refusal.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use tare_engine::spec::received::quoted;
use tare_engine::spec::{
    Isolation, Limit, Limits, Network, Privilege, Root, SeccompProfile, Spec, Terminal, User,
    Volume, arguments, bytes, count, cpus, duration, env, name, user, volume,
};
use tare_engine::{Error, ErrorKind, Stdin};

use super::args::{Net, RunArgs, Seccomp};
use crate::error::of_option;
use crate::relay::{Output, PastLimit};

const MEMORY_BYTES: u64 = 512 << 20;
const PIDS: u32 = 256;
const NOFILE: u32 = 1024;
const SCRATCH_BYTES: u64 = 256 << 20;
const OUTPUT_BYTES: u64 = 64 << 20;
const USER: User = User {
    uid: 1000,
    gid: 1000,
};
const BOX_ROOT: User = User { uid: 0, gid: 0 };

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const HOME: &str = "/work";
const ROOT_HOME: &str = "/root";
const LANG: &str = "C.UTF-8";
const TERM: &str = "xterm";

/// What is read of an `--env-file`: all that a command can be given, and one
/// byte to see that there is more.
const ENV_FILE_BYTES_MAX: u64 = arguments::ARGUMENTS_BYTES_MAX as u64;

/// What tare knows of the process that started it.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// `None` when it has been removed.
    pub current_dir: Option<PathBuf>,
    pub user: User,
    /// Rows and columns, when standard input is a terminal.
    pub window: Option<(u16, u16)>,
    /// PATH, HOME, LANG and TERM, as far as they are set.
    pub env: Vec<env::Pair>,
}

/// A spec, and what stays with the caller.
#[derive(Debug)]
pub struct Request {
    pub spec: Spec,
    pub stdin: Stdin,
    pub output: Output,
    pub output_bytes_max: u64,
    pub past_limit: PastLimit,
    pub quiet: bool,
}

impl Surroundings {
    fn current_dir(&self) -> Result<&Path, Error> {
        let message = "cannot find the current directory";
        self.current_dir.as_deref().ok_or_else(|| {
            Error::new(ErrorKind::BadRequest, message)
                .because("it has been removed")
                .with_hint("change to one that exists, or give absolute paths")
        })
    }

    /// As seen from where tare was started.
    fn resolve(&self, path: &Path) -> Result<PathBuf, Error> {
        match path.is_absolute() {
            true => Ok(path.to_owned()),
            false => Ok(self.current_dir()?.join(path)),
        }
    }
}

pub fn make(args: &RunArgs, around: &Surroundings) -> Result<Request, Error> {
    let output_bytes_max = option("--output-limit", &args.output_limit, bytes::output_limit)?;
    let spec = spec(args, around)?;
    Ok(Request {
        stdin: match around.window.is_none() || args.interactive {
            true => Stdin::Pipe,
            false => Stdin::Empty,
        },
        output: match args.json {
            true => Output::Keep,
            false => Output::Pass,
        },
        output_bytes_max: output_bytes_max.unwrap_or(OUTPUT_BYTES),
        past_limit: match args.output_kill {
            true => PastLimit::Kill,
            false => PastLimit::Truncate,
        },
        quiet: args.quiet,
        spec,
    })
}

fn spec(args: &RunArgs, around: &Surroundings) -> Result<Spec, Error> {
    let env = environment(args, around)?;
    arguments::check(&args.command, &env)?;
    let labels = name::labels(args.label.iter().map(String::as_str));
    Ok(Spec {
        command: args.command.clone(),
        name: option("--name", &args.name, name::parse)?,
        labels: labels.map_err(|error| of_option("--label", error))?,
        env,
        workdir: workdir(args, around)?,
        user: user_of(args, around)?,
        privilege: match args.root {
            true => Privilege::BoxRoot,
            false => Privilege::Unprivileged,
        },
        limits: limits(args)?,
        timeout: option("--timeout", &args.timeout, duration::parse)?,
        root: match &args.rootfs {
            Some(path) => Root::Directory(around.resolve(path)?),
            None => Root::HostView,
        },
        volumes: volumes(args, around)?,
        network: network(args),
        isolation: match args.contain {
            true => Isolation::Contain,
            false => Isolation::Full,
        },
        seccomp: seccomp(args),
        terminal: terminal(args, around)?,
    })
}

fn limits(args: &RunArgs) -> Result<Limits, Error> {
    Ok(Limits {
        memory_bytes: limit("--memory", &args.memory, bytes::memory, MEMORY_BYTES)?,
        cpus: option("--cpus", &args.cpus, cpus::parse)?,
        pids: limit("--pids", &args.pids, count::pids, PIDS)?,
        nofile: option("--nofile", &args.nofile, count::nofile)?.unwrap_or(NOFILE),
        scratch_bytes: option("--scratch", &args.scratch, bytes::scratch)?.unwrap_or(SCRATCH_BYTES),
    })
}

fn option<T>(
    flag: &str,
    value: &Option<String>,
    parse: fn(&str) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let parsed = value.as_deref().map(parse).transpose();
    parsed.map_err(|error| of_option(flag, error))
}

fn limit<T>(
    flag: &str,
    value: &Option<String>,
    parse: fn(&str) -> Result<T, Error>,
    default: T,
) -> Result<Limit<T>, Error> {
    let asked = option(flag, value, parse)?;
    Ok(asked.map_or(Limit::Default(default), Limit::Asked))
}

/// Containment changes nobody's ids; a box without `--root` has its own.
fn user_of(args: &RunArgs, around: &Surroundings) -> Result<User, Error> {
    let asked = option("--user", &args.user, user::parse)?;
    Ok(match (args.contain, args.root) {
        (true, _) => around.user,
        (false, true) => BOX_ROOT,
        (false, false) => asked.unwrap_or(USER),
    })
}

fn network(args: &RunArgs) -> Network {
    match (args.contain, args.net) {
        (true, _) | (_, Some(Net::Host)) => Network::Host,
        (false, Some(Net::None) | None) => Network::None,
    }
}

/// A launcher in a containment needs the calls that the filter takes away.
fn seccomp(args: &RunArgs) -> SeccompProfile {
    match (args.contain, args.seccomp) {
        (true, _) | (_, Some(Seccomp::Unconfined)) => SeccompProfile::Unconfined,
        (false, Some(Seccomp::Default) | None) => SeccompProfile::Default,
        (false, Some(Seccomp::Debug)) => SeccompProfile::Debug,
        (false, Some(Seccomp::Strict)) => SeccompProfile::Strict,
    }
}

fn terminal(args: &RunArgs, around: &Surroundings) -> Result<Terminal, Error> {
    match (args.tty, around.window) {
        (false, _) => Ok(Terminal::Pipes),
        (true, Some((rows, columns))) => Ok(Terminal::Pty { rows, columns }),
        (true, None) => Err(bad(
            "--tty needs a terminal, and standard input is none",
            "leave -t out; output then comes through pipes",
        )),
    }
}

fn workdir(args: &RunArgs, around: &Surroundings) -> Result<Option<PathBuf>, Error> {
    match (&args.workdir, args.contain) {
        (Some(path), true) => Ok(Some(around.resolve(path)?)),
        (None, true) => Ok(Some(around.current_dir()?.to_owned())),
        (Some(path), false) if !path.is_absolute() => Err(of_option(
            "--workdir",
            bad(
                format!("{} is not absolute", quoted(path)),
                "name a directory of the box, such as /work",
            ),
        )),
        (path, false) => Ok(path.clone()),
    }
}

fn volumes(args: &RunArgs, around: &Surroundings) -> Result<Vec<Volume>, Error> {
    let parse = |text: &OsString| {
        let base = match Path::new(text).is_absolute() {
            true => Path::new("/"),
            false => around.current_dir()?,
        };
        volume::parse(text, base)
    };
    let volumes: Result<Vec<_>, _> = args.volume.iter().map(parse).collect();
    volumes
        .and_then(|volumes| volume::check(&volumes).map(|()| volume::outer_first(volumes)))
        .map_err(|error| of_option("--volume", error))
}

/// The defaults, then the files, then `--env`: the later wins.
fn environment(args: &RunArgs, around: &Surroundings) -> Result<Vec<env::Pair>, Error> {
    let mut pairs = default_environment(args, around);
    for path in &args.env_file {
        pairs.extend(env_file(path).map_err(|error| of_option("--env-file", error))?);
    }
    for text in &args.env {
        pairs.push(env::parse(text).map_err(|error| of_option("--env", error))?);
    }
    Ok(env::later_wins(pairs))
}

fn default_environment(args: &RunArgs, around: &Surroundings) -> Vec<env::Pair> {
    let home = match (args.root, &args.rootfs) {
        (true, Some(_)) => ROOT_HOME,
        (true, None) | (false, _) => HOME,
    };
    let mut pairs: Vec<env::Pair> = vec![
        ("PATH".into(), PATH.into()),
        ("HOME".into(), home.into()),
        ("LANG".into(), LANG.into()),
    ];
    if args.tty {
        pairs.push(("TERM".into(), TERM.into()));
    }
    let from_caller = |key: &OsString| match args.contain {
        true => key != "TERM" || args.tty,
        false => key == "TERM" && args.tty,
    };
    let callers = around.env.iter().filter(|(key, _)| from_caller(key));
    pairs.extend(callers.cloned());
    pairs
}

fn env_file(path: &Path) -> Result<Vec<env::Pair>, Error> {
    let failed = |error: std::io::Error| {
        let message = format!("cannot read {}", quoted(path));
        Error::new(ErrorKind::BadRequest, message).because(error)
    };
    let mut content = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(ENV_FILE_BYTES_MAX + 1)
        .read_to_end(&mut content)
        .map_err(failed)?;
    if content.len() as u64 > ENV_FILE_BYTES_MAX {
        return Err(bad(
            format!(
                "{} is too large, an environment has at most 2 MiB",
                quoted(path)
            ),
            "pass large values in a file or on standard input",
        ));
    }
    env::parse_file(path, &content)
}

fn bad(message: impl Into<String>, hint: &str) -> Error {
    Error::new(ErrorKind::BadRequest, message).with_hint(hint)
}

#[cfg(test)]
#[path = "request_tests.rs"]
pub mod tests;
