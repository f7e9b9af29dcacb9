//! The orders of a template and of its clones. Sender and receiver have the same layout in memory:
//! `native.rs`, which reads the orders, is another program, but the same compiler builds both.

/// The head of the order to make a box. The arguments of the keeper follow, each with a NUL behind
/// it, then one more NUL, then the same for its environment.
///
/// The descriptors that come with it: the go, the clone's socket, the directory of the box's
/// cgroup, the files to join, those of the keeper in the order of their numbers, and the keeper's
/// program.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BirthHead {
    /// As flags of `clone3(2)`.
    pub namespaces: u64,
    /// How many files of cgroups the first process joins, each by writing `0` to it.
    pub joins: u64,
}

/// The answer to the order to make a box: its first process is in its cgroups, or a step has
/// failed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BirthAnswer {
    pub step: u32,
    /// 0 for success.
    pub errno: i32,
}

/// The steps of a birth that can fail.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum BirthStep {
    Order = 0,
    Clone = 1,
    Join = 2,
}

/// The head of the order that confines a clone. The limits, the filter, and the working directory
/// with a NUL behind it follow. The descriptors that come with it: the three streams, and the
/// Landlock ruleset if there is one.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ConfineHead {
    pub uid: u32,
    pub gid: u32,
    /// The number of limits.
    pub limits: u32,
    /// The number of instructions, of 8 bytes each.
    pub filter: u32,
}

/// A limit of `setrlimit(2)`, soft and hard.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ResourceLimit {
    pub resource: u64,
    pub value: u64,
}
