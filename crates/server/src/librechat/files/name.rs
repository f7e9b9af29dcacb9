//! File names from clients: only paths below the directory of a program are accepted.

use crate::error::ServiceError;

const CHARACTERS_MAX: usize = 256;
pub const DEPTH_MAX: usize = 10;
/// The kernel's NAME_MAX (limits.h).
const PART_BYTES_MAX: usize = 255;

/// Whether a name may have directories in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// First-generation clients have no directories.
    Plain,
    Nested,
}

/// Accepts a relative path without `.`, `..`, empty parts and control characters.
pub fn check(name: &str, form: NameRule) -> Result<(), ServiceError> {
    let refused = |why: &str| Err(ServiceError::invalid("invalid_filename", why));
    let parts: Vec<&str> = name.split('/').collect();
    let is_part = |part: &&str| !matches!(*part, "" | "." | "..") && part.len() <= PART_BYTES_MAX;
    if name.chars().any(char::is_control) {
        return refused("Invalid filename: it has control characters");
    }
    if name.chars().count() > CHARACTERS_MAX || parts.len() > DEPTH_MAX {
        return refused("Invalid filename: it is too long or too deep");
    }
    if !parts.iter().all(is_part) {
        return refused("Invalid filename: it is no relative path");
    }
    match (form, parts.len()) {
        (NameRule::Nested, _) | (NameRule::Plain, 1) => Ok(()),
        (NameRule::Plain, _) => refused("Invalid filename: it is a path"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere_but_down() {
        let good = ["a", "a b.txt", "\u{e4}\u{4e2d}.csv", ".dirkeep", "a..b", "...", "a\\b"];
        for name in good {
            assert!(check(name, NameRule::Plain).is_ok(), "{name:?}");
        }
        for name in ["a/b.txt", "a/.dirkeep", "1/2/3/4/5/6/7/8/9/10"] {
            assert!(check(name, NameRule::Nested).is_ok(), "{name:?}");
            assert!(check(name, NameRule::Plain).is_err(), "{name:?}");
        }
        let wrong = [
            "",
            ".",
            "..",
            "/",
            "/etc/passwd",
            "../a",
            "a/../b",
            "a/..",
            "a//b",
            "a/",
            "./a",
            "a\0b",
            "a\nb",
            "a\u{7f}",
            "a\u{85}b",
            "1/2/3/4/5/6/7/8/9/10/11",
        ];
        for name in wrong {
            assert!(check(name, NameRule::Nested).is_err(), "{name:?}");
        }
        assert!(check(&"x".repeat(255), NameRule::Plain).is_ok());
        assert!(check(&"x".repeat(256), NameRule::Plain).is_err(), "no name is that long");
        assert!(check(&"xxx/".repeat(80), NameRule::Nested).is_err());
    }
}
