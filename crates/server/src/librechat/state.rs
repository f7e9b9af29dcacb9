//! The state that LibreChat's routes share: the service, the store, and everything that this API
//! remembers between requests.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;

use crate::http::Http;
use crate::librechat::auth::JwtKeys;
use crate::librechat::cancel::Cancellable;
use crate::librechat::run::queue::Queues;
use crate::librechat::tools::open::Executions;
use crate::store::open::Files;
use crate::work::Service;

/// Cheap to clone: one for each request.
#[derive(Debug, Clone)]
pub struct LibreChat(Arc<Parts>);

#[derive(Debug)]
pub struct Parts {
    pub service: Service,
    pub http: Http,
    pub files: Files,
    pub jwt_keys: JwtKeys,
    pub executions: Executions,
    pub queues: Queues,
    pub cancellable: Cancellable,
}

impl LibreChat {
    pub fn new(service: Service, http: Http, files: Files) -> Self {
        let executions = Executions::new(service.metrics.executions_waiting.clone());
        Self(Arc::new(Parts {
            service,
            http,
            files,
            jwt_keys: JwtKeys::default(),
            executions,
            queues: Queues::default(),
            cancellable: Cancellable::default(),
        }))
    }
}

impl FromRef<LibreChat> for Http {
    fn from_ref(app: &LibreChat) -> Self {
        app.http.clone()
    }
}

impl Deref for LibreChat {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Everything that an API does to boxes goes through the service.
impl Deref for Parts {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.service
    }
}
