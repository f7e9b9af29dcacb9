//! Events: the log, subscribers, metrics and the hook.

pub mod hook;
pub mod hook_call;
pub mod hook_runner;
pub mod journal;
pub mod metrics;
pub mod writer;
