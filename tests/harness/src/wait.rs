//! Waits for a condition that no descriptor announces, instead of for a time.

use std::time::{Duration, Instant};

/// How long a test waits for something that should happen soon. It is long, because a slow machine is
/// not a bug, and bounded, because a hang is one.
pub const PATIENCE: Duration = Duration::from_secs(60);

const STEP: Duration = Duration::from_millis(2);

/// Returns as soon as `condition` holds. Fails the test if that takes more than a minute.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(PATIENCE, what, condition);
}

#[track_caller]
pub fn eventually_within(bound: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(poll(bound, condition), "not within {bound:?}: {what}");
}

/// Returns whether `condition` holds within `bound`. Checks it at least once.
pub fn poll(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + bound;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        #[expect(clippy::disallowed_methods, reason = "bounded by the deadline")]
        std::thread::sleep(STEP);
    }
}

/// Lets a time pass, for tests whose input is the moment of an action, such as a kill, or that
/// measure what happens meanwhile. Never use it to wait for something.
#[expect(clippy::disallowed_methods, reason = "bounded by its argument")]
pub fn let_pass(time: Duration) {
    std::thread::sleep(time);
}
