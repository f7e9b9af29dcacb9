//! A tare whose steps can be told to fail, built beside the one under test: its
//! feature must never be in an ordinary binary. Cargo builds it anew only when
//! something has changed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// `None` when there is nobody to build it.
pub fn tare() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    let ordinary = Path::new(env!("CARGO_BIN_EXE_tare"));
    // `target/TRIPLE/PROFILE/tare`
    let mut above = ordinary.ancestors().skip(2);
    let (triple, target) = (above.next()?.file_name()?, above.next()?);
    let directory = target.join("faults");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--locked", "--offline"]);
    command.args(["--package", "tare", "--bin", "tare", "--features", "faults"]);
    command.arg("--target-dir").arg(&directory);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    // Nobody looks at it in a debugger, and it is built sooner.
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    let status = command.status().ok()?;
    assert!(status.success(), "tare does not build with its faults");
    Some(directory.join(triple).join("debug/tare"))
}
