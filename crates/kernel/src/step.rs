//! Named steps: each thing that is done to the host and that can go wrong.
//!
//! A step is one system call, or a few that make one thing. In an ordinary build
//! it is its action and nothing else. A build with the feature `faults` can be told
//! to die behind any step, to have it fail, or to do it twice (`faults.rs`), so that
//! a test can try every one of them (`tests/crash_steps.rs`), also those that are
//! written tomorrow.

#[cfg(feature = "faults")]
mod faults;

use std::ffi::CString;

use rustix::io::Errno;

/// A step that may be done again: whoever was killed just behind it is followed by
/// somebody who cannot know that it was done.
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

/// A step that is done once by its nature: a birth, or what uses something up.
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

/// The environment of a process that is born here: nothing, but for what a build
/// with faults is told to do to it.
#[inline(always)]
pub(crate) fn handed_down() -> Vec<CString> {
    #[cfg(feature = "faults")]
    {
        faults::handed_down()
    }
    #[cfg(not(feature = "faults"))]
    {
        Vec::new()
    }
}
