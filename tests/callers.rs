//! The process that calls tare: its ignored signals, umask, directory and limits must neither reach
//! the box nor stop tare from working.

use std::fs;

use tare_harness::{TemporaryDirectory, tare};

#[test]
fn a_caller_that_ignores_the_end_of_children_still_gets_the_exit_code() {
    let tare = tare!();
    tare.shell("trap '' CHLD; exec \"$TARE\" run -- sh -c 'exit 3'").exited(3);
}

/// Ignores every signal by the system call itself: a C library keeps 32 to 34 for
/// its own use, and what they are set to passes through `execve` like the others.
const IGNORE_ALL: &str = "import ctypes, os
action = (ctypes.c_ulong * 4)(1, 0, 0, 0)  # SIG_IGN, no flags, no restorer, no mask
for number in range(1, 65):
    ctypes.CDLL(None).syscall(13, number, action, None, 8)  # rt_sigaction
status = ['grep', '-E', '^Sig(Blk|Ign)', '/proc/self/status']
os.execv(os.environ['TARE'], ['tare', 'run', '--'] + status)";

#[test]
fn signals_that_the_caller_ignores_have_their_default_action_in_the_box() {
    let tare = tare!();
    tare.shell(&format!("exec python3 -c \"{IGNORE_ALL}\""))
        .ok()
        .printed("SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

#[test]
fn the_callers_umask_does_not_reach_the_box() {
    let tare = tare!();
    tare.shell("umask 0777; exec \"$TARE\" run -- sh -c 'umask; echo x > f && cat f'")
        .ok()
        .printed("0022\nx\n");
}

#[test]
fn run_works_when_the_callers_directory_is_gone() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let gone = directory.join("gone");
    fs::create_dir(&gone).unwrap();
    let script = format!("cd {0} && rmdir {0} && exec \"$TARE\" run -- echo up", gone.display());
    tare.shell(&script).ok().printed("up\n");
}

#[test]
fn run_with_few_descriptors_reports_it_and_leaves_nothing() {
    let tare = tare!();
    for limit in [4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32] {
        let output = tare.shell(&format!("ulimit -n {limit}; exec \"$TARE\" run -- echo up"));
        match output.code {
            0 => assert_eq!(output.stdout_text(), "up\n", "{output}"),
            code => {
                assert_eq!(code, 125, "{limit}: {output}");
                assert!(output.stderr_text().starts_with("tare: "), "{limit}: {output}");
            }
        }
        let left = tare.difference_now();
        assert!(left.is_empty(), "{limit}: {output}\n{}", left.join("\n"));
    }
}

/// A user can start tare under the keeper's name by accident.
#[test]
fn tare_started_under_the_keepers_name_exits_without_harm() {
    let tare = tare!();
    let output = tare.shell("exec python3 -c 'import os; os.execv(os.environ[\"TARE\"], [\"tare-keeper\", \"run\", \"true\"])'");
    assert_ne!(output.code, 0, "{output}");
    assert_eq!(output.stdout_text(), "", "{output}");
}

/// The limit also applies to the files of the record.
#[test]
fn run_under_a_file_size_limit_fails_and_leaves_nothing() {
    let tare = tare!();
    let output = tare.shell("ulimit -f 0; exec \"$TARE\" run -- echo up");
    assert_eq!(output.code, 125, "{output}");
    assert!(output.stderr_text().contains("File too large"), "{output}");
}
