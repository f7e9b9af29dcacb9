//! What machines are made of: guest kernels, and the monitor that runs a machine.
//!
//! Nothing here belongs to a box. Kernels are installed files in a directory of their own, which does
//! not depend on the state root.

mod apt;
mod decompress;
mod image;
pub mod kernels;
pub mod monitor;
mod package;
mod parts;
