//! Leaves the binary where people look for it: cargo puts what it builds for a
//! named target into a directory of that name, so `target/release/tare` is a
//! link to it. Has the linker order the functions of a release as `tools/text-order` says.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        order_text(&out);
    }
    if let Err(error) = link_beside_host_builds(&out) {
        println!("cargo::warning=cannot link target/release/tare: {error}");
    }
}

/// A release without the file, such as one from a package of this crate alone, starts a little slower.
fn order_text(out: &Path) {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let order = package.join("../../tools/text-order.ld");
    println!("cargo::rerun-if-changed={}", order.display());
    if order.exists() {
        println!("cargo::rustc-link-arg-bin=tare=-Wl,-T,{}", order.display());
        // ./check reads in the map how many names of the list this release has.
        println!("cargo::rustc-link-arg-bin=tare=-Wl,-Map,{}", out.join("map").display());
    }
}

/// `OUT_DIR` is `target/TRIPLE/PROFILE/build/PACKAGE/out`.
fn link_beside_host_builds(out: &Path) -> std::io::Result<()> {
    let mut above = out.ancestors().skip(3);
    let (Some(profile), Some(triple), Some(target)) = (above.next(), above.next(), above.next())
    else {
        return Ok(());
    };
    let (Some(profile), Some(triple)) = (profile.file_name(), triple.file_name()) else {
        return Ok(());
    };
    let link = target.join(profile).join("tare");
    let binary = Path::new("..").join(triple).join(profile).join("tare");
    if fs::read_link(&link).is_ok_and(|existing| existing == binary) {
        return Ok(());
    }
    fs::create_dir_all(target.join(profile))?;
    match fs::remove_file(&link) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => symlink(binary, link),
    }
}
