//! Builds the keeper, a static musl program, so that it can travel inside the
//! one binary that users install.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const TARGET: &str = "x86_64-unknown-linux-musl";

fn main() {
    let workspace = manifest_dir().join("../..");
    for room in ["control", "keeper", "kernel"] {
        println!(
            "cargo::rerun-if-changed={}",
            workspace.join("crates").join(room).display()
        );
    }
    println!(
        "cargo::rerun-if-changed={}",
        workspace.join("Cargo.toml").display()
    );
    ensure_target();
    let keeper = build_keeper(&workspace);
    println!("cargo::rustc-env=TARE_KEEPER={}", keeper.display());
}

fn manifest_dir() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default())
}

/// rust-toolchain.toml names the target, but where rustup is told not to
/// install anything on its own it has to be asked.
fn ensure_target() {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let print = ["--print", "target-libdir", "--target", TARGET];
    let library = Command::new(rustc).args(print).output();
    let present = library
        .is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir());
    if !present && !succeeds(Command::new("rustup").args(["target", "add", TARGET])) {
        println!(
            "cargo::error=the keeper needs the Rust target {TARGET}: rustup target add {TARGET}"
        );
        exit(1);
    }
}

/// A build of its own, in a directory of its own: the outer one holds the lock
/// of the ordinary target directory, and its flags are for another target.
fn build_keeper(workspace: &Path) -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("keeper");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace)
        .args(["build", "--package", "tare-keeper", "--profile", "keeper"])
        .args(["--target", TARGET, "--target-dir"])
        .arg(&out);
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
    ] {
        cargo.env_remove(name);
    }
    if !succeeds(&mut cargo) {
        println!(
            "cargo::error=the keeper does not build: cargo build -p tare-keeper --target {TARGET}"
        );
        exit(1);
    }
    out.join(TARGET).join("keeper").join("tare-keeper")
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}
