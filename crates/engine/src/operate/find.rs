//! Finds boxes by id, name or the beginning of an id, and lists them.

use std::os::fd::AsFd;
use std::time::Instant;

use crate::care::tend::{release_dangling_names, tended};
use crate::error::{Context, Error};
use crate::holdings::name;
use crate::host::layout::StateRoot;
use crate::host::state_root;
use crate::observe::GOES_WITHIN;
use crate::observe::view::Status;
use crate::operate::inspect;
use crate::record::damage::Damage;
use crate::spec::shown::quoted;
use crate::spec::{BoxId, Name};

/// The box with this id, this name, or an id that begins so; `None` when there is no such box.
/// `removed` says which boxes this very command has found half-made and removed: such a box is not
/// unknown.
pub fn find<'a>(
    root: &StateRoot,
    reference: &str,
    removed: impl FnOnce() -> &'a [BoxId],
) -> Result<Option<BoxId>, Error> {
    let Some(boxes) = state_root::boxes_if_any(root)? else {
        return by_prefix(reference, &[], removed());
    };
    let is_there = |id: &BoxId| state_root::is_there(boxes.as_fd(), id);
    let named = || {
        let wanted = Name::parse(reference).ok()?;
        name::holder(&root.layout, &wanted).filter(is_there)
    };
    if let Some(id) = BoxId::parse(reference).filter(is_there).or_else(named) {
        return Ok(Some(id));
    }
    // Only a reference that is part of an id costs a read of all of them.
    let ids = state_root::ids(boxes.as_fd()).context(|| "cannot list the boxes".into())?;
    by_prefix(reference, &ids, removed())
}

/// Every box, the oldest first.
pub fn list(root: &StateRoot) -> Result<Vec<Status>, Error> {
    let Some(boxes) = state_root::boxes_if_any(root)? else {
        return Ok(Vec::new());
    };
    let ids = state_root::ids(boxes.as_fd()).context(|| "cannot list the boxes".into())?;
    let until = Instant::now() + GOES_WITHIN;
    let status = |id: &BoxId| {
        let at = root.at(id);
        match tended(at, boxes.as_fd(), until) {
            Ok(observation) => Some(inspect::status(at, &observation?)),
            // A box that cannot be read is listed all the same.
            Err(error) => Some(Status::stuck(id, Damage::unreadable(&error).to_string())),
        }
    };
    let mut statuses: Vec<Status> = ids.iter().filter_map(status).collect();
    release_dangling_names(root, boxes.as_fd(), usize::MAX);
    statuses.sort_by(|one, other| {
        let key = |status: &Status| (status.created_at, status.id.to_string());
        key(one).cmp(&key(other))
    });
    Ok(statuses)
}

fn by_prefix(reference: &str, ids: &[BoxId], removed: &[BoxId]) -> Result<Option<BoxId>, Error> {
    let begins = |id: &&BoxId| !reference.is_empty() && id.as_str().starts_with(reference);
    let mut found: Vec<BoxId> = ids.iter().filter(begins).cloned().collect();
    found.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    match found.as_slice() {
        [] => Ok(removed.iter().find(begins).cloned()),
        [one] => Ok(Some(one.clone())),
        several => Err(ambiguous(reference, several)),
    }
}

/// How many candidates the error names.
const CANDIDATES_MAX: usize = 4;

fn ambiguous(reference: &str, several: &[BoxId]) -> Error {
    let shown = several.iter().take(CANDIDATES_MAX);
    let mut shown: Vec<&str> = shown.map(BoxId::as_str).collect();
    if several.len() > CANDIDATES_MAX {
        shown.push("...");
    }
    let message = format!("{} is the beginning of several boxes", quoted(reference));
    Error::bad_request(message).caused_by(shown.join(", ")).with_hint("give more of the id")
}
