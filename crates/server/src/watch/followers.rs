//! Followers of logs. A user of the host has few inotify instances, so all followers share one. A
//! task reads it and wakes the followers of the logs that have changed.
//!
//! [`crate::admission::streams`] limits the number of followers.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use tare_engine::Context as _;
use tare_engine::logs::Logs;
use tare_kernel::watch::{Changes, Mark, Watch};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::error::ServiceError;
use crate::fd;
use crate::workers::locked;

/// Creates the inotify instance for the first follower, because the host may have none left.
#[derive(Debug, Default)]
pub struct Followers(Mutex<Option<Arc<LogWatch>>>);

#[derive(Debug)]
struct LogWatch {
    watch: Watch,
    files: Mutex<HashMap<Mark, File>>,
}

/// A log file with at least one follower.
#[derive(Debug)]
struct File {
    followers: usize,
    /// The same for both files of a log.
    written: watch::Sender<()>,
}

/// One follower of one log, until it is dropped.
#[derive(Debug)]
pub struct Follower {
    shared: Arc<LogWatch>,
    marks: [Mark; 2],
    written: watch::Receiver<()>,
}

impl Followers {
    /// Returns a follower that every write to the log wakes from now on.
    pub fn follow(&self, logs: &Logs) -> Result<Follower, ServiceError> {
        let shared = self.shared().context(|| "cannot watch logs".to_owned())?;
        let mut files = locked(&shared.files);
        let marks = logs.watch_with(&shared.watch)?;
        let known = files.get(&marks[0]).map(|file| file.written.clone());
        let sender = known.unwrap_or_default();
        let written = sender.subscribe();
        for mark in marks {
            let file =
                files.entry(mark).or_insert_with(|| File { followers: 0, written: sender.clone() });
            file.followers += 1;
        }
        drop(files);
        Ok(Follower { shared, marks, written })
    }

    fn shared(&self) -> io::Result<Arc<LogWatch>> {
        let mut held = locked(&self.0);
        if let Some(shared) = &*held {
            return Ok(Arc::clone(shared));
        }
        let watch = Watch::new()?;
        let events = watch.as_fd().try_clone_to_owned()?;
        let events = fd::watched(events, Interest::READABLE)?;
        let shared = Arc::new(LogWatch { watch, files: Mutex::default() });
        tokio::spawn(wake(Arc::clone(&shared), events));
        *held = Some(Arc::clone(&shared));
        Ok(shared)
    }
}

/// Wakes followers, for as long as the server lives.
async fn wake(shared: Arc<LogWatch>, events: AsyncFd<OwnedFd>) {
    while let Ok(mut ready) = events.readable().await {
        // Cleared before the events are read: one that comes in between makes it ready again.
        ready.clear_ready();
        shared.wake();
    }
}

impl LogWatch {
    fn wake(&self) {
        let changed = self.watch.changes().unwrap_or(Changes::Unknown);
        for (mark, file) in &*locked(&self.files) {
            let is_changed = match &changed {
                Changes::Of(marks) => marks.contains(mark),
                Changes::Unknown => true,
            };
            if is_changed {
                file.written.send_replace(());
            }
        }
    }
}

impl Follower {
    /// Returns when something was written since the last call. The future can be dropped at any
    /// time.
    pub async fn written(&mut self) {
        // The sender lives as long as this follower.
        self.written.changed().await.ok();
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut files = locked(&self.shared.files);
        for mark in self.marks {
            let Some(file) = files.get_mut(&mark) else {
                continue;
            };
            file.followers -= 1;
            if file.followers == 0 {
                files.remove(&mark);
                self.shared.watch.remove(mark);
            }
        }
    }
}
