//! Something that goes on in a task of its own for somebody who waits for its result.

use tokio::sync::oneshot;

use crate::error::ServiceError;

/// Whoever drops it is told of as gone.
#[derive(Debug)]
pub struct Running<T> {
    result: oneshot::Receiver<Result<T, ServiceError>>,
}

/// Whether somebody still waits.
#[derive(Debug)]
pub struct Wanted<T> {
    by: oneshot::Sender<Result<T, ServiceError>>,
}

impl<T> Running<T> {
    pub async fn result(&mut self) -> Result<T, ServiceError> {
        let lost = || ServiceError::internal("the task of a request is gone");
        (&mut self.result).await.unwrap_or_else(|_| Err(lost()))
    }
}

impl<T> Wanted<T> {
    /// Returns when nobody waits any more.
    pub async fn given_up(&mut self) {
        self.by.closed().await;
    }

    /// If nobody wants it any more, it was done all the same.
    pub fn done(self, result: Result<T, ServiceError>) {
        self.by.send(result).ok();
    }
}

/// Both sides. Whoever does it is not cancelled: it hears that it is not wanted any
/// more, and ends by itself.
pub fn pair<T>() -> (Wanted<T>, Running<T>) {
    let (by, result) = oneshot::channel();
    (Wanted { by }, Running { result })
}
