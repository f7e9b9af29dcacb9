//! Calls a command when a gauge changes its level.
//!
//! One task makes the calls, one at a time and each with a timeout, so that nothing else waits for a
//! command. The stdin of a command has one event on each line. Changes that happen during a call are
//! delivered by the next one.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, pidfd_send_signal};
use tare_engine::{Context as _, Error, Keeper as Process};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::hook::HookConfig;
use crate::fd;
use crate::telemetry::event::LogEvent;
use crate::telemetry::hook_runner;
use crate::telemetry::journal::{Journal, LogRecord};
use crate::workers::locked;

/// The program of this process, even after another file replaced it on disk.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// How long the runner may take to exit after its work is done.
const RUNNER_EXIT: Duration = Duration::from_secs(1);

/// How many events wait for a call. Beyond that, the oldest are dropped.
const EVENTS_MAX: usize = 64;
/// How much one call gets: less than a pipe holds (pipe(7)).
const STDIN_BYTES_MAX: usize = 60 << 10;

/// Gives events to the task that makes the calls.
#[derive(Debug, Default)]
pub struct Hook {
    queue: Arc<EventQueue>,
    /// Cancelled when the server ends.
    end: CancellationToken,
}

#[derive(Debug, Default)]
struct EventQueue {
    waiting: Mutex<WaitingEvents>,
    more: Notify,
}

#[derive(Debug, Default)]
struct WaitingEvents {
    /// The command, as the last event found it.
    config: HookConfig,
    lines: VecDeque<String>,
    /// How many events were dropped since the last call.
    dropped: usize,
}

/// What one call delivers.
struct HookCall {
    config: HookConfig,
    stdin: String,
    dropped: usize,
}

impl Hook {
    /// Calls the command with this event, when the current call is over.
    pub fn call(&self, config: &HookConfig, event: &LogRecord) {
        locked(&self.queue.waiting).add(config, format!("{}\n", event.to_json()));
        self.queue.more.notify_one();
    }

    /// Ends the command that runs, and makes the task return.
    pub fn end(&self) {
        self.end.cancel();
    }

    /// Starts the task. It ends after [`Self::end`], when nothing of the command is left.
    pub fn start(&self, journal: Arc<Journal>) -> JoinHandle<()> {
        tokio::spawn(run(Arc::clone(&self.queue), self.end.clone(), journal))
    }
}

impl WaitingEvents {
    fn add(&mut self, config: &HookConfig, line: String) {
        self.config = config.clone();
        self.lines.push_back(line);
        while self.lines.len() > EVENTS_MAX {
            self.lines.pop_front();
            self.dropped += 1;
        }
    }

    /// Takes the oldest events, as many as fit.
    fn take(&mut self) -> Option<HookCall> {
        let mut stdin = self.lines.pop_front()?;
        while let Some(line) = self.lines.front() {
            if stdin.len() + line.len() > STDIN_BYTES_MAX {
                break;
            }
            stdin.extend(self.lines.pop_front());
        }
        let dropped = std::mem::take(&mut self.dropped);
        Some(HookCall { config: self.config.clone(), stdin, dropped })
    }
}

async fn run(queue: Arc<EventQueue>, end: CancellationToken, journal: Arc<Journal>) {
    let failed = |why: &str| journal.record(&LogEvent::HookFailed { hook: "command", why });
    while end.run_until_cancelled(queue.more.notified()).await.is_some() {
        loop {
            let next = locked(&queue.waiting).take();
            let Some(HookCall { config, stdin, dropped }) = next.filter(|_| !end.is_cancelled())
            else {
                break;
            };
            if dropped > 0 && !config.command.is_empty() {
                failed(&format!("{dropped} events were dropped while it ran"));
            }
            if let Err(error) = call(&config, &stdin, &end).await {
                failed(&error.in_full());
            }
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
        // The events fit into the pipe, so a command that does not read cannot block this.
        pipe.write_all(stdin.as_bytes()).ok();
    }
    let Some(status) = runner.ended(end).await.context(doing)? else {
        return Ok(());
    };
    let failed = |why: String| Err(Error::failed(doing()).caused_by(why));
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(()),
        Some(hook_runner::LATE) => {
            let timeout_s = config.timeout.0.as_secs();
            failed(format!("it took longer than [hook] timeout, {timeout_s} s, or exited with 124"))
        }
        Some(hook_runner::NOT_STARTED) => {
            failed("it is missing or not executable, or exited with 125".into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_no_call_took_are_bounded_and_counted() {
        let mut waiting = WaitingEvents::default();
        assert!(waiting.take().is_none());
        let config = HookConfig::default();
        for number in 0..EVENTS_MAX + 3 {
            waiting.add(&config, format!("{number}\n"));
        }
        let call = waiting.take().expect("events wait");
        assert_eq!((call.stdin.lines().next(), call.dropped), (Some("3"), 3));
        assert_eq!(call.stdin.lines().count(), EVENTS_MAX);
        for _large in 0..2 {
            waiting.add(&config, format!("{}\n", "x".repeat(STDIN_BYTES_MAX - 1)));
        }
        let [first, second] = [(); 2].map(|()| waiting.take().expect("events wait"));
        assert_eq!((first.stdin.lines().count(), second.stdin.lines().count()), (1, 1));
        assert_eq!(second.dropped, 0);
    }
}
