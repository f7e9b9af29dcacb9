//! Notices changes that other processes make: ends of keepers, growth of logs.

pub mod followers;
pub mod keepers;
