//! Ends boxes of pools. They count as boxes, and in their pool, until they are gone.

use tare_engine::spec::Driver;
use tare_engine::{Error, Session};

use crate::admission::{Admitted, Need};
use crate::error::ServiceError;
use crate::telemetry::{LogEvent, OfBox};
use crate::work::Service;
use crate::work::pool::member::Member;
use crate::work::pool::shape::PoolName;
use crate::work::pool::start::NotStarted;
use crate::work::pool::template::TemplateBox;
use crate::workers::locked;

/// A box of a pool that is being ended.
#[derive(Debug)]
pub struct Ending {
    session: Session,
    admitted: Admitted,
    /// The pool that has no place for another box until this one is gone. Templates take no place.
    pool: Option<PoolName>,
    why: Why,
}

/// Why a box of a pool is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Died,
    Unwanted,
}

impl Ending {
    pub fn of_member(member: Member, why: Why) -> Self {
        let Member { waiting, admitted, pool, .. } = member;
        Self { session: waiting.into_session(), admitted, pool: Some(pool), why }
    }

    pub fn of_template(template: TemplateBox) -> Self {
        let TemplateBox { session, admitted, .. } = template;
        Self { session, admitted, pool: None, why: Why::Unwanted }
    }
}

impl Service {
    /// Ends boxes in a task of its own. A box that does not end delays nothing else.
    pub fn end_apart(&self, boxes: Vec<Ending>) {
        if boxes.is_empty() {
            return;
        }
        locked(&self.pools.shelves).ending += 1;
        let service = self.clone();
        tokio::spawn(async move {
            service.end_pooled(boxes).await;
            locked(&service.pools.shelves).ending -= 1;
            service.pools.changed.notify_one();
        });
    }

    /// Ends boxes, one after another.
    pub async fn end_pooled(&self, boxes: Vec<Ending>) {
        let places = |it: &Ending| it.pool.map(|pool| locked(&self.pools.shelves).place_of(pool));
        let boxes: Vec<_> = boxes.into_iter().map(|it| (places(&it), it)).collect();
        for (place, Ending { session, mut admitted, why, .. }) in boxes {
            admitted.keep_place(place);
            let (session, ended) = self.end_session(session).await;
            let id = session.id();
            if why == Why::Died {
                self.journal.record(&LogEvent::PoolMemberLost { box_id: id.as_str() });
            }
            if let Err(error) = ended {
                let error = ServiceError::from(error);
                if let Ok(keeper) = session.keeper() {
                    self.watch.add(id.clone(), keeper, Some(admitted));
                }
                let of_box = OfBox { box_id: id.as_str(), key: None, request_id: None };
                self.note_stuck(id, of_box, &error);
            }
        }
    }

    /// Ends a box of a pool that no request and no shelf counts.
    pub fn end_uncounted(&self, session: Session, pool: PoolName) {
        let need = Need::of_existing(Driver::Native, 0, 0);
        let admitted = self.admission.of_existing(&self.config(), None, session.id(), need);
        self.end_apart(vec![Ending { session, admitted, pool: Some(pool), why: Why::Unwanted }]);
    }

    /// Returns why an interpreter did not start. If its box could not be ended, tries again.
    pub fn why_not_started(&self, pool: PoolName, failed: NotStarted) -> Error {
        let NotStarted { error, stuck } = failed;
        if let Some(session) = stuck {
            self.end_uncounted(*session, pool);
        }
        error
    }
}
