//! Recovery at start, the periodic sweep, the reaction to gauges, and reports of stuck boxes.
//!
//! Each of these is a task of its own, so the report of a box's end never waits for a sweep of all
//! boxes. This file decides when boxes are looked after. The engine does the work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tare_engine::spec::Driver;
use tare_engine::{
    BoxId, Change, Engine, Error, ErrorKind, Level, RemovedBox, State, Status, Timestamp,
};
use tokio::sync::mpsc;

use crate::admission::{Admitted, Need};
use crate::app::AppState;
use crate::error::ServiceError;
use crate::librechat;
use crate::telemetry::{LogEvent, OfBox};
use crate::work::Service;
use crate::work::boxes::ending::{ENDED_WITHIN, TRY_AGAIN};

/// How often the server looks for boxes and leftovers of other processes.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// Looks after boxes and files of earlier servers, while the server already answers.
pub async fn recover(app: AppState) {
    let started = Instant::now();
    sweep(&app.service).await;
    let boxes = watch_all(&app.service).await.unwrap_or(0);
    sweep_files(&app).await;
    app.recovery.done(boxes);
    app.service.journal.record(&LogEvent::Recovered { boxes, duration: started.elapsed() });
}

/// Sweeps boxes and files, and watches boxes that other processes created.
pub async fn sweep_periodically(app: AppState) {
    // `recover` does this at the start.
    let first = tokio::time::Instant::now() + SWEEP_INTERVAL;
    let mut interval = tokio::time::interval_at(first, SWEEP_INTERVAL);
    loop {
        interval.tick().await;
        sweep(&app.service).await;
        app.service.processes.forget_old();
        sweep_files(&app).await;
        watch_all(&app.service).await.ok();
    }
}

/// Records each change of a gauge, calls the hook, and sweeps when a resource runs out.
pub async fn watch_gauges(app: AppState, mut changes: mpsc::Receiver<Change>) {
    while let Some(change) = changes.recv().await {
        let record = app.service.journal.record(&LogEvent::gauge_changed(&change));
        app.hook.call(&app.service.config().hooks, &record);
        if change.to >= Level::Alert && change.to > change.from {
            app.service.sweep_wanted.notify_one();
        }
    }
}

/// Sweeps when asked to. A request that comes during a sweep starts another one.
pub async fn sweep_when_wanted(service: Service) {
    loop {
        service.sweep_wanted.notified().await;
        sweep(&service).await;
    }
}

/// Removes leftovers. The engine reports each one. If the sweep fails, the next one tries again.
async fn sweep(service: &Service) {
    service.call(Engine::sweep).await.ok();
}

/// Removes expired files, and what was saved of sessions whose box is gone.
async fn sweep_files(app: &AppState) {
    let engine = Arc::clone(&app.service.engine);
    let swept = app.files.call_if_any(move |store| {
        let is_over = |known: &[u8]| {
            let of_box = librechat::session_box(known);
            of_box.is_none_or(|id| engine.status(&id).is_err_and(is_gone))
        };
        let removed = store.remove_known(is_over);
        store.sweep(Timestamp::now()).and(removed)
    });
    match swept.await {
        // The server that uses the directory sweeps it.
        Err(error) if error.code == "store_in_use" => {}
        Err(error) => {
            let why = error.detail.as_deref().unwrap_or(&error.message);
            app.service.journal.record(&LogEvent::FilesNotSwept { why });
        }
        Ok(_) => {}
    }
}

fn is_gone(error: Error) -> bool {
    error.kind() == ErrorKind::NoSuchBox
}

/// Watches every running box, whichever process created it, and counts the limits that it has now.
/// Returns the number of boxes.
async fn watch_all(service: &Service) -> Result<usize, ServiceError> {
    let watching = service.clone();
    let looked = service.call(move |engine| {
        let boxes = engine.list()?;
        // The creator of an attached box watches it.
        let live = boxes.iter().filter(|one| one.state != State::Exited && !one.attached);
        let config = watching.config();
        for one in live {
            if watching.watch.has(&one.id) {
                // Read while the guard is held: an update through this server counts after it.
                let count = |guard: &mut Admitted| {
                    need_of(engine, one).into_iter().for_each(|it| guard.observe(&config, it));
                };
                watching.watch.with_guard(&one.id, count);
            } else if let Ok(Some(keeper)) = engine.keeper(&one.id) {
                // If this fails, the next look tries again.
                let need = need_of(engine, one).unwrap_or(Need::of_existing(Driver::Native, 0, 0));
                let key = one.key.as_deref();
                let admitted = watching.admission.of_existing(&config, key, &one.id, need);
                watching.watch.add(one.id.clone(), keeper, Some(admitted));
            }
        }
        Ok(boxes)
    });
    let boxes = looked.await?;
    service.report_stuck(&boxes);
    Ok(boxes.len())
}

/// Returns what an existing box needs by its limits. `None`: its record does not say them.
fn need_of(engine: &Engine, one: &Status) -> Option<Need> {
    let limits = engine.limits(&one.id)?;
    let driver = one.driver.unwrap_or_default();
    Some(Need::of_existing(driver, limits.pids.value(), limits.memory_bytes.value()))
}

/// Finishes and reports each box whose keeper has ended.
pub async fn report_ends(service: Service, mut ended: mpsc::Receiver<BoxId>) {
    while let Some(id) = ended.recv().await {
        let ended = id.clone();
        let looked =
            service.call(move |engine| Ok((engine.status(&ended)?, engine.is_kept(&ended)?))).await;
        match looked {
            Ok((status, is_kept)) if is_kept && status.cause.is_some() => {
                report_end(&service, &status);
            }
            // It is being removed, or stuck.
            looked => {
                if looked.is_ok_and(|(status, _)| status.state == State::Stuck) {
                    // The process that blocked its end has just died.
                    service.sweep_wanted.notify_one();
                }
                drop(tokio::spawn(report_removed(service.clone(), id)));
            }
        }
    }
}

fn report_end(service: &Service, status: &Status) {
    if status.state == State::Stuck {
        // The process that blocked its end has just died.
        service.sweep_wanted.notify_one();
    }
    service.journal.record(&LogEvent::BoxEnded {
        of_box: OfBox { box_id: status.id.as_str(), key: status.key.as_deref(), request_id: None },
        exit_code: status.exit_code,
        cause: status.cause,
    });
}

/// Reports the end of a box that is being removed, when it is gone. A removal that no user asked for is
/// reported too. If the box stays, it is stuck.
async fn report_removed(service: Service, id: BoxId) {
    let until = Instant::now() + ENDED_WITHIN;
    let is_there = || {
        let id = id.clone();
        service.call(move |engine| engine.status(&id))
    };
    while let Ok(status) = is_there().await {
        if Instant::now() >= until {
            return report_end(&service, &status);
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
    let (removed_id, box_id) = (id.clone(), id.as_str());
    let removed = service.call(move |engine| Ok(engine.removed(&removed_id))).await;
    if let Ok(Some(RemovedBox { end, key, is_requested })) = removed {
        let of_box = OfBox { box_id, key: key.as_deref(), request_id: None };
        service.journal.record(&LogEvent::box_ended(of_box, end));
        if !is_requested {
            service.journal.record(&LogEvent::BoxRemoved(of_box));
        }
    }
}
