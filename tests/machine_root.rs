//! `--root` in a machine: the kernel belongs to the box, so container engines run in it as Debian ships
//! them. `./check` runs crun, and `./check --long` runs podman and dockerd, which it unpacks to
//! `target/containers`.

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

#[test]
fn a_filter_that_the_user_asks_for_confines_root_of_a_machine() {
    let machines = machines!();
    let look =
        "grep -E '^Seccomp:' /proc/self/status; mount -t tmpfs t /tmp 2>/dev/null || echo no";
    let run = machines.run(&["--root", "--seccomp", "strict", "--", "sh", "-c", look]);
    run.wait().ok().printed("Seccomp:\t2\nno\n");
}
