//! `tare serve`: the engine over HTTP.
//!
//! The server does not own boxes: boxes that live on outlive it, and it asks the engine about
//! them each time. A server that is killed takes its one-shot runs along, and nothing else. The
//! next server has all other boxes.
//!
//! ```text
//! http (connections, log, keys) -> api, librechat -> work -> engine
//!                                                     \-> admission, watch, telemetry
//! ```

mod admission;
#[allow(unused_qualifications, reason = "what describes the routes writes whole paths")]
mod api;
mod app;
mod config;
mod error;
mod fd;
mod http;
mod librechat;
mod notify;
mod server;
mod shutdown;
mod store;
mod telemetry;
mod upkeep;
mod watch;
mod work;
mod workers;

pub use config::{Config, Key, Listen, LogFormat};
pub use server::{Options, serve};
pub use telemetry::hook_runner;
