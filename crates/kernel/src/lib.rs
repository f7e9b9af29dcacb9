//! Linux made safe.

pub mod signals;
