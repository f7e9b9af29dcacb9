//! What follows from a gauge that rises, and from a box that cannot be ended.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tare_engine::{BoxId, Change, Engine, Level, State, Status, Timestamp};
use tokio::sync::{Notify, mpsc};

use crate::app::App;
use crate::error::{STUCK, ServiceError};
use crate::librechat;
use crate::telemetry::LogEvent;

/// That everything is to be looked after now, and who was stuck when it was last.
#[derive(Debug, Default)]
pub struct Sweeping {
    wanted: Notify,
    stuck: Mutex<HashSet<BoxId>>,
}

impl Sweeping {
    /// Those who are stuck and were not before; each is told once.
    fn newly_stuck<'a>(&self, boxes: &'a [Status]) -> Vec<&'a Status> {
        let stuck = boxes.iter().filter(|one| one.state == State::Stuck);
        let stuck: Vec<&Status> = stuck.collect();
        let mut known = self.stuck();
        let now = stuck.iter().map(|one| one.id.clone()).collect();
        let before = std::mem::replace(&mut *known, now);
        let mut new = stuck;
        new.retain(|one| !before.contains(&one.id));
        new
    }

    fn stuck(&self) -> MutexGuard<'_, HashSet<BoxId>> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has everything looked after now.
    pub fn want(&self) {
        self.wanted.notify_one();
    }
}

/// Every change of a level: told, and acted upon.
pub async fn heed(app: App, mut changes: mpsc::Receiver<Change>) {
    while let Some(change) = changes.recv().await {
        let record = app.journal.record(&LogEvent::gauge_changed(&change));
        app.hook.call(&app.config().hooks, record);
        if change.to >= Level::Alert && change.to > change.from {
            app.sweeping.want();
        }
    }
}

/// Looks after everything at once when something runs out; wanted meanwhile, once more.
pub async fn sweep_when_wanted(app: App) {
    loop {
        app.sweeping.wanted.notified().await;
        sweep(&app).await;
    }
}

/// What is nobody's is ended; whoever the engine tells says so. What fails for want of
/// something is tried again by whoever looks next.
pub async fn sweep(app: &App) {
    app.ask(Engine::sweep).await.ok();
}

/// Removes expired files, and what was saved of sessions whose box is gone.
pub async fn sweep_files(app: &App) {
    let engine = Arc::clone(&app.engine);
    let swept = app.files.call_if_any(&app.callers, move |store| {
        let removed = store.remove_known(|known| librechat::is_over(&engine, known));
        store.sweep(Timestamp::now()).and(removed)
    });
    match swept.await {
        // The server that uses the directory sweeps it.
        Err(error) if error.code == "store_in_use" => {}
        Err(error) => {
            let why = error.detail.as_deref().unwrap_or(&error.message);
            app.journal.record(&LogEvent::FilesNotSwept { why });
        }
        Ok(_) => {}
    }
}

/// A request could not end a box. The list of stuck boxes has it from now on.
pub fn note_stuck(app: &App, id: &BoxId, request_id: &str, error: &ServiceError) {
    if error.code == STUCK {
        let mut known = app.sweeping.stuck();
        known.insert(id.clone());
        drop(known);
        let stuck = LogEvent::stuck(id.as_str(), Some(request_id), &error.message);
        app.journal.record(&stuck);
    }
}

pub fn tell_stuck(app: &App, boxes: &[Status]) {
    for one in app.sweeping.newly_stuck(boxes) {
        let why = one.stuck_on.as_deref().unwrap_or("it cannot be ended");
        app.journal.record(&LogEvent::stuck(one.id.as_str(), None, why));
    }
}
