//! Commands on boxes that exist.

pub mod change;
pub mod find;
pub mod stop;
