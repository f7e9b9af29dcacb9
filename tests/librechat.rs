//! LibreChat's API: what its clients send, and what they get. One file for each subject.

#[path = "librechat/chat.rs"]
mod chat;
#[path = "librechat/exec.rs"]
mod exec;
#[path = "librechat/identity.rs"]
mod identity;
#[path = "librechat/programmatic.rs"]
mod programmatic;
#[path = "librechat/sessions.rs"]
mod sessions;
