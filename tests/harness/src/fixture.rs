//! Files and root directories that several tests give to boxes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip::has_program;
use crate::temporary::TemporaryDirectory;

/// Compiles a C program into `directory`; `None` when this host has no compiler.
pub fn compiled(directory: &TemporaryDirectory, name: &str, source: &str) -> Option<PathBuf> {
    compiled_with(directory, name, source, &["-pthread"])
}

/// The same with other flags.
pub fn compiled_with(
    directory: &TemporaryDirectory,
    name: &str,
    source: &str,
    flags: &[&str],
) -> Option<PathBuf> {
    if !has_program("gcc") {
        return None;
    }
    let program = directory.join(name);
    let file = directory.write(&format!("{name}.c"), source);
    let status = Command::new("gcc")
        .arg("-O1")
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(&file)
        .status()
        .expect("gcc can be started");
    assert!(status.success(), "{name}.c does not compile");
    fs::remove_file(file).expect("the source is ours");
    Some(program)
}

/// A root directory with a static busybox and nothing that tare could rely on: no
/// `/proc`, no `/dev`, no `/tmp`. `None` when this host has no static busybox.
pub fn busybox_root() -> Option<TemporaryDirectory> {
    let busybox = static_busybox()?;
    let root = TemporaryDirectory::new();
    fs::create_dir(root.join("bin")).expect("the root is fresh");
    fs::copy(busybox, root.join("bin/busybox")).expect("busybox can be copied");
    for applet in ["sh", "cat", "ls", "rm", "id", "echo", "mkdir", "touch"] {
        symlink("busybox", root.join("bin").join(applet)).expect("the root is fresh");
    }
    root.write("marker", "from the source\n");
    Some(root)
}

/// The tree below a directory: contents of files, targets of links, modes.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = path.symlink_metadata().expect("it was just listed");
        let content = match metadata.file_type() {
            kind if kind.is_symlink() => {
                let target = fs::read_link(&path).expect("it was just listed");
                target.into_os_string().into_vec()
            }
            kind if kind.is_dir() => {
                let entries = fs::read_dir(&path).expect("it was just listed");
                pending.extend(entries.flatten().map(|entry| entry.path()));
                Vec::new()
            }
            _ => fs::read(&path).expect("it was just listed"),
        };
        let name = path.strip_prefix(root).expect("it is below").to_owned();
        found.insert(name, (metadata.mode(), content));
    }
    found
}

/// The host's busybox, if it needs nothing but a kernel.
pub fn static_busybox() -> Option<&'static Path> {
    ["/usr/bin/busybox", "/bin/busybox"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.exists() && is_static(path))
}

/// Whether the program names no interpreter (`PT_INTERP`) in its ELF header.
fn is_static(program: &Path) -> bool {
    const INTERPRETERS: [&[u8]; 2] = [b"/lib64/ld-linux", b"/lib/ld-musl"];
    const HEAD_BYTES: usize = 4096;
    let bytes = fs::read(program).unwrap_or_default();
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    !INTERPRETERS.iter().any(|needle| head.windows(needle.len()).any(|window| window == *needle))
}
