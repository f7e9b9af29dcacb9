//! LibreChat's API: what its clients send, and what they get. One file for each subject.

#[path = "librechat/identity.rs"]
mod identity;
