//! Notices what other processes do: ends of keepers, growth of logs. This folder reports changes,
//! and never decides what follows from them.

pub mod followers;
pub mod keepers;
