//! Commands on boxes that exist: find, inspect, stop and change them. This folder never makes a
//! box. It kills the keeper of an attached box, and ends every other box through `care::settle`.

pub mod change;
pub mod filter;
pub mod find;
pub mod inspect;
pub mod stop;
