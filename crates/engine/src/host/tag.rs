//! The tag of a state root: what its boxes have in their names on the host, so that
//! no tare takes the box of another state root for one of its own.
//!
//! It is a function of where the state root is, and of nothing in it: the same when
//! the state root was removed and made again, so that whatever is left of its boxes
//! is found; another one for the same path on another file system, as in another
//! container, or when something is mounted there.

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
    /// The tag of the state root at this path, whether or not it is there.
    pub fn of(root: &Path) -> Self {
        let path = canonical(root);
        let device = |path: &Path| Some(std::fs::metadata(path).ok()?.dev());
        // Where it is not there it will be made: on the file system of its parent.
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

/// All that a hash of 64 bits has.
const NAME_LENGTH: usize = 12;

fn characters(hash: u64, count: usize) -> String {
    (0..count).map(|at| char::from(ALPHABET[(hash >> (5 * at)) as usize % 32])).collect()
}

/// A box as the host knows it: its id, and the tag of its state root.
#[derive(Debug, Clone, Copy)]
pub struct TaggedId<'a> {
    pub tag: &'a Tag,
    pub id: &'a BoxId,
}

/// The last part is no link: a state root is never opened through one.
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

/// FNV-1a, and a last mixing, because the tag has only some of the bits. It must
/// never change: a tare has to know what an older one has named.
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
