//! Linux made safe: the only crate that may use `unsafe`.
//!
//! It knows system calls and kernel objects, never boxes. Everything is
//! synchronous, every descriptor is close-on-exec from birth and owned, and a
//! process is only ever signalled through its pidfd.

pub mod caps;
pub mod cgroup;
pub mod clock;
pub mod effective;
pub mod fds;
pub mod idmap;
pub mod landlock;
pub mod launch;
pub mod memory;
pub mod mount;
pub mod network;
pub mod process;
pub mod procfs;
pub mod program;
pub mod replace;
pub mod seccomp;
pub mod signals;
pub mod sockets;
pub mod spawn;
pub mod step;
pub mod tree;
pub mod usage;
pub mod watch;

mod child;
mod raw;
