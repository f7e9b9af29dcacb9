//! How the server stops: it serves, then drains, then kills.

use tokio_util::sync::CancellationToken;

use crate::error::ServiceError;

/// Cheap to clone. All clones change together.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    killing: CancellationToken,
}

impl Shutdown {
    /// No new work begins. Work in progress may finish.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Work in progress is interrupted.
    pub fn kill(&self) {
        self.drain();
        self.killing.cancel();
    }

    pub fn is_serving(&self) -> bool {
        !self.draining.is_cancelled()
    }

    pub fn is_killing(&self) -> bool {
        self.killing.is_cancelled()
    }

    /// Fails if no new work may begin.
    pub fn check_serving(&self) -> Result<(), ServiceError> {
        if self.is_serving() { Ok(()) } else { Err(ServiceError::stopping()) }
    }

    /// Returns when no new work may begin.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Returns when work in progress is interrupted.
    pub async fn killing(&self) {
        self.killing.cancelled().await;
    }

    /// A token for one piece of work. It is cancelled with the work, and when the server kills
    /// what is left.
    pub fn interrupt(&self) -> CancellationToken {
        self.killing.child_token()
    }
}
