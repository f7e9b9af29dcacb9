//! Looks after boxes: removes what has ended, and what no record explains.

pub mod reclaiming;
pub mod sweep;
pub mod tend;
