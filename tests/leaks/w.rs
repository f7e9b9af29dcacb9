//! W. The user's own directories. tare creates no mount point in a volume: a directory that a
//! mount inside a volume needs must exist already.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::process::{Signal, WaitOptions, waitpid};
use tare_harness::{TemporaryDirectory, eventually, fixture};

use crate::leaks::case::{case, times};

/// The tree below a directory, and the directory's inode and change times.
type Seen = (BTreeMap<PathBuf, (u32, Vec<u8>)>, (u64, i64, i64));

/// Everything below a directory, and its own inode and time of change.
fn seen(directory: &Path) -> Seen {
    let metadata = fs::metadata(directory).expect("it is there");
    let own = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
    (fixture::tree(directory), own)
}

fn writable() -> TemporaryDirectory {
    let directory = TemporaryDirectory::new();
    let everyone = fs::Permissions::from_mode(0o777);
    fs::set_permissions(directory.path(), everyone).expect("it is ours");
    directory
}

/// W1, sandbox-runtime, pi-sandbox and opencode: to mount on a path that did not exist, the
/// tool created it in the user's directory and left it there.
#[test]
fn no_mount_point_is_created_in_a_directory_of_the_user() {
    let case = case();
    let (home, inner) = (writable(), writable());
    home.write("precious", "precious\n");
    let before = seen(home.path());
    let outer = format!("{}:/home", home.text());
    for name in [".bashrc", ".git", "deep/er/still", ".env"] {
        let inner = format!("{}:/home/{name}", inner.text());
        let call = ["-v", &outer, "-v", &inner, "--", "true"];
        case.run(call).exited(125).said(&[name]);
        assert_eq!(seen(home.path()), before, "{name}");
        for _ in 0..times(2, 20) {
            let killed = case.spawn(call);
            killed.signal(Signal::KILL);
            killed.wait();
            assert_eq!(seen(home.path()), before, "{name}");
        }
    }
    eventually("no process is left", || case.footprint().processes.is_empty());
    case.call(["ls"]).ok();
    // The processes of killed tares came to us, as they come to the first process of a
    // host: keepers, and those that mapped the user ids of a volume.
    while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
    case.nothing_left();
}

/// W5, bubblewrap: while it built the root, the tool created files and directories on the
/// host through absolute symlinks.
#[test]
fn no_mount_follows_a_symlink_in_a_volume_to_the_host() {
    let case = case();
    let (volume, inner, host) = (writable(), writable(), writable());
    symlink(host.path(), volume.join("link")).expect("it is ours");
    let before = [volume.path(), inner.path(), host.path()].map(seen);
    let outer = format!("{}:/data", volume.text());
    for name in ["link/below", "link"] {
        let below = format!("{}:/data/{name}", inner.text());
        let output = case.run(["-v", &outer, "-v", &below, "--", "true"]);
        assert!([0, 125].contains(&output.code), "{output}");
        let now = [volume.path(), inner.path(), host.path()].map(seen);
        assert_eq!(now, before, "{name}: {output}");
    }
    case.nothing_left();
}
