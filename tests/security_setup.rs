//! The creation of a box when its root directory, its volumes, its state root or its options are
//! hostile.
//!
//! `bad_input.rs`, `leaves_nothing.rs`, `limits.rs`, `security_exec.rs` and `security_copying.rs`
//! test hostile options, leftovers, limits, execs and copies.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tare_harness::{Output, Tare, TemporaryDirectory, TerminalSize, fixture, skip, tare};

/// A directory of the host that the attacks point at. It must not change.
struct Victim {
    directory: TemporaryDirectory,
    before: BTreeMap<PathBuf, (u32, u32, Vec<u8>)>,
}

impl Victim {
    fn new() -> Self {
        let directory = TemporaryDirectory::new();
        directory.write("file", "precious\n");
        fs::create_dir(directory.join("inside")).expect("the directory is fresh");
        directory.write("inside/file", "precious too\n");
        let before = contents(directory.path());
        Self { directory, before }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    #[track_caller]
    fn is_unharmed(&self) {
        assert_eq!(contents(self.path()), self.before);
    }
}

/// Every path below with its mode, owner and content.
fn contents(root: &Path) -> BTreeMap<PathBuf, (u32, u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = path.symlink_metadata().expect("the tree is ours");
        let mut content = Vec::new();
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).expect("the tree is ours");
            pending.extend(entries.map(|entry| entry.expect("the tree is ours").path()));
        } else if metadata.is_file() {
            content = fs::read(&path).expect("the tree is ours");
        }
        found.insert(path, (metadata.mode(), metadata.uid(), content));
    }
    found
}

macro_rules! busybox_root {
    () => {
        match fixture::busybox_root() {
            Some(root) => root,
            None => skip!("there is no static busybox on this host"),
        }
    };
}

/// `sh -c SCRIPT` with this directory as root.
#[track_caller]
fn in_root(tare: &Tare, root: &TemporaryDirectory, script: &str) -> Output {
    tare.run(["--rootfs", root.text(), "--", "/bin/sh", "-c", script])
}

/// A setting of the host that a mask made from an image's file would write to.
fn core_pattern() -> String {
    fs::read_to_string("/proc/sys/kernel/core_pattern").expect("/proc is mounted")
}

/// The masks over `/proc` do not use files of the image.
#[test]
fn masks_and_devices_follow_no_symlink_of_the_rootfs() {
    let tare = tare!();
    let root = busybox_root!();
    let before = core_pattern();
    fs::create_dir(root.join("dev")).unwrap();
    for name in ["null", "zero", "tty", "random", "console", "ptmx", "pts", "shm"] {
        symlink("/proc/sys/kernel/core_pattern", root.join("dev").join(name)).unwrap();
    }
    let script = "busybox stat -c %t:%T /dev/null; echo x > /dev/null; busybox stat -c %F /dev/shm /dev/pts
for name in kcore keys kallsyms kmsg sysrq-trigger timer_list; do cat /proc/$name; echo x > /proc/$name; done 2>/dev/null; cat /proc/sys/kernel/core_pattern";
    in_root(&tare, &root, script).ok().printed(&format!("1:3\ndirectory\ndirectory\n{before}"));
    assert_eq!(core_pattern(), before);
}

/// The terminal is not created from what an image contains.
#[test]
fn a_terminal_follows_no_symlink_of_the_rootfs() {
    let tare = tare!();
    let root = busybox_root!();
    let before = core_pattern();
    fs::create_dir(root.join("dev")).unwrap();
    for name in ["console", "tty", "ptmx", "pts"] {
        symlink("/proc/sys/kernel/core_pattern", root.join("dev").join(name)).unwrap();
    }
    let size = TerminalSize { rows: 20, columns: 80 };
    let script = "busybox tty; echo on the terminal > /dev/tty; ls /dev/pts";
    let session =
        tare.under_terminal(size, ["-t", "--rootfs", root.text(), "--", "/bin/sh", "-c", script]);
    let (output, _) = session.wait();
    let screen = output.ok().stdout_text();
    assert!(screen.starts_with("/dev/pts/0\r\non the terminal\r\n"), "{screen}");
    assert_eq!(core_pattern(), before);
}

/// tare mounts only on directories of the box.
#[test]
fn a_mount_point_that_is_a_symlink_is_refused_and_named() {
    let tare = tare!();
    let victim = Victim::new();
    for name in ["proc", "dev", "tmp", "work", "sys"] {
        let outside = victim.path().to_str().unwrap();
        let up = format!("../../../../../..{outside}");
        for target in [outside, &up, "/proc", "bin", "/nowhere", name] {
            let root = busybox_root!();
            symlink(target, root.join(name)).unwrap();
            let output = in_root(&tare, &root, "true").exited(125);
            output.said(&[name]);
        }
        let root = busybox_root!();
        root.write(name, "a file");
        in_root(&tare, &root, "true").exited(125).said(&[name]);
        fs::remove_file(root.join(name)).unwrap();
        fs::create_dir(root.join(name)).unwrap();
        in_root(&tare, &root, "true").ok();
    }
    victim.is_unharmed();
}

/// The symlink is one level above the mount point `/sys/devices/system/cpu`.
#[test]
fn a_mount_point_behind_a_symlink_is_refused() {
    let tare = tare!();
    let victim = Victim::new();
    let root = busybox_root!();
    fs::create_dir(root.join("sys")).unwrap();
    symlink(victim.path(), root.join("sys/devices")).unwrap();
    in_root(&tare, &root, "true").exited(125);
    victim.is_unharmed();
}

/// Swaps `d` and `e` without end: the one is a directory, the other a way out.
const RACER: &str = "import ctypes, sys
exchange = ctypes.CDLL(None).syscall
print('racing', flush=True)
while True:
    exchange(316, -100, b'/shared/d', -100, b'/shared/e', 2)";

/// A mount point that changes while the mount is made.
#[test]
fn a_mount_point_swapped_during_set_up_leads_nowhere_else() {
    let tare = tare!();
    let victim = Victim::new();
    let shared = TemporaryDirectory::new();
    let given = TemporaryDirectory::new();
    given.write("given", "to the box\n");
    fs::create_dir_all(shared.join("d/inside")).unwrap();
    symlink(format!("../../../../../../../..{}", victim.path().display()), shared.join("e"))
        .unwrap();
    let racing = format!("{}:/shared", shared.text());
    let racer = tare.spawn(["-v", &racing, "--timeout", "50s", "--", "python3", "-c", RACER]);
    racer.see("racing");
    let outer = format!("{}:/shared", shared.text());
    let inner = format!("{}:/shared/d/inside", given.text());
    let mut started = 0;
    for _ in 0..100 {
        let mut call = vec!["-v", &outer, "-v", &inner, "--"];
        call.extend([
            "sh",
            "-c",
            "touch /shared/d/inside/made; cat /shared/d/inside/given; ls /etc/given /usr/given",
        ]);
        let output = tare.run(call);
        started += u32::from(output.code != 125);
        assert!(!output.stdout_text().contains("precious"), "{output}");
    }
    assert!(started > 0, "no box started in a hundred tries");
    racer.signal(rustix::process::Signal::TERM);
    racer.wait();
    victim.is_unharmed();
}

/// Without a `/dev` and without streams nothing of the host is opened or given
/// away in their place.
#[test]
fn closed_streams_are_not_replaced_by_files_of_the_host() {
    let tare = tare!();
    let root = busybox_root!();
    let victim = Victim::new();
    let seen = TemporaryDirectory::new();
    fs::set_permissions(seen.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let script = "kinds=$(for n in 0 1 2; do busybox stat -L -c %F /proc/$$/fd/$n; done); echo \"$kinds\" > /seen/kinds; ls /proc/self/fd > /seen/open";
    let call = format!(
        "exec \"$TARE\" run --rootfs {} -v {}:/seen -- /bin/sh -c '{script}' <&- >&- 2>&-",
        root.text(),
        seen.text()
    );
    tare.shell(&call).ok();
    let kinds = fs::read_to_string(seen.join("kinds")).unwrap();
    assert_eq!(kinds.lines().count(), 3, "{kinds}");
    assert!(
        kinds.lines().all(|kind| ["fifo", "character special file"].contains(&kind)),
        "{kinds}"
    );
    assert_eq!(fs::read_to_string(seen.join("open")).unwrap(), "0\n1\n2\n3\n");
    // An image that has a `/dev/null` of its own making.
    fs::create_dir(root.join("dev")).unwrap();
    symlink(victim.path().join("file"), root.join("dev/null")).unwrap();
    let owner = fs::metadata("/dev/null").unwrap().uid();
    tare.shell(&call.replace("/seen/kinds", "/seen/again")).ok();
    assert_eq!(fs::metadata("/dev/null").unwrap().uid(), owner);
    victim.is_unharmed();
}

/// The target of the volume is behind a symlink of the root directory.
#[test]
fn a_volume_is_never_mounted_outside_the_box() {
    let tare = tare!();
    let victim = Victim::new();
    let given = TemporaryDirectory::new();
    let outside = victim.path().to_str().unwrap();
    let root = busybox_root!();
    let targets = [
        format!("/oldroot{outside}"),
        format!("/proc/1/root{outside}"),
        format!("/proc/self/root{outside}"),
        format!("../../../../../../..{outside}"),
        outside.to_owned(),
    ];
    for (number, target) in targets.iter().enumerate() {
        symlink(target, root.join(format!("evil{number}"))).unwrap();
        for place in ["", "/x", "/inside", "/inside/deep/er"] {
            let volume = format!("{}:/evil{number}{place}", given.text());
            let output =
                tare.run(["-v", &volume, "--rootfs", root.text(), "--", "/bin/echo", "in"]);
            // Inside it may lead to a place that can be made; the victim's it is not.
            assert!([0, 125].contains(&output.code), "{target}{place}: {output}");
        }
    }
    victim.is_unharmed();
    let volume = format!("{}:/fine/deep", given.text());
    tare.run(["-v", &volume, "--rootfs", root.text(), "--", "/bin/ls", "/fine"])
        .ok()
        .printed("deep\n");
}

/// An earlier box with the same volume may have left the links.
#[test]
fn no_symlink_in_a_volume_puts_another_volume_over_a_part_of_the_box() {
    let tare = tare!();
    let (outer, given) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    fs::create_dir(outer.join("real")).unwrap();
    let links = [("a", "/proc"), ("b", "/etc"), ("c", "../dev/shm"), ("d", "real"), ("e", ".")];
    for (name, target) in links {
        symlink(target, outer.join(name)).unwrap();
    }
    let volume = format!("{}:/data", outer.text());
    for name in ["a", "a/sys", "b", "c", "d", "e/real"] {
        let place = format!("/data/{name}");
        let inner = format!("{}:{place}", given.text());
        let call = ["--name", "web", "-v", &inner, "-v", &volume, "--", "true"];
        tare.run(call).exited(125).said(&[&place, "symlink", "without symlinks"]);
        let story = tare.call(["explain", "web"]).ok().stdout_text();
        let first = story.lines().next().unwrap_or_default();
        assert!(first.starts_with("Never started: ") && first.contains(&place), "{story}");
    }
    let inner = format!("{}:/data/real", given.text());
    given.write("file", "given\n");
    let call = ["-v", &inner, "-v", &volume, "--", "cat", "/data/d/file"];
    tare.run(call).ok().printed("given\n");
}

#[test]
fn a_symlink_of_the_rootfs_puts_a_volume_into_the_rootfs_only() {
    let tare = tare!();
    let root = busybox_root!();
    let given = TemporaryDirectory::new();
    given.write("file", "given\n");
    for (name, target) in [("a", "/proc"), ("b", "dev"), ("c", "/tmp"), ("run", "var/run")] {
        symlink(target, root.join(name)).unwrap();
    }
    for name in ["a", "a/sys", "b", "c"] {
        let place = format!("/{name}");
        let volume = format!("{}:{place}", given.text());
        tare.run(["--rootfs", root.text(), "-v", &volume, "--", "/bin/echo"])
            .exited(125)
            .said(&[&place, "symlink"]);
    }
    fs::create_dir_all(root.join("var/run")).unwrap();
    let volume = format!("{}:/run/here", given.text());
    tare.run(["--rootfs", root.text(), "-v", &volume, "--", "/bin/cat", "/var/run/here/file"])
        .ok()
        .printed("given\n");
}

/// Runs `tare run -- true` on a prepared state root.
#[track_caller]
fn on_state_root(tare: &Tare, state_root: &Path) -> Output {
    let mut command = tare.command(["run", "--name", "same", "--", "true"]);
    command.env("TARE_STATE_ROOT", state_root);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    tare.start_command(command).wait()
}

/// The state root contains hostile names before its first use.
#[test]
fn a_hostile_state_root_causes_no_harm() {
    let tare = tare!();
    let victim = Victim::new();
    let prepare = |make: &dyn Fn(&Path)| {
        let home = TemporaryDirectory::new();
        let state = home.join("state");
        fs::create_dir(&state).unwrap();
        fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).unwrap();
        make(&state);
        let output = on_state_root(&tare, &state);
        victim.is_unharmed();
        output
    };
    prepare(&|_| {}).ok();
    prepare(&|state| symlink(victim.path(), state.join("boxes")).unwrap()).exited(125);
    prepare(&|state| symlink(victim.path().join("new"), state.join("claims")).unwrap()).exited(125);
    prepare(&|state| symlink(victim.path().join("file"), state.join("claims")).unwrap())
        .exited(125);
    prepare(&|state| fs::hard_link(victim.path().join("file"), state.join("claims")).unwrap());
    prepare(&|state| symlink(victim.path().join("inside"), state.join("names")).unwrap())
        .exited(125);
    // An abandoned record is removed, but not what it points at.
    prepare(&|state| {
        fs::create_dir_all(state.join("boxes/aaaaaaaaaaaa")).unwrap();
        symlink(victim.path(), state.join("boxes/aaaaaaaaaaaa/inside")).unwrap();
        symlink(victim.path(), state.join("boxes/aaaaaaaaaaab")).unwrap();
        symlink(victim.path().join("file"), state.join("boxes/aaaaaaaaaaaa/record.json")).unwrap();
    });
}

/// Only its owner may be able to write a state root.
#[test]
fn a_state_root_that_is_writable_by_others_or_a_symlink_is_refused() {
    let tare = tare!();
    let home = TemporaryDirectory::new();
    let state = home.join("state");
    fs::create_dir(&state).unwrap();
    for (mode, code) in [(0o700, 0), (0o755, 0), (0o777, 125), (0o720, 125), (0o1777, 125)] {
        fs::set_permissions(&state, PermissionsExt::from_mode(mode)).unwrap();
        on_state_root(&tare, &state).exited(code);
    }
    fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).unwrap();
    symlink(&state, home.join("link")).unwrap();
    on_state_root(&tare, &home.join("link")).exited(125).said(&["state root"]);
}

/// A box that writes to a volume plants a link for the next one.
#[test]
fn a_symlink_planted_in_a_volume_is_not_accepted_as_a_volume() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    fs::create_dir(directory.join("real")).unwrap();
    let volume = format!("{}:/data", directory.text());
    tare.run(["-v", &volume, "--", "ln", "-s", "/", "/data/planted"]).ok();
    for planted in ["planted", "planted/etc", "real/../planted"] {
        let volume = format!("{}/{planted}:/w", directory.text());
        tare.run(["-v", &volume, "--", "ls", "/w"]).exited(125).said(&["symlink"]).printed("");
    }
    tare.run(["-v", &format!("{}/real:/w", directory.text()), "--", "ls", "/w"]).ok();
}

/// tare resolves `..` in the text of the path, without following symlinks.
#[test]
fn a_volume_path_with_dots_is_taken_literally() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    symlink("/usr/share", directory.join("link")).unwrap();
    directory.write("own", "own\n");
    let volume = format!("{}/link/..:/w", directory.text());
    tare.run(["-v", &volume, "--", "ls", "/w"]).ok().printed("link\nown\n");
    for outside in ["../../proc", "../../../../../..", "../../dev", "../../run"] {
        let volume = format!("{}/{outside}:/w", directory.text());
        tare.run(["-v", &volume, "--", "ls", "/w"]).exited(125).printed("");
    }
}

/// The root directory is opened without following anything.
#[test]
fn a_rootfs_behind_a_symlink_is_refused() {
    let tare = tare!();
    let root = busybox_root!();
    let directory = TemporaryDirectory::new();
    fs::create_dir(directory.join("image")).unwrap();
    symlink(root.path(), directory.join("image/rootfs")).unwrap();
    symlink("/", directory.join("host")).unwrap();
    for path in ["image/rootfs", "image/rootfs/bin", "host", "host/usr"] {
        let path = directory.join(path);
        let output =
            tare.run([OsStr::new("--rootfs"), path.as_ref(), "--".as_ref(), "/bin/sh".as_ref()]);
        output.exited(125).said(&["symlink"]);
    }
}

/// The host's own root, and what holds tare's state or lies in it.
#[test]
fn the_hosts_root_and_tares_state_are_refused_as_rootfs() {
    let tare = tare!();
    tare.run(["--", "true"]).ok();
    let state = tare.state_root();
    let parent = state.parent().unwrap();
    for path in [Path::new("/"), Path::new("/../usr/.."), &state, parent, &state.join("boxes")] {
        let output =
            tare.run(["--root", "--rootfs", path.to_str().unwrap(), "--", "cat", "/etc/shadow"]);
        output.exited(125).printed("").said(&["state"]);
    }
    for kernels in ["/proc", "/sys", "/dev"] {
        tare.run(["--rootfs", kernels, "--", "true"]).exited(125);
    }
}

/// Files that a runtime might read or write during creation. A fifo or an endless file must not
/// block tare.
#[test]
fn tare_neither_reads_nor_writes_files_of_the_rootfs() {
    let tare = tare!();
    let root = busybox_root!();
    let victim = Victim::new();
    fs::create_dir(root.join("etc")).unwrap();
    symlink(victim.path(), root.join("run")).unwrap();
    symlink(victim.path(), root.join("var")).unwrap();
    for name in ["hosts", "resolv.conf", "hostname", "mtab", "nsswitch.conf"] {
        symlink(victim.path().join("file"), root.join("etc").join(name)).unwrap();
    }
    symlink("/dev/zero", root.join("etc/group")).unwrap();
    let made = Command::new("mkfifo").arg(root.join("etc/passwd")).status();
    assert!(made.expect("mkfifo runs").success());
    let output = tare
        .run(["--rootfs", root.text(), "-u", "5", "--", "/bin/echo", "in"])
        .ok()
        .printed("in\n");
    assert!(output.lasted < Duration::from_secs(5), "{output}");
    victim.is_unharmed();
}

/// A working directory is one of the box.
#[test]
fn a_working_directory_with_dots_stays_in_the_box() {
    let tare = tare!();
    let root = busybox_root!();
    symlink("/proc/self/root/..", root.join("up")).unwrap();
    symlink("../../../../../../..", root.join("top")).unwrap();
    for directory in ["/..", "/../../../..", "/bin/../../..", "/top", "/top/../.."] {
        tare.run(["--rootfs", root.text(), "-w", directory, "--", "/bin/cat", "marker"])
            .ok()
            .printed("from the source\n");
    }
    for directory in
        ["/up", "../../../proc/self/fd/3", "/proc/self/fd/3", "/proc/1/root", "/top/proc/self/cwd"]
    {
        tare.run(["--rootfs", root.text(), "-w", directory, "--", "/bin/cat", "marker"])
            .exited(125);
    }
    tare.run(["-w", "/../../root", "--", "pwd"]).exited(125);
}

/// Digits are ids, even if the root directory has a user with such a name.
#[test]
fn a_number_is_a_user_id_even_if_the_rootfs_names_a_user_so() {
    let tare = tare!();
    let root = busybox_root!();
    fs::create_dir(root.join("etc")).unwrap();
    root.write("etc/passwd", "1:x:0:0::/:/bin/sh\n1000:x:0:0::/:/bin/sh\n5:x:0:0::/:/bin/sh\n");
    root.write("etc/group", "5:x:0:\n7:x:0:1000,5\n");
    for (user, ids) in [
        ("1", "1 1"),
        ("1000", "1000 1000"),
        ("5:7", "5 7"),
        ("65533", "65533 65533"),
        ("0", "0 0"),
    ] {
        let output = tare.run([
            "--rootfs",
            root.text(),
            "-u",
            user,
            "--",
            "/bin/sh",
            "-c",
            "echo $(busybox id -u) $(busybox id -g); cat /proc/self/status",
        ]);
        let text = output.ok().stdout_text();
        assert!(text.starts_with(&format!("{ids}\n")), "{user}: {text}");
        assert!(text.contains("CapEff:\t0000000000000000"), "{user}: {text}");
    }
}

/// Values that tare writes to a file must not add a line to it.
#[test]
fn no_option_adds_a_line_to_a_generated_file() {
    let tare = tare!();
    let count =
        "wc -l < /etc/passwd; wc -l < /etc/group; wc -l < /etc/hosts; wc -l < /etc/hostname";
    tare.run(["--", "sh", "-c", count]).ok().printed("3\n3\n2\n1\n");
    tare.run([
        "-e",
        "HOME=/tmp",
        "-e",
        "USER=a\nroot2::0:0::/:",
        "--name",
        "some-name",
        "--",
        "sh",
        "-c",
        count,
    ])
    .ok()
    .printed("3\n3\n2\n1\n");
    for home in ["/\nroot2::0:0::/:", "/tmp:x", "/\r"] {
        tare.run(["-e", &format!("HOME={home}"), "--", "true"]).exited(125).said(&["home"]);
    }
    for name in ["a\nb", "a b", "a\t127.0.0.1", "a:b", "a\n127.0.0.1 evil"] {
        tare.run(["--name", name, "--", "true"]).exited(125);
    }
}
