//! `-u UID[:GID]`: digits are always ids, never looked up in a file that the
//! box's image controls.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::spec::received::{bad, quoted};

/// A box has the 65,536 ids 0 to 65535. The last two are kept out: 65534 is
/// what the kernel shows for every owner that is not mapped, so that a workload
/// of that id would seem to own what it does not, and 65535 is "no id" to
/// everything that still counts in 16 bits.
pub const ID_MAX: u32 = 65_533;

/// The workload's ids inside the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// Without a group it is the one of the same number: never group 0 because it
/// was not named.
pub fn parse(text: &str) -> Result<User, Error> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    match (id(uid), id(gid)) {
        (Some(uid), Some(gid)) => Ok(User { uid, gid }),
        (None, _) | (_, None) => Err(bad(
            format!("{} is not a user of a box", quoted(text)),
            format!(
                "write UID or UID:GID in digits, each from 0 to {ID_MAX}; names are not looked up"
            ),
        )),
    }
}

/// `u32::from_str` alone would accept a leading `+`.
fn id(text: &str) -> Option<u32> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|id| *id <= ID_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E021
    #[test]
    fn digits_are_the_ids_that_were_asked_for() {
        for (text, uid, gid) in [
            ("0", 0, 0),
            ("1", 1, 1),
            ("1000", 1000, 1000),
            ("1000:0", 1000, 0),
            ("0:5", 0, 5),
            ("65533:65533", ID_MAX, ID_MAX),
        ] {
            assert_eq!(parse(text).unwrap(), User { uid, gid }, "{text}");
        }
    }

    /// E021
    #[test]
    fn nothing_else_is_a_user() {
        for text in [
            "",
            ":",
            "1:",
            ":1",
            "+0",
            " 0",
            "0 ",
            "0x0",
            "1:2:3",
            "-1",
            "65534",
            "65535",
            "65536",
            "2147483648",
            "4294967294",
            "4294967295",
            "4294967296",
            "18446744073709551616",
            "root",
            "1000:x",
            "0\n",
            "٠",
            "1:+0",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().ends_with("is not a user of a box"), "{error}");
            assert!(error.hint().unwrap().contains("0 to 65533"));
        }
    }
}
