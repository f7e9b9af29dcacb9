//! Ends boxes, and reports those that do not end. A thread waits at most a second for each step of
//! an attempt. Between attempts only a task waits, on the keeper's pidfd:
//!
//! ```text
//! one attempt (a thread) -> ended
//!        ^                \-> stuck, or busy -> wait for the keeper's pidfd (a task)
//!        \------------------------------------------/  until the bound has passed
//! ```
//!
//! A box that is not gone by then is stuck. It stays on record, and every sweep tries it again.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::time::Duration;

use tare_engine::{
    BoxId, Context as _, End, Engine, Error, ErrorKind, Keeper, Session, State, Status,
};
use tokio::time::Instant;

use crate::error::{STUCK, ServiceError};
use crate::fd;
use crate::telemetry::{LogEvent, OfBox};
use crate::work::Service;
use crate::workers::locked;

/// How long a box may take to die before a request reports that it is stuck.
pub const ENDED_WITHIN: Duration = Duration::from_secs(10);
/// A box that takes longer to make is reported.
pub const REPORTED_AFTER: Duration = Duration::from_secs(5);
/// The pause between two attempts to end a box.
pub const TRY_AGAIN: Duration = Duration::from_millis(100);
/// Bounds how long one attempt to end the box of a run holds its thread.
const TRY_TIMEOUT: Duration = Duration::from_secs(1);

impl Service {
    /// Tries to end a box until it is gone, or the bound has passed.
    pub async fn end_within<T: Send + 'static>(
        &self,
        id: &BoxId,
        event: OfBox<'_>,
        end: impl Fn(&Engine, &BoxId) -> Result<T, Error> + Clone + Send + 'static,
    ) -> Result<T, ServiceError> {
        let until = Instant::now() + ENDED_WITHIN;
        loop {
            let (box_id, end) = (id.clone(), end.clone());
            let attempt = move |engine: &Engine| try_end(engine, &box_id, &end);
            let tried = self.call_in_share(&self.shares.ending, attempt).await?;
            let (error, keeper) = match tried {
                Ok(ended) => return Ok(ended),
                Err(failed) => failed,
            };
            if Instant::now() >= until || !self.shutdown.is_serving() {
                let error = ServiceError::from(error);
                self.note_stuck(id, event, &error);
                return Err(error);
            }
            self.pause_before_next_try(keeper.as_ref(), until).await?;
        }
    }

    /// Tries to end the box of a run until it is gone, or the bound has passed. Returns the session
    /// in any case: the keeper of a box that is stuck is still needed.
    pub async fn end_session(&self, mut session: Session) -> (Session, Result<End, Error>) {
        let until = Instant::now() + ENDED_WITHIN;
        loop {
            let ended;
            let attempt = move || {
                let ended = session.try_end(TRY_TIMEOUT);
                (session, ended)
            };
            (session, ended) = self.workers.call(attempt).await;
            if ended.is_ok() || Instant::now() >= until {
                return (session, ended);
            }
            // If its keeper cannot be waited for, the next attempt comes at once.
            self.pause_before_next_try(session.keeper().ok().as_ref(), until).await.ok();
        }
    }

    /// Waits until the keeper is dead, and then a moment for its processes.
    async fn pause_before_next_try(
        &self,
        keeper: Option<&Keeper>,
        until: Instant,
    ) -> Result<(), ServiceError> {
        let left = || until.saturating_duration_since(Instant::now());
        if let Some(keeper) = keeper {
            self.until_dead(keeper.as_fd(), left()).await?;
        }
        tokio::time::sleep(TRY_AGAIN.min(left())).await;
        Ok(())
    }

    /// Waits until a process is dead, this time has passed, or the server stops.
    pub async fn until_dead(
        &self,
        process: BorrowedFd<'_>,
        within: Duration,
    ) -> Result<(), ServiceError> {
        tokio::select! {
            dead = fd::readable(process) => Ok(dead.context(|| "cannot wait for the box".into())?),
            () = tokio::time::sleep(within) => Ok(()),
            () = self.shutdown.draining() => Ok(()),
        }
    }

    /// Logs that a request could not end a box, once for each box.
    pub fn note_stuck(&self, id: &BoxId, event: OfBox<'_>, error: &ServiceError) {
        if error.code == STUCK {
            locked(&self.stuck.0).insert(id.clone());
            let why = error.detail.as_deref().unwrap_or(&error.message);
            self.journal.record(&LogEvent::stuck(event, why));
        }
    }

    /// Logs boxes that are stuck, or start slowly, and were not reported before.
    pub fn report_stuck(&self, boxes: &[Status]) {
        for (one, why) in self.stuck.newly_stuck(boxes) {
            let (box_id, key) = (one.id.as_str(), one.key.as_deref());
            let of_box = OfBox { box_id, key, request_id: None };
            self.journal.record(&if one.state == State::Starting {
                LogEvent::StartSlow { of_box, why }
            } else {
                LogEvent::stuck(of_box, why)
            });
        }
    }

    /// Waits for a box that is being made. If that takes long, looks for slow boxes and reports them.
    pub async fn reporting_slow<T>(&self, making: impl Future<Output = T>) -> T {
        tokio::pin!(making);
        if let Ok(made) = tokio::time::timeout(REPORTED_AFTER, &mut making).await {
            return made;
        }
        let service = self.clone();
        tokio::spawn(async move {
            if let Ok(boxes) = service.call(Engine::list).await {
                service.report_stuck(&boxes);
            }
        });
        making.await
    }
}

/// Returns why the box is not ended, with its last process if there is one, as the inner error.
fn try_end<T>(
    engine: &Engine,
    id: &BoxId,
    end: &impl Fn(&Engine, &BoxId) -> Result<T, Error>,
) -> Result<Result<T, (Error, Option<Keeper>)>, Error> {
    match end(engine, id) {
        Ok(ended) => Ok(Ok(ended)),
        Err(error) if matches!(error.kind(), ErrorKind::Stuck | ErrorKind::Busy) => {
            let keeper = engine.keeper(id).ok().flatten();
            Ok(Err((error, keeper)))
        }
        Err(error) => Err(error),
    }
}

/// Boxes that were reported as stuck, or as slow.
#[derive(Debug, Default)]
pub struct StuckBoxes(Mutex<HashSet<BoxId>>);

impl StuckBoxes {
    /// Returns the boxes that are stuck and were not before, each with the reason. Forgets those that
    /// are not.
    fn newly_stuck<'a>(&self, boxes: &'a [Status]) -> Vec<(&'a Status, &'a str)> {
        let with_reason = |one: &'a Status| Some((one, one.stuck_on.as_deref()?));
        let mut stuck: Vec<_> = boxes.iter().filter_map(with_reason).collect();
        let now = stuck.iter().map(|(one, _)| one.id.clone()).collect();
        let before = std::mem::replace(&mut *locked(&self.0), now);
        stuck.retain(|(one, _)| !before.contains(&one.id));
        stuck
    }
}
