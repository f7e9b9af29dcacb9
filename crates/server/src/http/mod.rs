//! HTTP: connections, requests, responses, and the words of errors for HTTP clients. It does nothing
//! to a box: it knows only the routes that it serves when all connections are in use.

pub mod auth;
pub mod body;
pub mod bounded;
pub mod download;
pub mod error;
pub mod extract;
pub mod frames;
pub mod hint;
pub mod listen;
pub mod request_log;
pub mod text;
pub mod write_timeout;

use std::sync::{Arc, OnceLock};

use crate::admission::bodies::Bodies;
use crate::admission::streams::OpenStreams;
use crate::config::current::CurrentConfig;
use crate::config::{Config, Exposure};
use crate::shutdown::Shutdown;
use crate::telemetry::journal::Journal;

/// What every request needs, whichever API it is for. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Http {
    config: CurrentConfig,
    pub journal: Arc<Journal>,
    pub shutdown: Shutdown,
    pub bodies: Bodies,
    pub streams: OpenStreams,
    /// As it was at the start: a reload does not change the listener.
    pub reach: Exposure,
    /// The TCP port of the listener, once it has one.
    pub port: Arc<OnceLock<u16>>,
}

/// Where this server is reached.
#[derive(Debug, Clone, Copy)]
pub struct ServedAt {
    pub reach: Exposure,
    /// `None` for a socket in the file system.
    pub port: Option<u16>,
}

impl Http {
    pub fn new(
        config: CurrentConfig,
        journal: Arc<Journal>,
        shutdown: Shutdown,
        bodies: Bodies,
    ) -> Self {
        let reach = config.get().listen.exposure();
        Self {
            config,
            journal,
            shutdown,
            bodies,
            streams: OpenStreams::default(),
            reach,
            port: Arc::default(),
        }
    }

    pub fn config(&self) -> Arc<Config> {
        self.config.get()
    }

    pub fn served_at(&self) -> ServedAt {
        ServedAt { reach: self.reach, port: self.port.get().copied() }
    }
}
