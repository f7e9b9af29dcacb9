//! Commands on boxes that exist: find, inspect, stop and change them. This folder never makes a
//! box. To end an attached box, it kills the keeper, and the creator tears the box down. Every other
//! box ends in `care::settle`.

pub mod change;
pub mod filter;
pub mod find;
pub mod inspect;
pub mod stop;
