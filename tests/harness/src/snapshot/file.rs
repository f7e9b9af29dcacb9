//! Paths below the state roots, and everywhere else where tare could write.

use std::fs;
use std::path::{Path, PathBuf};

use super::Things;

const DEFAULT_ROOT: &str = "/run/tare";

pub fn observe(roots: &[PathBuf]) -> Things {
    let default = PathBuf::from(DEFAULT_ROOT);
    let places = roots.iter().cloned().chain([default]).chain(temporary());
    places.flat_map(|root| paths(&root)).collect()
}

/// Paths named `tare*` in the temporary directories.
fn temporary() -> Vec<PathBuf> {
    let directories = [PathBuf::from("/tmp"), std::env::temp_dir()];
    let entries = directories.iter().flat_map(fs::read_dir).flatten().flatten();
    let of_tare = entries.filter(|e| e.file_name().as_encoded_bytes().starts_with(b"tare"));
    of_tare.map(|entry| entry.path()).collect()
}

/// The path and everything below it. Symbolic links are not followed.
fn paths(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let Ok(metadata) = path.symlink_metadata() else {
            continue;
        };
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            pending.extend(entries.map(|entry| entry.path()));
            found.push(format!("directory {}", path.display()));
        } else {
            found.push(format!("file {}", path.display()));
        }
    }
    found
}
