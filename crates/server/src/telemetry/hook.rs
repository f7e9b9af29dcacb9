//! Calls a command when a gauge changes its level.
//!
//! One task makes the calls, one at a time and each with a timeout, so that nothing else waits for a
//! command. If several changes happen during a call, the next call delivers only the last one.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, pidfd_send_signal};
use tare_engine::{Context as _, Error, Keeper as Process};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::hook::HookConfig;
use crate::error;
use crate::fd;
use crate::telemetry::event::LogEvent;
use crate::telemetry::hook_runner;
use crate::telemetry::journal::{Journal, LogRecord};

/// The program of this process, even after another file replaced it on disk.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// How long the runner may take to exit after its work is done.
const RUNNER_EXIT: Duration = Duration::from_secs(1);

/// The command to call, and the event for its stdin.
type HookCall = (HookConfig, Arc<LogRecord>);

/// Gives calls to the task that makes them.
#[derive(Debug, Default)]
pub struct Hook {
    /// The latest call.
    calls: watch::Sender<Option<HookCall>>,
    /// Cancelled when the server ends.
    end: CancellationToken,
}

impl Hook {
    /// Calls the command with this event, when the current call is over.
    pub fn call(&self, config: &HookConfig, event: Arc<LogRecord>) {
        self.calls.send_replace(Some((config.clone(), event)));
    }

    /// Ends the command that runs, and makes the task return.
    pub fn end(&self) {
        self.end.cancel();
    }

    /// Starts the task. It ends after [`Self::end`], when nothing of the command is left.
    pub fn start(&self, journal: Arc<Journal>) -> JoinHandle<()> {
        tokio::spawn(run(self.calls.subscribe(), self.end.clone(), journal))
    }
}

async fn run(
    mut calls: watch::Receiver<Option<HookCall>>,
    end: CancellationToken,
    journal: Arc<Journal>,
) {
    while let Some(Ok(())) = end.run_until_cancelled(calls.changed()).await {
        let next = calls.borrow_and_update().clone();
        let Some((config, event)) = next else {
            continue;
        };
        if let Err(error) = call(&config, &event.to_json().to_string(), &end).await {
            let why = error::in_full(&error);
            journal.record(&LogEvent::HookFailed { hook: "command", why: &why });
        }
    }
}

/// Runs the command with `stdin`. A process between it and the server ends everything that the
/// command started: after the timeout, and when the server ends ([`hook_runner`]).
async fn call(config: &HookConfig, stdin: &str, end: &CancellationToken) -> Result<(), Error> {
    let [program, ..] = &*config.command else {
        return Ok(());
    };
    let doing = || format!("cannot call {program}");
    let mut runner = start_runner(config).context(doing)?;
    if let Some(mut pipe) = runner.child.stdin.take() {
        // The event fits into the pipe, so a command that does not read cannot block this.
        pipe.write_all(stdin.as_bytes()).ok();
    }
    let Some(status) = runner.ended(end).await.context(doing)? else {
        return Ok(());
    };
    let failed = |why: String| Err(Error::failed(doing()).caused_by(why));
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(()),
        Some(hook_runner::LATE) => {
            failed("it was killed at its timeout, or exited with 124".into())
        }
        Some(hook_runner::NOT_STARTED) => {
            failed("it could not be started, or exited with 125".into())
        }
        Some(code) => failed(format!("it ended with exit code {code}")),
        None => failed(format!("it ended with {status}")),
    }
}

struct Runner {
    child: Child,
    process: Process,
}

/// The kernel signals the runner when the *thread* that started it exits (`PR_SET_PDEATHSIG`,
/// prctl(2)). The threads of the runtime live as long as the server.
fn start_runner(config: &HookConfig) -> io::Result<Runner> {
    let mut command = Command::new(OWN_PROGRAM);
    command
        .arg0(OsStr::from_bytes(hook_runner::NAME.to_bytes()))
        .arg(std::process::id().to_string())
        .arg(config.timeout.0.as_millis().to_string())
        .args(&config.command)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let mut child = command.spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    // The child is not reaped yet, so the pid is its own.
    match Process::open(pid) {
        Ok(process) => Ok(Runner { child, process }),
        Err(error) => {
            // Without a pidfd the server could not wait for it. SIGTERM makes the runner end
            // its command.
            if let Some(pid) = Pid::from_raw(pid) {
                kill_process(pid, Signal::TERM).ok();
            }
            child.wait().ok();
            Err(error)
        }
    }
}

impl Runner {
    /// Waits for the runner, and ends it when the server ends. Returns `None` in that case.
    async fn ended(&mut self, end: &CancellationToken) -> io::Result<Option<ExitStatus>> {
        tokio::select! {
            dead = fd::readable(self.process.as_fd()) => dead?,
            () = end.cancelled() => {
                pidfd_send_signal(&self.process, Signal::TERM).ok();
                let dead = fd::readable(self.process.as_fd());
                tokio::time::timeout(hook_runner::ENDED_WITHIN + RUNNER_EXIT, dead).await.ok();
                self.child.try_wait()?;
                return Ok(None);
            }
        }
        self.child.wait().map(Some)
    }
}
