//! The service layer: what every API calls. It knows no HTTP.

pub mod events;
pub mod exec;
pub mod files;
pub mod idempotency;
pub mod languages;
pub mod pipe;
pub mod processes;
pub mod recent_output;
pub mod relay;
pub mod run;
pub mod spec;
pub mod stop;
