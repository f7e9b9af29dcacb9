//! Archives that are cut, garbled or ambiguous. Each is an
//! error or what GNU tar makes of it, and never a panic.

mod fixture;

use std::fs;
use std::process::{Command, Stdio};

use fixture::{Archive, BLOCK, message, snapshot, unpack};
use tare_archive::{ErrorKind, Options};
use tare_harness::{TemporaryDirectory, skip};

fn sample() -> Vec<u8> {
    let long = "n".repeat(150);
    Archive::new()
        .directory("d", 0o755)
        .file("d/file", &[7; 700])
        .pax(b'x', &[("path", long.as_bytes()), ("mtime", b"12.5")])
        .file("x", b"long")
        .entry(b"././@LongLink", b'L', b"", 0, b"gnu\0")
        .file("x", b"name")
        .pax(b'g', &[("comment", b"x"), ("mtime", b"99")])
        .symlink("s", "../victim")
        .hard_link("h", "d/file")
        .end()
}

fn problem(archive: &[u8]) -> String {
    let into = TemporaryDirectory::new();
    let error = unpack(archive, into.path(), Options::default()).expect_err("it is damaged");
    assert_eq!(error.kind(), ErrorKind::Malformed, "{}", message(&error));
    message(&error)
}

#[test]
fn data_that_is_not_an_archive_is_reported_as_such() {
    assert_eq!(problem(b""), "not a tar archive");
    assert_eq!(problem(b"hello"), "not a tar archive");
    assert_eq!(problem(&[0x55; 10_000]), "not a tar archive");
    assert_eq!(problem(&[0; 100]), "not a tar archive");
    let mut gzip = vec![0x55; 2000];
    gzip[..2].copy_from_slice(b"\x1f\x8b");
    assert!(problem(&gzip).contains("compressed"));
    assert!(problem(&gzip[..20]).contains("compressed"));
}

#[test]
fn an_archive_of_nothing_is_an_archive() {
    let into = TemporaryDirectory::new();
    let summary = unpack(&[0; 10_240], into.path(), Options::default()).unwrap();
    assert_eq!(summary.entries, 0);
}

#[test]
fn an_archive_that_is_cut_anywhere_ends_too_early() {
    let archive = sample();
    // The first of the two empty blocks at the end is enough.
    let enough = archive.len() - BLOCK;
    let near_a_block = |length: &usize| (length + 1) % BLOCK < 3 || length.is_multiple_of(89);
    for length in (1..enough).filter(near_a_block) {
        let into = TemporaryDirectory::new();
        let error = unpack(&archive[..length], into.path(), Options::default()).unwrap_err();
        let expected =
            if length < BLOCK { "not a tar archive" } else { "the archive ends too early" };
        assert_eq!(error.to_string(), expected, "cut to {length}");
    }
    let into = TemporaryDirectory::new();
    unpack(&archive[..enough], into.path(), Options::default()).unwrap();
}

/// The seed is in the message: a failure can be repeated.
#[test]
fn random_damage_never_panics_and_never_leaves_the_directory() {
    let root = TemporaryDirectory::new();
    fs::create_dir(root.join("victim")).unwrap();
    root.write("victim/file", "secret");
    let before = snapshot(&root.join("victim"));
    let sample = sample();
    for seed in 1..=1000_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut archive = sample.clone();
        for _ in 0..=seed % 4 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = (random % archive.len() as u64) as usize;
            archive[at] = (random >> 32) as u8;
            if seed % 2 == 0 {
                repair_checksum(&mut archive, at);
            }
        }
        fs::create_dir(root.join("into")).unwrap();
        let _ = unpack(&archive, &root.join("into"), Options::default());
        fs::remove_dir_all(root.join("into")).unwrap();
        assert_eq!(snapshot(&root.join("victim")), before, "seed {seed}");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "seed {seed}");
    }
}

/// So that the damage is not found by the checksum alone.
fn repair_checksum(archive: &mut [u8], at: usize) {
    let block = &mut archive[at / BLOCK * BLOCK..][..BLOCK];
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

#[test]
fn sizes_beyond_reason_are_refused_before_anything_is_allocated() {
    let huge = b"\x80\0\0\0\x40\0\0\0\0\0\0\0";
    let beyond = b"\x80\0\0\x01\0\0\0\0\0\0\0\0";
    let negative = [0xff; 12];
    let header = |kind, size: &[u8]| Archive::new().header(b"f", kind, b"", 0o644, size).end();
    assert_eq!(problem(&header(b'0', huge)), "the archive ends too early");
    for kind in [b'x', b'g', b'L', b'K'] {
        assert!(problem(&header(kind, huge)).contains("longer than 1 MiB"));
    }
    let after_one = |size: &[u8]| {
        let archive = Archive::new().file("first", b"");
        archive.header(b"f", b'0', b"", 0o644, size).end()
    };
    assert!(problem(&after_one(beyond)).contains("number"));
    assert!(problem(&after_one(&negative)).contains("negative"));
}

#[test]
fn headers_that_contradict_each_other_are_refused() {
    let refused = |archive: Archive| {
        let into = TemporaryDirectory::new();
        unpack(&archive.end(), into.path(), Options::default()).unwrap_err();
    };
    let path = |name: &'static [u8]| Archive::new().pax(b'x', &[("path", name)]);
    let long = |archive: Archive| archive.entry(b"l", b'L', b"", 0, b"c\0");
    refused(path(b"a").pax(b'x', &[("path", b"b")]).file("f", b""));
    refused(long(path(b"a")).file("f", b""));
    refused(long(long(Archive::new())).file("f", b""));
    refused(Archive::new().pax(b'g', &[("path", b"a")]).file("f", b""));
    refused(Archive::new().pax(b'g', &[("size", b"0")]).file("f", b""));
    refused(path(b"describes nothing"));
    let symlink = Archive::new().entry(b"s", b'2', b"target", 0o777, b"data");
    refused(symlink);
    let directory = Archive::new().pax(b'x', &[("size", b"512")]);
    refused(directory.directory("d", 0o755).bytes(b"data"));
}

#[test]
fn something_after_the_end_is_refused() {
    let first = Archive::new().file("a", b"1").end();
    let both = [first.clone(), first.clone()].concat();
    assert!(problem(&both).contains("follows its end"));
    let endless = [first, vec![0; 2 << 20]].concat();
    assert!(problem(&endless).contains("follows its end"));
}

/// TARmageddon (CVE-2025-62518), CVE-2026-33055, GHSA-3cv2-h65g-fgmm: an entry
/// inside of a file's data must not be taken for one of the archive.
#[test]
fn nested_headers_are_read_as_gnu_tar_reads_them() {
    if !skip::has_program("tar") {
        skip!("there is no tar");
    }
    let inner = Archive::new().file("smuggled", b"x").0;
    let size = inner.len().to_string();
    let sized = Archive::new().pax(b'x', &[("size", size.as_bytes())]);
    let archives = [
        // The size is in the extended header alone.
        sized.clone().header(b"outer", b'0', b"", 0o644, b"00000000000").bytes(&inner),
        // The two disagree, either way.
        sized.clone().header(b"outer", b'0', b"", 0o644, b"00000000001").bytes(&inner),
        Archive::new()
            .pax(b'x', &[("size", b"0")])
            .header(b"outer", b'0', b"", 0o644, b"00000001000")
            .bytes(&inner),
        // The extended size is not that of the long name between.
        sized
            .entry(b"l", b'L', b"", 0, b"outer\0")
            .header(b"x", b'0', b"", 0o644, b"00000000000")
            .bytes(&inner),
    ];
    for (index, archive) in archives.into_iter().enumerate() {
        let archive = archive.file("last", b"y").end();
        let (ours, theirs) = (TemporaryDirectory::new(), TemporaryDirectory::new());
        unpack(&archive, ours.path(), Options::default()).unwrap();
        let file = theirs.write("archive.tar", &archive);
        let tar = Command::new("tar")
            .args(["-x", "-f", "archive.tar"])
            .current_dir(theirs.path())
            .stderr(Stdio::null())
            .status();
        assert!(tar.unwrap().success(), "archive {index}");
        fs::remove_file(file).unwrap();
        assert_eq!(snapshot(ours.path()), snapshot(theirs.path()), "archive {index}");
    }
}

#[test]
fn an_archive_truncated_in_a_file_keeps_the_old_file() {
    let archive = Archive::new().file("file", &[7; 100_000]).end();
    let into = TemporaryDirectory::new();
    into.write("file", "old");
    let before = snapshot(into.path());
    for length in [BLOCK, BLOCK + 1, 50_000, BLOCK + 99_999] {
        unpack(&archive[..length], into.path(), Options::default()).expect_err("it is cut");
        assert_eq!(snapshot(into.path()), before, "{length}");
    }
    unpack(&archive, into.path(), Options::default()).unwrap();
    assert_eq!(fs::read(into.join("file")).unwrap(), [7; 100_000]);
}
