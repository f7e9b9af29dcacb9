//! Boxes that live on: list, inspect, wait, stop, kill, pause, resume, update, rename, remove; audit
//! and sweep.

pub mod create;
pub mod cursor;
pub mod ending;
pub mod logs;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tare_engine::spec::Name;
use tare_engine::{
    Audit, BoxFilter, BoxId, Changes, Details, End, EndWatch, Engine, Error, ErrorKind,
    Explanation, Looked, Receipt, State, Status, Swept, Timestamp, Usage,
};
use tokio::time::Instant;

use crate::admission::{Admitted, Caller, LimitChange};
use crate::config::Config;
use crate::error::ServiceError;
use crate::telemetry::metrics::{BoxMeasured, BoxesMeasured};
use crate::telemetry::{LogEvent, OfBox};
use crate::work::boxes::cursor::Cursor;
use crate::work::{Service, find};

/// The pause between two looks at a box that another process is making or ending.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// A page of the list of boxes.
#[derive(Debug)]
pub struct BoxPage {
    pub boxes: Vec<Status>,
    /// Where the next page starts, if there is one.
    pub next: Option<Cursor>,
}

impl Service {
    /// Lists the boxes that the caller can see, the oldest first. `after` is a cursor, or the id of a
    /// box.
    pub async fn list(
        &self,
        caller: &Caller,
        filter: &BoxFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<BoxPage, ServiceError> {
        let mut boxes = self.call_in_share(&self.shares.listing, Engine::list).await?;
        boxes.retain(|one| caller.sees(one.key.as_deref()));
        if let Some(after) = after {
            let place = Cursor::find(after, &boxes)?;
            boxes.retain(|one| Cursor::of(one) > place);
        }
        boxes.retain(|one| filter.matches(one));
        let more = boxes.len() > limit;
        boxes.truncate(limit);
        let next = boxes.last().map(Cursor::of).filter(|_| more);
        let boxes = boxes.into_iter().map(|one| caller.shown_status(one)).collect();
        Ok(BoxPage { boxes, next })
    }

    pub async fn inspect(
        &self,
        caller: &Caller,
        reference: String,
    ) -> Result<Details, ServiceError> {
        let details = self.in_box(caller, reference, |engine, id| engine.details(id)).await?;
        Ok(caller.shown_details(details))
    }

    /// Explains why a box ended, also after its removal.
    pub async fn explain(
        &self,
        caller: &Caller,
        reference: String,
    ) -> Result<Explanation, ServiceError> {
        let scope = caller.scope();
        let explain = move |engine: &Engine| engine.explain_in(&scope, &reference);
        let explained = self.call_in_share(&self.shares.listing, explain).await?;
        Ok(caller.shown_explanation(explained))
    }

    pub async fn usage(&self, caller: &Caller, reference: String) -> Result<Usage, ServiceError> {
        self.in_box(caller, reference, |engine, id| engine.usage(id)).await
    }

    /// Measures the first boxes that live on, at most `most`.
    pub async fn measured(&self, most: usize) -> BoxesMeasured {
        let (ids, omitted) = self.watch.first(most);
        if ids.is_empty() {
            return BoxesMeasured { boxes: Vec::new(), omitted };
        }
        let measure = move |engine: &Engine| {
            // A box that has ended meanwhile is not measured.
            let measure = |id: &BoxId| {
                let status = engine.status(id).ok().filter(|it| it.state != State::Exited)?;
                Some(BoxMeasured {
                    id: id.to_string(),
                    name: status.name.unwrap_or_default(),
                    key: status.key.unwrap_or_default(),
                    memory_bytes: status.memory_bytes.unwrap_or(0),
                    pids: status.pids.unwrap_or(0),
                    cpu_us: engine.cpu_us(id).unwrap_or(0),
                })
            };
            Ok(ids.iter().filter_map(measure).collect())
        };
        let boxes = self.call_in_share(&self.shares.listing, measure).await;
        BoxesMeasured { boxes: boxes.unwrap_or_default(), omitted }
    }

    /// Waits for the end of a box. Returns `None` if it has not ended within this time, or the
    /// server stops.
    pub async fn wait(
        &self,
        caller: &Caller,
        reference: String,
        within: Duration,
    ) -> Result<Option<End>, ServiceError> {
        let until = Instant::now() + within;
        let caller = caller.clone();
        let opened = self.call(move |engine| engine.watch_end(&find(engine, &caller, &reference)?));
        let watch = Arc::new(opened.await?);
        while self.shutdown.is_serving() {
            let watched = Arc::clone(&watch);
            let looked = self.call(move |engine| engine.look_for_end(&watched)).await?;
            let left = until.saturating_duration_since(Instant::now());
            match looked {
                Looked::Ended(end) => return Ok(Some(end)),
                Looked::Lives(_) | Looked::Between if left.is_zero() => break,
                Looked::Lives(keeper) => self.until_dead(keeper.as_fd(), left).await?,
                Looked::Between => tokio::time::sleep(LOOK_AGAIN.min(left)).await,
            }
        }
        Ok(None)
    }

    pub async fn pause(&self, caller: &Caller, reference: String) -> Result<Status, ServiceError> {
        let (before, after) = self.change(caller, reference, Engine::pause).await?;
        if before.state != State::Paused {
            self.journal.record(&LogEvent::BoxPaused(event_of(&after, caller)));
        }
        Ok(after)
    }

    pub async fn resume(&self, caller: &Caller, reference: String) -> Result<Status, ServiceError> {
        let (before, after) = self.change(caller, reference, Engine::resume).await?;
        if before.state == State::Paused {
            self.journal.record(&LogEvent::BoxResumed(event_of(&after, caller)));
        }
        Ok(after)
    }

    /// Gives a box other limits, or another lease. Larger limits count against the quota of the key
    /// that the box belongs to, and against what the host has left for promises.
    pub async fn update(
        &self,
        caller: &Caller,
        reference: String,
        changes: Changes,
    ) -> Result<Status, ServiceError> {
        let (id, config) = (self.find(caller, &reference).await?, self.config());
        let has_lease = changes.lease.is_some();
        let has_limits = changes != Changes { lease: changes.lease, ..Changes::default() };
        let reserved = if has_limits { self.reserve(&id, &config, &changes).await? } else { None };
        let update = move |engine: &Engine, id: &BoxId| engine.update(id, &changes);
        let changed = self.change(caller, id.to_string(), update).await;
        if let Some(LimitChange { before, after }) = reserved {
            let counts = if changed.is_ok() { after } else { before };
            self.watch.with_guard(&id, |guard| guard.count(counts));
        }
        let (_, after) = changed?;
        if has_lease {
            let (of_box, lease_ends_at) = (event_of(&after, caller), after.lease_ends_at);
            self.journal.record(&LogEvent::BoxLeaseChanged { of_box, lease_ends_at });
        }
        if has_limits {
            self.journal.record(&LogEvent::BoxLimitsChanged(event_of(&after, caller)));
        }
        Ok(after)
    }

    /// Counts the limits that a box is about to get. `None`: the box does not count.
    async fn reserve(
        &self,
        id: &BoxId,
        config: &Config,
        changes: &Changes,
    ) -> Result<Option<LimitChange>, ServiceError> {
        let pressure = &self.admission.pressure;
        let measured = pressure.fresh().await;
        let reserve = |guard: &mut Admitted| guard.reserve(config, (pressure, &measured), changes);
        self.watch.with_guard(id, reserve).transpose()
    }

    pub async fn rename(
        &self,
        caller: &Caller,
        reference: String,
        name: Name,
    ) -> Result<Status, ServiceError> {
        let rename = move |engine: &Engine, id: &BoxId| engine.rename(id, &name);
        let (before, after) = self.change(caller, reference, rename).await?;
        if before.name != after.name {
            let (of_box, name) = (event_of(&after, caller), after.name.as_deref());
            self.journal.record(&LogEvent::BoxRenamed { of_box, name });
        }
        Ok(after)
    }

    /// Returns the status of a box before and after a change.
    async fn change(
        &self,
        caller: &Caller,
        reference: String,
        change: impl FnOnce(&Engine, &BoxId) -> Result<(), Error> + Send + 'static,
    ) -> Result<(Status, Status), ServiceError> {
        let changed = self.in_box(caller, reference, move |engine, id| {
            let before = engine.status(id)?;
            change(engine, id)?;
            Ok((before, engine.status(id)?))
        });
        let (before, after) = changed.await?;
        Ok((before, caller.shown_status(after)))
    }

    /// Stops a box, and returns its status. A box that keeps nothing is gone by then: its last
    /// status is returned, with the end that its keeper reported.
    pub async fn stop(
        &self,
        caller: &Caller,
        reference: String,
        grace: Duration,
    ) -> Result<Status, ServiceError> {
        let _permit = self.admission.quotas.begin_stop(caller)?;
        let (named_by, by) = (caller.clone(), caller.actor());
        let begin = move |engine: &Engine| {
            let (before, watch) = before_end(engine, &named_by, &reference)?;
            let stopping = engine.begin_stop(&before.id, grace, &by)?;
            Ok((before, watch, stopping))
        };
        let begun = self.call_in_share(&self.shares.ending, begin).await?;
        let (before, watch, stopping) = begun;
        if let Some((keeper, left)) = stopping.keeper() {
            self.until_dead(keeper, left).await?;
        }
        let stopping = Arc::new(stopping);
        let end = move |engine: &Engine, _: &BoxId| engine.end_stop(&stopping).map(drop);
        self.end_within(&before.id, event_of(&before, caller), end).await?;
        self.last_status(caller, before, watch).await
    }

    /// Sends a signal to the command of a box. KILL ends every process of the box, and is answered
    /// as a stop.
    pub async fn signal(
        &self,
        caller: &Caller,
        reference: String,
        signal: i32,
    ) -> Result<Status, ServiceError> {
        let by = caller.actor();
        if signal != Signal::KILL.as_raw() {
            let send = move |engine: &Engine, id: &BoxId| engine.signal(id, signal, &by);
            return Ok(self.change(caller, reference, send).await?.1);
        }
        let _permit = self.admission.quotas.begin_stop(caller)?;
        let named_by = caller.clone();
        let begin = move |engine: &Engine| before_end(engine, &named_by, &reference);
        let (before, watch) = self.call_in_share(&self.shares.ending, begin).await?;
        let end = move |engine: &Engine, id: &BoxId| engine.kill(id, &by);
        self.end_within(&before.id, event_of(&before, caller), end).await?;
        self.last_status(caller, before, watch).await
    }

    /// Returns the status of a box that has ended.
    async fn last_status(
        &self,
        caller: &Caller,
        before: Status,
        watch: EndWatch,
    ) -> Result<Status, ServiceError> {
        let after = self.call(move |engine| match engine.status(&before.id) {
            Err(error) if error.kind() == ErrorKind::NoSuchBox => {
                Ok(gone(before, engine.look_for_end(&watch).ok()))
            }
            status => status,
        });
        Ok(caller.shown_status(after.await?))
    }

    /// Removes a box, and returns its receipt. `None` if another process has removed it and kept no
    /// receipt.
    pub async fn remove(
        &self,
        caller: &Caller,
        reference: String,
        force: bool,
    ) -> Result<Option<Receipt>, ServiceError> {
        let found_by = caller.clone();
        let found = self.call(move |engine| {
            let id = find(engine, &found_by, &reference)?;
            let key = engine.key_of(&id);
            let is_detached = engine.status(&id).is_ok_and(|it| !it.attached);
            let keeper = engine.keeper(&id).ok().flatten().filter(|_| is_detached);
            Ok((id, key, keeper))
        });
        let (id, key, keeper) = found.await?;
        // Another process has made it since the last look. Its end is an event too.
        keeper.into_iter().for_each(|keeper| self.watch.add(id.clone(), keeper, None));
        let by = caller.actor();
        let remove = move |engine: &Engine, id: &BoxId| engine.remove(id, force, &by);
        let (box_id, key) = (id.as_str(), key.as_deref());
        let event = OfBox { box_id, key, request_id: caller.request_id() };
        let receipt = self.end_within(&id, event, remove).await?;
        if self.watch.remove(&id) {
            let removed_id = id.clone();
            let removed = self.call(move |engine| Ok(engine.removed(&removed_id))).await;
            let end = removed.ok().flatten().and_then(|removed| removed.end);
            let of_box = OfBox { request_id: None, ..event };
            self.journal.record(&LogEvent::box_ended(of_box, end));
        }
        self.journal.record(&LogEvent::BoxRemoved(event));
        Ok(receipt.map(|receipt| caller.shown_receipt(receipt)))
    }

    /// Returns the receipt of a removed box that the caller could see.
    pub async fn receipt(
        &self,
        caller: &Caller,
        reference: String,
    ) -> Result<Receipt, ServiceError> {
        let scope = caller.scope();
        let receipt = self.call(move |engine| engine.receipt(&scope, &reference)).await?;
        Ok(caller.shown_receipt(receipt))
    }

    /// Compares records and host. With `wait`, repeats that until they agree, for at most ten seconds.
    /// With `since`, adds the boxes that were removed since then.
    pub async fn audit(&self, wait: bool, since: Option<Timestamp>) -> Result<Audit, ServiceError> {
        let audit = if wait { Engine::audit_until_clean } else { Engine::audit };
        let call = move |engine: &Engine| {
            let mut audit = audit(engine)?;
            audit.removed = since.map(|since| engine.removed_since(since)).transpose()?;
            Ok(audit)
        };
        self.call_in_share(&self.shares.whole_host, call).await
    }

    /// Finishes boxes that are over, and removes leftovers; with `dry_run`, only lists them.
    pub async fn sweep(&self, dry_run: bool) -> Result<Vec<Swept>, ServiceError> {
        let sweep = if dry_run { Engine::plan_sweep } else { Engine::sweep };
        self.call_in_share(&self.shares.whole_host, sweep).await
    }
}

/// Finds a box that is to be ended: its status, and what shows its end.
fn before_end(
    engine: &Engine,
    caller: &Caller,
    reference: &str,
) -> Result<(Status, EndWatch), Error> {
    let id = find(engine, caller, reference)?;
    Ok((engine.status(&id)?, engine.watch_end(&id)?))
}

/// What an event says about a box that a caller changed.
fn event_of<'a>(status: &'a Status, by: &'a Caller) -> OfBox<'a> {
    OfBox { box_id: status.id.as_str(), key: status.key.as_deref(), request_id: by.request_id() }
}

/// The status of a box that kept nothing: its last status, with how it ended if that is known. How
/// a run ended is only in the response to its own client.
fn gone(before: Status, looked: Option<Looked>) -> Status {
    let end = match looked {
        Some(Looked::Ended(end)) => Some(end),
        Some(Looked::Lives(_) | Looked::Between) | None => None,
    };
    Status {
        state: State::Exited,
        booting: false,
        pids: None,
        memory_bytes: None,
        stuck_on: None,
        exit_code: end.map(End::code),
        cause: end.map(|end| end.cause),
        oom: end.is_some_and(|end| end.oom),
        ..before
    }
}
