//! HTTP: connections, requests and responses. It knows nothing about boxes.

pub mod auth;
pub mod download;
pub mod error;
pub mod extract;
pub mod frames;
pub mod listen;
pub mod page;
pub mod percent;
pub mod request_log;
pub mod text;
pub mod write_timeout;
