//! What a host says of itself: small files below `/proc`, `/sys` and `/etc`.

use std::fs;
use std::path::PathBuf;

/// A host's root directory; `/` but in tests.
#[derive(Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The trimmed content; `None` when it cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// A value below `/proc/sys`, named as sysctl(8) names it.
    pub fn sysctl(&self, name: &str) -> Option<u64> {
        self.number(&format!("/proc/sys/{}", name.replace('.', "/")))
    }

    pub fn kernel(&self) -> Option<Version> {
        Version::parse(&self.read("/proc/sys/kernel/osrelease")?)
    }
}

/// `6.18.44` of `6.18.44-fc-v445`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    pub fn parse(release: &str) -> Option<Self> {
        let numbers = release.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let mut parts = numbers.split('.').map(str::parse);
        let major = parts.next()?.ok()?;
        let minor = parts.next()?.ok()?;
        let patch = parts.next().and_then(Result::ok).unwrap_or(0);
        Some(Self(major, minor, patch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        for (release, version) in [
            ("6.18.44-fc-v445", Some(Version(6, 18, 44))),
            ("6.1.0-18-amd64", Some(Version(6, 1, 0))),
            ("7.0-rc1", Some(Version(7, 0, 0))),
            ("6.6.87.2-microsoft", Some(Version(6, 6, 87))),
            ("banana", None),
        ] {
            assert_eq!(Version::parse(release), version, "{release}");
        }
        assert!(Version(6, 9, 9) < Version(6, 18, 0));
    }
}
