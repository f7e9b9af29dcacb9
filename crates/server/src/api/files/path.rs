//! Parses the box and the path from a URI.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use utoipa::IntoParams;

use crate::error::ServiceError;
use crate::http::text::percent_decoded;
use crate::work::files::transfer::BoxFile;

/// The kernel's limits (limits.h).
const PATH_BYTES_MAX: usize = 4095;
const NAME_BYTES_MAX: usize = 255;

/// The file that a path names.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct FilePath {
    /// An id, the beginning of one, or a name
    pub id: String,
    /// A path in the box, percent-encoded except for its slashes
    #[param(value_type = String)]
    pub path: PathBuf,
}

impl<S: Send + Sync> FromRequestParts<S> for FilePath {
    type Rejection = ServiceError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ServiceError> {
        parse(&parts.uri)
    }
}

impl From<FilePath> for BoxFile {
    fn from(FilePath { id, path }: FilePath) -> Self {
        Self { reference: id, path }
    }
}

/// Parses the path from the URI itself: the name of a file may be any bytes, and axum decodes only
/// UTF-8.
fn parse(uri: &Uri) -> Result<FilePath, ServiceError> {
    // "", "v1", "boxes", the box, "files", the rest.
    let mut parts = uri.path().splitn(6, '/').skip(3);
    let id = parts.next().and_then(percent_decoded);
    let id = id.and_then(|bytes| String::from_utf8(bytes).ok());
    let no_box = || ServiceError::not_found("no_such_box", "there is no such box");
    let path = parts.nth(1).unwrap_or("");
    Ok(FilePath { id: id.ok_or_else(no_box)?, path: absolute(path)? })
}

fn absolute(path: &str) -> Result<PathBuf, ServiceError> {
    let bad = |code, why: &str| ServiceError::invalid(code, format!("the path {why}"));
    let path =
        percent_decoded(path).ok_or_else(|| bad("invalid_path", "is not percent-encoded"))?;
    // A slash at the end has no meaning.
    let path = path.strip_suffix(b"/").unwrap_or(&path);
    let mut names = path.split(|byte| *byte == b'/');
    let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
    if !path.is_empty() && !names.clone().all(is_name) {
        return Err(bad("invalid_path", "has an empty name, '.', '..' or a NUL in it"));
    }
    if path.len() >= PATH_BYTES_MAX || names.any(|name| name.len() > NAME_BYTES_MAX) {
        return Err(bad("name_too_long", "is too long, or a name in it is"));
    }
    Ok(PathBuf::from(OsString::from_vec([b"/", path].concat())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::text::percent_encoded;

    fn path(sent: &str) -> Result<Vec<u8>, &'static str> {
        let uri = format!("/v1/boxes/web/files/{sent}");
        let file = parse(&uri.parse().expect("a URI")).map_err(|error| error.code)?;
        assert_eq!(file.id, "web");
        Ok(file.path.into_os_string().into_vec())
    }

    #[test]
    fn a_path_is_absolute_in_the_box_and_of_names_alone() {
        assert_eq!(path("work/a.txt"), Ok(b"/work/a.txt".to_vec()));
        assert_eq!(path(""), Ok(b"/".to_vec()));
        assert_eq!(path("work/"), Ok(b"/work".to_vec()));
        assert_eq!(path("a%20b%ff%25"), Ok(b"/a b\xff%".to_vec()));
        for wrong in
            ["..", "a/../b", "%2e%2e", "a%2f..%2fb", "a//b", "/a", ".", "a%00b", "%", "%f", "%zz"]
        {
            assert_eq!(path(wrong), Err("invalid_path"), "{wrong}");
        }
        assert_eq!(path(&"x".repeat(256)), Err("name_too_long"));
        assert_eq!(path(&"x/".repeat(3000)), Err("name_too_long"));
    }

    #[test]
    fn every_file_name_can_be_requested() {
        let every: Vec<u8> = (1..=255).collect();
        assert_eq!(percent_decoded(&percent_encoded(&every)), Some(every));
    }
}
