//! Input, output and control of a process in a box, as futures. This folder starts no process.

pub mod chunk;
pub mod events;
pub mod output;
pub mod recent_output;
pub mod relay;
