//! Runs code as another effective user, without losing capabilities.

use std::io;

use rustix::process::{
    Uid, getpid, getppid, kill_process, parent_process_death_signal,
    set_parent_process_death_signal,
};
use rustix::thread::{capabilities, set_capabilities, set_thread_res_uid};

/// Calls `act` with this effective user. What the calling thread makes meanwhile belongs to
/// that user and counts against its limits (user_namespaces(7)).
pub fn as_user<T>(uid: u32, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let ours = rustix::process::geteuid();
    let capabilities = capabilities(None)?;
    let death_signal = parent_process_death_signal()?;
    let parent = getppid();
    set_thread_res_uid(None, Uid::from_raw(uid), None)?;
    // The change clears the effective set. It keeps the permitted set, because the saved user
    // is still root; the change back restores the effective set (capabilities(7)).
    let result = match set_capabilities(None, capabilities) {
        Ok(()) => act(),
        Err(errno) => Err(errno.into()),
    };
    if set_thread_res_uid(None, ours, None).is_err() {
        // Cannot fail: the saved user is ours. A thread that stayed another user would do
        // everything else as that user. A panic could be caught, so abort.
        std::process::abort();
    }
    // Each change of the effective user clears the signal, so a death of the parent meanwhile
    // went unnoticed.
    if let Some(signal) = death_signal {
        set_parent_process_death_signal(Some(signal))?;
        if getppid() != parent {
            kill_process(getpid(), signal)?;
        }
    }
    result
}
