//! Names of entries, checked once: what passes here leads beneath the directory
//! it is used in, as long as no symlink is followed.

/// The components of a name, joined by single slashes; none is empty, `.` or
/// `..`. Without any it means the directory itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(Vec<u8>);

impl Name {
    /// What is wrong with the name is a sentence about "it".
    pub fn parse(raw: &[u8]) -> Result<Self, &'static str> {
        if raw.is_empty() {
            return Err("it has no name");
        }
        if raw.contains(&0) {
            return Err("its name holds a zero byte");
        }
        if raw[0] == b'/' {
            return Err("its name begins with a slash");
        }
        let mut joined = Vec::with_capacity(raw.len());
        for component in raw.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return Err("its name leads outside with '..'"),
                _ => {}
            }
            if !joined.is_empty() {
                joined.push(b'/');
            }
            joined.extend_from_slice(component);
        }
        Ok(Self(joined))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The directory it is in, and what it is called there; `None` for the
    /// directory itself.
    pub fn split_last(&self) -> Option<(&[u8], &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => Some((&self.0[..slash], &self.0[slash + 1..])),
            None => Some((b"", &self.0)),
        }
    }

    /// The same name with another first component, if the first one is `from`.
    pub fn with_top(&self, from: &[u8], to: &[u8]) -> Result<Self, &'static str> {
        match self.0.strip_prefix(from) {
            Some(rest) if !from.is_empty() && matches!(rest.first(), None | Some(b'/')) => {
                Self::parse(&[to, rest].concat())
            }
            Some(_) | None => Err("it is not part of what was asked for"),
        }
    }
}

/// How many bytes of `path` are directories that `other` goes through as well.
pub fn shared_bytes(path: &[u8], other: &[u8]) -> usize {
    let equal = path.iter().zip(other).take_while(|(a, b)| a == b).count();
    let ends = |name: &[u8]| equal == name.len() || name[equal] == b'/';
    if ends(path) && ends(other) {
        return equal;
    }
    let slash = path[..equal].iter().rposition(|byte| *byte == b'/');
    slash.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_and_doubled_slashes_mean_nothing() {
        for raw in ["a/b", "./a/b", "a//b/", "a/./b/.", ".//a/b"] {
            assert_eq!(Name::parse(raw.as_bytes()).unwrap().as_bytes(), b"a/b");
        }
        assert_eq!(Name::parse(b"./").unwrap().split_last(), None);
    }

    #[test]
    fn names_that_lead_outside_are_refused() {
        let outside: [&[u8]; 8] =
            [b"", b"/", b"/etc", b"//etc", b"..", b"../a", b"a/../b", b"a\0b"];
        for raw in outside {
            assert!(Name::parse(raw).is_err(), "{}", raw.escape_ascii());
        }
        assert!(Name::parse(b"..a/b..").is_ok());
    }

    #[test]
    fn only_the_expected_top_is_renamed() {
        let rename = |name: &[u8]| Name::parse(name)?.with_top(b"a", b"c");
        assert_eq!(rename(b"a").unwrap().as_bytes(), b"c");
        assert_eq!(rename(b"./a/a").unwrap().as_bytes(), b"c/a");
        for other in ["b", "ab", "b/a", "."] {
            assert!(rename(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn shared_directories_are_whole_components() {
        assert_eq!(shared_bytes(b"a/b", b"a/b/c"), 3);
        assert_eq!(shared_bytes(b"a/b/c", b"a/b"), 3);
        assert_eq!(shared_bytes(b"a/bc", b"a/bd"), 1);
        assert_eq!(shared_bytes(b"a/b", b"a/bc"), 1);
        assert_eq!(shared_bytes(b"ab", b"a"), 0);
        assert_eq!(shared_bytes(b"", b"a"), 0);
        assert_eq!(shared_bytes(b"a/b", b""), 0);
    }
}
