//! Safe access to Linux: the only crate that may use `unsafe`.
//!
//! It knows system calls and kernel objects, and nothing about boxes. All calls are
//! synchronous, every descriptor is owned and close-on-exec from the start, and processes are
//! signalled through their pidfds.

pub mod caps;
pub mod cgroup;
pub mod cgroup_tree;
pub mod clock;
pub mod effective;
pub mod fds;
pub mod files;
pub mod idmap;
pub mod kernel_log;
pub mod kvm;
pub mod landlock;
pub mod launch;
pub mod locks;
pub mod memory;
pub mod memory_file;
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
pub mod template;
pub mod tree;
pub mod watch;

mod child;
mod raw;
