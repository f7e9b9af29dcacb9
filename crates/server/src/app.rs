//! The state that the handlers of all APIs share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use axum::extract::FromRef;
use tokio::sync::{mpsc, oneshot};

use crate::error::ServiceError;
use crate::http::Http;
use crate::store::open::Files;
use crate::telemetry::hook::Hook;
use crate::work::Service;

/// Cheap to clone: one for each request.
#[derive(Debug, Clone)]
pub struct AppState {
    pub service: Service,
    pub http: Http,
    pub hook: Arc<Hook>,
    pub files: Files,
    pub recovery: Arc<Recovery>,
    pub started: Instant,
    reloads: mpsc::Sender<ReloadRequest>,
}

/// A request to read the configuration again, and where its result goes.
pub type ReloadRequest = oneshot::Sender<Result<(), ServiceError>>;

/// Progress of the recovery of boxes that existed before this server.
#[derive(Debug, Default)]
pub struct Recovery {
    pub is_done: AtomicBool,
    pub boxes: AtomicUsize,
}

impl AppState {
    pub fn new(
        service: Service,
        http: Http,
        files: Files,
        reloads: mpsc::Sender<ReloadRequest>,
    ) -> Self {
        Self {
            service,
            http,
            hook: Arc::default(),
            files,
            recovery: Arc::default(),
            started: Instant::now(),
            reloads,
        }
    }

    /// Makes the server read its configuration again.
    pub async fn reload(&self) -> Result<(), ServiceError> {
        let (done, result) = oneshot::channel();
        self.reloads.send(done).await.map_err(|_| ServiceError::stopping())?;
        result.await.unwrap_or_else(|_| Err(ServiceError::stopping()))
    }
}

impl Recovery {
    pub fn done(&self, boxes: usize) {
        self.boxes.store(boxes, Ordering::Relaxed);
        self.is_done.store(true, Ordering::Release);
    }
}

impl FromRef<AppState> for Service {
    fn from_ref(app: &AppState) -> Self {
        app.service.clone()
    }
}

impl FromRef<AppState> for Http {
    fn from_ref(app: &AppState) -> Self {
        app.http.clone()
    }
}
