//! Acts on the comparison of records and host: settles every box with a finding, and every box that
//! has ended.
//!
//! A sweep does not wait long for any box. Boxes that were stuck before come last. When all others
//! are done, some of the boxes that are stuck get more time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::audit::compare::compare;
use crate::audit::host_objects::HostObjects;
use crate::care::parents::{Forget, forget_parents};
use crate::care::{Effort, Goal, Outcome, settle};
use crate::error::{Error, Hint};
use crate::host::layout::StateRoot;
use crate::host::state_root;
use crate::observe::state::Duty;
use crate::spec::BoxId;
use crate::teardown::OTHERS_WITHIN;

/// How long each stuck box gets when all others are done.
const PATIENT_WITHIN: Duration = Duration::from_secs(2);
/// How long all stuck boxes get together.
const PATIENT_FOR: Duration = Duration::from_secs(10);

/// One box, and what the sweep did about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Swept {
    pub id: BoxId,
    /// What was found, in sentences.
    pub found: Vec<String>,
    #[serde(rename = "would")]
    pub duty: Duty,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// What a user can do about a box that is left alone.
    #[serde(skip)]
    pub remedy: Option<Hint>,
    #[serde(skip)]
    was_stuck: bool,
}

/// What a sweep would do. Changes nothing.
pub fn plan(root: &StateRoot) -> Result<Vec<Swept>, Error> {
    let comparison = compare(root, &HostObjects::read(root), None)?;
    let mut boxes: BTreeMap<BoxId, Swept> = BTreeMap::new();
    let mut note = |id: &BoxId, text: &str, duty: Duty, remedy: Option<Hint>| {
        let one = boxes.entry(id.clone()).or_insert_with(|| Swept::new(id));
        one.note(text, duty);
        one.remedy = one.remedy.take().or(remedy);
    };
    // Objects without a record come first.
    let (unrecorded, missing): (Vec<_>, Vec<_>) =
        comparison.findings.iter().partition(|finding| finding.kind.is_unrecorded());
    for finding in unrecorded.into_iter().chain(missing) {
        // A file that is not tare's belongs to no box, and only an audit reports it. An empty cgroup
        // of tare itself goes with the list of parents.
        if let Some(id) = &finding.id {
            note(id, &finding.text, finding.duty, finding.remedy());
        }
    }
    for compared in &comparison.boxes {
        if let Some((text, duty)) = &compared.due {
            note(&compared.id, text, *duty, None);
        }
    }
    for compared in comparison.boxes.iter().filter(|compared| compared.is_stuck) {
        if let Some(one) = boxes.get_mut(&compared.id) {
            one.was_stuck = true;
        }
    }
    let mut plan: Vec<Swept> = boxes.into_values().collect();
    let left = plan.iter_mut().filter(|one| one.duty == Duty::Leave);
    left.for_each(|one| one.outcome = Outcome::Left);
    plan.sort_by_key(|one| one.was_stuck);
    Ok(plan)
}

/// Sweeps, and returns the result for each box, also for those that could not be ended.
pub fn sweep(root: &StateRoot) -> Result<Vec<Swept>, Error> {
    let mut plan = plan(root)?;
    if plan.iter().all(|one| one.duty == Duty::Leave) {
        forget_parents(root, Forget::Unused);
        return Ok(plan);
    }
    state_root::prepare(&root.layout)?;
    for one in &mut plan {
        one.sweep(root, OTHERS_WITHIN);
    }
    let until = Instant::now() + PATIENT_FOR;
    for one in plan.iter_mut().filter(|one| one.outcome.is_stuck()) {
        if Instant::now() < until {
            one.sweep(root, PATIENT_WITHIN);
        }
    }
    forget_parents(root, Forget::Unused);
    Ok(plan)
}

impl Swept {
    fn new(id: &BoxId) -> Self {
        Self {
            id: id.clone(),
            found: Vec::new(),
            duty: Duty::Leave,
            outcome: Outcome::Planned,
            remedy: None,
            was_stuck: false,
        }
    }

    fn note(&mut self, text: &str, duty: Duty) {
        self.found.push(text.to_owned());
        self.duty = self.duty.max(duty);
    }

    fn sweep(&mut self, root: &StateRoot, within: Duration) {
        let outcome = match self.duty {
            Duty::Leave => Ok(Outcome::Left),
            Duty::Remove(_) | Duty::Finish(_) | Duty::End(_) => {
                let goal = Goal::Clean { found: &self.found };
                settle(root.at(&self.id), Effort { goal, within })
            }
        };
        self.outcome = outcome.unwrap_or_else(|error| Outcome::stuck(&error));
    }
}
