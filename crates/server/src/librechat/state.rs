//! The state that LibreChat's routes share: the service, the store, and everything that this API
//! remembers between requests.

use std::sync::Arc;

use axum::extract::FromRef;

use crate::http::Http;
use crate::librechat::auth::keys::JwtKeys;
use crate::librechat::cancel::Cancellable;
use crate::librechat::run::queue::Queues;
use crate::librechat::tools::open::Executions;
use crate::store::open::Files;
use crate::work::Service;

/// Cheap to clone: one for each request.
#[derive(Debug, Clone)]
pub struct LibreChat {
    pub service: Service,
    pub http: Http,
    pub files: Files,
    pub jwt_keys: Arc<JwtKeys>,
    pub executions: Arc<Executions>,
    pub queues: Queues,
    pub cancellable: Cancellable,
}

impl LibreChat {
    pub fn new(service: Service, http: Http, files: Files) -> Self {
        let executions = Executions::new(service.metrics.executions_waiting.clone());
        Self {
            service,
            http,
            files,
            jwt_keys: Arc::default(),
            executions: Arc::new(executions),
            queues: Queues::default(),
            cancellable: Cancellable::default(),
        }
    }
}

impl FromRef<LibreChat> for Cancellable {
    fn from_ref(app: &LibreChat) -> Self {
        app.cancellable.clone()
    }
}

impl FromRef<LibreChat> for Http {
    fn from_ref(app: &LibreChat) -> Self {
        app.http.clone()
    }
}
