//! Volumes and root directories: which files of the host a box can reach.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use tare_harness::skip::is_root;
use tare_harness::{TemporaryDirectory, fixture, skip, tare};

/// A directory to bind, with a file in it that only its owner can read, all of it
/// owned by `owner`.
fn owned_directory(owner: u32) -> TemporaryDirectory {
    let directory = TemporaryDirectory::new();
    let file = directory.write("private", "for the owner\n");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("it is ours");
    for path in [&file, directory.path()] {
        chown(path, Some(owner), Some(owner)).expect("root can give a file away");
    }
    directory
}

#[test]
fn a_box_writes_to_a_volume_as_the_volumes_owner() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can make files of other owners");
    }
    for owner in [0, 12345, 65534] {
        let directory = owned_directory(owner);
        let volume = format!("{}:/data", directory.text());
        let script = "cat /data/private && echo made > /data/made && mkdir /data/d && stat -c '%u:%g' /data/made && id -u && id -g";
        let output = tare.run(["-v", &volume, "--", "sh", "-c", script]).ok();
        // Inside, new files belong to the box's own user.
        assert_eq!(output.stdout_text(), "for the owner\n1000:1000\n1000\n1000\n");
        for name in ["made", "d"] {
            let made = directory.join(name).metadata().unwrap();
            assert_eq!((made.uid(), made.gid()), (owner, owner), "{name}");
        }
        assert_eq!(fs::read_to_string(directory.join("made")).unwrap(), "made\n");
    }
}

#[test]
fn any_user_of_a_box_writes_to_a_volume_as_the_volumes_owner() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can make files of other owners");
    }
    let directory = owned_directory(12345);
    let volume = format!("{}:/data", directory.text());
    tare.run(["-v", &volume, "-u", "77:78", "--", "sh", "-c", "echo x > /data/made"]).ok();
    let made = directory.join("made").metadata().unwrap();
    assert_eq!((made.uid(), made.gid()), (12345, 12345));
}

#[test]
fn a_read_only_volume_can_be_read_and_not_written() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("file", "content\n");
    let volume = format!("{}:/data:ro", directory.text());
    tare.run(["-v", &volume, "--", "cat", "/data/file"]).ok().printed("content\n");
    for script in
        ["echo x > /data/file", "touch /data/new", "rm /data/file", "chmod 777 /data/file"]
    {
        let output = tare.run(["-v", &volume, "--", "sh", "-c", script]);
        assert_ne!(output.code, 0, "{script}: {output}");
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "content\n");
    assert_eq!(names(directory.path()), ["file"]);
}

#[test]
fn a_single_file_can_be_a_volume() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("config", "old\n");
    let volume = format!("{}:/etc/app/config", file.display());
    tare.run(["-v", &volume, "--", "sh", "-c", "cat /etc/app/config; echo new > /etc/app/config"])
        .ok()
        .printed("old\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), "new\n");
    let read_only = format!("{volume}:ro");
    let output = tare.run(["-v", &read_only, "--", "sh", "-c", "echo no > /etc/app/config"]);
    assert_ne!(output.code, 0, "{output}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "new\n");
}

#[test]
fn a_relative_volume_path_starts_in_the_callers_directory() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    fs::create_dir(directory.join("data")).unwrap();
    fs::write(directory.join("data/file"), "content\n").unwrap();
    for host in ["data", "./data", "data/"] {
        let volume = format!("{host}:/x:ro");
        let mut command = tare.command(["run", "-v", &volume, "--", "cat", "/x/file"]);
        let output = command.current_dir(directory.path()).output().unwrap();
        assert_eq!(output.stdout, b"content\n", "{host}");
    }
}

#[test]
fn volumes_can_be_nested() {
    let tare = tare!();
    let outer = TemporaryDirectory::new();
    let inner = TemporaryDirectory::new();
    fs::create_dir(outer.join("inner")).unwrap();
    outer.write("a", "outer\n");
    inner.write("b", "inner\n");
    let volumes = [format!("{}:/data:ro", outer.text()), format!("{}:/data/inner", inner.text())];
    let script = "cat /data/a /data/inner/b && echo made > /data/inner/made";
    tare.run(["-v", &volumes[0], "-v", &volumes[1], "--", "sh", "-c", script])
        .ok()
        .printed("outer\ninner\n");
    assert_eq!(names(outer.join("inner")), Vec::<String>::new());
    assert_eq!(names(inner.path()), ["b", "made"]);
}

#[test]
fn a_volume_survives_a_box_that_is_killed() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let volume = format!("{}:/data", directory.text());
    let script = "echo kept > /data/kept; sleep 1000";
    tare.run(["-v", &volume, "--timeout", "1s", "--", "sh", "-c", script]).exited(124);
    assert_eq!(fs::read_to_string(directory.join("kept")).unwrap(), "kept\n");
}

#[test]
fn secrets_of_the_host_are_not_in_the_default_root() {
    let tare = tare!();
    let here = TemporaryDirectory::new();
    let file = here.write("file", "of the host");
    for path in [
        "/etc/shadow",
        "/root",
        "/home",
        "/var/lib",
        "/run",
        "/proc/1/environ",
        file.to_str().unwrap(),
    ] {
        let script = format!("cat {path} || ls -A {path} | grep .");
        let output = tare.run(["--", "sh", "-c", &script]);
        assert_ne!(output.code, 0, "{path}: {output}");
    }
    // The same question about something that is there.
    tare.run(["--", "sh", "-c", "cat /usr || ls -A /usr | grep -q ."]).ok();
}

#[test]
fn a_box_sees_its_rootfs_as_the_root() {
    let tare = tare!();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    let output = tare.run([
        "--rootfs",
        root.text(),
        "--",
        "/bin/sh",
        "-c",
        "cat /marker; ls /usr 2>&1; id -u",
    ]);
    let text = output.stdout_text();
    assert!(text.starts_with("from the source\n") && text.ends_with("1000\n"), "{output}");
    assert!(!text.contains("bin\n"), "the host's /usr is visible: {output}");
}

#[test]
fn a_program_is_found_by_name_in_the_rootfs() {
    let tare = tare!();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    tare.run(["--rootfs", root.text(), "--", "echo", "found"]).ok().printed("found\n");
}

#[test]
fn a_box_with_a_rootfs_has_dev_proc_and_scratch() {
    let tare = tare!();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    let script = "echo x > /dev/null && cat /proc/self/comm && echo y > /tmp/file && cat /tmp/file && echo z > here && cat here";
    tare.run(["--rootfs", root.text(), "--", "/bin/sh", "-c", script]).ok().printed("cat\ny\nz\n");
}

#[test]
fn writes_to_a_rootfs_leave_its_source_unchanged() {
    let tare = tare!();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    let before = contents(root.path());
    let script = "echo new > /new && cat /new && echo changed > /marker && cat /marker && rm /bin/ls && mkdir /bin/sub && rm -r /bin/sub";
    tare.run(["--root", "--rootfs", root.text(), "--", "/bin/sh", "-c", script])
        .ok()
        .printed("new\nchanged\n");
    assert_eq!(contents(root.path()), before);
    // The next box does not see what the last one did.
    tare.run(["--rootfs", root.text(), "--", "/bin/cat", "/marker"])
        .ok()
        .printed("from the source\n");
}

#[test]
fn a_volume_can_be_below_a_writable_directory_of_every_root() {
    let tare = tare!();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    let volume = TemporaryDirectory::new();
    volume.write("file", "in the volume\n");
    for target in ["/work/here", "/tmp/a/b", "/here"] {
        let volume = format!("{}:{target}:ro", volume.text());
        let file = format!("{target}/file");
        tare.run(["-v", &volume, "--", "cat", &file]).ok().printed("in the volume\n");
        tare.run(["--rootfs", root.text(), "-v", &volume, "--", "/bin/cat", &file])
            .ok()
            .printed("in the volume\n");
    }
}

/// A volume inside another, in either order of options. The mount point must exist, because tare
/// creates nothing in a volume.
#[test]
fn a_volume_inside_another_needs_an_existing_mount_point() {
    let tare = tare!();
    let (outer, inner) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    outer.write("name", "outer\n");
    inner.write("name", "inner\n");
    let [around, within] = [format!("{}:/x", outer.text()), format!("{}:/x/y", inner.text())];
    for (first, second) in [(&around, &within), (&within, &around)] {
        let show = ["--", "cat", "/x/name", "/x/y/name"];
        let call = ["-v", first, "-v", second];
        tare.run(call.iter().chain(&show)).exited(125).said(&["/x/y", "must exist"]);
        assert_eq!(names(outer.path()), ["name"]);
        fs::create_dir(outer.join("y")).expect("the directory is ours");
        tare.run(call.iter().chain(&show)).ok().printed("outer\ninner\n");
        fs::remove_dir(outer.join("y")).expect("nothing was written to it");
    }
}

/// `--workspace` is `/work` under a second path, with the same size limit. Nothing else at that
/// path can be written.
#[test]
fn the_workspace_is_work_under_another_path() {
    let tare = tare!();
    let script = "pwd; echo seen > here; cat /work/here; ! mkdir /mnt/other 2>/dev/null && echo no; \
                  head -c 2m /dev/zero > /mnt/data/fill 2>/dev/null || echo full";
    let call = ["--workspace", "/mnt/data", "--scratch", "1m"];
    tare.run(call.iter().chain(&["--", "sh", "-c", script]))
        .ok()
        .printed("/mnt/data\nseen\nno\nfull\n");
    for wrong in ["data", "/", "/proc/x", "/mnt/../data", "/dev/data"] {
        tare.run(["--workspace", wrong, "--", "true"]).exited(125).said(&["--workspace"]);
    }
}

fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the directory can be listed");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("the directory can be listed"))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Every path below with its mode, owner and content.
fn contents(root: &Path) -> BTreeMap<PathBuf, (u32, u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = path.symlink_metadata().expect("the tree is ours");
        let content = match () {
            () if metadata.is_dir() => Vec::new(),
            () if metadata.is_symlink() => {
                let target = fs::read_link(&path).expect("the tree is ours");
                target.into_os_string().into_encoded_bytes()
            }
            () => fs::read(&path).expect("the tree is ours"),
        };
        if metadata.is_dir() {
            pending.extend(names(&path).into_iter().map(|name| path.join(name)));
        }
        found.insert(path, (metadata.mode(), metadata.uid(), content));
    }
    found
}
