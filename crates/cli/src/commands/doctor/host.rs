//! Facts about the host: small files below `/proc` and `/sys`.

use std::fs;
use std::path::PathBuf;

/// The files below `/`, or below another directory in tests.
#[derive(Debug)]
pub struct HostFiles {
    root: PathBuf,
}

impl HostFiles {
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the trimmed text of a file; `None` if it cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()?;
        Some(text.trim().to_owned())
    }

    /// Returns a value below `/proc/sys`, named as sysctl(8) names it.
    pub fn sysctl(&self, name: &str) -> Option<u64> {
        self.read(&format!("/proc/sys/{}", name.replace('.', "/")))?.parse().ok()
    }

    pub fn kernel(&self) -> Option<Version> {
        Version::parse(&self.read("/proc/sys/kernel/osrelease")?)
    }
}

/// `6.18.44` of `6.18.44-fc-v445`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    fn parse(release: &str) -> Option<Self> {
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
