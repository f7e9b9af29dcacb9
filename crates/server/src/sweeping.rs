//! What follows from a gauge that rises, and from a box that cannot be ended.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use tare_engine::{BoxId, Change, Engine, Level, State, Status};
use tokio::sync::{Notify, mpsc};

use crate::app::App;
use crate::journal::Happening;

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
        let mut known = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stuck.iter().map(|one| one.id.clone()).collect();
        let before = std::mem::replace(&mut *known, now);
        let mut new = stuck;
        new.retain(|one| !before.contains(&one.id));
        new
    }
}

/// Every change of a level: told, and acted upon.
pub async fn heed(app: App, mut changes: mpsc::Receiver<Change>) {
    while let Some(change) = changes.recv().await {
        app.journal
            .note(Happening::GaugeChanged { change: &change });
        if change.to >= Level::Alert && change.to > change.from {
            app.sweeping.wanted.notify_one();
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

pub fn tell_stuck(app: &App, boxes: &[Status]) {
    for one in app.sweeping.newly_stuck(boxes) {
        let why = one.stuck_on.as_deref().unwrap_or("it cannot be ended");
        app.journal
            .note(Happening::stuck(one.id.as_str(), None, why));
    }
}
