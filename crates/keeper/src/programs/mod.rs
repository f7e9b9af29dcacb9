//! tare's own programs that run in a box: tar and single files.

pub mod file;
pub mod tar;
