//! `tare serve`: the engine over HTTP.
//!
//! The server keeps no state about boxes. It asks the engine about them each time. When a server is
//! killed, its runs end with it. All other boxes go on, and the next server finds them.
//!
//! ```text
//! http (connections, log, keys) -> api, librechat -> work -> engine
//!                                                     \-> admission, watch, telemetry
//! ```

mod admission;
#[allow(unused_qualifications, reason = "the macros that describe routes write whole paths")]
mod api;
mod app;
mod config;
mod error;
mod fd;
mod http;
mod librechat;
mod notify;
mod permits;
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
