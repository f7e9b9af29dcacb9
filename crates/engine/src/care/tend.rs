//! Looking after boxes: every command does it in passing, so that no program
//! for it has to run.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::engine::{Engine, Manner};
use crate::error::Error;
use crate::holdings::name::{self, Names};
use crate::observe::state::Care;
use crate::observe::{Depth, Observed, When};
use crate::record::damage::Flaw;
use crate::record::{self, Locked, Record};
use crate::spec::{BoxId, Name};
use crate::teardown::{Leave, OTHERS_WITHIN, Order, tear_down};

/// How many records one command looks at, so that on a host with thousands of
/// live boxes it does not pay for all of them. Whoever lists boxes looks at all.
const LOOK_AT_MOST: usize = 16;
/// Up to so many boxes every command reads all of their names, to choose from them.
/// Of more, one command in so many looks at so many more: each pays the same on
/// average, however many there are.
const NAMES_MOST: usize = 256;

impl Engine {
    /// Looks after some boxes, from a random one on, and returns those that are
    /// gone. What cannot be ended now stays on record and is tried again.
    pub(crate) fn tend_some(&self) -> Vec<BoxId> {
        let Ok(boxes) = record::open_all(&self.root.layout) else {
            return Vec::new();
        };
        let turns = record::count(boxes.as_fd()).div_ceil(NAMES_MOST).max(1);
        if random_below(turns) != 0 {
            return Vec::new();
        }
        let mut ids = record::ids(boxes.as_fd()).unwrap_or_default();
        let most = LOOK_AT_MOST * turns;
        if ids.len() > most {
            let start = random_below(ids.len());
            ids.rotate_left(start);
        }
        ids.truncate(most);
        let is_gone = |id: &BoxId| matches!(self.tend_in(boxes.as_fd(), id, Depth::Care), Ok(None));
        ids.retain(is_gone);
        self.tend_names_of_none(boxes.as_fd(), most);
        ids
    }

    /// Releases names that lead to no record. A removal deletes the record before the name, and
    /// may have been killed in between.
    fn tend_names_of_none(&self, boxes: BorrowedFd<'_>, most: usize) {
        let mut named = name::all(&self.root.layout);
        if named.len() > most {
            let start = random_below(named.len());
            named.rotate_left(start);
        }
        named.truncate(most);
        named.retain(|(_, id)| !record::is_there(boxes, id));
        if named.is_empty() {
            return;
        }
        // The process that holds the lock may be removing that record now.
        let Ok(Some(names)) = Names::lock_now(&self.root.layout) else {
            return;
        };
        for (name, id) in named {
            // A record is made before its name is taken, so no box has this name.
            if !record::is_there(boxes, &id) {
                names.release(&name, &id).ok();
            }
        }
    }

    /// Looks after the holder of a name, which is free if there is no such box.
    pub(crate) fn tend_holder(&self, wanted: &Name) {
        let Some(holder) = name::holder(&self.root.layout, wanted) else {
            return;
        };
        let Ok(boxes) = record::open_all(&self.root.layout) else {
            return;
        };
        // What cannot be looked at now keeps its name.
        self.tend_in(boxes.as_fd(), &holder, Depth::Care).ok();
        if matches!(Record::look(boxes.as_fd(), &holder), Ok(None)) {
            // If this fails, taking the name does, in its own words.
            name::release(&self.root.layout, wanted, &holder).ok();
        }
    }

    /// Looks after one box; what is left of it, if anything is.
    pub(crate) fn tend_in(
        &self,
        boxes: BorrowedFd<'_>,
        id: &BoxId,
        depth: Depth,
    ) -> io::Result<Option<Observed>> {
        let Some(mut observed) = self.look_at(boxes, id, depth)? else {
            return Ok(None);
        };
        if self.manner == Manner::Tending && observed.is_half_named() {
            self.tend_names(boxes, id);
            match self.look_at(boxes, id, depth)? {
                Some(again) => observed = again,
                None => return Ok(None),
            }
        }
        match (observed.care(When::Due), self.manner) {
            (Care::Nothing, _) | (_, Manner::Looking) => return Ok(Some(observed)),
            (Care::Finish | Care::Remove, Manner::Tending) => {}
        }
        match take(boxes, id, observed.record) {
            // What cannot be ended says so in its record.
            Taken::Ours(locked) => drop(self.act(boxes, id, *locked, IN_PASSING)),
            Taken::Gone => return Ok(None),
            // Whoever has it does the same.
            Taken::Others => {}
        }
        self.look_at(boxes, id, depth)
    }

    /// Whoever gave it another name was killed before it had only one.
    fn tend_names(&self, boxes: BorrowedFd<'_>, id: &BoxId) {
        let record = Record::look(boxes, id).ok().flatten();
        let locked = record.map(|record| record.lock(boxes, id, Duration::ZERO));
        if let Some(Ok(Some(mut locked))) = locked {
            // What cannot be done now is tried again.
            self.settle_names(&mut locked, id).ok();
        }
    }

    /// A box as it is now. A record that seems to be wrong may have been read while
    /// somebody wrote it.
    fn look_at(
        &self,
        boxes: BorrowedFd<'_>,
        id: &BoxId,
        depth: Depth,
    ) -> io::Result<Option<Observed>> {
        let look = || {
            let record = Record::look(boxes, id)?;
            let observed =
                |record| Observed::of(record, self.at(id).tagged(), &self.root.host, depth);
            Ok::<_, io::Error>(record.map(observed))
        };
        match look()? {
            Some(observed) if observed.record.flaw.is_some() => look(),
            other => Ok(other),
        }
    }

    /// Once more, now that nobody else changes it. The record, if there was nothing
    /// to be done.
    pub(crate) fn act(
        &self,
        boxes: BorrowedFd<'_>,
        id: &BoxId,
        mut locked: Locked,
        effort: Effort,
    ) -> Result<Option<Locked>, Error> {
        let Ok(Some(record)) = Record::look(boxes, id) else {
            return Ok(None);
        };
        let observed = Observed::of(record, self.at(id).tagged(), &self.root.host, Depth::Care);
        let observed = observed.ours();
        let why = observed.reason(&self.root.host);
        let to_tell = self.to_tell(id, &observed);
        let leave = match observed.care(effort.when) {
            Care::Nothing => return Ok(Some(locked)),
            Care::Finish => Leave::Record,
            Care::Remove => Leave::Nothing,
        };
        let order = Order { reason: why, leave, within: effort.within, child: None };
        tear_down(self.at(id), &mut locked, order)?;
        if let Some(sentence) = to_tell {
            self.tell_reclaimed(id, &[sentence]);
        }
        Ok(None)
    }
}

/// How hard it is tried.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub when: When,
    pub within: Duration,
}

/// No command waits long for another's mess, nor again and again.
const IN_PASSING: Effort = Effort { when: When::Due, within: OTHERS_WITHIN };

/// What became of an attempt to have a record to oneself, without waiting for it.
#[derive(Debug)]
pub enum Taken {
    Ours(Box<Locked>),
    Others,
    Gone,
}

pub fn take(boxes: BorrowedFd<'_>, id: &BoxId, record: Record) -> Taken {
    // Half-made may be just made, by somebody who is about to lock it. What is no record
    // is replaced by one, and whoever makes a record waits until they are not held still.
    let is_record = !record.flaw.as_ref().is_some_and(Flaw::is_of_directory);
    let may_be_new = is_record && record.account.intent.is_none();
    if may_be_new && !record::hold_still(boxes) {
        return Taken::Others;
    }
    let locked = record.lock(boxes, id, Duration::ZERO);
    if may_be_new {
        record::let_go(boxes);
    }
    match locked {
        Ok(Some(locked)) => Taken::Ours(Box::new(locked)),
        Ok(None) => Taken::Gone,
        Err(_) => Taken::Others,
    }
}

fn random_below(end: usize) -> usize {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty()).expect("the kernel has random bytes");
    u32::from_ne_bytes(bytes) as usize % end
}
