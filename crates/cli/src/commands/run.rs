//! `tare run`: a fresh box around one command, attached, and nothing left.
//!
//! ```text
//! options -> spec -> box -> relay -> the one way out -> rest of the output -> exit code
//! ```
//!
//! From the moment that the engine has made a box every path leads through
//! [`Attached::end`]. Signals are taken over before there is a box, so that
//! none can end tare without its box.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{getgid, getuid};
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::isatty;
use tare_engine::spec::User;
use tare_engine::{Attached, Doing, Ending, Engine, Error};
use tare_kernel::signals::{self, SignalFd};

mod args;
mod report;
mod request;

pub use args::RunArgs;
use report::{Report, Verdict};
use request::{Request, Surroundings};

use crate::error::{print_error, print_note, print_result};
use crate::relay::{self, Budget, Caller, Outcome, Output, Relay};

pub fn run(args: &RunArgs, state_root: Option<PathBuf>) -> Result<u8, Error> {
    let request = request::make(args, &surroundings()?)?;
    let taken = SignalFd::open(&relay::SIGNALS.map(|signal| signal.as_raw()))
        .doing(|| "cannot take over signals".to_owned())?;
    signals::keep_ended_children();
    signals::fail_past_file_limit();
    let engine = Engine::open(state_root)?;
    let started = Instant::now();
    let attached = engine.run(&request.spec, request.stdin)?;
    if !request.quiet {
        attached.notes().iter().for_each(|note| print_note(note));
    }
    let id = attached.id().to_string();
    let attended = attend(attached, &request, &taken, started)?;
    conclude(id, attended, &request)
}

/// A run whose box is gone.
struct Attended<'fd> {
    outcome: Outcome,
    ending: Result<Ending, Error>,
    relay: Relay<'fd>,
    duration: Duration,
}

/// Stays with the box until its end, ends it, and passes on the rest.
fn attend(
    mut attached: Attached,
    request: &Request,
    signals: &SignalFd,
    started: Instant,
) -> Result<Attended<'static>, Error> {
    let caller = Caller {
        stdin: stdin(),
        stdout: stdout(),
        stderr: stderr(),
    };
    let budget = Budget::new(request.output_bytes_max);
    let streams = attached.streams();
    let relay = Relay::new(caller, streams, request.output, budget, request.past_limit)
        .doing(|| "cannot pass on the streams of the box".to_owned());
    let mut relay = match relay {
        Ok(relay) => relay,
        Err(error) => {
            attached.end()?;
            return Err(error);
        }
    };
    let outcome = relay.until_end(&mut attached, signals);
    let duration = started.elapsed();
    // Before the rest of the output: however slowly that is read, the box is
    // gone, and with it every writer of its pipes.
    let ending = attached.end();
    let drained = relay.drain(&outcome, signals);
    relay.leave_terminal();
    Ok(Attended {
        outcome: drained.map_or_else(Outcome::Lost, |()| outcome),
        ending,
        relay,
        duration,
    })
}

/// Says what is to be said, and returns the exit code.
fn conclude(id: String, attended: Attended<'_>, request: &Request) -> Result<u8, Error> {
    let Attended {
        outcome,
        ending,
        relay,
        duration,
    } = attended;
    let timed_out = matches!(outcome, Outcome::TimedOut);
    let output_killed = matches!(outcome, Outcome::OutputKilled);
    let oom_kills = ending.as_ref().map_or(0, |ending| ending.oom_kills);
    let mut verdict = report::judge(outcome, oom_kills, request);
    let truncated = relay.budget().is_passed();
    if truncated && !output_killed && !request.quiet {
        print_note(&report::truncation(request, relay.budget().dropped_bytes()));
    }
    say(&verdict, request);
    let was_run = verdict.error.is_none();
    if let Some(error) = afterwards(ending, &relay) {
        verdict = report::failed(error);
        say(&verdict, request);
    }
    if was_run && request.output == Output::Keep {
        let [stdout, stderr] = relay.into_kept();
        print_report(&Report {
            id,
            name: request.spec.name.as_ref().map(ToString::to_string),
            exit_code: verdict.code,
            signal: verdict.signal,
            timed_out,
            oom: oom_kills > 0,
            truncated,
            output_killed,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        })?;
    }
    Ok(verdict.code)
}

/// What went wrong though the command had ended.
fn afterwards(ending: Result<Ending, Error>, relay: &Relay<'_>) -> Option<Error> {
    let unwritten = relay.output_failure().map(|errno| {
        let failed: Result<(), _> = Err(errno);
        failed.doing(|| "cannot pass on the command's output".to_owned())
    });
    ending.err().or(unwritten.and_then(Result::err))
}

fn say(verdict: &Verdict, request: &Request) {
    if let Some(error) = &verdict.error {
        print_error(error);
    }
    if let (Some(note), false) = (&verdict.note, request.quiet) {
        print_note(note);
    }
}

fn print_report(report: &Report) -> Result<(), Error> {
    let json = serde_json::to_string(report).expect("a struct of texts and numbers is JSON");
    print_result(&format!("{json}\n"))
}

fn surroundings() -> Result<Surroundings, Error> {
    let window = match isatty(stdin()) {
        true => {
            Some(relay::window(stdin()).doing(|| "cannot read the terminal's size".to_owned())?)
        }
        false => None,
    };
    let env = ["PATH", "HOME", "LANG", "TERM"].into_iter();
    Ok(Surroundings {
        current_dir: std::env::current_dir().ok(),
        user: User {
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
        },
        window,
        env: env
            .filter_map(|key| Some((key.into(), std::env::var_os(key)?)))
            .collect(),
    })
}
