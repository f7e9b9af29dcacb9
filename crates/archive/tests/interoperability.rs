//! What GNU tar and Python write can be unpacked, and what is packed they read.

mod fixture;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use fixture::{pack, snapshot, unpack};
use tare_archive::Options;
use tare_harness::skip::has_program;
use tare_harness::{TemporaryDirectory, skip};

/// `tree`, within what every format of tar can say, or beyond it.
fn tree(root: &TemporaryDirectory, beyond: bool) {
    let top = root.join("tree");
    fs::create_dir_all(top.join("a/b/c")).expect("it is new");
    root.write("tree/a/file", vec![3; 100_000]);
    root.write("tree/empty", "");
    root.write("tree/new\nline", "x");
    symlink("../a/file", top.join("a/link")).expect("it is new");
    fs::hard_link(top.join("a/file"), top.join("zz")).expect("it is ours");
    fs::set_permissions(top.join("a/b"), Permissions::from_mode(0o710)).expect("it is ours");
    if beyond {
        let long = "l".repeat(200);
        fs::create_dir(top.join(&long)).expect("it is new");
        root.write(&format!("tree/{long}/{long}"), "x");
        symlink(&long, top.join("to-long")).expect("it is new");
        symlink(long.repeat(5), top.join(format!("{long}s"))).expect("it is new");
        root.write("tree/\u{fc}", "x");
        fs::write(top.join(OsStr::from_bytes(b"\xff\xfe")), "x").expect("it is ours");
    }
}

fn run(directory: &Path, program: &str, arguments: &[&str]) {
    let status = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stderr(Stdio::null())
        .status()
        .unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
    assert!(status.success(), "{program} {arguments:?}");
}

fn unpacks(root: &TemporaryDirectory, what: &str) {
    let archive = fs::read(root.join("archive.tar")).expect("it was made");
    let into = root.join("into");
    fs::create_dir(&into).expect("it is new");
    unpack(&archive, &into, Options::default()).expect("the archive is good");
    assert_eq!(snapshot(&into.join("tree")), snapshot(&root.join("tree")), "{what}");
    // Both write the second name of a file as a link.
    assert_eq!(fs::metadata(into.join("tree/zz")).expect("it is there").nlink(), 2);
}

#[test]
fn archives_of_gnu_tar_are_unpacked() {
    if !has_program("tar") {
        skip!("there is no tar");
    }
    let formats =
        [("v7", false), ("ustar", false), ("oldgnu", true), ("gnu", true), ("posix", true)];
    for (format, beyond) in formats {
        let root = TemporaryDirectory::new();
        tree(&root, beyond);
        let format = format!("--format={format}");
        run(root.path(), "tar", &[&format, "-cf", "archive.tar", "tree"]);
        unpacks(&root, &format);
    }
}

#[test]
fn sparse_archives_of_gnu_tar_are_refused_by_name() {
    if !has_program("tar") {
        skip!("there is no tar");
    }
    let formats =
        ["--format=gnu", "--format=posix", "--sparse-version=0.0", "--sparse-version=0.1"];
    for format in formats {
        let root = TemporaryDirectory::new();
        let holes = fs::File::create(root.join("holes")).unwrap();
        holes.set_len(1 << 20).unwrap();
        let version = if format.starts_with("--sparse") { "--format=posix" } else { format };
        run(root.path(), "tar", &[version, format, "-Scf", "archive.tar", "holes"]);
        let archive = fs::read(root.join("archive.tar")).unwrap();
        let error = unpack(&archive, root.path(), Options::default()).unwrap_err();
        let message = fixture::message(&error);
        assert!(message.contains("holes") && message.contains("sparse"), "{message}");
    }
}

#[test]
fn archives_of_python_are_unpacked() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    for (format, beyond) in [("USTAR", false), ("GNU", true), ("PAX", true)] {
        let root = TemporaryDirectory::new();
        tree(&root, beyond);
        let script = format!(
            "import tarfile\n\
             with tarfile.open('archive.tar', 'w', format=tarfile.{format}_FORMAT) as t: \
             t.add('tree')"
        );
        run(root.path(), "python3", &["-c", &script]);
        unpacks(&root, format);
    }
}

fn is_unpacked_by(program: &str, arguments: &[&str]) {
    let (from, to) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    tree(&from, true);
    let archive = pack(from.path(), "tree").expect("it can be packed");
    to.write("archive.tar", archive);
    run(to.path(), program, arguments);
    assert_eq!(snapshot(&to.join("tree")), snapshot(&from.join("tree")), "{program}");
}

#[test]
fn gnu_tar_unpacks_our_archives() {
    if !has_program("tar") {
        skip!("there is no tar");
    }
    is_unpacked_by("tar", &["-xpf", "archive.tar"]);
}

#[test]
fn python_unpacks_our_archives() {
    if !has_program("python3") {
        skip!("there is no python3");
    }
    let script = "import tarfile\nwith tarfile.open('archive.tar') as t: t.extractall()";
    is_unpacked_by("python3", &["-c", script]);
}
