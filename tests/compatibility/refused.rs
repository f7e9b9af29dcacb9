//! What a box refuses by design. It refuses with an error that programs handle, never with a
//! signal.

use tare_harness::skip::has_program;
use tare_harness::{skip, tare};

use super::{python, shell};

#[test]
fn privileged_calls_return_an_error_instead_of_killing_the_process() {
    let tare = tare!();
    let source = "
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, call):
    try:
        result = call()
        failed = ctypes.get_errno() if result == -1 else 0
    except OSError as error:
        failed = error.errno
    print(name, errno.errorcode.get(failed, failed))
refused('raw socket', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
refused('packet socket', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
refused('ping socket', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1))
refused('mount', lambda: libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))
refused('namespace', lambda: libc.unshare(0x10000000))
refused('chroot', lambda: os.chroot('/tmp'))
refused('setuid', lambda: os.setuid(0))
refused('chown', lambda: os.chown('.', 0, 0))
refused('mknod', lambda: os.mknod('device', 0o20600, os.makedev(1, 3)))
refused('hostname', lambda: socket.sethostname('other'))
refused('clock', lambda: __import__('time').clock_settime(0, 0))
refused('trace', lambda: libc.ptrace(0, 0, 0, 0))
refused('queue', lambda: libc.mq_open(b'/queue', 0o102, 0o600, None))
refused('priority', lambda: os.nice(-5))
refused('oom', lambda: open('/proc/self/oom_score_adj', 'w', 1).write('-1000\\n'))
";
    let output = python(&tare, source).ok().said_nothing();
    for line in output.stdout_text().lines() {
        let (name, errno) = line.rsplit_once(' ').unwrap();
        let known = ["EPERM", "EACCES", "EAFNOSUPPORT", "EMFILE", "EINVAL"];
        assert!(known.contains(&errno), "{name} got {errno}: {output}");
    }
    assert_eq!(output.stdout_text().lines().count(), 15, "{output}");
}

/// strace uses ptrace, which `--seccomp debug` allows.
#[test]
fn strace_needs_the_debug_profile() {
    let tare = tare!();
    if !has_program("strace") {
        skip!("this host has no strace");
    }
    let script = "strace -f -o trace sh -c 'exit 4' 2>/dev/null || echo $?";
    let denied = shell(&tare, &[], script).ok();
    assert_ne!(denied.stdout_text(), "4\n", "{denied}");
    shell(&tare, &["--seccomp", "debug"], script).ok().printed("4\n");
}

/// The leak check of the sanitizers traces its own process.
#[test]
fn leak_sanitizer_needs_the_debug_profile() {
    let tare = tare!();
    if !has_program("gcc") {
        skip!("this host has no gcc");
    }
    let script = r#"
        printf '#include <stdlib.h>\nint main(void) { void *volatile p = malloc(7); p = 0; return 0; }' > leak.c
        gcc -fsanitize=address -o leak leak.c
        ./leak > /dev/null 2> said || true
        grep -o -e 'detected memory leaks' -e 'LeakSanitizer has encountered a fatal error' said"#;
    shell(&tare, &[], script).ok().printed("LeakSanitizer has encountered a fatal error\n");
    shell(&tare, &["--seccomp", "debug"], script).ok().printed("detected memory leaks\n");
}

/// Set-user-id programs run, but as the user that started them.
#[test]
fn su_and_sudo_grant_no_privilege() {
    let tare = tare!();
    for program in ["su", "sudo"] {
        if !has_program(program) {
            continue;
        }
        let script = format!("{program} -c id 2>&1 < /dev/null | grep uid=0 || echo refused");
        shell(&tare, &[], &script).ok().printed("refused\n");
    }
}
