//! What is packed comes out the same, and what cannot be packed is named.

mod fixture;

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use fixture::{message, open, pack, snapshot, unpack};
use tare_archive::{ErrorKind, Options};
use tare_harness::{TemporaryDirectory, skip};

fn put(path: &Path, content: &[u8], mode: u32, mtime: u64) {
    fs::write(path, content).expect("the directory is ours");
    let file = File::open(path).expect("it was just written");
    file.set_modified(UNIX_EPOCH + Duration::from_secs(mtime)).expect("it is ours");
    file.set_permissions(Permissions::from_mode(mode)).expect("it is ours");
}

/// A tree with everything that can be carried, called `tree`.
fn tree(root: &TemporaryDirectory) {
    let top = root.join("tree");
    fs::create_dir(&top).expect("it is new");
    for size in [0, 1, 511, 512, 513, 65_535, 65_536, 65_537, 300_000] {
        let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        put(&top.join(format!("size-{size}")), &content, 0o640, 1_000);
    }
    let long = "long".repeat(60);
    let names: [&[u8]; 7] = [
        b"new\nline",
        b"\xff\xfe not UTF-8",
        "\u{fc}ml\u{e4}ut".as_bytes(),
        b" leading and trailing ",
        b"-rf",
        b"=\t\x01\\",
        long.as_bytes(),
    ];
    for name in names {
        put(&top.join(OsStr::from_bytes(name)), b"x", 0o444, 2_000);
        let directory = top.join("d").join(OsStr::from_bytes(name));
        fs::create_dir_all(&directory).expect("the directory is ours");
        put(&directory.join("inner"), name, 0o755, 3_000);
        symlink(OsStr::from_bytes(name), directory.join("link")).expect("it is new");
    }
    symlink("/nowhere", top.join("dangling")).expect("it is new");
    symlink("d", top.join("to-directory")).expect("it is new");
    fs::create_dir_all(top.join("read-only/inner")).expect("it is new");
    set_read_only_mode(root, 0o555);
}

/// Of the directories that could not be removed without.
fn set_read_only_mode(root: &TemporaryDirectory, mode: u32) {
    for name in ["tree/read-only/inner", "tree/read-only"] {
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).expect("it is ours");
    }
}

#[test]
fn a_tree_survives_the_round_trip() {
    let (from, to) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    tree(&from);
    let archive = pack(from.path(), "tree").unwrap();
    unpack(&archive, to.path(), Options::default()).unwrap();
    assert_eq!(snapshot(to.path()), snapshot(from.path()));
    // And again, over what is there: the directories keep their own time.
    unpack(&archive, to.path(), Options::default()).unwrap();
    set_read_only_mode(&from, 0o755);
    set_read_only_mode(&to, 0o755);
}

#[test]
fn the_content_of_a_directory_can_be_packed_without_its_name() {
    let (from, to) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    from.write("a", "1");
    let archive = pack(from.path(), ".").unwrap();
    unpack(&archive, to.path(), Options::default()).unwrap();
    assert_eq!(fs::read(to.join("a")).unwrap(), b"1");
}

#[test]
fn a_symlink_is_packed_as_one() {
    let (from, to) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    symlink("/etc/passwd", from.join("link")).unwrap();
    let (times, flags) = (times(4_000), rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::utimensat(rustix::fs::CWD, from.join("link"), &times, flags).unwrap();
    let archive = pack(from.path(), "link").unwrap();
    unpack(&archive, to.path(), Options::default()).unwrap();
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/etc/passwd"));
    let metadata = to.join("link").symlink_metadata().unwrap();
    assert_eq!(metadata.mtime(), 4_000);
}

fn times(seconds: i64) -> rustix::fs::Timestamps {
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 };
    rustix::fs::Timestamps { last_access: time, last_modification: time }
}

#[test]
fn hard_links_are_packed_as_copies() {
    let (from, to) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    fs::create_dir(from.join("d")).unwrap();
    from.write("d/a", "same");
    fs::hard_link(from.join("d/a"), from.join("d/b")).unwrap();
    let archive = pack(from.path(), "d").unwrap();
    unpack(&archive, to.path(), Options::default()).unwrap();
    assert_eq!(fs::read(to.join("d/b")).unwrap(), b"same");
    assert_eq!(fs::metadata(to.join("d/b")).unwrap().nlink(), 1);
}

/// Packs "d" from `from` and returns why it is incomplete, and the names in the archive.
fn pack_with_gaps(from: &Path) -> (String, Vec<String>) {
    let mut archive = Vec::new();
    let directory = open(from);
    let error = tare_archive::pack(&mut archive, directory.as_fd(), b"d", b"d")
        .expect_err("something is left out");
    assert_eq!(error.kind(), ErrorKind::LeftOut);
    let to = TemporaryDirectory::new();
    unpack(&archive, to.path(), Options::default()).expect("the archive is whole");
    let names = snapshot(to.path()).into_keys().filter_map(|path| {
        let name = path.strip_prefix("d").ok()?.to_str()?;
        (!name.is_empty()).then(|| name.to_owned())
    });
    (message(&error), names.collect())
}

#[test]
fn special_files_are_left_out_and_named() {
    let from = TemporaryDirectory::new();
    fs::create_dir(from.join("d")).unwrap();
    from.write("d/a", "before");
    from.write("d/z", "behind");
    let listener = UnixListener::bind(from.join("d/socket")).unwrap();
    let (why, names) = pack_with_gaps(from.path());
    assert_eq!(why, "cannot pack \"d/socket\": it is a socket");
    assert_eq!(names, ["a", "z"]);
    drop(listener);
    fs::remove_file(from.join("d/socket")).unwrap();
    make_fifo(&from.join("d/fifo"));
    let (why, names) = pack_with_gaps(from.path());
    assert_eq!(why, "cannot pack \"d/fifo\": it is a fifo");
    assert_eq!(names, ["a", "z"]);
}

#[test]
fn a_special_file_alone_is_refused_by_name() {
    let from = TemporaryDirectory::new();
    make_fifo(&from.join("fifo"));
    let error = pack(from.path(), "fifo").unwrap_err();
    assert_eq!(message(&error), "cannot pack \"fifo\": it is a fifo");
    assert_eq!(error.kind(), ErrorKind::Refused);
    let error = pack(Path::new("/dev"), "null").unwrap_err();
    assert_eq!(message(&error), "cannot pack \"null\": it is a character device");
}

fn make_fifo(path: &Path) {
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).expect("the directory is ours");
}

#[test]
fn unpack_can_be_limited_to_one_name() {
    for entry in ["a/b", "..", "", "/"] {
        let error = pack(Path::new("/"), entry).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{entry}");
    }
    let error = pack(Path::new("/"), "no such file").unwrap_err();
    assert!(message(&error).contains("No such file"), "{error}");
}

/// Does something to the tree when the first bytes arrive.
struct Meddler<F: FnMut()> {
    archive: Vec<u8>,
    meddle: Option<F>,
}

impl<F: FnMut()> Write for Meddler<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(mut meddle) = self.meddle.take() {
            meddle();
        }
        self.archive.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn pack_while(directory: &Path, entry: &str, meddle: impl FnMut()) -> Vec<u8> {
    let mut out = Meddler { archive: Vec::new(), meddle: Some(meddle) };
    let name = entry.as_bytes();
    tare_archive::pack(&mut out, open(directory).as_fd(), name, name).expect("it can be packed");
    out.archive
}

#[test]
fn a_file_that_changes_its_size_leaves_the_archive_whole() {
    for size_after in [0, 100_000, 3_000_000] {
        let (from, to) = (TemporaryDirectory::new(), TemporaryDirectory::new());
        let path = from.write("f", vec![1; 1_000_000]);
        let archive = pack_while(from.path(), "f", || {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(size_after).unwrap();
        });
        unpack(&archive, to.path(), Options::default()).unwrap();
        let content = fs::read(to.join("f")).unwrap();
        assert_eq!(content.len(), 1_000_000, "{size_after}");
        assert_eq!(content[..65_536], [1; 65_536]);
    }
}

#[test]
fn files_that_vanish_during_packing_are_left_out() {
    let (from, to) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    let top = from.join("d");
    for directory in 0..100 {
        fs::create_dir_all(top.join(format!("{directory}"))).unwrap();
        fs::write(top.join(format!("{directory}/file")), [1; 10_000]).unwrap();
    }
    let archive = pack_while(from.path(), "d", || fs::remove_dir_all(&top).unwrap());
    unpack(&archive, to.path(), Options::default()).unwrap();
    assert!(fs::read_dir(to.join("d")).unwrap().count() < 100);
}

/// Such files say that they are empty.
#[test]
fn files_of_proc_are_packed_with_their_content() {
    let to = TemporaryDirectory::new();
    let archive = pack(Path::new("/proc"), "version").unwrap();
    unpack(&archive, to.path(), Options::default()).unwrap();
    assert_eq!(fs::read(to.join("version")).unwrap(), fs::read("/proc/version").unwrap());
    if fs::read("/proc/kallsyms").map_or(0, |it| it.len()) < 1 << 20 {
        skip!("/proc/kallsyms is short or not readable");
    }
    let error = pack(Path::new("/proc"), "kallsyms").unwrap_err();
    assert!(message(&error).contains("how long it is"), "{error}");
}

#[test]
fn holes_stay_holes() {
    let (from, to) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    let path = from.write("f", "begin");
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    let archive = pack(from.path(), "f").unwrap();
    unpack(&archive, to.path(), Options::default()).unwrap();
    let metadata = fs::metadata(to.join("f")).unwrap();
    assert_eq!(metadata.len(), 64 << 20);
    assert!(metadata.blocks() * 512 < 1 << 20, "{}", metadata.blocks());
}
