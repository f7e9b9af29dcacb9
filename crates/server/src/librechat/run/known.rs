//! The files of a session's box that its client knows, stored on disk.
//!
//! A session's box outlives the server, and so does this list. Without it, the next server would
//! overwrite files that the session has changed with the old inputs.
//! The entry names its box. The sweep of files removes it after the box is gone.

use serde::{Deserialize, Serialize};
use tare_engine::BoxId;

use crate::error::ServiceError;
use crate::librechat::run::inputs::SessionInputs;
use crate::librechat::state::LibreChat;
use crate::store::id::Id;
use crate::store::{Object, Origin, Store};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    box_id: BoxId,
    files: SessionInputs,
}

/// The files of one session, for a call that has its turn.
pub struct Known {
    app: LibreChat,
    session: String,
    box_id: BoxId,
    files: SessionInputs,
}

impl Known {
    pub async fn recall(
        app: &LibreChat,
        session: &str,
        box_id: BoxId,
    ) -> Result<Self, ServiceError> {
        let of = session.to_owned();
        let found = app.files.call_if_any(move |store| store.known(&of)).await?;
        let entry = found.flatten().as_deref().and_then(parsed);
        let same = entry.filter(|entry| entry.box_id == box_id);
        let files = same.map(|entry| entry.files).unwrap_or_default();
        Ok(Self { app: app.clone(), session: session.to_owned(), box_id, files })
    }

    pub fn files(&self) -> &SessionInputs {
        &self.files
    }

    /// Returns the inputs that the box does not have. If the session has changed an input, the changed
    /// file stays. Parallel calls, and calls of a later turn, still name the original.
    pub async fn missing(&self, inputs: &SessionInputs) -> Result<SessionInputs, ServiceError> {
        let mut missing = inputs.clone();
        missing.retain(|name, input| {
            self.files.get(name).is_none_or(|there| there.object.id != input.object.id)
        });
        if !missing.keys().any(|name| self.files.contains_key(name)) {
            return Ok(missing);
        }
        let files = self.files.clone();
        let find = self.app.files.call(move |store| {
            missing.retain(|name, input| {
                let there = files.get(name);
                there.is_none_or(|there| !is_made_of(store, &there.object, &input.object.id))
            });
            Ok(missing)
        });
        find.await
    }

    /// Stores the list. Writes nothing if nothing changed: a session without files needs no
    /// directory.
    pub async fn set(&mut self, files: SessionInputs) -> Result<(), ServiceError> {
        if files == self.files {
            return Ok(());
        }
        let entry = Entry { box_id: self.box_id.clone(), files };
        let text = serde_json::to_vec(&entry).map_err(ServiceError::internal)?;
        let session = self.session.clone();
        let save = self.app.files.call(move |store| store.save_known(&session, &text));
        save.await?;
        self.files = entry.files;
        Ok(())
    }
}

/// How many changes of one file are followed back.
const CHANGES_MAX: usize = 100;

/// Whether a file was made of an input by changing it. An expired file in between hides this.
fn is_made_of(store: &Store, object: &Object, input: &Id) -> bool {
    let mut origin = object.modified_from.clone();
    for _change in 0..CHANGES_MAX {
        match origin {
            Some(Origin { id, .. }) if id == *input => return true,
            Some(Origin { session, id }) => {
                let before = store.find(&session, &id).ok().flatten();
                origin = before.and_then(|before| before.modified_from);
            }
            None => break,
        }
    }
    false
}

fn parsed(text: &[u8]) -> Option<Entry> {
    serde_json::from_slice(text).ok()
}

/// The box of an entry. `None` if the entry cannot be read.
pub fn session_box(text: &[u8]) -> Option<BoxId> {
    parsed(text).map(|entry| entry.box_id)
}
