//! Errors of a box about a path that the client named.

use rustix::io::Errno;
use tare_engine::{Error, ErrorKind, Hint};

use crate::error::{Kind, ServiceError};

/// Turns an error of the engine into one with a code for each reason.
pub fn file_error(error: Error) -> ServiceError {
    let of_box = error.kind() == ErrorKind::BadRequest;
    let errno = error.errno();
    let error = ServiceError::from(error);
    if !of_box {
        return error;
    }
    let (kind, code) = match errno {
        Some(Errno::NOENT) => (Kind::NotFound, "no_such_file"),
        Some(Errno::NOTDIR) => (Kind::Invalid, "not_a_directory"),
        Some(Errno::ISDIR) => (Kind::Invalid, "is_a_directory"),
        Some(Errno::OPNOTSUPP) => (Kind::Invalid, "not_a_regular_file"),
        Some(Errno::LOOP) => (Kind::Invalid, "link_loop"),
        Some(Errno::NAMETOOLONG) => (Kind::Invalid, "name_too_long"),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => (Kind::Forbidden, "not_permitted"),
        Some(Errno::BUSY | Errno::NOTEMPTY | Errno::EXIST) => (Kind::Conflict, "in_use"),
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => (Kind::NoSpace, "no_space"),
        Some(_) | None => (Kind::Invalid, "file_error"),
    };
    let hint = match code {
        "is_a_directory" => Some("?list=true lists it, ?tar=true gets all of it".into()),
        "no_space" => Some(Hint::MoreScratch),
        _ => None,
    };
    ServiceError { kind, code, hint, ..error }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Any process of a box can write a status. A number that is not an errno ended the server.
    #[test]
    fn a_box_may_report_any_number_as_an_errno() {
        for (number, code) in [(2, "no_such_file"), (28, "no_space"), (0, "file_error")]
            .into_iter()
            .chain([-1, 4096, i32::MIN, i32::MAX].map(|number| (number, "file_error")))
        {
            let why = io::Error::from_raw_os_error(number);
            let error = file_error(Error::bad_request("cannot read a").caused_by(why));
            assert_eq!(error.code, code, "{number}");
        }
    }
}
