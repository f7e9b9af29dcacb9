//! Errors of a box about a path that the client named.

use std::io;

use rustix::io::Errno;
use tare_engine::{Error, ErrorKind, Hint};

use crate::error::{Kind, ServiceError};

/// Words of a copy process whose box is full.
const FULL: [&str; 2] = ["No space left", "File too large"];
const NO_SPACE: (Kind, &str) = (Kind::NoSpace, "no_space");

/// Turns an error of the engine into one with a code for each reason.
pub fn file_error(error: Error) -> ServiceError {
    let of_box = error.kind() == ErrorKind::BadRequest;
    let source = std::error::Error::source(&error);
    let errno = source.and_then(|why| why.downcast_ref::<io::Error>()?.raw_os_error());
    let errno = errno.map(Errno::from_raw_os_error);
    let error = ServiceError::from(error);
    if !of_box {
        return error;
    }
    let is_full = FULL.iter().any(|words| error.message.contains(words));
    let (kind, code) = match errno {
        Some(Errno::NOENT) => (Kind::NotFound, "no_such_file"),
        Some(Errno::NOTDIR) => (Kind::Invalid, "not_a_directory"),
        Some(Errno::ISDIR) => (Kind::Invalid, "is_a_directory"),
        Some(Errno::OPNOTSUPP) => (Kind::Invalid, "not_a_regular_file"),
        Some(Errno::LOOP) => (Kind::Invalid, "link_loop"),
        Some(Errno::NAMETOOLONG) => (Kind::Invalid, "name_too_long"),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => (Kind::Forbidden, "not_permitted"),
        Some(Errno::BUSY | Errno::NOTEMPTY | Errno::EXIST) => (Kind::Conflict, "in_use"),
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => NO_SPACE,
        Some(_) | None if is_full => NO_SPACE,
        Some(_) | None => (Kind::Invalid, "file_error"),
    };
    let hint = match code {
        "is_a_directory" => Some("?list=true lists it, ?tar=true gets all of it".into()),
        "no_space" => Some(Hint::MoreScratch),
        _ => None,
    };
    ServiceError { kind, code, hint, ..error }
}
