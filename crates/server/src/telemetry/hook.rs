//! Whom to tell when a gauge comes to another level: a command, a URL.
//!
//! One thread calls, so that nobody else waits: one call at a time, each with a bound,
//! and of what happens meanwhile only the last is told.

use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process, pidfd_send_signal};
use serde::{Deserialize, Deserializer};
use tare_engine::{Error, Keeper};
use tokio::sync::broadcast::error::RecvError;

use crate::app::App;
use crate::config::{time, with};
use crate::telemetry::hook_call::Url;
use crate::telemetry::journal::{GAUGE_CHANGED, Happening};
use crate::telemetry::{hook_call, hook_runner};

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HooksConfig {
    /// A program and its arguments; what happened is on its stdin, as JSON.
    pub command: Vec<String>,
    /// Where the same is posted to. Plain http: what is to be told over the network
    /// in secret goes through a command.
    #[serde(deserialize_with = "url")]
    pub url: Option<Url>,
    /// For each of them.
    #[serde(deserialize_with = "time")]
    pub timeout: Duration,
}

impl Default for HooksConfig {
    fn default() -> Self {
        Self { command: Vec::new(), url: None, timeout: Duration::from_secs(10) }
    }
}

/// Where a program without a slash is looked for by whoever has no PATH, as the C library
/// that this is linked with does.
const USUAL_PATH: &str = "/usr/local/bin:/bin:/usr/bin";

impl HooksConfig {
    /// A program that is not there is told of now, and not when it is needed.
    pub fn find_program(&self) -> Result<(), Error> {
        let Some(program) = self.command.first() else {
            return Ok(());
        };
        let is_program = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
        let in_path = || {
            let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
            std::env::split_paths(&path).any(|directory| is_program(&directory.join(program)))
        };
        let is_there =
            if program.contains('/') { is_program(Path::new(program)) } else { in_path() };
        if is_there {
            Ok(())
        } else {
            let message = format!("[hooks] command: {program:?} is no program that is here");
            Err(Error::bad_request(message)
                .with_hint("name a file that can be executed, or one that is in PATH"))
        }
    }
}

fn url<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Url>, D::Error> {
    with(input, "http://localhost:9000/hook", |text| text.parse::<Url>().map(Some))
}

/// What is to be told next, if anything.
#[derive(Debug, Default)]
pub struct Hooks {
    next: Mutex<Option<(HooksConfig, String)>>,
    wanted: Condvar,
    program: Mutex<Program>,
}

/// What runs of a hook's program.
#[derive(Debug, Default)]
enum Program {
    #[default]
    Nothing,
    /// The process that ends it with everything that it started.
    Runner(Keeper),
    /// The server ends: nothing is to run any more.
    Over,
}

impl Hooks {
    fn next(&self) -> MutexGuard<'_, Option<(HooksConfig, String)>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, config: HooksConfig, what: String) {
        *self.next() = Some((config, what));
        self.wanted.notify_one();
    }

    fn take(&self) -> (HooksConfig, String) {
        let mut next = self.next();
        loop {
            match next.take() {
                Some(told) => return told,
                None => {
                    let woken = self.wanted.wait(next);
                    next = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Hooks {
    /// Ends the program that runs, with everything that it started.
    pub fn end(&self) {
        let before = std::mem::replace(&mut *self.program(), Program::Over);
        if let Program::Runner(runner) = before {
            // One that is dead already is as wanted.
            pidfd_send_signal(&runner, Signal::TERM).ok();
            runner.wait_dead(hook_runner::ENDED_WITHIN + AFTER_END).ok();
            runner.reap().ok();
        }
    }

    /// Starts a program, unless the server ends. [`Self::end`] ends it from then on.
    pub fn begin(&self, command: &mut Command) -> io::Result<Option<Child>> {
        let mut program = self.program();
        if matches!(*program, Program::Over) {
            return Ok(None);
        }
        let mut child = command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        // It is not reaped yet: the number is its own.
        match Keeper::open(pid) {
            Ok(runner) => *program = Program::Runner(runner),
            Err(error) => {
                // Without a pidfd the server could not end it later.
                if let Some(pid) = Pid::from_raw(pid) {
                    kill_process(pid, Signal::TERM).ok();
                }
                child.wait().ok();
                return Err(error);
            }
        }
        Ok(Some(child))
    }

    /// The program has ended.
    pub fn ended(&self) {
        let mut program = self.program();
        if matches!(*program, Program::Runner(_)) {
            *program = Program::Nothing;
        }
    }

    fn program(&self) -> MutexGuard<'_, Program> {
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For the process between the server and a program to exit when its work is done.
const AFTER_END: Duration = Duration::from_secs(1);

/// The thread that calls.
pub fn start(app: &App) -> io::Result<()> {
    let app = app.clone();
    let thread = std::thread::Builder::new().name("hooks".into());
    thread.spawn(move || {
        let hooks = Arc::clone(&app.hooks);
        loop {
            let (config, what) = hooks.take();
            let failed = |hook, error: Error| {
                let why = crate::error::in_full(&error);
                app.journal.note(Happening::HookFailed { hook, why: &why });
            };
            if !config.command.is_empty() {
                let called = hook_call::command(&hooks, &config.command, &what, config.timeout);
                called.unwrap_or_else(|error| failed("command", error));
            }
            if let Some(url) = &config.url {
                let called = hook_call::post(url, &what, config.timeout);
                called.unwrap_or_else(|error| failed("url", error));
            }
        }
    })?;
    Ok(())
}

/// Hears of every change as all others do, and hands it on.
pub async fn heed(app: App) {
    let mut noted = app.journal.listen();
    loop {
        match noted.recv().await {
            Ok(noted) if noted.event == GAUGE_CHANGED => {
                let config = app.config().hooks.clone();
                app.hooks.tell(config, noted.to_json().to_string());
            }
            // Who missed something hears what comes next.
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_refused_by_name() {
        let find = |program: &str| {
            let command = vec![program.to_owned(), "/nowhere".to_owned()];
            let config = HooksConfig { command, ..HooksConfig::default() };
            config.find_program()
        };
        assert!(HooksConfig::default().find_program().is_ok());
        for program in ["sh", "/bin/sh"] {
            assert!(find(program).is_ok(), "{program}");
        }
        for program in ["", "no-such-program", "/nowhere", "/bin", "/etc/passwd"] {
            let refused = find(program).expect_err(program).to_string();
            let named = format!("[hooks] command: {program:?}");
            assert!(refused.starts_with(&named), "{refused}");
        }
    }
}
