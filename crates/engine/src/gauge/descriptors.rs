//! Descriptors: of this process, of the host.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::process::{Resource, getrlimit};

use crate::gauge::entries;
use crate::gauge::held::HeldFile;
use crate::gauge::reading::{Gauge, Reading};

/// `/proc/self/fd`, open. A descriptor whose number is beyond the limit, because that
/// was lowered, counts like any other.
#[derive(Debug)]
pub struct OwnDescriptors {
    directory: OwnedFd,
    /// So many are for other things than boxes.
    pub reserved: u64,
}

impl OwnDescriptors {
    pub fn open() -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, c"/proc/self/fd", flags, Mode::empty()).ok()?;
        Some(Self { directory, reserved: 0 })
    }

    pub fn read(&self) -> Option<Reading> {
        let limit = getrlimit(Resource::Nofile).current?;
        let limit = limit.saturating_sub(self.reserved);
        let limit_is = match self.reserved {
            0 => "the soft RLIMIT_NOFILE of this process",
            _ => "the soft RLIMIT_NOFILE of this process, less a reserve",
        };
        let used = self.count()?;
        Some(Reading::new(Gauge::DescriptorsProcess, used, limit, limit_is))
    }

    /// Since Linux 6.2 it is the size of the directory; before, that is 0.
    fn count(&self) -> Option<u64> {
        let size = fstat(&self.directory).ok()?.st_size;
        let told = u64::try_from(size).ok().filter(|size| *size > 0);
        told.or_else(|| entries::count(&self.directory).ok())
    }
}

#[derive(Debug)]
pub struct HostDescriptors {
    file_nr: HeldFile,
}

impl HostDescriptors {
    pub fn open() -> Option<Self> {
        let file_nr = HeldFile::open("/proc/sys/fs/file-nr")?;
        Some(Self { file_nr })
    }

    pub fn read(&self) -> Option<Reading> {
        let (used, limit) = files_of_host(&self.file_nr.text()?)?;
        let limit_is = "the sysctl fs.file-max";
        Some(Reading::new(Gauge::DescriptorsHost, used, limit, limit_is))
    }
}

/// Allocated, unused, limit. The greatest number there is stands for no limit:
/// systemd sets it at boot.
fn files_of_host(file_nr: &str) -> Option<(u64, u64)> {
    let mut numbers = file_nr.split_whitespace().map(str::parse::<u64>);
    let allocated = numbers.next()?.ok()?;
    let unused = numbers.next()?.ok()?;
    let limit = numbers.next()?.ok()?;
    let is_limit = limit < i64::MAX.unsigned_abs();
    is_limit.then_some((allocated.saturating_sub(unused), limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_host_are_those_allocated_and_not_unused() {
        assert_eq!(files_of_host("1164\t4\t2465787\n"), Some((1160, 2_465_787)));
    }

    #[test]
    fn the_greatest_number_is_no_limit() {
        assert_eq!(files_of_host("1164\t0\t9223372036854775807\n"), None);
    }

    /// Before Linux 6.2 the second is the only way.
    #[test]
    fn descriptors_that_are_listed_are_as_many_as_the_kernel_tells() {
        let own = OwnDescriptors::open().unwrap();
        let is_equal = || own.count().unwrap() == entries::count(&own.directory).unwrap();
        // Other tests open and close files meanwhile.
        assert!((0..1000).any(|_| is_equal()));
    }
}
