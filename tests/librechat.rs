//! LibreChat's API: what its clients send, and what they get. One file per subject.

pub mod client;
mod documents;
mod download;
mod exec;
mod figures;
mod files;
mod identity;
mod incident;
mod keeping;
mod large;
mod leaks;
mod machines;
mod ownership;
mod packages;
mod programmatic;
mod published;
mod sessions;
mod upload;
