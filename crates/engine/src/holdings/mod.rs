//! What a box may hold on the host, one file each: acquire, and release by the
//! id alone where it can outlive us.

pub mod cgroup;
pub mod name;
pub mod scratch;
pub mod uids;
