//! Files of clients: upload, list, download, delete. This folder checks whose a file is, and leaves
//! keeping it to the store.

pub mod claim;
pub mod download;
pub mod form;
pub mod incoming;
pub mod list;
pub mod name;
pub mod objects;
pub mod reference;
pub mod upload;
