//! Names of files: relative paths for a box, and never of this host.

use crate::error::ApiError;

const CHARACTERS_MAX: usize = 256;
const DEPTH_MAX: usize = 10;
/// What a file system takes (NAME_MAX).
const PART_BYTES_MAX: usize = 255;

/// The same name, if it is one.
pub fn checked(name: &str) -> Result<String, ApiError> {
    let parts: Vec<&str> = name.split('/').collect();
    let is_part = |part: &&str| {
        !matches!(*part, "" | "." | "..")
            && part.len() <= PART_BYTES_MAX
            && !part.chars().any(char::is_control)
            && !part.contains('\\')
    };
    let is_name = name.chars().count() <= CHARACTERS_MAX
        && parts.len() <= DEPTH_MAX
        && parts.iter().all(is_part);
    match is_name {
        true => Ok(name.to_owned()),
        false => Err(ApiError::bad_request(
            "invalid_name",
            format!(
                "{:?} is no name of a file",
                name.chars().take(60).collect::<String>()
            ),
        )
        .with_hint("a relative path of at most 256 characters and 10 parts, without '..'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere_else() {
        for name in ["a.txt", "a/b/c.csv", "ä ö.txt", "-rf", ".dirkeep"] {
            assert!(checked(name).is_ok(), "{name:?}");
        }
        let long = "x".repeat(257);
        let deep = ["x"; 11].join("/");
        for name in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            "a\0b",
            "a\nb",
            "a\\b",
            &long,
            &deep,
        ] {
            assert!(checked(name).is_err(), "{name:?}");
        }
    }
}
