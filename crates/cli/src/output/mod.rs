//! What commands print: tables, cells, repeated views.

pub mod format;
pub mod table;
pub mod watch;
