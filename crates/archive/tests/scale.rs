//! Deep, wide and large trees: descriptors and memory do not grow with them.

mod fixture;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use fixture::{Archive, message, open, pack, unpack};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use tare_archive::Options;
use tare_harness::TemporaryDirectory;

const DEPTH: usize = 5_000;

/// The test runner's own, those of tests beside this one, and the levels that
/// are kept open.
const DESCRIPTORS_MAX: usize = 200;

/// `d/d/d/...` with two files on each hundredth level.
fn make_deep(directory: &Path) {
    let mut here: OwnedFd = open(directory).into();
    for level in 0..DEPTH {
        mkdirat(&here, "d", Mode::RWXU).expect("it is new");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        here = openat(&here, "d", flags, Mode::empty()).expect("it was just made");
        for name in ["a", "z"].iter().filter(|_| level % 100 == 0) {
            let flags = OFlags::CREATE | OFlags::WRONLY;
            let file = openat(&here, *name, flags, Mode::RWXU).expect("it is new");
            let mut file = File::from(file);
            write!(file, "{level}").expect("the disk has room");
        }
    }
}

/// The standard library holds a descriptor for each level.
fn remove(path: &Path) {
    let status = Command::new("rm").arg("-rf").arg(path).status();
    assert!(status.expect("rm can be started").success());
}

fn count(directory: &Path) -> usize {
    let output = Command::new("find").arg(directory).output();
    let output = output.expect("find can be started");
    output.stdout.iter().filter(|byte| **byte == b'\n').count()
}

/// Keeps the stream and looks at the open descriptors now and then.
#[derive(Default)]
struct Watcher {
    archive: Vec<u8>,
    at: usize,
    descriptors_max: usize,
}

impl Watcher {
    fn look(&mut self) {
        let open = fs::read_dir("/proc/self/fd").expect("proc is there").count();
        self.descriptors_max = self.descriptors_max.max(open);
    }
}

impl Write for Watcher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.look();
        self.archive.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Watcher {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.look();
        let count = (&self.archive[self.at..]).read(buffer)?;
        self.at += count;
        Ok(count)
    }
}

#[test]
fn a_tree_of_5000_levels_survives_the_round_trip_with_few_descriptors() {
    let (from, to) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    make_deep(from.path());
    let mut stream = Watcher::default();
    tare_archive::pack(&mut stream, open(from.path()).as_fd(), b"d", b"d").unwrap();
    let into = open(to.path());
    let summary = tare_archive::unpack(&mut stream, into.as_fd(), Options::default()).unwrap();
    assert_eq!(summary.entries as usize, DEPTH + 2 * DEPTH / 100);
    assert_eq!(count(to.path()), count(from.path()));
    assert!(stream.descriptors_max < DESCRIPTORS_MAX, "{}", stream.descriptors_max);
    remove(&from.join("d"));
    remove(&to.join("d"));
}

/// Hard links, because a new inode costs some disks a fifth of a millisecond.
#[test]
fn a_tree_of_100000_entries_is_unpacked_and_packed() {
    let mut archive = Archive::new();
    for directory in 0..100 {
        let first = format!("t/{directory}/a name of some length");
        archive = archive.file(&first, b"x");
        for link in 1..1_000 {
            archive = archive.hard_link(&format!("{first} {link}"), &first);
        }
    }
    let root = TemporaryDirectory::new();
    let summary = unpack(&archive.end(), root.path(), Options::default()).unwrap();
    assert_eq!(summary.entries, 100_101);
    assert_eq!(count(&root.join("t")), 100_101);
    let packed = pack(root.path(), "t").unwrap();
    let headers = packed.chunks(512).filter(|it| it[257..].starts_with(b"ustar"));
    assert_eq!(headers.count(), 100_101);
}

/// Keeps the begin, and then refuses more.
struct Begin(Vec<u8>);

impl Write for Begin {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() > 2048 {
            return Err(io::Error::other("that is enough"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_of_more_than_8_gib_has_its_size_in_both_headers() {
    let from = TemporaryDirectory::new();
    let size: u64 = (8 << 30) + 5;
    File::create(from.join("f")).unwrap().set_len(size).unwrap();
    let mut out = Begin(Vec::new());
    let error = tare_archive::pack(&mut out, open(from.path()).as_fd(), b"f", b"f").unwrap_err();
    assert_eq!(message(&error), "cannot write the archive: that is enough");
    let records = String::from_utf8_lossy(&out.0[512..1024]).into_owned();
    assert!(records.contains("size=8589934597\n"), "{records}");
    assert_eq!(out.0[1024 + 124..1024 + 136], *b"\x80\0\0\0\0\0\0\x02\0\0\0\x05");
}
