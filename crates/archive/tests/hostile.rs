//! Whatever an archive says, nothing beside the
//! directory it is unpacked into changes, and the error names the entry.

mod fixture;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fixture::{Archive, message, snapshot, unpack};
use tare_archive::{ErrorKind, Options, Top};
use tare_harness::TemporaryDirectory;

/// A directory to unpack into, beside one that must not change.
struct Ground {
    root: TemporaryDirectory,
    before: BTreeMap<PathBuf, String>,
}

impl Ground {
    fn new() -> Self {
        let root = TemporaryDirectory::new();
        for directory in ["into", "victim", "victim/directory"] {
            fs::create_dir(root.join(directory)).expect("it is new");
        }
        root.write("victim/file", "secret");
        let mode = fs::Permissions::from_mode(0o700);
        fs::set_permissions(root.join("victim/directory"), mode).expect("it is ours");
        let before = snapshot(&root.join("victim"));
        Self { root, before }
    }

    fn place(&self) -> PathBuf {
        self.root.join("into")
    }

    fn victim(&self) -> String {
        format!("{}/victim", self.root.text())
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.place().join(name)).expect("it was unpacked")
    }

    fn is_kept(&self) {
        assert_eq!(snapshot(Path::new(&self.victim())), self.before);
        let beside = fs::read_dir(self.root.path()).expect("it is ours");
        assert_eq!(beside.count(), 2);
    }

    /// The archive is refused for this reason.
    fn refuses(&self, archive: Archive, reason: &str) {
        let error = unpack(&archive.end(), &self.place(), Options::default()).expect_err(reason);
        assert!(message(&error).contains(reason), "{}", message(&error));
        self.is_kept();
    }

    fn accepts(&self, archive: Archive) {
        if let Err(error) = unpack(&archive.end(), &self.place(), Options::default()) {
            panic!("{}", message(&error));
        }
        self.is_kept();
    }
}

#[test]
fn names_that_lead_outside_are_refused() {
    let ground = Ground::new();
    let absolute = format!("{}/file", ground.victim());
    let outside = [
        ("../victim/file", "leads outside"),
        ("..", "leads outside"),
        ("a/../../victim/file", "leads outside"),
        ("a/..", "leads outside"),
        ("./../victim/file", "leads outside"),
        (absolute.as_str(), "begins with a slash"),
        ("//etc/passwd", "begins with a slash"),
        ("/", "begins with a slash"),
        ("", "no name"),
        (".", "like the directory itself"),
    ];
    for (name, reason) in outside {
        ground.refuses(Archive::new().file(name, b""), reason);
    }
    for (name, reason) in &outside[..9] {
        ground.refuses(Archive::new().directory(name, 0o777), reason);
        ground.refuses(Archive::new().symlink(name, "x"), reason);
    }
    assert_eq!(fs::read_dir(ground.place()).unwrap().count(), 0);
}

#[test]
fn extended_names_that_lead_outside_are_refused() {
    let ground = Ground::new();
    let names: [(&[u8], &str); 4] = [
        (b"../victim/file", "leads outside"),
        (b"/etc/passwd", "begins with a slash"),
        (b"a\0b", "zero byte"),
        (b"", "no name"),
    ];
    for (name, reason) in names {
        let pax = Archive::new().pax(b'x', &[("path", name)]);
        ground.refuses(pax.file("harmless", b"x"), reason);
        let long = Archive::new().entry(b"././@LongLink", b'L', b"", 0, name);
        ground.refuses(long.file("harmless", b"x"), reason);
    }
}

#[test]
fn nothing_is_written_through_a_symlink_of_the_archive() {
    let ground = Ground::new();
    let way = "where its directory is";
    for target in [ground.victim().as_str(), "../victim", "."] {
        let link = Archive::new().symlink("a", target);
        ground.refuses(link.clone().file("a/file", b"x"), way);
        ground.refuses(link.clone().file("a/directory/new", b"x"), way);
        ground.refuses(link.clone().directory("a/directory", 0o777), way);
        ground.refuses(link.clone().symlink("a/file", "x"), way);
        ground.refuses(link.hard_link("a/new", "b"), way);
    }
    let file = format!("{}/file", ground.victim());
    ground.accepts(Archive::new().symlink("b", &file).file("b", b"mine"));
    assert_eq!(ground.read("b"), "mine");
}

#[test]
fn a_chain_of_symlinks_leads_nowhere() {
    let ground = Ground::new();
    let chain = Archive::new()
        .directory("d", 0o755)
        .symlink("d/up", "..")
        .symlink("d/up2", "up/..")
        .file("d/up2/victim/file", b"x");
    ground.refuses(chain, "where its directory is");
}

/// Another user prepared the destination.
#[test]
fn symlinks_that_are_there_are_replaced_and_not_followed() {
    let ground = Ground::new();
    let (into, victim) = (ground.place(), ground.victim());
    for name in ["file", "link", "hard"] {
        symlink(format!("{victim}/file"), into.join(name)).unwrap();
    }
    symlink(&victim, into.join("parent")).unwrap();
    symlink(format!("{victim}/none"), into.join("dangling")).unwrap();
    let archive = Archive::new()
        .file("file", b"new")
        .symlink("link", "elsewhere")
        .hard_link("hard", "file")
        .file("dangling", b"new");
    ground.accepts(archive);
    assert_eq!(ground.read("file") + &ground.read("dangling"), "newnew");
    assert_eq!(fs::read_link(into.join("link")).unwrap(), Path::new("elsewhere"));
    ground.refuses(Archive::new().file("parent/file", b"x"), "where its directory is");
}

/// tar-rs CVE-2026-33056.
#[test]
fn a_directory_over_a_symlink_changes_no_mode_elsewhere() {
    let ground = Ground::new();
    let directory = format!("{}/directory", ground.victim());
    let archive =
        Archive::new().symlink("a", &directory).directory("a", 0o777).file("a/file", b"x");
    ground.accepts(archive);
    assert!(ground.place().join("a").symlink_metadata().unwrap().is_dir());
    symlink(&directory, ground.place().join("b")).unwrap();
    ground.accepts(Archive::new().directory("b/", 0o777));
    assert!(ground.place().join("b").symlink_metadata().unwrap().is_dir());
}

#[test]
fn a_directory_is_replaced_by_nothing() {
    let ground = Ground::new();
    let directory = Archive::new().directory("d", 0o755).file("d/file", b"x");
    let in_place = "a directory is in its place";
    ground.refuses(directory.clone().file("d", b"x"), in_place);
    ground.refuses(directory.clone().symlink("d", "x"), in_place);
    ground.refuses(directory.hard_link("d", "d/file"), in_place);
    assert_eq!(ground.read("d/file"), "x");
}

#[test]
fn a_directory_that_is_there_keeps_its_mode() {
    let ground = Ground::new();
    let directory = ground.place().join("d");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o750)).unwrap();
    let archive = Archive::new().directory("d", 0o777).directory("./", 0o777);
    ground.accepts(archive.file("d/file", b"x"));
    assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o750);
    assert_ne!(fs::metadata(ground.place()).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn the_last_of_several_entries_with_one_name_wins() {
    let ground = Ground::new();
    let file = format!("{}/file", ground.victim());
    let archive = Archive::new()
        .file("a", b"first")
        .file("a", b"second")
        .symlink("b", &file)
        .file("b", b"after a symlink")
        .file("c", b"x")
        .symlink("c", &file)
        .symlink("c", "a")
        .file("d", b"x")
        .directory("d", 0o755)
        .directory("d", 0o755)
        .file("e", b"x")
        .hard_link("e", "a")
        .hard_link("e", "a")
        .file("e", b"only here");
    ground.accepts(archive);
    assert_eq!(ground.read("a"), "second");
    assert_eq!(ground.read("b"), "after a symlink");
    assert_eq!(ground.read("c"), "second");
    assert_eq!(ground.read("e"), "only here");
    assert!(ground.place().join("d").is_dir());
}

#[test]
fn hard_links_stay_inside() {
    let ground = Ground::new();
    let victim = ground.victim();
    let file = format!("{victim}/file");
    for target in ["/etc/passwd", file.as_str(), "../victim/file", "a/../b", ""] {
        ground.refuses(Archive::new().hard_link("a", target), "outside");
    }
    ground.refuses(Archive::new().hard_link("a", "b"), "not there");
    ground.refuses(Archive::new().hard_link("a", "b/c"), "not there");
    ground.refuses(Archive::new().hard_link("a", "./a"), "itself");
    ground.refuses(Archive::new().hard_link("a", "."), "to a directory");
    let through = Archive::new().symlink("s", &victim);
    ground.refuses(through.hard_link("a", "s/file"), "where its directory is");
    // One more name of the symlink, and not of what it points to.
    let archive = Archive::new().symlink("s", &file).hard_link("h", "s");
    ground.accepts(archive.file("h", b"mine"));
    assert_eq!(ground.read("h"), "mine");
    assert_eq!(fs::metadata(&file).unwrap().nlink(), 1);
}

#[test]
fn special_files_are_refused_by_name() {
    let ground = Ground::new();
    let kinds = [
        (b'3', "cannot unpack \"d/x\": it is a character device"),
        (b'4', "cannot unpack \"d/x\": it is a block device"),
        (b'6', "cannot unpack \"d/x\": it is a fifo"),
        (b'S', "cannot unpack \"d/x\": it is a sparse file"),
        (b'V', "does not know"),
        (b'Z', "does not know"),
    ];
    for (kind, reason) in kinds {
        let archive = Archive::new().entry(b"d/x", kind, b"", 0o666, b"");
        ground.refuses(archive, reason);
    }
    let sparse = Archive::new().pax(b'x', &[("GNU.sparse.major", b"1")]);
    ground.refuses(sparse.file("f", b"x"), "it is a sparse file");
    assert_eq!(fs::read_dir(ground.place()).unwrap().count(), 0);
}

#[test]
fn set_id_and_sticky_bits_are_stripped() {
    let ground = Ground::new();
    let archive = Archive::new().directory("d", 0o7755).entry(b"f", b'0', b"", 0o6755, b"x");
    ground.accepts(archive);
    for name in ["d", "f"] {
        let mode = fs::metadata(ground.place().join(name)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o755, "{name}");
    }
}

#[test]
fn a_name_that_no_file_system_has_is_a_clear_error() {
    let ground = Ground::new();
    let archive = Archive::new().pax(b'x', &[("path", &[b'n'; 300])]);
    ground.refuses(archive.file("x", b""), "too long");
    ground.refuses(Archive::new().symlink("empty", ""), "its target is not a path");
}

#[test]
fn only_the_requested_top_level_name_is_unpacked() {
    let ground = Ground::new();
    let options = Options { top: Top::Only { name: b"b", becomes: b"c" }, ..Options::default() };
    let good = Archive::new().directory("b", 0o755).file("./b/f", b"1");
    let good = good.hard_link("b/g", "b/f");
    unpack(&good.clone().end(), &ground.place(), options).unwrap();
    assert_eq!(ground.read("c/f") + &ground.read("c/g"), "11");
    let others = [
        good.clone().file("d", b"x"),
        good.clone().directory("./", 0o777),
        good.clone().hard_link("b/h", "c/f"),
        Archive::new().file("c", b"x"),
        Archive::new().file("bb", b"x"),
        Archive::new(),
    ];
    for other in others {
        let error = unpack(&other.end(), &ground.place(), options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{}", message(&error));
    }
    assert_eq!(fs::read_dir(ground.place()).unwrap().count(), 1);
    for becomes in ["../victim", "/etc", "..", ""] {
        let top = Top::Only { name: b"b", becomes: becomes.as_bytes() };
        let options = Options { top, ..options };
        let archive = Archive::new().file("b", b"x").end();
        unpack(&archive, &ground.place(), options).unwrap_err();
    }
    ground.is_kept();
}

#[test]
fn limits_stop_before_the_entry_that_breaks_them() {
    let ground = Ground::new();
    let archive = Archive::new().file("a", b"12345").file("b/c", b"12345");
    let limit = |entries_max, bytes_max| Options { entries_max, bytes_max, ..Options::default() };
    let archive = archive.end();
    for options in [limit(2, 10), limit(3, 9)] {
        let error = unpack(&archive, &ground.place(), options).unwrap_err();
        assert!(message(&error).contains("more than"), "{}", message(&error));
        assert!(!ground.place().join("b/c").exists());
    }
    unpack(&archive, &ground.place(), limit(3, 10)).unwrap();
}
