//! Descriptors that are kept for a moment in which there are no others.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// As many as reading a directory and a file in it takes.
const COUNT: usize = 2;

#[derive(Debug)]
pub struct Spare {
    held: Vec<OwnedFd>,
}

impl Spare {
    /// As many as there are now; the rest as soon as there are more.
    pub fn take() -> Self {
        let mut spare = Self { held: Vec::new() };
        spare.fill();
        spare
    }

    /// Gives them up for as long as `work` takes. Another thread may be quicker to
    /// take them, so `work` must do without in the worst case.
    pub fn lend<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.held.clear();
        let done = work();
        self.fill();
        done
    }

    fn fill(&mut self) {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        while self.held.len() < COUNT
            && let Ok(one) = openat(CWD, c"/", flags, Mode::empty())
        {
            self.held.push(one);
        }
    }
}
