//! Options of a box mean in a machine what they mean in a native box. What its root does to the machine stays
//! in the machine, and boots are reliable on a loaded host.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tare_harness::fixture::busybox_root;
use tare_harness::{Tare, let_pass, skip};

use crate::machines::{Machines, machines};

fn is_long() -> bool {
    std::env::var_os("TARE_LONG").is_some()
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

/// Prints the sizes of what the box may write, which is one file system in all places.
const SIZES: &str = "for place in /work /tmp /dev/shm; do
    busybox df -k $place | { read -r _; read -r _ size _; echo $size; }; done
busybox nproc; ulimit -n; id -u; cat /marker; echo x > /data/file; cat /work/file; ls /";

#[test]
fn options_of_a_box_mean_the_same_in_a_machine() {
    let machines = machines!();
    let Some(root) = busybox_root() else {
        skip!("no static busybox");
    };
    let tare = &machines.tare;
    let id = machines.detached(&[
        "--rootfs",
        root.text(),
        "--workspace",
        "/data",
        "--scratch",
        "48m",
        "--memory",
        "384m",
        "-u",
        "1234",
        "--label",
        "kind=machine",
        "--lease",
        "1h",
        "--nofile",
        "99",
        "--cpus",
        "2",
        "--name",
        "web",
        "-t",
        "--",
        "sh",
        "-c",
        "test -t 0 && echo terminal; sleep 1000",
    ]);
    let processors = std::thread::available_parallelism().map_or(1, |it| it.get()).min(2);
    let size = 48 << 10;
    let said = tare.exec("web", ["sh", "-c", SIZES]).ok().stdout_text();
    let expected = format!(
        "{size}\n{size}\n{size}\n{processors}\n99\n1234\nfrom the source\nx\nbin\ndata\ndev\nmarker\n\
         proc\nsys\ntmp\nwork\n"
    );
    assert_eq!(said, expected);
    tare.logged(&id, "terminal\r\n");
    let listed = tare.json(["ls", "--json", "--filter", "label=kind=machine"]);
    assert_eq!(listed[0]["id"], *id, "{listed}");
    let spec = tare.json(["inspect", "web"])[0]["spec"].clone();
    assert_eq!((&spec["driver"], &spec["limits"]["nofile"]), (&"vm".into(), &99.into()), "{spec}");
    let table = tare.call(["ls"]).ok().stdout_text();
    assert!(table.contains("  1h  ") || table.contains("  59m  "), "{table}");
    tare.remove(&id);
}

/// Checks what the command of an ordinary box can do in its machine.
#[track_caller]
pub fn a_user_gets_no_more(machines: &Machines, of: &str) {
    let attempts = format!("{TRY}{MORE_ATTEMPTS}{ATTEMPTS}");
    let tried = machines.call(&["exec", of, "--", "sh", "-c", &attempts]).ok();
    assert_eq!(tried.stdout_text(), "tried\n", "{tried}");
}

const TRY: &str = r#"
try() { name=$1; shift; ("$@") >/dev/null 2>&1 && echo "$name"; }
"#;
/// What users of a box with `--root` may do. Others have a filter, and no /sys.
const MORE_ATTEMPTS: &str = r#"
try "makes a user namespace and mounts" unshare -Urm mount -t tmpfs t /tmp
try "reads devices" sh -c 'cat /sys/bus/virtio/devices/*/mount_tag'
"#;
/// What an ordinary user of a machine tries. Every line of the output but the last would be a finding.
const ATTEMPTS: &str = r#"
try "mounts" mount -t tmpfs t /tmp
try "changes its root" chroot /tmp /
try "makes a device" mknod /tmp/null c 1 3
try "reads the memory of the first process" head -c 1 /proc/1/mem
try "reads the environment of the first process" head -c 1 /proc/1/environ
try "signals the first process" kill -9 1
try "changes the kernel" sh -c 'echo 1 > /proc/sys/kernel/sysrq'
try "asks for a restart" sh -c 'echo b > /proc/sysrq-trigger'
try "reads the kernel's log" dmesg
try "opens the port" sh -c 'ls /dev/vport* && head -c 0 /dev/vport*'
try "changes the clock" date -s @0
try "changes the name of the host" sh -c 'hostname other && [ "$(hostname)" = other ]'
try "raises its limit" sh -c 'ulimit -Hn 1000000'
try "writes to programs" touch /usr/bin/true
try "becomes root by a set-id program" sh -c '[ "$(/tmp/id -u)" = 0 ]'
try "becomes root by a program of the host" sh -c 'su -c true </dev/null || sudo -n true'
echo tried
"#;

/// Root makes a set-id program where it may, and lists mounts whose set-id bits count.
const SET_ID: &str = "cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id
awk '$6 !~ /nosuid/ { print $5 }' /proc/self/mountinfo";

#[test]
fn what_root_does_to_a_machine_stays_in_it_and_its_users_get_no_more() {
    let machines = machines!();
    let tare = &machines.tare;
    let id = machines.detached(&["--root", "--lease", "10m", "--", "sleep", "1000"]);
    let as_root = |script: &str| machines.call(&["exec", &id, "--", "sh", "-c", script]);
    as_root(SET_ID).ok().printed("");
    let attempts = format!("{TRY}{ATTEMPTS}");
    let tried = machines.call(&["exec", "-u", "1000", &id, "--", "sh", "-c", &attempts]).ok();
    assert_eq!(tried.stdout_text(), "tried\n", "{tried}");
    // Its clock is its own, and the deadlines of the box are on the host's.
    let before = unix_seconds();
    as_root("date -s @1000000000 >/dev/null && date +%Y").ok().printed("2001\n");
    assert!(unix_seconds() >= before, "the host's clock is its own");
    let start = Instant::now();
    machines.call(&["exec", "--timeout", "1s", &id, "--", "sleep", "1000"]).exited(124);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    // It writes to the memory and to the ports of its machine, and sleeps: it may live or not.
    let ends = [
        "dd if=/dev/urandom of=/dev/mem bs=4096 count=16 seek=1; true",
        "head -c 4096 /dev/urandom > /dev/port; true",
        "echo freeze > /sys/power/state; true",
    ];
    for end in ends {
        let start = Instant::now();
        let output = machines.call(&["exec", "--timeout", "3s", &id, "--", "sh", "-c", end]);
        assert!([0, 124, 125, 137].contains(&output.code), "{output}");
        assert!(start.elapsed() < Duration::from_secs(40), "{end}: {:?}", start.elapsed());
    }
    assert!(["running", "exited"].contains(&&*tare.state(&id)));
    tare.remove(&id);
    tare.reap_orphans();
}

/// Processes that only use the processors, until they are dropped.
struct Load(Vec<Child>);

impl Load {
    fn start() -> Self {
        let busy = || {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            command.spawn().expect("sh can be started")
        };
        Self((0..4).map(|_| busy()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
    }
}

#[test]
fn twenty_machines_boot_on_a_loaded_host_and_their_clocks_are_right() {
    let machines = machines!();
    if !is_long() {
        skip!("only with TARE_LONG=1: it takes minutes");
    }
    const BOOTS: usize = 20;
    const AT_ONCE: usize = 3;
    let load = Load::start();
    let boot = |_: usize| {
        let output = machines.run(&["--memory", "256m", "--", "uname", "-s"]).wait();
        output.ok().printed("Linux\n");
    };
    std::thread::scope(|scope| {
        for first in 0..AT_ONCE {
            scope.spawn(move || (first..BOOTS).step_by(AT_ONCE).for_each(boot));
        }
    });
    let id = machines.detached(&["--name", "box", "--", "sleep", "1000"]);
    its_clock_is_right(&machines.tare);
    machines.call(&["pause", "box"]).ok();
    let_pass(Duration::from_secs(5));
    machines.call(&["resume", "box"]).ok();
    its_clock_is_right(&machines.tare);
    let_pass(Duration::from_secs(60));
    its_clock_is_right(&machines.tare);
    drop(load);
    machines.tare.remove(&id);
}

/// Within a second of the host's, while the test waits for the answer.
#[track_caller]
fn its_clock_is_right(tare: &Tare) {
    let before = unix_seconds();
    let shown = tare.exec("box", ["date", "+%s.%N"]).ok().stdout_text();
    let shown: f64 = shown.trim().parse().expect("a number");
    let after = unix_seconds();
    assert!((before - 1.0..after + 1.0).contains(&shown), "{before} {shown} {after}");
}
