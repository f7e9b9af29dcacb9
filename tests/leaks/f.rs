//! F. Zombies.

use rustix::process::Signal;
use serde_json::{Value, json};
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Server, eventually, processes, skip};

use crate::leaks::case::{case, times, traced};

/// F1, openclaw, subfloor, nsjail and OpenShell: the first process of a box did not reap,
/// until there were 18,036 zombies.
#[test]
fn the_keeper_reaps_orphans() {
    let case = case();
    let script = "import os, time
def others(): return [it for it in os.listdir('/proc') if it.isdigit() and int(it) != os.getpid()]
child = os.fork()
if child == 0: os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
seen = str(child) in others()  # our own zombie
os.waitpid(child, 0)
for _ in range(200):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.01)
        os._exit(0)
    os.wait()
deadline = time.monotonic() + 10
while others() and time.monotonic() < deadline: time.sleep(0.005)
print(seen, others())";
    case.run(["--", "python3", "-c", script]).ok().printed("True []\n");
}

/// The first process of a PID namespace, which waits for its own children alone: runs
/// tare in all ways that end, and says how many zombies came to it.
const NEGLIGENT: &str = "import os, signal, subprocess, sys
tare = os.environ['TARE']
assert os.getpid() == 1
def call(*words): return subprocess.run([tare, *words], capture_output=True).returncode
orphans = 'for i in 1 2 3 4 5; do (setsid sleep 0.01 &); done'
for _ in range(int(sys.argv[1])):
    assert call('run', '--', 'sh', '-c', orphans + '; exit 5') == 5
    assert call('run', '--timeout', '50ms', '--', 'sleep', '1000') == 124
    assert call('run', '--', 'no-such-program') == 127
    assert call('run', '--contain', '--', 'sh', '-c', 'kill -9 $$') == 137
zombies = []
for name in os.listdir('/proc'):
    if name.isdigit():
        stat = open('/proc/%s/stat' % name).read()
        if stat.rsplit(') ')[1][0] == 'Z': zombies.append(stat)
print(zombies)";

/// F2, bubblewrap: the launcher left a zombie to a PID 1 that does not reap.
#[test]
fn a_host_whose_pid_1_does_not_reap_gets_no_zombie() {
    let case = case();
    if !is_root() {
        skip!("only root can make a PID namespace alone");
    }
    let count = times(5, 50).to_string();
    let mut command = case.shell_command("exec unshare -p -f --mount-proc python3 \"$@\"");
    command.args(["sh", "-c", NEGLIGENT, &count]);
    case.start_piped(command).wait().ok().printed("[]\n");
    // And where tare itself is the first.
    let first = "exec unshare -p -f --mount-proc \"$TARE\" run -- sh -c '(sleep 0.01 &) ; exit 6'";
    case.shell(first).exited(6);
    case.nothing_left();
}

/// F4, cri-o: a child that was killed after a failure was never waited for.
#[test]
fn a_failed_write_after_the_keeper_was_spawned_leaves_no_zombie() {
    let case = case();
    if !has_program("strace") || !is_root() {
        skip!("strace is not installed, or may not trace a keeper");
    }
    // Its cgroups, its id maps, its plan: of tare and of the keeper, each in turn. What
    // either of them only tries may fail.
    let mut failed = 0;
    for number in 1..=WRITES {
        let fault = format!("inject=write,pwrite64,sendmsg:error=EIO:when={number}");
        let output = traced(&case, &["-f", "-e", &fault], &["run", "--", "true"]);
        case.nothing_left();
        assert!([0, 125].contains(&output.code), "{number}: {output}");
        failed += u32::from(output.code == 125);
    }
    assert!(failed > 4, "only {failed} writes were met");
}

/// More than tare or a keeper makes of them.
const WRITES: u32 = 20;

/// F6, boxlite: `rm --force` killed without waiting: one zombie for each call to the
/// server.
#[test]
fn no_end_of_a_box_leaves_a_zombie_of_the_server() {
    let case = case();
    let server = Server::start(&case, &[]);
    let make = |more: Value| {
        let mut request = json!({ "command": ["sleep", "1000"] });
        let fields = request.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        let made = server.post("/v1/boxes", &request).was(201).json();
        made["id"].as_str().expect("an id").to_owned()
    };
    let path = |id: &str| format!("/v1/boxes/{id}");
    for _ in 0..times(2, 50) {
        let ids = [(); 4].map(|()| make(json!({})));
        let [stopped, removed, crashed, killed] = &ids;
        let stop = json!({ "grace_ms": 0 });
        server.post(&format!("{}/stop", path(stopped)), &stop).was(200);
        server.delete(&format!("{}?force=true", path(removed))).was(204);
        case.keeper(crashed).signal(Signal::KILL);
        case.call(["kill", killed]).ok();
        make(json!({ "command": ["true"] }));
        make(json!({ "lease_ms": 200 }));
        make(json!({ "command": ["true"], "remove": true }));
        let absent = json!({ "command": ["no-such-program"] });
        server.post("/v1/boxes", &absent).refused(400, "command_not_found");
        server.post("/v1/run", &absent).refused(400, "command_not_found");
        server.post("/v1/run", &json!({ "command": ["true"] })).was(200);
        let late = json!({ "command": ["sleep", "1000"], "timeout_ms": 100 });
        server.post("/v1/run", &late).was(200);
        server.post("/v1/sweep", &json!({})).was(200);
    }
    eventually("the server has no child", || {
        !processes().iter().any(|one| one.parent == server.pid())
    });
    case.call(["rm", "-f", "--all"]).ok();
    server.stop().ok();
}
