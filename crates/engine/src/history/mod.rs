//! What became of a box: from its record while it has one, later from the history.

pub mod file;
pub mod steps;
pub mod text;

use std::os::fd::AsFd;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::{Context, Error};
use crate::history::file::History;
use crate::history::steps::{Now, Removal, Sources, Story};
use crate::host::Host;
use crate::host::layout::Layout;
use crate::host::state_root;
use crate::observe::view::State;
use crate::observe::view::no_box;
use crate::record::Record;
use crate::record::lines::Entry;
use crate::record::reason::Reason;
use crate::spec::BoxId;
use crate::spec::shown::quoted;
use crate::time::Timestamp;

/// For how long the story of a box is kept that was not to live on.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// A story, and where it has come to.
#[derive(Debug)]
pub struct Explanation {
    /// `None`: the box is removed.
    pub state: Option<State>,
    pub story: Story,
}

impl Engine {
    /// The story of the box with this id, this name, or an id that begins so. One that
    /// is there comes before those that are gone, of which the last to go comes first.
    pub fn explain(&self, reference: &str) -> Result<Explanation, Error> {
        match self.find_recorded(reference)? {
            Some(id) if !self.cleaned().contains(&id) => self.explain_recorded(&id),
            Some(id) => self.explain_removed(id.as_str()),
            None => self.explain_removed(reference),
        }
    }

    fn explain_recorded(&self, id: &BoxId) -> Result<Explanation, Error> {
        // It may go at any moment, and then its story is in the history.
        let Ok(observed) = self.observe(id) else {
            return self.explain_removed(id.as_str());
        };
        let boxes = state_root::boxes(&self.root)?;
        match Record::look(boxes.as_fd(), id) {
            Ok(Some(record)) => {
                let mut sources = sources(&record);
                // No command has written it down yet.
                let unwritten = record.account.ended.is_none();
                let ended = observed.ended(self.at(id)).filter(|_| unwritten);
                sources.entries.extend(ended.map(Entry::Ended));
                let mut story = steps::tell(id, &sources, Now::read());
                if observed.is_live() && self.oom_kills(id) > 0 {
                    story.was_out_of_memory(Timestamp::now());
                }
                Ok(Explanation { state: Some(observed.state()), story })
            }
            Ok(None) | Err(_) => self.explain_removed(id.as_str()),
        }
    }

    fn explain_removed(&self, reference: &str) -> Result<Explanation, Error> {
        let stories = self.stories()?;
        match find(stories, reference) {
            Found::One(story) => Ok(Explanation { state: None, story }),
            Found::Several => Err(Error::bad_request(format!(
                "{} is the beginning of several removed boxes",
                quoted(reference)
            ))
            .with_hint("give more of the id")),
            Found::None => Err(no_box(reference).with_hint(UNKNOWN)),
        }
    }

    /// Makes room for the story of one more box.
    pub(crate) fn reserve_story(&self) -> Result<(), Error> {
        let path = self.root.layout.history();
        let history = History { path: &path, boot_id: &self.root.host.boot_id };
        let boxes = state_root::count(state_root::boxes(&self.root)?.as_fd()).max(1);
        history
            .reserve(boxes)
            .context(|| format!("cannot make room for the history in {}", path.display()))
    }

    /// Of the boxes that are removed, as far as they are kept.
    pub(crate) fn stories(&self) -> Result<Vec<Story>, Error> {
        let path = self.root.layout.history();
        let history = History { path: &path, boot_id: &self.root.host.boot_id };
        history.stories().map_err(|error| {
            let message = format!("cannot read the history of removed boxes, {}", quoted(&path));
            Error::failed(message).caused_by(error).with_hint("if it is not tare's, remove it")
        })
    }
}

const UNKNOWN: &str = "'tare ls -a' lists all; of a box that is gone the story is kept for \
                       its retention, of one without -d only if its tare was killed";

#[derive(Debug)]
enum Found {
    One(Story),
    Several,
    None,
}

/// By id, by its last name, by an earlier one, by the beginning of its id. Of several
/// boxes of one name it is the last.
fn find(mut stories: Vec<Story>, reference: &str) -> Found {
    let ranks: [&dyn Fn(&Story) -> bool; 3] = [
        &|story| story.id.as_str() == reference,
        &|story| story.name() == Some(reference),
        &|story| story.names.iter().any(|name| name == reference),
    ];
    for rank in ranks {
        if let Some(at) = stories.iter().rposition(rank) {
            return Found::One(stories.swap_remove(at));
        }
    }
    let begins = |story: &Story| !reference.is_empty() && story.id.as_str().starts_with(reference);
    stories.retain(begins);
    match (stories.pop(), stories.is_empty()) {
        (None, _) => Found::None,
        (Some(story), true) => Found::One(story),
        (Some(_), false) => Found::Several,
    }
}

fn sources(record: &Record) -> Sources {
    Sources {
        entries: record.entries(),
        life: record.life().unwrap_or_default(),
        events: record.events(),
    }
}

/// Keeps the story of a box that somebody else than its creator removes, or that lived
/// on without it.
pub fn keep_story(layout: &Layout, host: &Host, id: &BoxId, record: &Record, removal: &Removal) {
    if removal.why == Reason::Own || is_nothing_known(record) {
        return;
    }
    let mut story = steps::tell(id, &sources(record), Now::read());
    story.removed(removal, Timestamp::now());
    let retention = record.account.detached().map(|options| options.retention);
    let path = layout.history();
    let history = History { path: &path, boot_id: &host.boot_id };
    // That there is no room for it is no reason to keep the box.
    history.add(&story, retention.unwrap_or(RETENTION)).ok();
}

/// A box of which not even its creation was written down was never anybody's.
fn is_nothing_known(record: &Record) -> bool {
    record.account.intent.is_none() && record.account.keeper.is_none()
}
