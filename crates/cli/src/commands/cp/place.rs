//! `SRC` and `DST`: a path in a box, a path of the host, or a stream.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tare_engine::Error;
use tare_engine::spec::shown::quoted;

use crate::error::bad;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Host(PathBuf),
    /// The path is absolute: it begins at the root of the box.
    Box {
        reference: String,
        path: PathBuf,
    },
    /// `-`
    Stream,
}

/// What is copied where; exactly one side is a box.
#[derive(Debug, PartialEq, Eq)]
pub enum Route<'a> {
    Into { source: &'a Path, reference: &'a str, path: &'a Path },
    OutOf { reference: &'a str, path: &'a Path, destination: &'a Path },
    StreamInto { reference: &'a str, path: &'a Path },
    StreamOutOf { reference: &'a str, path: &'a Path },
}

/// What has a colon is in a box, unless it is written as a path: with a dot or a
/// slash at its beginning, or a slash before the colon.
pub fn parse(text: &OsStr) -> Result<Place, Error> {
    let bytes = text.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':');
    let (reference, path) = match (bytes, colon) {
        (b"", _) => return Err(bad("a path is empty", "name a file or a directory")),
        (b"-", _) => return Ok(Place::Stream),
        ([b'.' | b'/', ..], _) | (_, None) => return Ok(Place::Host(text.into())),
        (_, Some(colon)) if bytes[..colon].contains(&b'/') => return Ok(Place::Host(text.into())),
        (_, Some(colon)) => (&bytes[..colon], &bytes[colon + 1..]),
    };
    match (std::str::from_utf8(reference), path) {
        (Ok(reference), [_, ..]) if !reference.is_empty() => Ok(Place::Box {
            reference: reference.to_owned(),
            path: Path::new("/").join(OsStr::from_bytes(path)),
        }),
        (_, _) => Err(bad(
            format!("{} names no path in a box", quoted(text)),
            "write BOX:PATH, such as web:/work, or ./ before a path of the host",
        )),
    }
}

pub fn route<'a>(source: &'a Place, destination: &'a Place) -> Result<Route<'a>, Error> {
    match (source, destination) {
        (Place::Host(source), Place::Box { reference, path }) => {
            Ok(Route::Into { source, reference, path })
        }
        (Place::Stream, Place::Box { reference, path }) => {
            Ok(Route::StreamInto { reference, path })
        }
        (Place::Box { reference, path }, Place::Host(destination)) => {
            Ok(Route::OutOf { reference, path, destination })
        }
        (Place::Box { reference, path }, Place::Stream) => {
            Ok(Route::StreamOutOf { reference, path })
        }
        (Place::Box { .. }, Place::Box { .. }) => Err(bad(
            "SRC and DST are both in a box",
            "copy through a stream: tare cp A:/x - | tare cp - B:/y",
        )),
        (Place::Host(_) | Place::Stream, Place::Host(_) | Place::Stream) => Err(bad(
            "neither SRC nor DST is in a box",
            "write BOX:PATH for one of them, such as web:/work",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_box(reference: &str, path: &str) -> Place {
        Place::Box { reference: reference.into(), path: path.into() }
    }

    #[test]
    fn a_colon_makes_a_path_in_a_box_unless_it_is_written_as_a_path() {
        for (text, place) in [
            ("web:/work", in_box("web", "/work")),
            ("web:work/a:b", in_box("web", "/work/a:b")),
            ("web:/work/.", in_box("web", "/work/.")),
            ("web:.", in_box("web", "/.")),
            ("a.b:/", in_box("a.b", "/")),
            ("file", Place::Host("file".into())),
            ("./a:b", Place::Host("./a:b".into())),
            ("/a:b", Place::Host("/a:b".into())),
            ("dir/a:b", Place::Host("dir/a:b".into())),
            (".hidden:x", Place::Host(".hidden:x".into())),
            ("-", Place::Stream),
        ] {
            let parsed = parse(OsStr::new(text)).unwrap();
            assert_eq!(parsed, place, "{text}");
        }
    }

    #[test]
    fn the_end_of_a_path_keeps_its_meaning() {
        for text in ["web:/work/.", "web:/work/"] {
            let Place::Box { path, .. } = parse(OsStr::new(text)).unwrap() else {
                panic!("not in a box");
            };
            assert_eq!(path.as_os_str(), &text[4..]);
        }
    }

    #[test]
    fn half_a_place_is_refused() {
        for text in ["", ":/x", "web:", ":"] {
            assert!(parse(OsStr::new(text)).unwrap_err().hint().is_some(), "{text}");
        }
        assert!(parse(OsStr::from_bytes(b"\xff:/x")).is_err());
    }

    #[test]
    fn exactly_one_side_is_a_box() {
        let (web, host) = (in_box("web", "/x"), Place::Host("y".into()));
        assert!(matches!(route(&host, &web), Ok(Route::Into { .. })));
        assert!(matches!(route(&web, &host), Ok(Route::OutOf { .. })));
        let (from, to) = (route(&Place::Stream, &web), route(&web, &Place::Stream));
        assert!(matches!(from, Ok(Route::StreamInto { .. })));
        assert!(matches!(to, Ok(Route::StreamOutOf { .. })));
        for (source, destination) in [
            (&web, &web),
            (&host, &host),
            (&host, &Place::Stream),
            (&Place::Stream, &Place::Stream),
        ] {
            let error = route(source, destination).unwrap_err();
            assert!(error.hint().is_some(), "{error}");
        }
    }
}
