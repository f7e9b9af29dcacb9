//! What a copy is called where it arrives: the rules of `cp -r`, as Docker has
//! them.
//!
//! ```text
//!             DST is a directory   DST is missing           DST is a file
//! file        DST/name             DST; refused as DST/     DST, replaced
//! directory   DST/name             DST                      refused
//! SRC/.       into DST itself      DST                      refused
//! ```

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tare_engine::spec::shown::quoted;
use tare_engine::{Error, Found};

use crate::error::bad;

/// What is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// Whatever is not a directory.
    File(&'a OsStr),
    Directory(&'a OsStr),
    /// What is in a directory.
    Content,
}

impl<'a> Subject<'a> {
    /// Of a path whose last component is `name`.
    pub fn new(name: Option<&'a OsStr>, is_directory: bool) -> Self {
        match (name, is_directory) {
            (None, _) => Self::Content,
            (Some(name), true) => Self::Directory(name),
            (Some(name), false) => Self::File(name),
        }
    }
}

/// Where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Landing {
    /// Into the directory DST, under its own name.
    Into { name: OsString },
    /// As DST, which is called `becomes` in its directory.
    As { name: OsString, becomes: OsString },
    /// The content into the directory DST.
    Onto,
    /// The content into the directory DST, which is to be made.
    Make { becomes: OsString },
}

pub fn landing(subject: Subject<'_>, destination: &Path, found: Found) -> Result<Landing, Error> {
    let refused = |why: &str, hint: &str| Err(bad(format!("{} {why}", quoted(destination)), hint));
    let slash = ends_with_slash(destination);
    match (found, subject) {
        (Found::Directory, Subject::File(name) | Subject::Directory(name)) => {
            Ok(Landing::Into { name: name.into() })
        }
        (Found::Directory, Subject::Content) => Ok(Landing::Onto),
        (Found::Missing, Subject::File(_)) if slash => refused(
            "is not there, and a file cannot become a directory",
            "make the directory first, or leave the slash out",
        ),
        (Found::File, Subject::File(_)) if slash => {
            refused("is not a directory", "leave the slash out to replace the file")
        }
        (Found::File, Subject::Directory(_) | Subject::Content) => refused(
            "is a file, and a directory is to be copied there",
            "name a directory, or something that is not there yet",
        ),
        (Found::Missing | Found::File, subject) => match name(destination) {
            Some(becomes) => Ok(renamed(subject, becomes)),
            None => refused("is not there", "make the directory first"),
        },
    }
}

fn renamed(subject: Subject<'_>, becomes: &OsStr) -> Landing {
    let becomes = becomes.to_owned();
    match subject {
        Subject::File(name) | Subject::Directory(name) => {
            Landing::As { name: name.to_owned(), becomes }
        }
        Subject::Content => Landing::Make { becomes },
    }
}

/// What the last component of a path is called; `None` where it is no name.
pub fn name(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_bytes();
    // `Path` itself would not see the dot in `a/.`.
    if bytes == b"." || bytes.ends_with(b"/.") { None } else { path.file_name() }
}

pub fn ends_with_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn land(subject: Subject<'_>, destination: &str, found: Found) -> Option<Landing> {
        landing(subject, Path::new(destination), found).ok()
    }

    fn file() -> Subject<'static> {
        Subject::File(OsStr::new("src"))
    }

    fn directory() -> Subject<'static> {
        Subject::Directory(OsStr::new("src"))
    }

    fn as_dst() -> Option<Landing> {
        Some(Landing::As { name: "src".into(), becomes: "dst".into() })
    }

    #[test]
    fn a_directory_takes_things_in_under_their_names() {
        let into = Some(Landing::Into { name: "src".into() });
        for destination in ["/a/dst", "/a/dst/", "/a/dst/.", "/", "."] {
            let found = Found::Directory;
            assert_eq!(land(file(), destination, found), into);
            assert_eq!(land(directory(), destination, found), into);
            let content = land(Subject::Content, destination, found);
            assert_eq!(content, Some(Landing::Onto));
        }
    }

    #[test]
    fn what_is_not_there_becomes_what_is_copied() {
        let found = Found::Missing;
        assert_eq!(land(file(), "a/dst", found), as_dst());
        assert_eq!(land(file(), "a/dst/", found), None);
        let made = Some(Landing::Make { becomes: "dst".into() });
        for destination in ["a/dst", "a/dst/", "dst"] {
            assert_eq!(land(directory(), destination, found), as_dst());
            assert_eq!(land(Subject::Content, destination, found), made);
        }
    }

    #[test]
    fn a_file_is_replaced_by_a_file_only() {
        let found = Found::File;
        assert_eq!(land(file(), "dst", found), as_dst());
        assert_eq!(land(file(), "dst/", found), None);
        assert_eq!(land(directory(), "dst", found), None);
        assert_eq!(land(Subject::Content, "dst", found), None);
    }

    #[test]
    fn every_refusal_names_the_path_and_what_to_do() {
        let refused = landing(directory(), Path::new("dst"), Found::File).unwrap_err();
        assert_eq!(
            crate::error::sentence(&refused),
            "'dst' is a file, and a directory is to be copied there \
             (name a directory, or something that is not there yet)"
        );
        let refused = landing(directory(), Path::new("a/.."), Found::Missing);
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
