//! The meaning of SRC and DST: a path in a box, a path of the host or a stream, and the name that a
//! copy gets where it arrives.
//!
//! The names follow the rules of `cp -r`, as Docker has them:
//!
//! ```text
//!             DST is a directory   DST is missing           DST is a file
//! file        DST/name             DST; refused as DST/     DST, replaced
//! directory   DST/name             DST                      refused
//! SRC/.       into DST itself      DST                      refused
//! ```

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tare_engine::spec::shown::quoted;
use tare_engine::{Error, PathKind};

use crate::error::bad;

/// SRC or DST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyPath {
    Host(PathBuf),
    /// The path is absolute: it begins at the root of the box.
    Box {
        reference: String,
        path: PathBuf,
    },
    /// `-`
    Stream,
}

/// Reads SRC or DST. A text with a colon is a path in a box, unless it begins with a dot or a
/// slash, or has a slash before the colon. The box can be `KEY:NAME` if the path begins with a
/// slash.
pub fn parse(text: &OsStr) -> Result<CopyPath, Error> {
    let bytes = text.as_bytes();
    let colon = position_of_colon(bytes);
    let (reference, path) = match (bytes, colon) {
        (b"", _) => return Err(bad("a path is empty", "name a file or a directory")),
        (b"-", _) => return Ok(CopyPath::Stream),
        ([b'.' | b'/', ..], _) | (_, None) => return Ok(CopyPath::Host(text.into())),
        (_, Some(colon)) if bytes[..colon].contains(&b'/') => {
            return Ok(CopyPath::Host(text.into()));
        }
        (_, Some(colon)) => {
            let end = colon + name_after(&bytes[colon + 1..]).map_or(0, |length| length + 1);
            (&bytes[..end], &bytes[end + 1..])
        }
    };
    match (std::str::from_utf8(reference), path) {
        (Ok(reference), [_, ..]) if !reference.is_empty() => Ok(CopyPath::Box {
            reference: reference.to_owned(),
            path: Path::new("/").join(OsStr::from_bytes(path)),
        }),
        (_, _) => Err(bad(
            format!("{} names no path in a box", quoted(text)),
            "write BOX:PATH, such as web:/work, or ./ before a path of the host",
        )),
    }
}

fn position_of_colon(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b':')
}

/// The length of NAME after `KEY:`, if the text there is `NAME:/...`.
fn name_after(rest: &[u8]) -> Option<usize> {
    let length = position_of_colon(rest)?;
    let is_name = length > 0 && !rest[..length].contains(&b'/');
    (is_name && rest[length + 1..].starts_with(b"/")).then_some(length)
}

/// The kind of object that is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopySource<'a> {
    /// Anything that is not a directory.
    File(&'a OsStr),
    Directory(&'a OsStr),
    /// The entries of a directory, without the directory itself.
    Content,
}

impl<'a> CopySource<'a> {
    /// Describes a path whose last component is `name`.
    pub fn new(name: Option<&'a OsStr>, is_directory: bool) -> Self {
        match (name, is_directory) {
            (None, _) => Self::Content,
            (Some(name), true) => Self::Directory(name),
            (Some(name), false) => Self::File(name),
        }
    }
}

/// Where a copy goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyTarget {
    /// Into the directory DST, under its own name.
    Into { name: OsString },
    /// As DST, whose name in its directory is `to`.
    Rename { from: OsString, to: OsString },
    /// The content into the directory DST.
    Onto,
    /// The content into the directory DST, which is to be made.
    Make { becomes: OsString },
}

/// Decides where SRC goes. `found` is the kind of file that DST is now.
pub fn copy_target(
    subject: CopySource<'_>,
    destination: &Path,
    found: PathKind,
) -> Result<CopyTarget, Error> {
    let refused = |why: &str, hint: &str| Err(bad(format!("{} {why}", quoted(destination)), hint));
    let slash = ends_with_slash(destination);
    match (found, subject) {
        (PathKind::Directory, CopySource::File(name) | CopySource::Directory(name)) => {
            Ok(CopyTarget::Into { name: name.into() })
        }
        (PathKind::Directory, CopySource::Content) => Ok(CopyTarget::Onto),
        (PathKind::Missing, CopySource::File(_)) if slash => refused(
            "is not there, and a file cannot become a directory",
            "make the directory first, or leave the slash out",
        ),
        (PathKind::File, CopySource::File(_)) if slash => {
            refused("is not a directory", "leave the slash out to replace the file")
        }
        (PathKind::File, CopySource::Directory(_) | CopySource::Content) => refused(
            "is a file, and a directory is to be copied there",
            "name a directory, or something that is not there yet",
        ),
        (PathKind::Missing | PathKind::File, subject) => match name(destination) {
            Some(becomes) => Ok(renamed(subject, becomes)),
            None => refused("is not there", "make the directory first"),
        },
    }
}

fn renamed(subject: CopySource<'_>, becomes: &OsStr) -> CopyTarget {
    let becomes = becomes.to_owned();
    match subject {
        CopySource::File(name) | CopySource::Directory(name) => {
            CopyTarget::Rename { from: name.to_owned(), to: becomes }
        }
        CopySource::Content => CopyTarget::Make { becomes },
    }
}

/// The last component of a path; `None` if that is not a name.
pub fn name(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_bytes();
    // `Path` ignores the dot in `a/.`.
    if bytes == b"." || bytes.ends_with(b"/.") { None } else { path.file_name() }
}

pub fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_box(reference: &str, path: &str) -> CopyPath {
        CopyPath::Box { reference: reference.into(), path: path.into() }
    }

    #[test]
    fn a_colon_makes_a_path_in_a_box_unless_it_is_written_as_a_path() {
        for (text, place) in [
            ("web:/work", in_box("web", "/work")),
            ("web:work/a:b", in_box("web", "/work/a:b")),
            ("web:/work/.", in_box("web", "/work/.")),
            ("web:.", in_box("web", "/.")),
            ("a.b:/", in_box("a.b", "/")),
            ("ci:web:/work", in_box("ci:web", "/work")),
            (":web:/a:/b", in_box(":web", "/a:/b")),
            ("web:a:b", in_box("web", "/a:b")),
            ("web::/b", in_box("web", "/:/b")),
            ("file", CopyPath::Host("file".into())),
            ("./a:b", CopyPath::Host("./a:b".into())),
            ("/a:b", CopyPath::Host("/a:b".into())),
            ("dir/a:b", CopyPath::Host("dir/a:b".into())),
            (".hidden:x", CopyPath::Host(".hidden:x".into())),
            ("-", CopyPath::Stream),
        ] {
            let parsed = parse(OsStr::new(text)).unwrap();
            assert_eq!(parsed, place, "{text}");
        }
    }

    #[test]
    fn the_end_of_a_path_keeps_its_meaning() {
        for text in ["web:/work/.", "web:/work/"] {
            let CopyPath::Box { path, .. } = parse(OsStr::new(text)).unwrap() else {
                panic!("not in a box");
            };
            assert_eq!(path.as_os_str(), &text[4..]);
        }
    }

    #[test]
    fn a_colon_without_box_or_path_is_refused() {
        for text in ["", ":/x", "web:", ":"] {
            assert!(parse(OsStr::new(text)).unwrap_err().hint().is_some(), "{text}");
        }
        assert!(parse(OsStr::from_bytes(b"\xff:/x")).is_err());
    }

    fn land(subject: CopySource<'_>, destination: &str, found: PathKind) -> Option<CopyTarget> {
        copy_target(subject, Path::new(destination), found).ok()
    }

    fn file() -> CopySource<'static> {
        CopySource::File(OsStr::new("src"))
    }

    fn directory() -> CopySource<'static> {
        CopySource::Directory(OsStr::new("src"))
    }

    fn as_dst() -> Option<CopyTarget> {
        Some(CopyTarget::Rename { from: "src".into(), to: "dst".into() })
    }

    #[test]
    fn a_directory_takes_things_in_under_their_names() {
        let into = Some(CopyTarget::Into { name: "src".into() });
        for destination in ["/a/dst", "/a/dst/", "/a/dst/.", "/", "."] {
            let found = PathKind::Directory;
            assert_eq!(land(file(), destination, found), into);
            assert_eq!(land(directory(), destination, found), into);
            let content = land(CopySource::Content, destination, found);
            assert_eq!(content, Some(CopyTarget::Onto));
        }
    }

    #[test]
    fn a_missing_destination_becomes_the_copy() {
        let found = PathKind::Missing;
        assert_eq!(land(file(), "a/dst", found), as_dst());
        assert_eq!(land(file(), "a/dst/", found), None);
        let made = Some(CopyTarget::Make { becomes: "dst".into() });
        for destination in ["a/dst", "a/dst/", "dst"] {
            assert_eq!(land(directory(), destination, found), as_dst());
            assert_eq!(land(CopySource::Content, destination, found), made);
        }
    }

    #[test]
    fn a_file_is_replaced_by_a_file_only() {
        let found = PathKind::File;
        assert_eq!(land(file(), "dst", found), as_dst());
        assert_eq!(land(file(), "dst/", found), None);
        assert_eq!(land(directory(), "dst", found), None);
        assert_eq!(land(CopySource::Content, "dst", found), None);
    }

    #[test]
    fn every_refusal_names_the_path_and_what_to_do() {
        let refused = copy_target(directory(), Path::new("dst"), PathKind::File).unwrap_err();
        assert_eq!(
            crate::error::sentence(&refused),
            "'dst' is a file, and a directory is to be copied there \
             (name a directory, or something that is not there yet)"
        );
        let refused = copy_target(directory(), Path::new("a/.."), PathKind::Missing);
        assert!(refused.unwrap_err().hint().is_some());
    }

    #[test]
    fn the_content_of_a_directory_has_no_name() {
        for path in [".", "a/.", "/", "..", "a/.."] {
            assert_eq!(name(Path::new(path)), None, "{path}");
        }
        assert_eq!(name(Path::new("a/b/")), Some(OsStr::new("b")));
        assert_eq!(name(Path::new("b.")), Some(OsStr::new("b.")));
    }
}
