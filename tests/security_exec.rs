//! `tare exec` against a hostile box: an exec is confined like the command, exposes nothing while
//! it starts, and keeps its secrets.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use tare_harness::fixture::compiled_with;
use tare_harness::{TemporaryDirectory, processes, skip, tare};

/// Prints how a process is confined, as the process itself sees it.
const BONDS: &str =
    "cat /proc/self/cgroup /proc/self/limits /proc/self/uid_map /proc/self/oom_score_adj
grep -E '^(NoNewPrivs|Seccomp|Cap|Groups|Uid|Gid)' /proc/self/status
for kind in cgroup ipc mnt net pid time user; do readlink /proc/self/ns/$kind; done
umask; pwd; env | sort; uname -n; ls /proc/self/fd";

/// The box overwrites every file that it can before the exec.
#[test]
fn an_exec_is_confined_like_the_command() {
    let tare = tare!();
    let script = format!("{BONDS}\necho END; sleep 1000");
    let limits = ["--memory", "64m", "--pids", "40", "--nofile", "123", "-e", "A=b"];
    let id = tare.detached(limits.iter().chain(&["--", "sh", "-c", &script]));
    tare.logged(&id, "END");
    let expected = tare.call(["logs", &id]).ok().stdout_text();
    let expected = expected.split("END").next().unwrap();
    assert!(expected.contains("NoNewPrivs:\t1\n"), "{expected}");
    let vandal = "find / -xdev -type f -writable -not -path '/proc/*' -exec sh -c ': > {}' ';' 2>/dev/null; true";
    tare.exec(&id, ["sh", "-c", vandal]).ok();
    tare.exec(&id, ["sh", "-c", BONDS]).ok().printed(expected);
    // The same seen from the host.
    let client = tare.spawn_call(["exec", &id, "--", "sh", "-c", "echo up; cat"]);
    client.see("up");
    let workload = tare.workload(&id);
    assert!(workload.len() >= 3, "{workload:?}");
    for process in &workload {
        assert_eq!(process.cgroups, workload[0].cgroups, "{process:?}");
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap();
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000"] {
            assert!(status.contains(line), "{process:?}: {status}");
        }
    }
    client.wait().ok();
    tare.remove(&id);
}

#[test]
fn the_limits_of_the_box_apply_to_execs() {
    let tare = tare!();
    let id = tare.detached(["--memory", "64m", "--pids", "30", "--", "sleep", "1000"]);
    let hungry = "held = [b'x' * 1048576 for _ in range(1024)]";
    tare.exec(&id, ["python3", "-c", hungry]).exited(137);
    let fork = "import os, signal
made = 0
try:
    while made < 500:
        if os.fork() == 0: signal.pause()
        made += 1
except BlockingIOError:
    print(made)";
    let output = tare.exec(&id, ["python3", "-c", fork]).ok();
    let made: u32 = output.stdout_text().trim().parse().unwrap();
    assert!(made < 30, "{output}");
    assert_eq!(tare.state(&id), "running");
    tare.remove(&id);
}

/// A working directory behind a descriptor.
#[test]
fn a_working_directory_behind_a_magic_link_is_refused() {
    let tare = tare!();
    let id = tare.idle_box();
    let descriptors = (0..64).map(|number| format!("/proc/self/fd/{number}"));
    let others = ["/proc/self/cwd", "/proc/self/root", "/proc/1/cwd", "/dev/fd/3"];
    for directory in descriptors.chain(others.map(str::to_owned)) {
        let output = tare.call(["exec", "-w", &directory, &id, "--", "pwd"]);
        output.exited(125).printed("");
    }
    tare.call(["exec", "-w", "/proc/self", &id, "--", "pwd"]).ok();
    tare.remove(&id);
}

/// Watches new processes in the box, and prints what belongs to the keeper or the host.
const WATCHER: &str = "import os
known = set(os.listdir('/proc'))
print('watching', flush=True)
while True:
    for pid in os.listdir('/proc'):
        if not pid.isdigit() or pid in known and pid != '1': continue
        for name in ('cwd', 'root'):
            try: target = os.readlink('/proc/%s/%s' % (pid, name))
            except OSError: continue
            if pid == '1' or not os.path.isdir(target): print('foreign', pid, name, target, flush=True)
        try: numbers = os.listdir('/proc/%s/fd' % pid)
        except OSError: continue
        for number in numbers:
            try: target = os.readlink('/proc/%s/fd/%s' % (pid, number))
            except OSError: continue
            own = int(number) < 3 or target.startswith(('/usr/', '/lib', '/etc/', '/proc/'))
            if pid == '1' or not own: print('foreign', pid, number, target, flush=True)";

#[test]
fn a_starting_exec_exposes_nothing_of_keeper_or_host() {
    let tare = tare!();
    let id = tare.detached(["--", "python3", "-c", WATCHER]);
    tare.logged(&id, "watching");
    for _ in 0..300 {
        tare.exec(&id, ["true"]).ok();
    }
    tare.call(["logs", &id]).ok().printed("watching\n");
    assert_eq!(tare.state(&id), "running");
    tare.remove(&id);
}

/// All processes of the host whose arguments or environment contain this text.
fn holders_of(text: &str) -> BTreeSet<u32> {
    let has = |pid: u32, name: &str| {
        let content = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let mut windows = content.windows(text.len());
        windows.any(|window| window == text.as_bytes())
    };
    let all = processes().into_iter().map(|one| one.pid);
    all.filter(|pid| has(*pid, "environ") || has(*pid, "cmdline")).collect()
}

/// The secret is in the caller's own arguments and in the exec's environment, and nowhere else.
#[test]
fn only_an_exec_sees_its_own_secret() {
    let tare = tare!();
    let id = tare.idle_box();
    let directory = TemporaryDirectory::new();
    let secret = format!("s3cret-{}", std::process::id());
    let variable = format!("TOKEN={secret}");
    let file = directory.write("variables", format!("{variable}\n"));
    for option in [["--env-file", file.to_str().unwrap()], ["-e", &variable]] {
        let script = "echo ${TOKEN%%-*}; read line";
        let call = ["exec", option[0], option[1], &id, "--", "sh", "-c", script];
        let mut client = tare.spawn_call(call);
        client.see("s3cret");
        let mut holders = holders_of(&secret);
        assert_eq!(holders.remove(&client.pid()), option[0] == "-e");
        let workload: BTreeSet<u32> = tare.workload(&id).iter().map(|one| one.pid).collect();
        assert!(!holders.is_empty() && holders.is_subset(&workload), "{holders:?}");
        for (path, bytes) in tare.record_files(&id) {
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains(&secret), "{} has a secret", path.display());
        }
        client.write(b"\n");
        client.wait().ok();
    }
    assert_eq!(holders_of(&secret), BTreeSet::new());
    tare.remove(&id);
}

/// Sends SIGSTOP to every process that it can, in a loop.
const STOPPER: &str = "import os, signal
print('up', flush=True)
while True:
    try: os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError: pass";

/// A process that is about to become its program is the box's user already, and
/// may be stopped by it. The keeper must not wait for that one.
#[test]
fn a_box_that_stops_every_process_does_not_stop_its_keeper() {
    let tare = tare!();
    let id = tare.detached(["--lease", "1m", "--", "python3", "-c", STOPPER]);
    tare.logged(&id, "up");
    // The way to it is long, so that there is time to be stopped on it.
    let workdir = format!("/work/{}", "./".repeat(1900));
    for _ in 0..12 {
        let call = ["exec", "--timeout", "200ms", "-w", &workdir, &id, "true"];
        let started = Instant::now();
        tare.call(call);
        // The client gives a keeper that does not answer four seconds more.
        let took = started.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
    let stats = tare.json(["stats", "--json", &id]);
    assert!(stats[0]["output_bytes"].is_u64(), "{stats}");
    tare.remove(&id);
}

/// Its first thread is gone as soon as there is a second, which leaves a child.
const LEADERLESS: &str = r#"
typedef long word;
__attribute__((used)) char stack[65536];
static word call(word number, word first, word second) {
  word result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(0)
                   : "rcx", "r11", "memory");
  return result;
}
static void sleep_ms(word ms) {
  word time[2] = {ms / 1000, ms % 1000 * 1000000};
  call(35, (word)time, 0);
}
__attribute__((used)) void thread(void) {
  sleep_ms(200);
  if (call(57, 0, 0) == 0) { call(112, 0, 0); call(3, 0, 0); call(3, 1, 0); call(3, 2, 0); }
  for (;;) sleep_ms(1000000);
}
__attribute__((naked)) void _start(void) {
  __asm__ volatile(
    "mov $56, %eax\n mov $0x10f00, %edi\n lea stack+65000(%rip), %rsi\n and $-16, %rsi\n"
    "xor %edx, %edx\n xor %r10d, %r10d\n xor %r8d, %r8d\n syscall\n test %eax, %eax\n"
    "jz 1f\n mov $60, %eax\n xor %edi, %edi\n syscall\n 1: call thread");
}
"#;

/// However fast its first thread is gone, and however slow the keeper is.
#[test]
fn the_timeout_ends_an_exec_whose_main_thread_has_exited() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let flags = ["-static", "-nostdlib", "-fno-stack-protector"];
    let Some(_) = compiled_with(&directory, "leaderless", LEADERLESS, &flags) else {
        skip!("there is no C compiler here");
    };
    let volume = format!("{}:/programs:ro", directory.path().display());
    let busy = "for i in 1 2 3 4; do while :; do :; done & done; wait";
    let id = tare.detached(["-v", &volume, "--", "sh", "-c", busy]);
    for _ in 0..20 {
        let call = ["exec", "--timeout", "400ms", &id, "/programs/leaderless"];
        tare.call(call).exited(124);
    }
    let left = tare.exec(&id, ["ps", "-eo", "args"]).ok().stdout_text();
    assert!(!left.contains("leaderless"), "{left}");
    tare.remove(&id);
}

/// A failed fork returns -1, which must not be used as a pid: `kill` would signal a process group.
#[test]
fn exec_at_the_process_limit_is_an_error_and_the_box_can_be_ended() {
    let tare = tare!();
    let fill = "import os, time
try:
    while True:
        if os.fork() == 0: time.sleep(1000)
except BlockingIOError: print('full', flush=True)
time.sleep(1000)";
    let id = tare.detached(["--pids", "20", "--", "python3", "-c", fill]);
    tare.logged(&id, "full");
    let processes = tare.workload(&id).len();
    let host = TemporaryDirectory::new();
    let copy = host.join("hosts").into_os_string().into_string().unwrap();
    for call in [
        ["exec", "--timeout", "2s", &id, "true"].to_vec(),
        ["cp", &format!("{id}:/etc/hosts"), &copy].to_vec(),
    ] {
        tare.call(call).said(&["cannot start a process in the box", "--pids"]);
    }
    assert_eq!(tare.workload(&id).len(), processes);
    tare.call(["stop", "-t", "0", &id]).ok();
    tare.remove(&id);
}
