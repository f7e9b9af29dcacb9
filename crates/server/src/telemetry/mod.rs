//! Events: the log, subscribers, metrics and the hook. This folder records what happened. It
//! never decides what happens next.

pub mod event;
pub mod hook;
pub mod hook_runner;
pub mod journal;
pub mod metrics;
pub mod pool_metrics;
mod writer;

pub use event::{LogEvent, OfBox};
pub use journal::LogRecord;
