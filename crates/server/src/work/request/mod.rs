//! What a request asks for, checked against the operator's configuration. This folder does nothing to
//! a box.

pub mod idempotency;
pub mod languages;
pub mod programs;
pub mod run;
pub mod spec;
