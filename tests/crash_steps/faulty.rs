//! The tare binary in which tests inject faults. The feature must never be in an ordinary binary,
//! so `tests/build-faults` builds this one separately.

use std::path::{Path, PathBuf};

/// `None` if `tests/build-faults` did not run; nextest and `./check` call it.
pub fn tare() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/faults/tare");
    built.exists().then_some(built)
}
