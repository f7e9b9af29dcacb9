//! LibreChat's API: what its clients send, and what they get. One file for each subject.

#[path = "librechat/client.rs"]
mod client;
#[path = "librechat/documents.rs"]
mod documents;
#[path = "librechat/download.rs"]
mod download;
#[path = "librechat/exec.rs"]
mod exec;
#[path = "librechat/files.rs"]
mod files;
#[path = "librechat/identity.rs"]
mod identity;
#[path = "librechat/incident.rs"]
mod incident;
#[path = "librechat/keeping.rs"]
mod keeping;
#[path = "librechat/large.rs"]
mod large;
#[path = "librechat/ownership.rs"]
mod ownership;
#[path = "librechat/packages.rs"]
mod packages;
#[path = "librechat/programmatic.rs"]
mod programmatic;
#[path = "librechat/published.rs"]
mod published;
#[path = "librechat/sessions.rs"]
mod sessions;
#[path = "librechat/upload.rs"]
mod upload;
