//! The configuration that is in force. A reload replaces it.

use std::sync::{Arc, PoisonError, RwLock};

use crate::config::Config;

/// Cheap to clone. All clones change together.
#[derive(Debug, Clone)]
pub struct CurrentConfig(Arc<RwLock<Arc<Config>>>);

impl CurrentConfig {
    pub fn new(config: Config) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(config))))
    }

    pub fn get(&self) -> Arc<Config> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn set(&self, config: Config) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }
}
