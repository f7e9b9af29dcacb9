//! Stops and removes boxes without a thread that waits for them.
//!
//! ```text
//! ask the engine (a thread, a second for each step) ─▶ done
//!        ▲                └▶ stuck, or busy ─▶ wait for the keeper's pidfd (a task)
//!        └────────────────────────────────────────┘  until the bound has passed
//! ```
//!
//! The bounds are those of the engine: a box that is not gone by then is stuck. It stays
//! on record, and every sweep of the server tries it again.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use tare_engine::{BoxId, Context as _, Engine, Error, ErrorKind, Keeper, State, Status, Stopping};
use tokio::time::Instant;

use crate::app::{App, Phase};
use crate::error::ServiceError;
use crate::fd;
use crate::upkeep;

/// How long a box may take to die before a request reports that it is stuck.
pub const ENDED_WITHIN: Duration = Duration::from_secs(10);
/// Between two attempts.
pub const TRY_AGAIN: Duration = Duration::from_millis(100);

/// Stops a box, and returns its status. A box that keeps nothing, as that of a run, is
/// gone by then: the answer is its last status, as exited.
pub async fn stop(
    app: &App,
    reference: String,
    grace: Duration,
    request_id: &str,
) -> Result<Status, ServiceError> {
    let begun = app.ask_to_end(move |engine| {
        let id = engine.find(&reference)?;
        let before = engine.status(&id)?;
        let stopping = engine.begin_stop(&id, grace)?;
        Ok((before, stopping))
    });
    let (before, stopping) = begun.await?;
    let id = before.id.clone();
    wait_for(app, &stopping).await?;
    let stopping = Arc::new(stopping);
    let end = move |engine: &Engine, _: &BoxId| engine.end_stop(&stopping).map(drop);
    end_within(app, &id, request_id, end).await?;
    let after = app.ask(move |engine| match engine.status(&id) {
        Err(error) if error.kind() == ErrorKind::NoSuchBox => Ok(None),
        status => status.map(Some),
    });
    Ok(after.await?.unwrap_or(Status {
        state: State::Exited,
        pids: None,
        memory_bytes: None,
        stuck_on: None,
        ..before
    }))
}

/// Removes a box; returns its id.
pub async fn remove(
    app: &App,
    reference: String,
    force: bool,
    request_id: &str,
) -> Result<BoxId, ServiceError> {
    let id = app.ask(move |engine| engine.find(&reference)).await?;
    let remove = move |engine: &Engine, id: &BoxId| engine.remove(id, force);
    end_within(app, &id, request_id, remove).await?;
    app.watch.remove(&id);
    Ok(id)
}

/// Until the box has stopped by itself, or its grace has passed.
async fn wait_for(app: &App, stopping: &Stopping) -> Result<(), ServiceError> {
    if let Some((keeper, left)) = stopping.keeper() {
        is_dead(app, keeper, left).await?;
    }
    Ok(())
}

/// What an attempt to end a box has left to do.
enum Left {
    Nothing,
    /// Its last process, if there is one, and why the attempt did not succeed.
    Something(Error, Option<Keeper>),
}

async fn end_within(
    app: &App,
    id: &BoxId,
    request_id: &str,
    end: impl Fn(&Engine, &BoxId) -> Result<(), Error> + Clone + Send + 'static,
) -> Result<(), ServiceError> {
    let until = Instant::now() + ENDED_WITHIN;
    loop {
        let (of, end) = (id.clone(), end.clone());
        let tried = app.ask_to_end(move |engine| match end(engine, &of) {
            Ok(()) => Ok(Left::Nothing),
            Err(error) if matches!(error.kind(), ErrorKind::Stuck | ErrorKind::Busy) => {
                let keeper = engine.keeper(&of).ok().flatten();
                Ok(Left::Something(error, keeper))
            }
            Err(error) => Err(error),
        });
        let (error, keeper) = match tried.await? {
            Left::Nothing => return Ok(()),
            Left::Something(error, keeper) => (error, keeper),
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || app.stopping.phase() > Phase::Serving {
            let error = ServiceError::from(error);
            upkeep::report_stuck(app, id, request_id, &error);
            return Err(error);
        }
        if let Some(keeper) = keeper {
            is_dead(app, keeper.as_fd(), left).await?;
        }
        tokio::time::sleep(TRY_AGAIN.min(left)).await;
    }
}

/// Whether a process is dead within this time, or before the server ends.
pub async fn is_dead(
    app: &App,
    process: BorrowedFd<'_>,
    within: Duration,
) -> Result<bool, ServiceError> {
    tokio::select! {
        dead = fd::readable(process) => {
            dead.context(|| "cannot wait for the box".into())?;
            Ok(true)
        }
        () = tokio::time::sleep(within) => Ok(false),
        () = app.stopping.reached(Phase::Draining) => Ok(false),
    }
}
