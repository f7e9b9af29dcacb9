//! Whom to tell when a gauge comes to another level: a command, a URL.
//!
//! One thread calls, so that nobody else waits: one call at a time, each with a bound,
//! and of what happens meanwhile only the last is told.

mod call;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use tare_engine::Error;
use tokio::sync::broadcast::error::RecvError;

use crate::app::App;
use crate::config::{time, with};
use crate::journal::{GAUGE_CHANGED, Happening};
use call::Url;

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
        Self {
            command: Vec::new(),
            url: None,
            timeout: Duration::from_secs(10),
        }
    }
}

fn url<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Url>, D::Error> {
    with(input, "http://localhost:9000/hook", |text| {
        text.parse::<Url>().map(Some)
    })
}

/// What is to be told next, if anything.
#[derive(Debug, Default)]
pub struct Hooks {
    next: Mutex<Option<(HooksConfig, String)>>,
    wanted: Condvar,
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
                let called = call::command(&config.command, &what, config.timeout);
                called.unwrap_or_else(|error| failed("command", error));
            }
            if let Some(url) = &config.url {
                let called = call::post(url, &what, config.timeout);
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
