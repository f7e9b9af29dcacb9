//! Compares records and host in both directions: objects on the host that are in no record, and
//! objects of a record that are not on the host.
//!
//! Only reads. The host is read first, then the records, then the names. A box makes its objects
//! after its record and removes them before it. So an object that was seen first, and then is in no
//! record, is an orphan. Every finding was seen twice, because a box may come or go between two
//! looks at different things.
//!
//! Each box is finished before the next one is looked at, so the comparison needs few descriptors
//! however many boxes there are.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Instant;

use tare_kernel::clock::boot_ns;

use crate::audit::findings::{Finding, FindingKind};
use crate::audit::host_objects::HostObjects;
use crate::audit::{AuditedBox, audited};
use crate::error::Error;
use crate::holdings::census::Processes;
use crate::holdings::cgroup::CgroupReader;
use crate::holdings::{name, uids};
use crate::host::layout::{BoxAt, StateRoot};
use crate::host::parallel;
use crate::host::state_root;
use crate::observe::state::{Duty, Unrecorded};
use crate::observe::{GOES_WITHIN, Observation, Ownership, identity, observe};
use crate::record::Record;
use crate::record::damage::Damage;
use crate::record::lines::Reason;
use crate::spec::BoxId;

#[derive(Debug)]
pub struct Comparison {
    /// Every box on record.
    pub boxes: Vec<ComparedBox>,
    pub findings: Vec<Finding>,
}

/// One box on record. If it is gone by now, or cannot be read, only its id is known.
#[derive(Debug)]
pub struct ComparedBox {
    pub id: BoxId,
    pub is_stuck: bool,
    /// What a sweep does about a box that has ended in order, and why.
    pub due: Option<(String, Duty)>,
    /// What the box holds, if that was asked for.
    pub audited: Option<AuditedBox>,
    has_ended: bool,
    keeper: Option<i32>,
    findings: Vec<Finding>,
}

/// Compares all records with the host. With `processes`, each box says what it holds.
pub fn compare(
    root: &StateRoot,
    objects: &HostObjects,
    processes: Option<&Processes>,
) -> Result<Comparison, Error> {
    let mut boxes = Vec::new();
    if let Some(opened) = state_root::boxes_if_any(root)? {
        let ids = state_root::list(root, opened.as_fd())?;
        let until = Instant::now() + GOES_WITHIN;
        let one = |id: &BoxId| compare_one(root.at(id), opened.as_fd(), objects, processes, until);
        boxes = parallel::map(&ids, one);
    }
    let mut findings = Vec::new();
    for one in &mut boxes {
        findings.append(&mut one.findings);
    }
    findings.extend(unrecorded(root, objects, &boxes));
    Ok(Comparison { boxes, findings })
}

fn compare_one(
    at: BoxAt<'_>,
    boxes: BorrowedFd<'_>,
    objects: &HostObjects,
    processes: Option<&Processes>,
    until: Instant,
) -> ComparedBox {
    let unknown = ComparedBox {
        id: at.id.clone(),
        is_stuck: false,
        due: None,
        audited: None,
        has_ended: false,
        keeper: None,
        findings: Vec::new(),
    };
    match look_twice(at, boxes, objects, until) {
        Ok(None) => unknown,
        Ok(Some((observation, findings))) => ComparedBox {
            is_stuck: observation.record.lines.stuck.is_some(),
            due: due(at.id, &observation),
            audited: processes.map(|processes| audited(at, &observation, objects, processes)),
            has_ended: observation.has_ended(),
            keeper: observation.keeper().map(|keeper| keeper.pid()),
            findings,
            ..unknown
        },
        Err(error) => {
            let damage = Damage::unreadable(&error);
            let kind = FindingKind::Record { why: damage.to_string(), remedy: damage.hint() };
            let finding = Finding::new(Some(at.id.clone()), kind, Duty::Leave);
            ComparedBox { findings: vec![finding], ..unknown }
        }
    }
}

/// Observes a box, and once more if something seems to be wrong with it.
fn look_twice(
    at: BoxAt<'_>,
    boxes: BorrowedFd<'_>,
    objects: &HostObjects,
    until: Instant,
) -> io::Result<Option<(Observation, Vec<Finding>)>> {
    let look = || {
        let record = Record::look(boxes, at.id)?;
        Ok::<_, io::Error>(record.map(|record| {
            let observation = observe(at, record);
            let findings = missing(at, boxes, &observation, objects);
            (observation, findings)
        }))
    };
    match look()? {
        Some((observation, findings)) if !findings.is_empty() => {
            observation.await_change(at, until);
            look()
        }
        other => Ok(other),
    }
}

/// The findings about what a record says and the host does not show.
fn missing(
    at: BoxAt<'_>,
    boxes: BorrowedFd<'_>,
    observation: &Observation,
    objects: &HostObjects,
) -> Vec<Finding> {
    let finding = |kind, duty| Finding::new(Some(at.id.clone()), kind, duty);
    if observation.locked || may_be_new(boxes, observation) {
        return Vec::new();
    }
    if let Some((why, remedy)) = observation.problem() {
        let duty = observation.duty_of_sweep(boot_ns(), || objects.has_life(at));
        return vec![finding(FindingKind::Record { why, remedy }, duty)];
    }
    let mut missing = Vec::new();
    match left_behind(at.id, observation) {
        // The next command finishes it, unless it is stuck.
        Some(_) if observation.has_ended_in_order() => return missing,
        Some(found) => missing.push(found),
        // The creator is gone, and nothing says that the box was detached.
        None if observation.ownership == Ownership::NotYetDetached
            && !observation.has_ended()
            && !observation.dying =>
        {
            let damage = Damage::incomplete();
            let kind = FindingKind::Record { why: damage.to_string(), remedy: damage.hint() };
            missing.push(finding(kind, Duty::Leave));
        }
        None => {}
    }
    if observation.record.lines.removing {
        // The next command finishes its removal, unless it is stuck.
        return missing;
    }
    if lacks_cgroup(at, observation) {
        missing.push(finding(FindingKind::LostCgroup, Duty::Leave));
    }
    if lacks_scratch(at, observation) {
        missing.push(finding(FindingKind::LostScratch, Duty::Leave));
    }
    let lines = &observation.record.lines;
    let name = name::current(at, lines).or(lines.names.last());
    if let Some(name) = name
        && !name::leads_to(at, lines, name)
    {
        let name = name.to_string();
        missing.push(finding(FindingKind::LostName { name }, Duty::Leave));
    }
    missing
}

/// Returns whether a process may be between making the record and locking it.
fn may_be_new(boxes: BorrowedFd<'_>, observation: &Observation) -> bool {
    if observation.record.lines.created.is_some() || observation.record.damage.is_some() {
        return false;
    }
    let is_still = state_root::pause_creation(boxes);
    if is_still {
        state_root::resume_creation(boxes);
    }
    !is_still
}

fn lacks_cgroup(at: BoxAt<'_>, observation: &Observation) -> bool {
    let identity = observation.record.lines.keeper.as_ref();
    let had_one = identity.is_some_and(|identity| identity.cgroup_inode.is_some());
    had_one
        && observation.keeper().is_some()
        && !CgroupReader::new(at, &observation.record).exists()
}

fn lacks_scratch(at: BoxAt<'_>, observation: &Observation) -> bool {
    let is_made = observation.record.lines.keeper.is_some();
    is_made && observation.record.keeps_scratch() && !at.scratch().is_dir()
}

/// The finding about a box that has no end on record and should be gone, if it is one.
pub fn left_behind(id: &BoxId, observation: &Observation) -> Option<Finding> {
    if observation.record.lines.ended.is_some() {
        return None;
    }
    let now_ns = boot_ns();
    let duty = observation.duty(now_ns);
    if duty == Duty::Leave {
        return None;
    }
    let kind = match observation.ownership {
        Ownership::Unwritten | Ownership::Attached | Ownership::NotYetDetached => {
            FindingKind::LostCreator
        }
        Ownership::Detached | Ownership::Damaged if observation.is_overdue(now_ns) => {
            FindingKind::PassedLease
        }
        Ownership::Detached | Ownership::Damaged => FindingKind::LostKeeper,
    };
    Some(Finding::new(Some(id.clone()), kind, duty))
}

/// What a sweep does about a box that has ended in order, and why: its end is to be recorded, or its
/// retention has passed.
fn due(id: &BoxId, observation: &Observation) -> Option<(String, Duty)> {
    if !observation.has_ended_in_order() {
        return None;
    }
    if let Some(found) = left_behind(id, observation) {
        return Some((found.text, found.duty));
    }
    let duty = observation.duty(boot_ns());
    let text = match duty {
        Duty::Leave | Duty::Finish(_) | Duty::End(_) => return None,
        Duty::Remove(Reason::Rebooted) => format!("box {id} is of an earlier boot"),
        Duty::Remove(Reason::RemoveAfterEnd) => {
            format!("box {id} has ended, and is not to be kept")
        }
        Duty::Remove(_) => format!("box {id} has ended, and its retention has passed"),
    };
    Some((text, duty))
}

/// Objects on the host that belong to none of the boxes on record.
fn unrecorded(root: &StateRoot, objects: &HostObjects, boxes: &[ComparedBox]) -> Vec<Finding> {
    let on_record: BTreeMap<&BoxId, bool> =
        boxes.iter().map(|one| (&one.id, one.has_ended)).collect();
    let keepers: HashSet<i32> = boxes.iter().filter_map(|one| one.keeper).collect();
    let is_orphan = |id: &BoxId| !on_record.contains_key(id) && !has_record(root.at(id));
    let has_ended = |id: &BoxId| on_record.get(id) == Some(&true);
    let mut found = Vec::new();
    let unrecorded = |object: Unrecorded, id, kind| Finding::new(id, kind, object.duty());
    let mut note =
        |id: &BoxId, kind| found.push(unrecorded(Unrecorded::OfBox, Some(id.clone()), kind));
    for (id, paths) in &objects.cgroups {
        let paths: Vec<PathBuf> = paths.iter().filter(|path| path.is_dir()).cloned().collect();
        if paths.is_empty() {
            continue;
        }
        if has_ended(id) {
            note(id, FindingKind::Remains { paths });
        } else if is_orphan(id) {
            note(id, FindingKind::Cgroups { paths });
        }
    }
    for (id, pids) in objects.candidates_beside(&keepers, root.layout.tag()) {
        if objects.cgroups.contains_key(&id) || !(has_ended(&id) || is_orphan(&id)) {
            continue;
        }
        if let Some(keeper) = identity::find_unrecorded(root.at(&id), pids) {
            note(&id, FindingKind::Keeper { pid: keeper.pid() });
        }
    }
    let names = name::list(&root.layout);
    for link in names.links {
        if is_orphan(&link.id) && link.is_there(&root.layout) {
            let name = match link.tenant.key() {
                Some(_) => link.tenant.qualify(&link.name),
                None => link.name,
            };
            found.push(unrecorded(Unrecorded::Empty, Some(link.id), FindingKind::Name { name }));
        }
    }
    let callers = objects.empty_callers.iter().filter(|path| path.is_dir()).cloned();
    let caller = |path| unrecorded(Unrecorded::Empty, None, FindingKind::Caller { path });
    found.extend(callers.map(caller));
    let foreign = names.foreign.into_iter().chain(uids::foreign(&root.layout));
    let foreign_file = |path| unrecorded(Unrecorded::Foreign, None, FindingKind::Foreign { path });
    found.extend(foreign.map(foreign_file));
    found
}

/// Returns whether there is anything in the place of the box's record.
fn has_record(at: BoxAt<'_>) -> bool {
    let found = at.record().symlink_metadata();
    !matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound)
}
