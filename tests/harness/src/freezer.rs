//! A cgroup v1 freezer, with which tests make boxes that cannot die.

use std::fs;
use std::path::PathBuf;

use crate::skip::is_root;
use crate::{eventually, hierarchies};

/// A cgroup whose processes receive no signal, not even SIGKILL (freezer-subsystem.rst).
#[derive(Debug)]
pub struct Freezer(PathBuf);

impl Freezer {
    /// `None` if this host has no v1 freezer, or it cannot be used.
    pub fn new() -> Option<Self> {
        let name = format!("frozen-by-a-test-{}", std::process::id());
        let mut roots = hierarchies().into_iter().filter(|_| is_root());
        let root = roots.find(|root| root.ends_with("freezer"))?;
        fs::create_dir(root.join(&name)).ok()?;
        Some(Self(root.join(name)))
    }

    #[track_caller]
    pub fn freeze(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("root may move it");
        self.set("FROZEN");
        eventually("it is frozen", || {
            fs::read_to_string(self.0.join("freezer.state")).is_ok_and(|it| it == "FROZEN\n")
        });
    }

    pub fn thaw(&self) {
        self.set("THAWED");
    }

    fn set(&self, state: &str) {
        fs::write(self.0.join("freezer.state"), state).expect("the cgroup is ours");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        // Its processes are gone, or the test has failed.
        let _ = fs::remove_dir(&self.0);
    }
}
