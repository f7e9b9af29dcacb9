//! The comparison of records and host, acting: what an audit finds goes through the
//! one way out, and so does every box that is over.
//!
//! Nobody waits for long: every box has its bound, those that were stuck before come
//! last, and only when all others are done some of the stuck get more time.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::audit::findings::{OrphanKind, Would, awaits_cleanup, left_behind, would_about};
use crate::audit::host_objects;
use crate::care::tend::{Effort, Taken, take};
use crate::engine::Engine;
use crate::error::{Context, Error};
use crate::holdings::name;
use crate::host::layout;
use crate::host::state_root;
use crate::observe::state::Care;
use crate::observe::{Depth, Observed, When};
use crate::record::lines::{EndingEntry, Entry};
use crate::record::reason::Reason;
use crate::record::{Locked, Record};
use crate::spec::BoxId;
use crate::teardown::{Leave, OTHERS_WITHIN, Order, tear_down};

/// What a box gets that did not end at once, when all others are done.
const PATIENT_WITHIN: Duration = Duration::from_secs(2);
/// What all of those get together.
const PATIENT_FOR: Duration = Duration::from_secs(10);

/// One box, or a process that belongs to none, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Swept {
    #[serde(flatten)]
    pub what: Subject,
    /// What there was to be done something about, in sentences.
    pub found: Vec<String>,
    pub would: Would,
    #[serde(flatten)]
    pub outcome: Outcome,
    #[serde(skip)]
    was_stuck: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Subject {
    #[serde(rename = "id")]
    Box(BoxId),
    /// A keeper that was never started, by its number.
    #[serde(rename = "pid")]
    Newborn(i32),
}

/// What a sweep has to know of every box on record.
#[derive(Debug)]
struct Known {
    id: BoxId,
    was_stuck: bool,
    /// That it has ended, or has been kept for long enough, in a sentence.
    due: Option<(String, Would)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing yet: it was only looked at.
    Planned,
    /// It was done, and seen to be.
    Done,
    /// Somebody else is making, changing or ending it.
    Busy,
    /// It may live, or be in order: who wants its end says so.
    Left,
    /// It could not be done within its bound; it is tried again.
    Stuck { step: String, reason: String },
}

impl Engine {
    /// What a sweep would do. Changes nothing.
    pub fn plan_sweep(&self) -> Result<Vec<Swept>, Error> {
        let comparison = self.compare(&self.traces(), Depth::Care, |id, observed| Known {
            id: id.clone(),
            was_stuck: observed.record.account.stuck.is_some(),
            due: self.due(id, observed),
        })?;
        let mut plan: BTreeMap<BoxId, Swept> = BTreeMap::new();
        let mut newborns = Vec::new();
        let mut note = |id: &BoxId, sentence: &str, would: Would| {
            let new = || Swept::new(Subject::Box(id.clone()));
            plan.entry(id.clone()).or_insert_with(new).note(sentence, would);
        };
        for orphan in &comparison.orphans {
            match &orphan.what {
                OrphanKind::Cgroup { id, .. }
                | OrphanKind::Keeper { id, .. }
                | OrphanKind::Remains { id, .. }
                | OrphanKind::Name { id, .. } => note(id, &orphan.sentence, orphan.would),
                OrphanKind::Newborn { pid } => {
                    let mut one = Swept::new(Subject::Newborn(*pid));
                    one.note(&orphan.sentence, orphan.would);
                    newborns.push(one);
                }
            }
        }
        for lost in &comparison.lost {
            note(&lost.id, &lost.sentence, lost.would);
        }
        for known in &comparison.boxes {
            if let Some((sentence, would)) = &known.due {
                note(&known.id, sentence, *would);
            }
        }
        for known in &comparison.boxes {
            if let Some(one) = plan.get_mut(&known.id) {
                one.was_stuck = known.was_stuck;
            }
        }
        // Newborns first: they may hold the locks of boxes.
        let mut plan: Vec<Swept> = newborns.into_iter().chain(plan.into_values()).collect();
        let leave = plan.iter_mut().filter(|one| one.would == Would::Leave);
        leave.for_each(|one| one.outcome = Outcome::Left);
        plan.sort_by_key(|one| one.was_stuck);
        Ok(plan)
    }

    /// Does it. What cannot be done is among what is returned.
    pub fn sweep(&self) -> Result<Vec<Swept>, Error> {
        let mut plan = self.plan_sweep()?;
        if plan.iter().all(|one| one.would == Would::Leave) {
            return Ok(plan);
        }
        state_root::prepare(&self.root.layout)?;
        let boxes = self.boxes()?;
        for one in &mut plan {
            self.sweep_one(boxes.as_fd(), one, OTHERS_WITHIN);
        }
        let until = Instant::now() + PATIENT_FOR;
        for one in plan.iter_mut().filter(|one| one.outcome.is_stuck()) {
            if Instant::now() < until {
                self.sweep_one(boxes.as_fd(), one, PATIENT_WITHIN);
            }
        }
        Ok(plan)
    }

    /// What is due to a box with which nothing is wrong: its end is to be written down,
    /// or it was kept for as long as it was to be.
    fn due(&self, id: &BoxId, observed: &Observed) -> Option<(String, Would)> {
        if let Some(lost) = left_behind(id, observed) {
            let is_due = awaits_cleanup(observed, &lost) && !observed.is_busy();
            return is_due.then_some((lost.sentence, lost.would));
        }
        if !observed.is_over() || observed.care(When::Now) != Care::Remove {
            return None;
        }
        let sentence = match observed.reason(&self.root.host) {
            Reason::Rebooted => format!("box {id} is of an earlier boot"),
            Reason::NotKept => format!("box {id} is over, and was not to be kept"),
            Reason::Own | Reason::Asked | Reason::Abandoned | Reason::Overdue | Reason::Expired => {
                format!("box {id} is over, and its retention has passed")
            }
        };
        Some((sentence, Would::Remove))
    }

    fn sweep_one(&self, boxes: BorrowedFd<'_>, one: &mut Swept, within: Duration) {
        one.outcome = match (one.would, &one.what) {
            (Would::Leave, _) => Outcome::Left,
            (Would::Remove | Would::Finish | Would::End, Subject::Newborn(pid)) => {
                end_newborn(*pid, within).unwrap_or_else(|error| Outcome::stuck(&error))
            }
            (Would::Remove | Would::Finish | Would::End, Subject::Box(id)) => self
                .try_to_sweep(boxes, id, &one.found, within)
                .unwrap_or_else(|error| Outcome::stuck(&error)),
        };
    }

    fn try_to_sweep(
        &self,
        boxes: BorrowedFd<'_>,
        id: &BoxId,
        found: &[String],
        within: Duration,
    ) -> Result<Outcome, Error> {
        let doing = || format!("cannot open the record of box {id}");
        let Some(record) = Record::look(boxes, id).context(doing)? else {
            return self.end_orphan(boxes, id, found, within);
        };
        match take(boxes, id, record) {
            Taken::Others => Ok(Outcome::Busy),
            Taken::Gone => Ok(Outcome::Done),
            Taken::Ours(locked) => self.end_ours(boxes, (id, found), *locked, within),
        }
    }

    /// By its id alone. Its record is made first: whatever happens now, the next
    /// command goes on.
    fn end_orphan(
        &self,
        boxes: BorrowedFd<'_>,
        id: &BoxId,
        found: &[String],
        within: Duration,
    ) -> Result<Outcome, Error> {
        let mut locked = match Locked::claim(boxes, id) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(Outcome::Busy),
            other => other.context(|| format!("cannot make a record of box {id}"))?,
        };
        // Somebody else may have ended it since it was found.
        let has_name = || name::all(&self.root.layout).iter().any(|(_, it)| it == id);
        let is_there = self.has_remains(id) || has_name();
        let why = Reason::Abandoned;
        // Without it, whoever lives in there would seem to be none of our business.
        locked.add(Entry::Ending(EndingEntry::now(why))).ok();
        tear_down(self.at(id), &mut locked, order(Leave::Nothing, why, within))?;
        if is_there {
            self.tell_reclaimed(id, found);
        }
        Ok(Outcome::Done)
    }

    /// Whether anything of a box is on the host, apart from its record and names.
    fn has_remains(&self, id: &BoxId) -> bool {
        let of = self.at(id).tagged();
        let mut roots = self.root.host.cgroups.all().into_iter();
        roots.any(|root| layout::cgroup(root, of).is_dir()) || host_objects::keeper_of(of).is_some()
    }

    fn end_ours(
        &self,
        boxes: BorrowedFd<'_>,
        (id, found): (&BoxId, &[String]),
        mut locked: Locked,
        within: Duration,
    ) -> Result<Outcome, Error> {
        let looked = Record::look(boxes, id).context(|| format!("cannot look at box {id}"))?;
        let Some(record) = looked else {
            return Ok(Outcome::Done);
        };
        let observed = Observed::of(record, self.at(id).tagged(), &self.root.host, Depth::Care);
        if let Some(flaw) = &observed.record.flaw {
            return match would_about(flaw, self.has_life(id)) {
                Would::Leave => Ok(Outcome::Left),
                Would::Remove | Would::Finish | Would::End => {
                    let order = order(Leave::Nothing, Reason::Asked, within);
                    tear_down(self.at(id), &mut locked, order)?;
                    self.tell_reclaimed(id, found);
                    Ok(Outcome::Done)
                }
            };
        }
        let effort = Effort { when: When::Now, within };
        match self.act(boxes, id, locked, effort)? {
            // What is left of it apart from its record.
            Some(mut locked) if observed.is_over() => {
                let is_there = self.has_remains(id);
                let order = order(Leave::Record, Reason::Asked, within);
                tear_down(self.at(id), &mut locked, order)?;
                if is_there {
                    self.tell_reclaimed(id, found);
                }
            }
            Some(_) | None => {}
        }
        Ok(Outcome::Done)
    }
}

impl Swept {
    fn new(what: Subject) -> Self {
        Self {
            what,
            found: Vec::new(),
            would: Would::Leave,
            outcome: Outcome::Planned,
            was_stuck: false,
        }
    }

    fn note(&mut self, sentence: &str, would: Would) {
        self.found.push(sentence.to_owned());
        self.would = self.would.max(would);
    }
}

fn order(leave: Leave, reason: Reason, within: Duration) -> Order<'static> {
    Order { reason, leave, within, child: None }
}

/// Kills a newborn that is still one: nothing of a box was started in it, and no process
/// waits for it.
fn end_newborn(pid: i32, within: Duration) -> Result<Outcome, Error> {
    let doing = || format!("cannot end process {pid}");
    let Some(stray) = host_objects::strays(&[pid]).pop() else {
        return Ok(Outcome::Done);
    };
    stray.kill().context(doing)?;
    if stray.wait_dead(within).context(doing)? {
        Ok(Outcome::Done)
    } else {
        Err(Error::failed(doing()).caused_by("it does not die"))
    }
}

impl Outcome {
    fn stuck(error: &Error) -> Self {
        let reason = std::error::Error::source(error).map(ToString::to_string);
        Self::Stuck { step: error.to_string(), reason: reason.unwrap_or_default() }
    }

    pub fn is_stuck(&self) -> bool {
        match self {
            Self::Stuck { .. } => true,
            Self::Planned | Self::Done | Self::Busy | Self::Left => false,
        }
    }
}
