//! `--root` in a machine: the kernel belongs to the box, so container engines run in it as Debian ships
//! them. `./check` runs crun, and `./check --long` runs podman and dockerd, which it unpacks to
//! `target/containers`.

use std::path::Path;
use std::time::Duration;

use tare_harness::skip;
use tare_harness::skip::has_program;

use crate::machines::machines;

/// What root looks at and does. Everything is in a namespace or in the memory of the machine.
const ROOT: &str = r#"
set -e
id -u; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr '\t\n' ' '; echo
set -- /proc/[0-9]*; echo $# processes
mkdir -p /mnt/t /mnt/o; mount -t tmpfs t /mnt/t; touch /mnt/t/file; umount /mnt/t
mkdir /work/lower /work/upper /work/index; echo below > /work/lower/file
mount -t overlay -o lowerdir=/work/lower,upperdir=/work/upper,workdir=/work/index o /mnt/o
cat /mnt/o/file; echo above > /mnt/o/file; cat /work/upper/file
touch /run/written; echo 1 > /proc/sys/net/ipv4/ip_forward; test -c /dev/kmsg
mkdir /sys/fs/cgroup/mine; echo $$ > /sys/fs/cgroup/mine/cgroup.procs
echo 5 > /sys/fs/cgroup/mine/pids.max; cat /proc/self/cgroup
grep -oE 'cpu |memory|pids' /sys/fs/cgroup/mine/cgroup.controllers
ip link add b0 type bridge; ip link add v0 type veth peer name v1; ip link set v0 master b0
grep -oE '^(nf_tables|nft_masq|xt_MASQUERADE|br_netfilter) ' /proc/modules | sort
ip addr show lo | grep -c 127.0.0.1
"#;

const ROOT_SAID: &str = "0\nCapEff: 000001ffffffffff NoNewPrivs: 0 Seccomp: 0 \n3 processes\nbelow\nabove\n\
    0::/mine\ncpu \nmemory\npids\nbr_netfilter \nnf_tables \nnft_masq \nxt_MASQUERADE \n1\n";

/// A container of one program.
const CRUN: &str = r#"
set -e
mkdir -p /work/bundle/rootfs/bin; cd /work/bundle
cp "$(command -v busybox)" rootfs/bin/sh
crun spec
sed -i 's/"terminal": true/"terminal": false/; s/"sh"/"sh", "-c", "echo in a container; exit 3"/' config.json
exec crun run contained
"#;

#[test]
fn root_of_a_machine_has_its_whole_kernel_and_runs_containers() {
    let machines = machines!();
    let tare = &machines.tare;
    let program = format!("{}:/usr/local/bin/tare:ro", tare.program().display());
    let id =
        machines.detached(&["--root", "--memory", "512m", "-v", &program, "--", "sleep", "1000"]);
    let root = tare.exec(&id, ["sh", "-c", ROOT]).ok();
    assert_eq!(root.stdout_text(), ROOT_SAID, "{root}");
    // Another user has none of this.
    let user = "id -u; grep CapEff /proc/self/status; mount -t tmpfs t /tmp 2>/dev/null || echo no";
    let user = machines.call(&["exec", "-u", "1000", &id, "--", "sh", "-c", user]).ok();
    assert_eq!(user.stdout_text(), "1000\nCapEff:\t0000000000000000\nno\n", "{user}");
    // Boxes in the box.
    let inner = tare.exec(&id, ["/usr/local/bin/tare", "run", "--", "sh", "-c", "id -u; exit 4"]);
    inner.exited(4).printed("1000\n");
    for program in ["crun", "busybox"] {
        if !has_program(program) {
            skip!("no {program}");
        }
    }
    tare.exec(&id, ["sh", "-c", CRUN]).exited(3).printed("in a container\n");
    tare.remove(&id);
}

/// The programs are in `/opt`. The image is one program, which is on the scratch space like everything else.
const PODMAN: &str = r#"
set -e
mkdir -p /var/tmp /etc/containers /work/image/bin
cp "$(command -v busybox)" /work/image/bin/busybox; ln -s busybox /work/image/bin/sh
echo '{"default": [{"type": "insecureAcceptAnything"}]}' > /etc/containers/policy.json
p() {
    podman --root /work/storage --storage-driver overlay --cgroup-manager cgroupfs \
        --events-backend file --conmon /opt/usr/bin/conmon --runtime /usr/bin/crun "$@"
}
tar -C /work/image -c . | p import -q - small >/dev/null
p run --rm --network none --log-driver none small /bin/sh -c 'echo in podman; exit 5'
"#;

/// Waits for the daemon, which ends with the box.
const DOCKER: &str = r#"
set -e
dockerd --data-root /work/docker >/work/dockerd.log 2>&1 &
until docker version >/dev/null 2>&1; do
    kill -0 $! 2>/dev/null || { tail -n 20 /work/dockerd.log >&2; exit 1; }
    sleep 0.2
done
docker info 2>/dev/null | grep -oE '(Storage Driver|Cgroup Version): .*'
tar -C /work/image -c . | docker import - small >/dev/null
docker run --rm small /bin/busybox ping -c 1 172.17.0.1 | grep -oE '^1 packets transmitted, 1 packets received'
docker run --rm small /bin/sh -c 'echo in docker; exit 6'
"#;

#[test]
fn podman_and_dockerd_run_containers_in_a_machine() {
    let machines = machines!();
    if std::env::var_os("TARE_LONG").is_none() {
        skip!("only with TARE_LONG=1: it takes minutes");
    }
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/containers");
    let Ok(programs) = programs.canonicalize() else {
        skip!("no target/containers: ./check --long fetches it");
    };
    for program in ["crun", "busybox"] {
        if !has_program(program) {
            skip!("no {program}");
        }
    }
    let tare = &machines.tare;
    let volume = format!("{}:/opt:ro", programs.display());
    let libraries = "LD_LIBRARY_PATH=/opt/usr/lib/x86_64-linux-gnu:/opt/lib/x86_64-linux-gnu";
    let id = machines.detached(&[
        "--root",
        "--memory",
        "2g",
        "--scratch",
        "1g",
        "-v",
        &volume,
        "-e",
        "PATH=/opt/usr/sbin:/opt/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "-e",
        libraries,
        "-e",
        "XTABLES_LIBDIR=/opt/usr/lib/x86_64-linux-gnu/xtables",
        "--",
        "sleep",
        "10000",
    ]);
    let exec = |script: &str| tare.spawn_call(["exec", &id, "--", "sh", "-c", script]);
    for (script, last, code) in [(PODMAN, "in podman", 5), (DOCKER, "in docker", 6)] {
        let exec = exec(script);
        assert!(exec.ends_within(Duration::from_secs(300)), "{}", exec.stderr_so_far());
        let output = exec.wait().exited(code);
        let said = output.stdout_text();
        assert_eq!(said.lines().last(), Some(last), "{output}");
        if code == 6 {
            let found = ["Storage Driver: overlay2", "Cgroup Version: 2", "1 packets received"];
            assert!(found.iter().all(|it| said.contains(it)), "{output}");
        }
    }
    tare.remove(&id);
}

#[test]
fn a_filter_that_the_user_asks_for_confines_root_of_a_machine() {
    let machines = machines!();
    let look =
        "grep -E '^Seccomp:' /proc/self/status; mount -t tmpfs t /tmp 2>/dev/null || echo no";
    let run = machines.run(&["--root", "--seccomp", "strict", "--", "sh", "-c", look]);
    run.wait().ok().printed("Seccomp:\t2\nno\n");
}
