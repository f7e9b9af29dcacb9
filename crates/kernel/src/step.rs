//! Named steps: every action on the host that can fail.
//!
//! A step is one system call, or a few that do one thing. In an ordinary build a step is its
//! action and nothing else. A build with the feature `faults` can die after any step, make it
//! fail, or do it twice (`faults.rs`), so `tests/crash_steps.rs` can try each step, also those
//! that are added later.

#[cfg(feature = "faults")]
mod faults;

use std::ffi::CString;

use rustix::io::Errno;

/// A step that can be repeated. If a process is killed right after it, the next process does
/// not know that it was done, and does it again.
#[inline(always)]
pub fn step<T, E: From<Errno>>(
    name: &'static str,
    mut action: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    #[cfg(feature = "faults")]
    {
        faults::repeatable(name, &mut action)
    }
    #[cfg(not(feature = "faults"))]
    {
        let _ = name;
        action()
    }
}

/// A step that cannot be repeated, because it makes a process or uses something up.
#[inline(always)]
pub fn once<T, E: From<Errno>>(
    name: &'static str,
    action: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    #[cfg(feature = "faults")]
    {
        faults::single(name, action)
    }
    #[cfg(not(feature = "faults"))]
    {
        let _ = name;
        action()
    }
}

/// The environment of a keeper: empty, except for its faults in a build with faults.
#[inline(always)]
pub fn handed_down() -> Vec<CString> {
    #[cfg(feature = "faults")]
    {
        faults::handed_down()
    }
    #[cfg(not(feature = "faults"))]
    {
        Vec::new()
    }
}
