//! A guest that is root in the kernel of its machine, and hostile. The machine is real. Whatever its root does,
//! the box ends in time or stays usable, its keeper stays small, and the host and its files are as before.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tare_harness::skip::is_root;
use tare_harness::{Output, TemporaryDirectory, eventually, skip};

use crate::hostile_machines::{KEEPER_KIB_MAX, peak_kib};
use crate::machines::{Machines, machines};

/// How long a machine that ends may keep a client, on a loaded host.
const LOST_WITHIN: Duration = Duration::from_secs(10);
/// What a state root may have, whatever its boxes do. Their logs have limits of their own.
const STATE_BYTES_MAX: u64 = 4 << 20;

impl Machines {
    /// A box whose command is root of its machine and waits.
    fn of_root(&self, args: &[&str]) -> String {
        let rest = ["--root", "--lease", "10m", "--", "sleep", "1000"];
        self.detached(&[args, &rest].concat())
    }

    fn as_root(&self, id: &str, script: &str) -> Output {
        self.call(&["exec", "--timeout", "60s", id, "--", "sh", "-c", script])
    }

    /// Checks what must hold on the host, whatever the machine did.
    #[track_caller]
    fn host_is_well(&self, id: &str) {
        let peak = peak_kib(self.tare.keeper(id).pid);
        assert!(peak < KEEPER_KIB_MAX, "the keeper used {peak} KiB");
        let bytes = bytes_beneath(&self.tare.state_root());
        assert!(bytes < STATE_BYTES_MAX, "the state root has {bytes} bytes");
    }
}

fn bytes_beneath(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_beneath(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

/// The kernel panics, restarts the machine, and turns it off (sysrq.rst).
const ENDS: [(&str, char); 3] = [("panic", 'c'), ("restart", 'b'), ("power-off", 'o')];

#[test]
fn a_machine_that_ends_itself_is_lost_and_every_client_learns_it() {
    let machines = machines!();
    let tare = &machines.tare;
    for (name, key) in ENDS {
        let id = machines.of_root(&["--name", name]);
        let exec = machines.start(&["exec", name, "--", "sh", "-c", "echo runs; sleep 1000"]);
        exec.see("runs");
        let script = format!("echo {key} > /proc/sysrq-trigger; sleep 1000");
        let clients = [
            (machines.start(&["wait", name]), 0, "137\n"),
            (machines.start(&["logs", "-f", name]), 0, ""),
            (machines.start(&["exec", name, "--", "sh", "-c", &script]), 137, ""),
        ];
        let start = Instant::now();
        exec.wait().exited(137).said(&["machine"]);
        for (client, code, printed) in clients {
            client.wait().exited(code).printed(printed);
        }
        let ended = tare.ended(&id);
        assert!(start.elapsed() < LOST_WITHIN, "{name}: {:?}", start.elapsed());
        let found = (ended["cause"].as_str(), ended["exit_code"].as_i64());
        assert_eq!(found, (Some("machine_lost"), Some(137)), "{name}");
        tare.remove(&id);
        tare.reap_orphans();
    }
}

/// What root of the machine tries on its shares. Every line of its output but the last would be a finding.
const SHARES: &str = r#"
mount -o remount,rw /r 2>/dev/null; mount -o remount,rw,bind /r 2>/dev/null
(echo x > /r/new) 2>/dev/null && echo "wrote to a read-only volume"
(echo x >> /r/seen) 2>/dev/null && echo "changed a read-only volume"
rm -f /r/seen 2>/dev/null && echo "removed from a read-only volume"
mknod /w/null c 1 3 2>/dev/null && echo "made a device on a volume"
cp /bin/true /w/program && chmod 6755 /w/program
echo tried
"#;

/// Mounts every share again. The keeper of the machine has mounted each, so the kernel says EBUSY.
const MOUNT_AGAIN: &str = r#"
import ctypes, errno, glob, os
libc = ctypes.CDLL(None, use_errno=True)
for at in glob.glob("/sys/bus/virtio/devices/*/mount_tag"):
    tag = open(at).read().strip("\0\n")
    os.makedirs("/tmp/" + tag)
    options = b"trans=virtio,version=9p2000.L,cache=none"
    failed = libc.mount(tag.encode(), b"/tmp/" + tag.encode(), b"9p", 0, options)
    print(tag, errno.errorcode[ctypes.get_errno()] if failed else "mounted")
"#;

/// What both roots may have, without the programs of the host, which are one directory for both.
fn files_beneath(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root.join(&directory)).expect("root may").flatten() {
            let path = directory.join(entry.file_name());
            let kind = entry.file_type().expect("it is there");
            assert!(kind.is_dir() || kind.is_file() || kind.is_symlink(), "{path:?}: {kind:?}");
            if kind.is_dir() && path != Path::new("usr") {
                directories.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

/// What the monitor shares: volumes, and the root of a native box without what the machine makes itself.
#[track_caller]
fn shares_only_files(monitor: i32, native: u32) {
    let command = fs::read(format!("/proc/{monitor}/cmdline")).expect("it lives");
    let command = String::from_utf8(command).expect("it is text");
    let shared = command.split('\0').filter(|word| word.contains("path="));
    let expected = [("files", "on"), ("v0", "off")].map(|(name, read_only)| {
        format!(
            "local,id={name},path=/machine/{name},readonly={read_only},security_model=none,\
             multidevs=remap"
        )
    });
    assert_eq!(shared.collect::<Vec<_>>(), expected);
    let machine = PathBuf::from(format!("/proc/{monitor}/root/machine"));
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).expect("root may").flatten();
        let names = entries.map(|entry| entry.file_name().into_string().expect("ASCII"));
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let named = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(names(&machine), named(&["files", "v0"]));
    assert_eq!(names(&machine.join("files")), named(&["root", "volumes"]));
    assert_eq!(names(&machine.join("files/volumes")), named(&["1"]));
    assert_eq!(names(&machine.join("files/volumes/1")), named(&["seen"]));
    assert_eq!(names(&machine.join("v0")), named(&["volume"]));
    let native = PathBuf::from(format!("/proc/{native}/root"));
    let own = ["proc", "sys", "dev", "tmp", "work"];
    let mut of_native: Vec<PathBuf> = Vec::new();
    for name in names(&native).into_iter().filter(|name| !own.contains(&name.as_str())) {
        let root = native.join(&name);
        if name != "usr" && root.is_dir() && !root.is_symlink() {
            let beneath = files_beneath(&root).into_iter();
            of_native.extend(beneath.map(|path| Path::new(&name).join(path)));
        }
        of_native.push(name.into());
    }
    of_native.sort();
    assert_eq!(files_beneath(&machine.join("files/root")), of_native);
    let inode = |root: &Path| {
        let usr = fs::metadata(root.join("usr")).expect("it is there");
        (usr.dev(), usr.ino())
    };
    assert_eq!(inode(&machine.join("files/root")), inode(Path::new("/")));
}

/// Looks up names in a directory on which it stands, which the host replaces meanwhile.
const STAND: &str =
    "cd /w/d && cat first && read _; cat limits; read _; cat etc/hosts; read _; cat last";

/// The monitor resolves no link for the machine. The kernel of the machine would resolve it itself; but it
/// has looked the directory up already, as a guest could that speaks 9p by itself.
#[track_caller]
fn the_monitor_follows_no_link(machines: &Machines, id: &str, volume: &Path) {
    let place = volume.join("d");
    let directory = |file: &str, text: &str| {
        fs::create_dir(&place).expect("it is gone");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).expect("it is ours");
        fs::write(place.join(file), text).expect("it is ours");
    };
    directory("first", "first\n");
    let mut exec = machines.start(&["exec", "-i", id, "--", "sh", "-c", STAND]);
    exec.see("first");
    fs::rename(&place, volume.join("old")).expect("both are ours");
    // The monitor's own /proc, and the share beside the volume.
    for (target, says) in [("/proc/self", "limits"), ("../../files/root", "hosts")] {
        symlink(target, &place).expect("the place is free");
        exec.write(b"\n");
        exec.see_error(says);
        fs::remove_file(&place).expect("it is ours");
    }
    // With a directory there, the same look-up reaches the host.
    directory("last", "last\n");
    exec.write(b"\n");
    exec.wait().ok().printed("first\nlast\n");
}

/// Fills everything that root can write, and then the memory.
const FILL: &str = r#"
for place in /tmp /work /dev/shm /run; do
    dd if=/dev/zero of=$place/full bs=1M 2>&1 | grep -o "No space left on device" | uniq
done
echo filled
"#;
const EAT: &str = "x = bytearray(10**10)\nfor i in range(0, 10**10, 4096): x[i] = 1";

#[test]
fn root_of_a_machine_gets_nothing_of_the_host_and_takes_nothing_from_it() {
    let machines = machines!();
    let tare = &machines.tare;
    let directory = TemporaryDirectory::new();
    for name in ["w", "r"] {
        fs::create_dir(directory.join(name)).unwrap();
    }
    directory.write("r/seen", "seen\n");
    let volume = |name: &str, place: &str| format!("{}:{place}", directory.join(name).display());
    let (w, r) = (volume("w", "/w"), volume("r", "/r:ro"));
    let neighbour = tare.detached(["--", "sleep", "1000"]);
    let limits = ["--memory", "320m", "--scratch", "64m"];
    let id = machines.of_root(&[&limits[..], &["-v", &w, "-v", &r]].concat());
    let monitor = machines.monitor(&id);
    shares_only_files(monitor, tare.keeper(&neighbour).pid);
    let again = machines.call(&["exec", &id, "--", "python3", "-c", MOUNT_AGAIN]).ok();
    let again = again.stdout_text();
    let mut outcomes: Vec<_> = again.lines().filter_map(|line| line.split_once(' ')).collect();
    outcomes.sort_unstable();
    let is_harmless = |how: &str| ["EBUSY", "mounted"].contains(&how);
    let tags: Vec<_> = outcomes.iter().map(|&(tag, how)| (tag, is_harmless(how))).collect();
    assert_eq!(tags, [("files", true), ("v0", true)], "{again}");
    let shares = machines.as_root(&id, SHARES).ok();
    assert_eq!(shares.stdout_text(), "tried\n", "{shares}");
    assert_eq!(fs::read_to_string(directory.join("r/seen")).unwrap(), "seen\n");
    assert_eq!(fs::read_dir(directory.join("r")).unwrap().count(), 1);
    let program = fs::symlink_metadata(directory.join("w/program")).expect("it was copied");
    assert!(program.is_file() && program.mode() & 0o6000 == 0, "{program:?}");
    assert_eq!(fs::read_dir(directory.join("w")).unwrap().count(), 1);
    the_monitor_follows_no_link(&machines, &id, &directory.join("w"));
    // The guest's own kernel ends what needs too much. The monitor lives.
    let full = machines.as_root(&id, FILL).ok().stdout_text();
    assert_eq!(full, "No space left on device\n".repeat(4) + "filled\n");
    machines.call(&["exec", "--timeout", "60s", &id, "--", "python3", "-c", EAT]).exited(137);
    eventually("the box is usable", || {
        machines.as_root(&id, "rm -f /tmp/full /work/full").code == 0
    });
    assert_eq!(machines.monitor(&id), monitor);
    machines.host_is_well(&id);
    tare.exec(&neighbour, ["true"]).ok();
    for id in [id, neighbour] {
        tare.remove(&id);
    }
}

/// What a machine writes to memory of the host, the host's kernel charges to the box and cannot reclaim.
#[test]
fn a_machine_cannot_write_to_a_volume_that_is_memory_and_fills_a_disk_without_harm() {
    let machines = machines!();
    let tare = &machines.tare;
    if !is_root() {
        skip!("only root can mount");
    }
    let memory = TemporaryDirectory::new();
    let size = Some(c"size=600m,mode=777");
    mount("memory", memory.path(), "tmpfs", MountFlags::empty(), size).expect("root can mount");
    let memory_volume = |rest: &str| format!("{}:/m{rest}", memory.text());
    let refused = machines.run(&["-v", &memory_volume(""), "--", "true"]).wait().exited(125);
    refused.said(&[memory.text(), "in memory", "on a disk", "':ro'"]);
    memory.write("seen", "seen\n");
    let disk = TemporaryDirectory::new();
    fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let disk_volume = format!("{}:/w", disk.text());
    let volumes = ["-v", &memory_volume(":ro"), "-v", &disk_volume];
    let id = machines
        .detached(&[&["--memory", "320m"][..], &volumes, &["--", "sleep", "1000"]].concat());
    // With the memory of the machine, this is more than the box may have.
    let fill = "cat /m/seen && dd if=/dev/zero of=/w/full bs=1M count=200 2>/dev/null && echo full";
    machines.call(&["exec", &id, "--", "sh", "-c", fill]).ok().printed("seen\nfull\n");
    machines.call(&["exec", &id, "--", "true"]).ok();
    tare.remove(&id);
    unmount(memory.path(), UnmountFlags::empty()).expect("no process uses it");
}

/// Makes the driver of the port let go of it, and opens the port instead of the first process.
const TAKE_PORT: &str = r#"
cd /sys/bus/virtio/drivers/virtio_console
for device in virtio*; do echo $device > unbind; echo $device > bind; done
for port in /dev/vport*; do (while :; do cat /dev/urandom; done > $port) & done
sleep 1000
"#;
const FLOOD_CONSOLE: &str =
    "for at in 1 2 3 4; do (while :; do echo flood; done > /dev/console) & done; sleep 3; kill 0";
/// Freezes the box in the machine together with its keeper.
const FREEZE: &str = "echo 1 > /sys/fs/cgroup/cgroup.freeze; sleep 1000";

#[test]
fn floods_and_silence_of_a_real_machine_keep_no_client() {
    let machines = machines!();
    let tare = &machines.tare;
    let id = machines.of_root(&[]);
    let flood = machines.start(&["exec", &id, "--", "sh", "-c", FLOOD_CONSOLE]);
    for _ in 0..5 {
        machines.call(&["exec", "--timeout", "30s", &id, "--", "true"]).ok();
    }
    flood.wait();
    machines.host_is_well(&id);
    // The keeper in the machine does not answer any more.
    let start = Instant::now();
    machines.call(&["exec", "--timeout", "2s", &id, "--", "sh", "-c", FREEZE]).exited(124);
    let later = machines.call(&["exec", "--timeout", "2s", &id, "--", "true"]);
    later.exited(125).said(&["does not answer"]);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    machines.host_is_well(&id);
    tare.remove(&id);
    tare.reap_orphans();
    // Garbage on the port ends the box.
    let id = machines.of_root(&[]);
    let start = Instant::now();
    machines.call(&["exec", "--timeout", "30s", &id, "--", "sh", "-c", TAKE_PORT]).exited(137);
    let ended = tare.ended(&id);
    assert_eq!(ended["cause"], "machine_lost");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    tare.remove(&id);
}
