//! The files of a session's box that its client knows, stored on disk.
//!
//! A session's box outlives the server, and so does this list. Without it, the next server would
//! overwrite files that the session has changed with the old inputs.
//! The entry names its box. The sweep of files removes it after the box is gone.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tare_engine::{BoxId, Engine, ErrorKind};

use crate::error::ServiceError;
use crate::librechat::run::inputs::Inputs;
use crate::librechat::run::session::SessionLock;
use crate::librechat::state::LibreChat;
use crate::store::Store;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    box_id: BoxId,
    files: Inputs,
}

/// The files of one session, for as long as a request uses it.
pub struct Known {
    app: LibreChat,
    lock: Arc<SessionLock>,
    box_id: BoxId,
    files: Inputs,
}

impl Known {
    pub async fn recall(
        app: &LibreChat,
        lock: &Arc<SessionLock>,
        box_id: BoxId,
    ) -> Result<Self, ServiceError> {
        let held = Arc::clone(lock);
        let found =
            app.files.call_if_any(&app.workers, move |store| store.known(held.session())).await?;
        let entry = found.flatten().as_deref().and_then(parsed);
        let same = entry.filter(|entry| entry.box_id == box_id);
        Ok(Self {
            app: app.clone(),
            lock: Arc::clone(lock),
            box_id,
            files: same.map(|entry| entry.files).unwrap_or_default(),
        })
    }

    pub fn files(&self) -> &Inputs {
        &self.files
    }

    /// Stores the list. Writes nothing if nothing changed: a session without files needs no
    /// directory.
    pub async fn set(&mut self, files: Inputs) -> Result<(), ServiceError> {
        if files == self.files {
            return Ok(());
        }
        let lock = Arc::clone(&self.lock);
        let entry = Entry { box_id: self.box_id.clone(), files: files.clone() };
        let text = serde_json::to_vec(&entry);
        let text = text.map_err(|error| ServiceError::internal(error.to_string()))?;
        let remember = move |store: &Arc<Store>| store.save_known(lock.session(), &text);
        self.app.files.call(&self.app.workers, remember).await?;
        self.files = files;
        Ok(())
    }
}

fn parsed(text: &[u8]) -> Option<Entry> {
    serde_json::from_slice(text).ok()
}

/// Whether an entry can be removed: its box is gone, or it cannot be read.
pub fn is_over(engine: &Engine, text: &[u8]) -> bool {
    parsed(text).is_none_or(|entry| {
        let status = engine.status(&entry.box_id);
        status.is_err_and(|error| error.kind() == ErrorKind::NoSuchBox)
    })
}
