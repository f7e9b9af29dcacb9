//! Files on their way from a client into the store. Worker threads write to the disk one piece at a
//! time, so a slow client occupies no thread.

use axum::body::Bytes;

use crate::error::ServiceError;
use crate::librechat::state::LibreChat;
use crate::store::id::Id;
use crate::store::owner::Owner;
use crate::store::{Meta, NewFile, Object};

/// One incoming file. If it is dropped before it is kept, nothing is left.
#[derive(Debug)]
pub struct IncomingFile {
    app: LibreChat,
    /// `None` while a thread writes to it.
    incoming: Option<NewFile>,
}

impl IncomingFile {
    pub async fn begin(app: &LibreChat, owner: Owner) -> Result<Self, ServiceError> {
        let incoming = app.files.call(move |store| store.receive(&owner)).await?;
        Ok(Self { app: app.clone(), incoming: Some(incoming) })
    }

    pub async fn write(&mut self, bytes: Bytes) -> Result<(), ServiceError> {
        let mut incoming = self.incoming.take().ok_or_else(lost)?;
        // If the request is cancelled, the thread drops the file.
        let write = move || {
            let written = incoming.write(&bytes);
            (incoming, written)
        };
        let (incoming, written) = self.app.service.workers.call(write).await;
        self.incoming = Some(incoming);
        written
    }

    pub async fn keep(mut self, session: Id, meta: Meta) -> Result<Object, ServiceError> {
        let incoming = self.incoming.take().ok_or_else(lost)?;
        self.app.service.workers.call(move || incoming.keep(&session, meta)).await
    }
}

fn lost() -> ServiceError {
    ServiceError::internal("a file was lost on its way")
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            aside(&self.app, move || drop(incoming));
        }
    }
}

/// The files of one request. If they are dropped before the client is answered, none is left.
#[derive(Debug)]
pub struct UploadedFiles {
    app: LibreChat,
    objects: Vec<Object>,
}

impl UploadedFiles {
    pub fn new(app: &LibreChat) -> Self {
        Self { app: app.clone(), objects: Vec::new() }
    }

    pub fn add(&mut self, object: Object) {
        self.objects.push(object);
    }

    /// Keeps the files, and returns them.
    pub fn keep(&mut self) -> Vec<Object> {
        std::mem::take(&mut self.objects)
    }
}

impl Drop for UploadedFiles {
    fn drop(&mut self) {
        let objects = std::mem::take(&mut self.objects);
        if objects.is_empty() {
            return;
        }
        let app = self.app.clone();
        aside(&self.app, move || app.files.remove_all(&objects));
    }
}

/// Does work on the disk in a thread, without waiting for it.
fn aside(app: &LibreChat, what: impl FnOnce() + Send + 'static) {
    let app = app.clone();
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(async move { app.service.workers.call(what).await })),
        Err(_) => what(),
    }
}
