//! The host, before and after.
