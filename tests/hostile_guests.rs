//! A guest that is root in the kernel of its machine, and hostile. The machine is real. Whatever its root does,
//! the box ends in time or stays usable, its keeper stays small, and the host and its files are as before.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::time::{Duration, Instant};

use tare_harness::{Output, TemporaryDirectory, eventually};

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

fn bytes_beneath(directory: &std::path::Path) -> u64 {
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
        let clients = [
            machines.start(&["wait", name]),
            machines.start(&["logs", "-f", name]),
            machines.start(&[
                "exec",
                name,
                "--",
                "sh",
                "-c",
                &format!("echo {key} > /proc/sysrq-trigger; sleep 1000"),
            ]),
        ];
        let start = Instant::now();
        exec.wait().exited(137).said(&["machine"]);
        for client in clients {
            client.wait();
        }
        let ended = tare.ended(&id);
        assert!(start.elapsed() < LOST_WITHIN, "{name}: {:?}", start.elapsed());
        let found = (ended["cause"].as_str(), ended["exit_code"].as_i64());
        assert_eq!(found, (Some("machine_lost"), Some(137)), "{name}");
        tare.remove(&id);
        tare.reap_orphans();
    }
}

/// What root of the machine tries on its shares. Every line of its output would be a finding.
const SHARES: &str = r#"
mount -o remount,rw /r 2>/dev/null; mount -o remount,rw,bind /r 2>/dev/null
(echo x > /r/new) 2>/dev/null && echo "wrote to a read-only volume"
(echo x >> /r/seen) 2>/dev/null && echo "changed a read-only volume"
rm -f /r/seen 2>/dev/null && echo "removed from a read-only volume"
mknod /w/null c 1 3 2>/dev/null && echo "made a device on a volume"
cp /bin/true /w/program; chmod 6755 /w/program 2>/dev/null
ln -s "$SECRET" /w/link; cat /w/link 2>/dev/null && echo "read through a link"
ln -s ../secret /w/up; cat /w/up 2>/dev/null && echo "read above the share"
ln /r/seen /w/hard 2>/dev/null && echo "linked across shares"
for tag in /sys/bus/virtio/devices/*/mount_tag; do
    tag=$(tr -d '\0' < $tag); mkdir -p /work/$tag
    mount -t 9p -o trans=virtio,version=9p2000.L,cache=none $tag /work/$tag 2>/dev/null || continue
    find /work/$tag -maxdepth 3 \( -name mem -o -name proc -o -type c -o -type b \) | grep -v /usr/
done
true
"#;

/// Fills everything that root can write, and then the memory.
const FILL: &str = r#"
for place in /tmp /work /dev/shm /run; do dd if=/dev/zero of=$place/full bs=1M 2>/dev/null; done
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
    let secret = directory.write("secret", "of the host\n");
    let volume = |name: &str, place: &str| format!("{}:{place}", directory.join(name).display());
    let (w, r) = (volume("w", "/w"), volume("r", "/r:ro"));
    let secret = format!("SECRET={}", secret.display());
    let neighbour = tare.detached(["--", "sleep", "1000"]);
    let id = machines.of_root(&[
        "--memory",
        "320m",
        "--scratch",
        "64m",
        "-v",
        &w,
        "-v",
        &r,
        "-e",
        &secret,
    ]);
    let shares = machines.as_root(&id, SHARES).ok();
    assert_eq!(shares.stdout_text(), "", "{shares}");
    assert_eq!(fs::read_to_string(directory.join("r/seen")).unwrap(), "seen\n");
    assert_eq!(fs::read_dir(directory.join("r")).unwrap().count(), 1);
    for entry in fs::read_dir(directory.join("w")).unwrap().flatten() {
        let metadata = entry.metadata().unwrap();
        let kind = metadata.file_type();
        assert!(kind.is_file() || kind.is_symlink(), "{entry:?}");
        assert!(!kind.is_char_device() && metadata.permissions().mode() & 0o6000 == 0, "{entry:?}");
    }
    // The guest's own kernel ends what needs too much. The monitor lives.
    let monitor = machines.monitor(&id);
    machines.as_root(&id, FILL);
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
