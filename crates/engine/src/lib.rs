//! Boxes: what they are, how they are made, how they end.
pub mod spec;
