//! Cleans up during other commands, so that no program for it has to run.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use tare_kernel::clock::boot_ns;
use tare_kernel::locks::LOCK_WITHIN;

use crate::care::{Effort, Goal, may_try, settle};
use crate::error::{Context, Error};
use crate::holdings::name::{self, Listing};
use crate::host::layout::{BoxAt, RootAccess, StateRoot};
use crate::host::{random_below, state_root};
use crate::observe::state::{Duty, Request};
use crate::observe::view::{State, no_box};
use crate::observe::{GOES_WITHIN, Observation, observe, observe_settled};
use crate::record::Record;
use crate::spec::{BoxId, Name, Tenant};
use crate::teardown::OTHERS_WITHIN;

/// How many records one command looks at, so that on a host with thousands of live boxes it does
/// not pay for all of them. A command that lists boxes looks at all.
const LOOK_AT_MOST: usize = 16;
/// How many records a command lists on average. With N times as many, one command in N lists them
/// and looks at N times as many.
const LISTED_AVERAGE: usize = 256;

const IN_PASSING: Effort<'static> = Effort { goal: Goal::Due, within: OTHERS_WITHIN };

/// Looks after some boxes except `own`, from a random one on, and returns those that are gone. A box
/// that cannot be ended now stays on record, and a later command tries again.
pub fn tend(root: &StateRoot, own: Option<&BoxId>) -> Vec<BoxId> {
    let Ok(boxes) = state_root::open_boxes(&root.layout) else {
        return Vec::new();
    };
    let turns = state_root::count(boxes.as_fd()).div_ceil(LISTED_AVERAGE).max(1);
    if random_below(turns) != 0 {
        return Vec::new();
    }
    let mut ids = state_root::ids(boxes.as_fd()).unwrap_or_default();
    ids.retain(|id| Some(id) != own);
    let most = LOOK_AT_MOST * turns;
    choose(&mut ids, most);
    let until = Instant::now() + GOES_WITHIN;
    ids.retain(|id| matches!(tended(root.at(id), boxes.as_fd(), until), Ok(None)));
    tend_names(root, boxes.as_fd(), most);
    ids
}

/// Keeps `most` items, from a random one on.
fn choose<T>(all: &mut Vec<T>, most: usize) {
    if all.len() > most {
        let start = random_below(all.len());
        all.rotate_left(start);
    }
    all.truncate(most);
}

/// Looks at `most` names and settles boxes that have a name and no record. Removes directories of
/// tenants without a name.
pub fn tend_names(root: &StateRoot, boxes: BorrowedFd<'_>, most: usize) {
    if root.access == RootAccess::ReadOnly {
        return;
    }
    let Listing { mut links, empty, .. } = name::list(&root.layout);
    choose(&mut links, most);
    for link in links.iter().filter(|link| !state_root::is_there(boxes, &link.id)) {
        // A process that holds the lock of the names may be removing that box now.
        settle(root.at(&link.id), Effort { within: Duration::ZERO, ..IN_PASSING }).ok();
    }
    name::remove_empty(&root.layout, &empty);
}

/// Looks after the box that has a name, and releases the name if there is no such box.
pub fn settle_name_owner(root: &StateRoot, tenant: &Tenant, wanted: &Name) -> Result<(), Error> {
    let Some(owner) = name::holder(&root.layout, tenant, wanted) else {
        return Ok(());
    };
    let (boxes, at) = (state_root::boxes(root)?, root.at(&owner));
    match tended(at, boxes.as_fd(), Instant::now() + GOES_WITHIN) {
        Ok(None) => settle(at, Effort { within: LOCK_WITHIN, ..IN_PASSING }).map(drop),
        // The box may be one that should be gone.
        Ok(Some(observation)) => match observation.stuck_on(at) {
            Some(why) => Err(name::is_taken(wanted).caused_by(why)),
            None => Ok(()),
        },
        // A box that cannot be observed now keeps its name.
        Err(_) => Ok(()),
    }
}

/// Does what is due for one box, and observes it again. Returns `None` if the box is gone. Waits
/// until this time at most for what the kernel is about to finish.
pub fn tended(
    at: BoxAt<'_>,
    boxes: BorrowedFd<'_>,
    until: Instant,
) -> io::Result<Option<Observation>> {
    let Some(observation) = observe_settled(at, boxes, until, observe)? else {
        return Ok(None);
    };
    let lines = &observation.record.lines;
    let is_due = (observation.duty(boot_ns()) != Duty::Leave
        && may_try(lines.stuck.as_ref(), Goal::Due))
        || !name::superseded(at, lines).is_empty();
    match at.root.access {
        RootAccess::ReadWrite if is_due => {}
        RootAccess::ReadWrite | RootAccess::ReadOnly => return Ok(Some(observation)),
    }
    drop(observation);
    // The record says why a box could not be ended. Another process settles a box that is busy.
    settle(at, IN_PASSING).ok();
    observe_settled(at, boxes, until, observe)
}

/// Looks after a box that a command names, and observes it.
pub fn observe_tended(at: BoxAt<'_>) -> Result<Observation, Error> {
    let boxes = state_root::boxes(at.root)?;
    let observation = tended(at, boxes.as_fd(), Instant::now() + GOES_WITHIN);
    observation
        .context(|| format!("cannot open the record of box {}", at.id))?
        .ok_or_else(|| no_box(at.id.as_str()))
}

/// Returns the record of a box whose keeper can answer.
pub fn awake(at: BoxAt<'_>) -> Result<Record, Error> {
    let observation = observe_tended(at)?;
    observation.check(at.id, Request::Use)?;
    Ok(observation.record)
}

/// How long a machine may boot whose record does not say it.
const BOOT_MS: u64 = 60_000;
/// How long the rest of a start may take.
const MADE_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Returns the record of a box that can be used, when its machine has booted if it has one. A machine
/// that cannot boot is gone after its own deadline.
pub fn awake_after_boot(at: BoxAt<'_>) -> Result<Record, Error> {
    loop {
        let observation = observe_tended(at)?;
        let is_made = observation.record.is_machine() && observation.state() == State::Starting;
        let waits = is_made || observation.is_booting();
        if !waits || booted_until_ns(&observation) <= boot_ns() {
            observation.check(at.id, Request::Use)?;
            return Ok(observation.record);
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by the deadline of the boot")]
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Returns when the machine of a box has booted, or its creator is late with its end.
fn booted_until_ns(observation: &Observation) -> u64 {
    let lines = &observation.record.lines;
    let machine = lines.machine.as_ref();
    let begun_ns = machine.map(|it| it.at_ns).or(lines.created.as_ref().map(|it| it.created_ns));
    let boot_ms = machine.and_then(|it| it.boot_ms).unwrap_or(BOOT_MS);
    let within = MADE_WITHIN.saturating_add(Duration::from_millis(boot_ms));
    let within_ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
    begun_ns.unwrap_or(0).saturating_add(within_ns)
}
