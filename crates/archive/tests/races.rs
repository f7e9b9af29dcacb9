//! Directories, files and symlinks are exchanged while they are packed and unpacked. Nothing
//! outside is written or read.

mod fixture;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fixture::{Archive, pack, snapshot, unpack};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tare_archive::Options;
use tare_harness::TemporaryDirectory;

const ROUNDS: usize = 1_000;
const SECRET: &[u8] = b"secret of the host";

/// Stops the racer, also when the work panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Exchanges two names as fast as possible while `work` runs.
fn while_exchanging(one: &Path, other: &Path, work: impl FnOnce()) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // One of them may be missing for a moment: the work replaces it.
                let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
            }
        });
        work();
    });
}

#[test]
fn a_racer_cannot_lead_unpacking_outside() {
    let root = TemporaryDirectory::new();
    for name in ["victim", "victim/d", "into", "into/d"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    root.write("victim/file", SECRET);
    symlink(root.join("victim"), root.join("into/link")).unwrap();
    let before = snapshot(&root.join("victim"));
    // `x` is beside `d`, so that `d` is entered again each time.
    let archive = Archive::new()
        .directory("d", 0o777)
        .file("d/file", b"mine")
        .file("x", b"")
        .directory("d/d", 0o777)
        .symlink("d/file", "x")
        .end();
    let into = root.join("into");
    while_exchanging(&into.join("d"), &into.join("link"), || {
        for _ in 0..ROUNDS {
            let _ = unpack(&archive, &into, Options::default());
        }
    });
    assert_eq!(snapshot(&root.join("victim")), before);
}

#[test]
fn a_racer_cannot_have_a_secret_packed() {
    let root = TemporaryDirectory::new();
    for name in ["victim", "from", "from/d", "from/d/sub"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    root.write("victim/file", SECRET);
    root.write("from/d/sub/file", "harmless");
    symlink(root.join("victim"), root.join("from/d/link")).unwrap();
    symlink(root.join("victim/file"), root.join("from/d/sub/link")).unwrap();
    let packed = |_| {
        let archive = pack(&root.join("from"), "d").unwrap_or_default();
        let found = archive.windows(SECRET.len()).any(|it| it == SECRET);
        assert!(!found);
    };
    let d = root.join("from/d");
    while_exchanging(&d.join("sub"), &d.join("link"), || {
        (0..ROUNDS / 2).for_each(packed);
    });
    let sub = if d.join("sub").is_symlink() { d.join("link") } else { d.join("sub") };
    while_exchanging(&sub.join("file"), &sub.join("link"), || {
        (0..5 * ROUNDS).for_each(packed);
    });
}
