//! What a box sees of `/proc`, `/sys`, `/dev`, the cgroups and the host's files, and what it can
//! leave on a volume.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use tare_harness::skip::{has_program, is_root};
use tare_harness::{Output, Tare, TemporaryDirectory, fixture, skip, tare};

const CALLS: &str = include_str!("probes/calls.py");

/// `sh -c SCRIPT` in a box with these options.
#[track_caller]
fn shell(tare: &Tare, options: &[&str], script: &str) -> Output {
    let mut call = options.to_vec();
    call.extend(["--", "sh", "-c", script]);
    tare.run(call)
}

/// Every mount that a box with these options has, as lines of `mountinfo`.
#[track_caller]
fn mounts(tare: &Tare, options: &[&str]) -> Vec<String> {
    let output = shell(tare, options, "cat /proc/self/mountinfo").ok();
    output.stdout_text().lines().map(str::to_owned).collect()
}

/// The place of a mount and its own options.
fn place_and_options(line: &str) -> (&str, Vec<&str>) {
    let fields: Vec<&str> = line.split(' ').collect();
    (fields[4], fields[5].split(',').collect())
}

/// A process that can write a release agent can run a program on the host.
#[test]
fn a_box_sees_no_release_agent_and_can_mount_no_cgroup() {
    let tare = tare!();
    let find = "find / -name release_agent -o -name cgroup.procs 2>/dev/null; true";
    shell(&tare, &[], find).ok().printed("");
    shell(&tare, &["--root"], find).ok().printed("");
    for kind in ["cgroup", "cgroup2"] {
        let mount = format!("165,@none,@/tmp,@{kind},0,@");
        tare.run(["--root", "--", "python3", "-c", CALLS, &mount]).ok().printed("EPERM\n");
    }
    let outside = Command::new("find")
        .args(["/sys/fs/cgroup", "-name", "cgroup.procs", "-print", "-quit"])
        .output()
        .expect("find runs");
    if outside.stdout.is_empty() {
        skip!("this host has no cgroups to hide");
    }
}

/// There is no writable cgroup file, and no path that shows the cgroup's place on the host.
#[test]
fn a_box_cannot_reach_or_locate_its_cgroups() {
    let tare = tare!();
    shell(&tare, &[], "ls /sys/fs").exited(2);
    let output = shell(&tare, &[], "cat /proc/self/cgroup").ok();
    for line in output.stdout_text().lines() {
        assert!(line.ends_with(":/"), "{output}");
    }
    let mounted = mounts(&tare, &[]);
    assert!(mounted.iter().all(|line| !line.contains(" - cgroup")), "{mounted:?}");
    // The control: a contained command is in the same cgroups, by their names.
    let contained = shell(&tare, &["--contain"], "grep -c . /proc/self/cgroup").ok();
    assert_eq!(
        contained.stdout_text().trim().parse::<usize>().unwrap(),
        output.stdout_text().lines().count()
    );
}

#[test]
fn a_box_sees_only_the_processors_in_sysfs_and_cannot_write_there() {
    let tare = tare!();
    shell(&tare, &[], "ls /sys /sys/devices /sys/devices/system")
        .ok()
        .printed("/sys:\ndevices\n\n/sys/devices:\nsystem\n\n/sys/devices/system:\ncpu\n");
    let writable = "find /sys -type f -writable; find /sys -type d -writable; find /sys -type f | head -n 1 | grep -c .";
    shell(&tare, &[], writable).ok().printed("1\n");
    shell(&tare, &["--root"], "touch /sys/devices/system/cpu/x").exited(1);
    let kernel = "find / -path /proc -prune -o \\( -name uevent_helper -o -name tracing -o -name securityfs -o -name powercap -o -name debugfs \\) -print 2>/dev/null | grep ^/sys; true";
    shell(&tare, &[], kernel).ok().printed("");
}

#[test]
fn the_devices_of_a_box_are_the_listed_ones() {
    let tare = tare!();
    let expected = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero";
    let list = "echo $(ls -A /dev); echo $(ls -A /dev/pts /dev/shm); stat -c %t:%T /dev/null";
    shell(&tare, &[], list).ok().printed(&format!("{expected}\n/dev/pts: ptmx /dev/shm:\n1:3\n"));
    // Asked one by one: a listing tells what lies beneath a mount.
    let devices = "find / -path /proc -prune -o -print0 2>/dev/null | xargs -0 stat -c '%F %n' | sed -n 's/^\\(character\\|block\\) special file //p' | sort | tr '\\n' ' '";
    shell(&tare, &[], devices)
        .ok()
        .printed("/dev/full /dev/null /dev/pts/ptmx /dev/random /dev/tty /dev/urandom /dev/zero ");
}

#[test]
fn a_box_cannot_create_a_device() {
    let tare = tare!();
    let script = "mknod /tmp/pipe p && echo made a pipe
for place in /tmp /work /dev/shm; do mknod $place/memory c 1 1; mknod $place/disk b 254 0; ls $place | grep -v pipe; done; true";
    for options in [&[][..], &["--root"]] {
        let output = shell(&tare, options, script).ok().printed("made a pipe\n");
        assert_eq!(output.stderr_text().matches("Operation not permitted").count(), 6, "{output}");
    }
    // A device that another program created cannot be opened either.
    if !is_root() {
        skip!("only root can make the device that the box must not open");
    }
    let directory = TemporaryDirectory::new();
    let made = Command::new("mknod")
        .args(["-m", "666"])
        .arg(directory.join("null"))
        .args(["c", "1", "3"])
        .status();
    assert!(made.expect("mknod runs").success());
    fs::read(directory.join("null")).expect("on the host it opens");
    let volume = format!("{}:/data", directory.text());
    let output = shell(&tare, &["-v", &volume], "cat /data/null").exited(1);
    assert!(output.stderr_text().contains("Permission denied"), "{output}");
}

/// A directory that is moved out of a volume while a process sits in it.
#[test]
fn a_directory_moved_out_of_a_volume_leads_nowhere() {
    let tare = tare!();
    let parent = TemporaryDirectory::new();
    parent.write("secret", "of the other box\n");
    fs::create_dir_all(parent.join("shared/inside")).unwrap();
    let whole = format!("{}:/whole", parent.text());
    let part = format!("{}/shared:/part", parent.text());
    let script = "cd /part/inside; ls ..; echo in; read line; cat ../secret ../../secret; ls .. ../..; cd ..; pwd -P; cat secret; echo out";
    let mut sitting = tare.spawn(["-v", &part, "--", "sh", "-c", script]);
    sitting.see("in\n");
    shell(&tare, &["-v", &whole], "mv /whole/shared/inside /whole/ && cat /whole/inside/../secret")
        .ok()
        .printed("of the other box\n");
    sitting.write(b"go\n");
    let output = sitting.wait().ok();
    let text = output.stdout_text();
    assert!(text.starts_with("inside\nin\n") && text.ends_with("out\n"), "{output}");
    assert!(!text.contains("of the other box") && !text.contains("secret"), "{output}");
}

/// Nothing of the tree that the box was built from is left.
#[test]
fn no_mount_and_no_directory_of_the_hosts_root_remains() {
    let tare = tare!();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    for options in [&[][..], &["--rootfs", root.text()]] {
        let lines = mounts(&tare, options);
        let ids: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
        for line in &lines {
            let fields: Vec<&str> = line.split(' ').collect();
            assert!(!line.contains("deleted"), "{line}");
            let is_root = fields[4] == "/";
            assert!(is_root || ids.contains(&fields[1]), "its parent is not in the box: {line}");
        }
        assert_eq!(lines.iter().filter(|line| place_and_options(line).0 == "/").count(), 1);
        let script = "ls -A /; echo; ls -A /..; echo; ls -A /proc/self/root/../..";
        let listed = shell(&tare, options, script).ok().stdout_text();
        let parts: Vec<&str> = listed.trim_end().split("\n\n").collect();
        assert_eq!(parts, [parts[0]; 3], "above the root is something else");
        let hidden = ["oldroot", "put_old", "lower", "upper", "index", "root"];
        assert!(!parts[0].lines().any(|name| hidden.contains(&name)), "{listed}");
    }
}

#[test]
fn nothing_is_above_the_root_of_a_box_without_privileges() {
    let tare = tare!(unprivileged);
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    let list = "ls -A /; echo; ls -A /..";
    for options in [&["--quiet"][..], &["--quiet", "--rootfs", root.text()]] {
        let listed = shell(&tare, options, list).ok().stdout_text();
        let (inside, above) = listed.trim_end().split_once("\n\n").unwrap();
        assert_eq!(above, inside);
    }
}

/// No socket with a name is in a box, and none is in its network's list.
#[test]
fn a_box_finds_no_foreign_socket() {
    let tare = tare!();
    let find =
        "find / -path /proc -prune -o -type s -print 2>/dev/null; tail -n +2 /proc/net/unix; true";
    shell(&tare, &[], find).ok().printed("");
    let own = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/own'); import os; os.execvp('sh', ['sh', '-c', 'find /tmp -type s'])";
    tare.run(["--", "python3", "-c", own]).ok().printed("/tmp/own\n");
}

/// Mounts pass neither in nor out.
#[test]
fn mounts_propagate_neither_into_a_box_nor_out() {
    let tare = tare!();
    for line in mounts(&tare, &[]) {
        let optional = line.split(" - ").next().unwrap_or(&line);
        for tag in ["shared:", "master:", "propagate_from:"] {
            assert!(!optional.contains(tag), "{line}");
        }
    }
    if !is_root() {
        skip!("only root can mount on the host");
    }
    let directory = TemporaryDirectory::new();
    let place = directory.join("place");
    fs::create_dir(&place).unwrap();
    let volume = format!("{}:/data", directory.text());
    let script = "wc -l < /proc/self/mountinfo; echo ready; read line; wc -l < /proc/self/mountinfo; ls -A /data/place";
    let mut running = tare.spawn(["-v", &volume, "--", "sh", "-c", script]);
    running.see("ready");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&place).status();
    fs::write(place.join("of the host"), "").unwrap();
    running.write(b"go\n");
    let output = running.wait();
    let unmounted = Command::new("umount").arg(&place).status();
    assert!(mounted.unwrap().success() && unmounted.unwrap().success());
    let text = output.ok().stdout_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[0], lines[2], "{text}");
}

/// The host's secrets, each by the name it has where it exists. A tare that
/// shows the host's files is the control.
#[test]
fn secrets_of_the_host_are_not_visible_in_a_box() {
    let tare = tare!();
    let here = TemporaryDirectory::new();
    let own = here.write("secret", "of the host");
    let paths = [
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/machine-id",
        "/etc/ssh",
        "/etc/ssl/private",
        "/etc/kubernetes",
        "/etc/docker",
        "/etc/crontab",
        "/etc/fstab",
        "/etc/environment",
        "/root",
        "/home",
        "/var",
        "/run",
        "/srv",
        "/opt",
        "/mnt",
        "/media",
        "/boot",
        "/work/.ssh",
        "/root/.ssh",
        "/root/.aws",
        "/var/lib",
        "/var/run/docker.sock",
        "/run/secrets",
        "/var/run/secrets/kubernetes.io",
        own.to_str().unwrap(),
        "/proc/1",
        "/proc/1/environ",
    ];
    let script =
        format!("for path in {}; do test -e $path && echo $path; done; true", paths.join(" "));
    shell(&tare, &[], &script).ok().printed("");
    shell(&tare, &["--root"], &script).ok().printed("");
    let contained = shell(&tare, &["--contain"], &script).ok();
    assert!(contained.stdout_text().lines().count() > 5, "{contained}");
    let told = "cat /proc/cmdline /proc/kallsyms /proc/iomem /proc/kmsg /proc/timer_list /proc/diskstats /proc/locks";
    shell(&tare, &["--root"], told).printed("");
    assert!(!fs::read("/proc/cmdline").unwrap().is_empty());
}

/// The host's users and groups are not visible.
#[test]
fn users_and_hosts_of_a_box_are_its_own() {
    let tare = tare!();
    let output =
        shell(&tare, &["--name", "plain"], "cat /etc/passwd /etc/group /etc/hostname").ok();
    let expected = "root:x:0:0:root:/root:/bin/sh
box:x:1000:1000:box:/work:/bin/sh
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
root:x:0:
box:x:1000:
nogroup:x:65534:
plain
";
    output.printed(expected);
}

pub const CONNECT: &str = "import socket, sys
name = sys.argv[1].replace('@', '\\0')
try:
    socket.socket(socket.AF_UNIX).connect(name)
    print('connected')
except OSError as error:
    print(type(error).__name__)";

/// Connecting to a unix socket ignores that the mount is read-only.
#[test]
fn a_volume_with_a_live_socket_is_refused() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    fs::create_dir(directory.join("deep")).unwrap();
    let path = directory.join("deep/service.sock");
    let volume = format!("{}:/data:ro", directory.text());
    let dead = {
        let _listener = UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        for volume in [&volume, &format!("{}:/data", directory.text())] {
            shell(&tare, &["-v", volume], "true").exited(125).said(&["service.sock", "socket"]);
        }
        // The socket itself is no file that could be bound.
        let itself = format!("{}:/data", path.display());
        shell(&tare, &["-v", &itself], "true").exited(125).said(&["socket"]);
        tare.run(["--contain", "--", "python3", "-c", CONNECT, path.to_str().unwrap()])
            .ok()
            .printed("connected\n");
        ["-v", &volume, "--", "python3", "-c", CONNECT, "/data/deep/service.sock"]
    };
    tare.run(dead).ok().printed("ConnectionRefusedError\n");
}

/// Abstract sockets belong to the network and have no mode.
#[test]
fn a_box_on_the_hosts_network_cannot_reach_abstract_sockets() {
    let tare = tare!();
    let name = format!("tare-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let connect = |options: &[&str]| {
        let mut call = options.to_vec();
        let target = format!("@{name}");
        call.extend(["--", "python3", "-c", CONNECT, &target]);
        tare.run(call).ok()
    };
    connect(&["--contain"]).printed("connected\n");
    connect(&[]).printed("ConnectionRefusedError\n");
    if landlock_version() < 6 {
        skip!("this kernel's Landlock does not know abstract sockets");
    }
    let warned = connect(&["--net", "host"]).printed("PermissionError\n");
    assert!(warned.stderr_text().contains("network"), "{warned}");
    connect(&["--net", "host", "--quiet"]).said_nothing();
}

pub fn landlock_version() -> i64 {
    let script = "import ctypes; print(ctypes.CDLL(None).syscall(444, 0, 0, 1))";
    let output = Command::new("python3").args(["-c", script]).output().expect("python3 runs");
    let text = String::from_utf8(output.stdout).expect("a number is ASCII");
    text.trim().parse().expect("a number")
}

#[test]
fn every_mount_is_without_set_user_id_and_without_devices() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let volume = format!("{}:/data", directory.text());
    let root = fixture::busybox_root();
    let mut boxes = vec![vec!["-v", &volume]];
    if let Some(root) = &root {
        boxes.push(vec!["-v", &volume, "--rootfs", root.text()]);
    }
    for options in boxes {
        for line in mounts(&tare, &options) {
            let (place, has) = place_and_options(&line);
            assert!(has.contains(&"nosuid"), "{line}");
            assert!(has.contains(&"nodev") || place.starts_with("/dev/"), "{line}");
            if place.starts_with("/dev") || place.starts_with("/proc") || place.starts_with("/sys")
            {
                assert!(has.contains(&"noexec"), "{line}");
            }
            let writable = ["/tmp", "/work", "/dev/shm", "/dev/pts", "/proc", "/data"]
                .contains(&place)
                || place == "/" && options.contains(&"--rootfs");
            assert_eq!(has.contains(&"rw"), writable, "{line}");
        }
    }
}

/// A program without libraries that prints its effective user; busybox would give
/// a set-user-id bit up by itself.
fn effective_user(directory: &TemporaryDirectory) -> Option<PathBuf> {
    const SOURCE: &str = "#include <stdio.h>
#include <unistd.h>
int main(void) { printf(\"%d\\n\", (int)geteuid()); return 0; }";
    let source = directory.write("effective.c", SOURCE);
    let program = directory.join("effective");
    let mut compiler = Command::new("gcc");
    compiler.arg("-static").arg("-o").arg(&program).arg(&source);
    let compiled = compiler.status().ok()?;
    fs::remove_file(source).expect("it is ours");
    compiled.success().then_some(program)
}

/// Set-user-id programs and file capabilities do nothing.
#[test]
fn a_set_user_id_program_does_not_change_the_user() {
    let tare = tare!();
    if !is_root() || !has_program("setpriv") {
        skip!("only root can make the program that must not work");
    }
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    let Some(program) = effective_user(&root) else {
        skip!("this host cannot compile a static program");
    };
    fs::set_permissions(&program, PermissionsExt::from_mode(0o6755)).unwrap();
    let outside = Command::new("setpriv")
        .args(["--reuid", "65533", "--regid", "65533", "--clear-groups"])
        .arg(&program)
        .output()
        .expect("setpriv runs");
    assert_eq!(String::from_utf8_lossy(&outside.stdout), "0\n", "the control does not work");
    tare.run(["--rootfs", root.text(), "--", "/effective"]).ok().printed("1000\n");
    let volume = format!("{}:/data:ro", root.text());
    tare.run(["-v", &volume, "--", "/data/effective"]).ok().printed("1000\n");
    // Made inside, by the box's root, for its other users.
    let script = "cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && setpriv --reuid 5 --regid 5 --clear-groups /tmp/id -u";
    shell(&tare, &["--root"], script).ok().printed("5\n");
}

#[test]
fn file_capabilities_do_nothing() {
    let tare = tare!();
    if !is_root() || !has_program("setcap") {
        skip!("only root with setcap can make the program that must not work");
    }
    let directory = TemporaryDirectory::new();
    let program = directory.join("cat");
    fs::copy("/usr/bin/cat", &program).unwrap();
    let set =
        Command::new("setcap").arg("cap_sys_admin,cap_dac_override+ep").arg(&program).status();
    assert!(set.expect("setcap runs").success());
    let volume = format!("{}:/data", directory.text());
    let output = tare.run(["-v", &volume, "--", "/data/cat", "/proc/self/status"]);
    // Refused outright or powerless, as the kernel likes.
    if output.code == 0 {
        assert!(output.stdout_text().contains("CapEff:\t0000000000000000"), "{output}");
    }
    let script = "import os; os.setxattr('/work/x', 'security.capability', bytes.fromhex('0100000200002000000000000000000000000000'))";
    let inside = shell(&tare, &[], &format!("touch /work/x; python3 -c \"{script}\"")).exited(1);
    assert!(inside.stderr_text().contains("PermissionError"), "{inside}");
}

/// A program with a set-id bit on a volume would work on the host.
#[test]
fn a_box_leaves_no_set_id_program_on_a_volume() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    fs::copy("/usr/bin/id", directory.join("given")).unwrap();
    let volume = format!("{}:/data", directory.text());
    let script = "import os
def attempt(what):
    try:
        what()
        print('done')
    except OSError as error:
        print(type(error).__name__)
os.umask(0)
open('/data/plain', 'w')
attempt(lambda: os.chmod('/data/plain', 0o755))
attempt(lambda: os.chmod('/data/plain', 0o4755))
attempt(lambda: os.chmod('/data/given', 0o6755))
attempt(lambda: os.fchmod(os.open('/data/plain', os.O_RDONLY), 0o2755))
attempt(lambda: os.open('/data/opened', os.O_CREAT | os.O_WRONLY, 0o4755))
attempt(lambda: os.mknod('/data/made', 0o104755))
attempt(lambda: os.mkdir('/data/directory', 0o6777))
attempt(lambda: os.chmod('/data/directory', 0o2777))";
    let refused = "PermissionError\n";
    let unconfined = ["--root", "--seccomp", "unconfined", "-v", &volume];
    for options in [&["-v", &volume][..], &["--root", "-v", &volume], &unconfined] {
        let mut call = options.to_vec();
        call.extend(["--", "python3", "-c", script]);
        tare.run(call).ok().printed(&format!("done\n{}done\n{refused}", refused.repeat(5)));
        for entry in fs::read_dir(directory.path()).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().mode() & 0o6000, 0, "{:?}", entry.path());
        }
        fs::remove_dir(directory.join("directory")).unwrap();
    }
    // Without a writable volume, set-id bits stay inside the box.
    shell(&tare, &[], "cp /usr/bin/id x && chmod 6755 x && stat -c %a x").ok().printed("6755\n");
}

/// Overlay attributes in an image are ignored.
#[test]
fn overlay_marks_in_a_root_directory_lead_nowhere() {
    let tare = tare!();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    fs::create_dir_all(root.join("secret")).unwrap();
    root.write("secret/file", "redirected");
    fs::create_dir(root.join("plain")).unwrap();
    root.write("plain/own", "own");
    let script = format!(
        "import os
root = {:?}
for kind in ('user', 'trusted'):
    for name, value in (('redirect', b'/secret'), ('origin', b'x'), ('metacopy', b'')):
        os.setxattr(root + '/plain', f'{{kind}}.overlay.{{name}}', value)
    os.setxattr(root + '/marker', f'{{kind}}.overlay.redirect', b'/secret/file')
    os.setxattr(root + '/marker', f'{{kind}}.overlay.metacopy', b'')",
        root.text()
    );
    let set = Command::new("python3").args(["-c", &script]).output().expect("python3 runs");
    if !set.status.success() {
        skip!(
            "this file system takes no such attributes: {}",
            String::from_utf8_lossy(&set.stderr)
        );
    }
    // A file that claims to have its content elsewhere may be refused.
    let script = "ls /plain; cat /plain/file /marker; true";
    let output = tare.run(["--rootfs", root.text(), "--", "/bin/sh", "-c", script]).ok();
    assert!(output.stdout_text().starts_with("own\n"), "{output}");
    assert!(!output.stdout_text().contains("redirected"), "{output}");
}

#[test]
fn the_kernels_trees_and_tares_own_state_are_never_bound() {
    let tare = tare!();
    let state = tare.state_root();
    tare.run(["--", "true"]).ok();
    let state = state.to_str().unwrap();
    let parent = Path::new(state).parent().unwrap().to_str().unwrap();
    let boxes = format!("{state}/boxes");
    let dangerous = [
        "/",
        "/proc",
        "/proc/sys",
        "/sys",
        "/sys/fs/cgroup",
        "/dev",
        "/dev/shm",
        "/run",
        "/var/run",
        state,
        parent,
        &boxes,
    ];
    for path in dangerous {
        for access in ["", ":ro"] {
            let volume = format!("{path}:/data{access}");
            let output = shell(&tare, &["-v", &volume], "true").exited(125);
            output.said(&[path]);
        }
    }
    let fine = TemporaryDirectory::new();
    shell(&tare, &["-v", &format!("{}:/data", fine.text())], "true").ok();
    symlink(state, fine.join("link")).unwrap();
    shell(&tare, &["-v", &format!("{}/link:/data", fine.text())], "true").exited(125);
}
