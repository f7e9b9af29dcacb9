//! Compiles the native part of templates: a shared object that needs no library, for any interpreter.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/template");
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let object = PathBuf::from(variable("OUT_DIR")).join("template.so");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-name=template", "--crate-type=cdylib"]);
    // Without `-crt-static`, the target makes no shared object. It has no paths of this machine.
    rustc.args(["-Ctarget-feature=-crt-static", "-Crelocation-model=pic", "-Cpanic=abort"]);
    rustc.args(["-Copt-level=s", "-Cstrip=symbols", "-Clink-args=-nostdlib -nostartfiles"]);
    rustc.arg("--target").arg(variable("TARGET"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-Clinker").arg(linker);
    }
    let status = rustc.arg("-o").arg(&object).arg("src/template/native.rs").status();
    let status = status.expect("rustc can be run");
    assert!(status.success(), "the native part of templates cannot be compiled");
}
