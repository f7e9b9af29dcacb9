//! Talks to a live box: runs, execs, files, logs.

pub mod attach;
pub mod attached;
pub mod copying;
pub mod executed;
pub mod exit;
pub mod failure;
pub mod files;
pub mod kept;
pub mod link;
pub mod logs;
pub mod reports;
pub mod stdio;
