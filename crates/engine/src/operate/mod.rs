//! Commands on boxes that exist: find, inspect, stop and change them. This folder never makes a
//! box, and ends boxes only through `care::settle`.

pub mod change;
pub mod filter;
pub mod find;
pub mod inspect;
pub mod stop;
