//! The tag of a state root. It is part of the names of the root's boxes on the host, so that no tare
//! takes a box of another state root for its own.
//!
//! The tag depends only on the path and the file system of the state root. A state root that was
//! removed and made again has the same tag, so tare finds what is left of its boxes. The same path
//! on another file system, as in another container, has another tag.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::spec::name::{ALPHABET, BoxId};

/// Eight characters of the alphabet of ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(String);

const LENGTH: usize = 8;

impl Tag {
    /// The tag of the state root at this path, whether or not it exists.
    pub fn of(root: &Path) -> Self {
        let path = canonical(root);
        let device = |path: &Path| Some(std::fs::metadata(path).ok()?.dev());
        // A state root that is missing will be made on the file system of its parent.
        let device = device(&path).or_else(|| device(path.parent()?));
        Self::from(path.as_os_str().as_bytes(), device.unwrap_or(0))
    }

    fn from(path: &[u8], device: u64) -> Self {
        let hash = hash(path.iter().chain(&device.to_le_bytes()));
        Self(characters(hash, LENGTH))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A file name for a path: different paths have different names.
pub fn name_of(path: &Path) -> String {
    characters(hash(path.as_os_str().as_bytes().iter()), NAME_LENGTH)
}

/// Twelve characters of five bits have nearly all bits of the hash.
const NAME_LENGTH: usize = 12;

fn characters(hash: u64, count: usize) -> String {
    (0..count).map(|at| char::from(ALPHABET[(hash >> (5 * at)) as usize % 32])).collect()
}

/// A box as the host names it: its id, and the tag of its state root.
#[derive(Debug, Clone, Copy)]
pub struct TaggedId<'a> {
    pub tag: &'a Tag,
    pub id: &'a BoxId,
}

/// The path without links and `..`. tare never opens a state root through a link.
fn canonical(root: &Path) -> PathBuf {
    root.canonicalize().unwrap_or_else(|_| {
        let absolute = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let parent = absolute.parent().and_then(|it| it.canonicalize().ok());
        match (parent, absolute.file_name()) {
            (Some(parent), Some(name)) => parent.join(name),
            (None, _) | (_, None) => absolute,
        }
    })
}

/// FNV-1a with a final mix, because the tag has only some of the bits. It must never change: every
/// tare must find what an older one has named.
fn hash<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    let folded = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (folded ^ (folded >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_tag_depends_only_on_the_path_whether_it_exists_or_not() {
        let home = std::env::temp_dir().join(format!("tare-tag-{}", std::process::id()));
        std::fs::create_dir(&home).unwrap();
        let root = home.join("state");
        let before = Tag::of(&root);
        std::fs::create_dir(&root).unwrap();
        assert_eq!(Tag::of(&root), before);
        assert_eq!(Tag::of(&home.join("./state/")), before);
        assert_eq!(Tag::of(&home.join("state/../state")), before);
        std::os::unix::fs::symlink(&home, home.join("link")).unwrap();
        assert_eq!(Tag::of(&home.join("link/state")), before);
        assert_ne!(Tag::of(&home.join("other")), before);
        std::fs::remove_dir_all(&home).unwrap();
    }

    #[test]
    fn another_path_or_another_file_system_is_another_tag() {
        let path = |number: u64| format!("/run/tare{number}").into_bytes();
        let tags = (0..4000).map(|number| Tag::from(&path(number), 25).0);
        let devices = (0..4000).map(|device| Tag::from(b"/run/tare", device).0);
        let distinct: HashSet<String> = tags.chain(devices).collect();
        assert_eq!(distinct.len(), 8000);
    }

    #[test]
    fn the_tag_of_a_place_never_changes() {
        assert_eq!(Tag::from(b"/run/tare", 25).as_str(), "jknzpxhj");
    }
}
