//! Files of clients: upload, list, download, delete.

pub mod claim;
pub mod download;
pub mod form;
pub mod incoming;
pub mod list;
pub mod multipart;
pub mod name;
pub mod objects;
pub mod range;
pub mod reference;
pub mod upload;
