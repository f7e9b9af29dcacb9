//! `--contain` contains only the processes. The files, the network and the user are the host's.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use tare_harness::skip::{has_program, is_root};
use tare_harness::{TemporaryDirectory, hierarchies, skip, tare, unified_hierarchy};

#[test]
fn a_contained_command_has_the_hosts_files_and_network() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let file = directory.write("in", "of the host\n");
    let made = directory.join("out");
    let script = format!(
        "cat {} && readlink /proc/self/ns/net && echo made > {}",
        file.display(),
        made.display()
    );
    let network = fs::read_link("/proc/self/ns/net").unwrap();
    tare.run(["--contain", "--", "sh", "-c", &script])
        .ok()
        .printed(&format!("of the host\n{}\n", network.display()));
    assert_eq!(fs::read_to_string(made).unwrap(), "made\n");
}

#[test]
fn a_contained_command_is_the_same_user_in_the_same_place() {
    let tare = tare!();
    let directory = TemporaryDirectory::new();
    let mut command = tare.command(["run", "--contain", "--", "sh", "-c", "id -u; pwd"]);
    let output = command.current_dir(directory.path()).output().unwrap();
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{uid}\n{}\n", directory.text()));
}

#[test]
fn a_contained_command_is_in_other_pid_and_ipc_namespaces() {
    let tare = tare!();
    let output = tare
        .run(["--contain", "--", "sh", "-c", "readlink /proc/self/ns/pid /proc/self/ns/ipc"])
        .ok();
    for kind in ["pid", "ipc"] {
        let ours = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert!(output.stdout_text().contains(&format!("{kind}:[")), "{output}");
        assert!(!output.stdout_text().contains(ours.to_str().unwrap()), "{output}");
    }
}

#[test]
fn a_contained_command_has_its_exit_code_limits_and_timeout() {
    let tare = tare!();
    tare.run(["--contain", "--", "sh", "-c", "exit 7"]).exited(7);
    tare.run(["--contain", "--nofile", "77", "--", "sh", "-c", "ulimit -n"]).ok().printed("77\n");
    tare.run(["--contain", "--timeout", "1s", "--", "sleep", "1000"]).exited(124);
    tare.run(["--contain", "--", "no-such-program"]).exited(127);
}

/// Without cgroups `RLIMIT_NPROC` limits the processes of a box, but not those of the host's root.
#[test]
fn a_limit_on_processes_of_root_without_writable_cgroups_is_an_error() {
    let tare = tare!();
    if !is_root() || !has_program("unshare") {
        skip!("only root can make cgroups read-only, with unshare");
    }
    let without_cgroups = |options: &str| {
        let mounts = "sed -nE 's/^([^ ]* ){4}([^ ]*) .* - cgroup2? .*/\\2/p' /proc/self/mountinfo";
        let script = format!(
            "for at in $({mounts}); do mount -o remount,bind,ro $at || exit 99; done
             exec $TARE run {options} -- true"
        );
        tare.shell(&format!("exec unshare --mount sh -c '{}'", script.replace('\'', "'\\''")))
    };
    without_cgroups("--contain --pids 5").exited(125).said(&["pids", "cgroup"]);
    let notes = without_cgroups("--contain").ok().stderr_text();
    assert!(notes.contains("the number of processes is not limited"), "{notes}");
    // A box with its own users has the limit by its user namespace.
    without_cgroups("--pids 5").ok();
}

/// Python code that nests cgroups below the box's cgroup with relative paths, and prints how many
/// it could create.
const NEST: &str = "import os, sys
def members(path):
    try:
        return open(path + '/cgroup.procs').read().split()
    except OSError:
        return []
own = [path for path, _, _ in os.walk(sys.argv[1]) if str(os.getpid()) in members(path)]
os.chdir(own[0])
made = 0
try:
    while made < 1200:
        os.mkdir('level')
        os.chdir('level')
        made += 1
except OSError:
    pass
print(made, flush=True)";

#[test]
fn a_contained_box_that_nests_1200_cgroups_leaves_nothing_with_1024_descriptors() {
    let tare = tare!();
    let Some((unified, _)) = unified_hierarchy().filter(|_| is_root()) else {
        skip!("a contained box cannot make cgroups here");
    };
    // v1 has no limit of its own.
    let pids = hierarchies().into_iter().find(|root| root.ends_with("pids"));
    let v1 = pids.map(|root| (root.to_str().unwrap().to_owned(), 1200));
    for (root, expected) in [(unified, 32)].into_iter().chain(v1) {
        let script = "ulimit -n 1024; exec \"$TARE\" run --contain -- python3 -c \"$@\"";
        let mut command = tare.shell_command(script);
        command.arg("sh").arg(NEST).arg(&root);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = tare.start_command(command).wait().ok();
        assert_eq!(output.stdout_text(), format!("{expected}\n"), "{output}");
        tare.nothing_left();
    }
}

#[test]
fn bubblewrap_in_a_contained_box_leaves_nothing() {
    let tare = tare!();
    if !has_program("bwrap") {
        skip!("bwrap is not installed");
    }
    let bwrap =
        ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all"];
    let inside = |script: &'static str| {
        let mut call = vec!["--contain", "--timeout", "2s", "--"];
        call.extend(bwrap);
        call.extend(["sh", "-c", script]);
        call
    };
    tare.run(inside("echo in; exit 5")).exited(5).printed("in\n");
    // Daemons that outlive the command of bwrap, in its own PID namespace.
    tare.run(inside("setsid sleep 1000 & setsid sleep 1000 & echo up; wait"))
        .exited(124)
        .printed("up\n");
}

#[test]
fn nested_namespaces_in_a_contained_box_leave_nothing() {
    let tare = tare!();
    if !is_root() {
        skip!("only root may unshare these namespaces alone");
    }
    let nested = "unshare --pid --fork unshare --pid --net --mount --fork sh -c 'trap \"\" TERM INT HUP; setsid sleep 1000 & echo nested; sleep 1000'";
    tare.run(["--contain", "--timeout", "2s", "--", "sh", "-c", nested])
        .exited(124)
        .printed("nested\n");
    // The command ends while the nested tree lives.
    let leave = format!("{nested} | {{ read line; kill -9 $$; }}");
    tare.run(["--contain", "--", "sh", "-c", &leave]).exited(137);
}

/// Launchers create cgroups at the place that `/proc/self/cgroup` names. No process may get outside
/// the box this way.
#[test]
fn a_contained_launcher_that_asks_where_it_is_stays_in_its_box() {
    let tare = tare!();
    if !is_root() {
        skip!("only root may make cgroups");
    }
    let Some((point, root)) = unified_hierarchy() else {
        skip!("there is no cgroup version 2 on this host");
    };
    let name = format!("tare-test-launched-{}", std::process::id());
    let script = format!(
        "own=$(sed -n 's/^0:://p' /proc/self/cgroup)
         mkdir {point}${{own#{root}}}/{name} && echo made"
    );
    let output = tare.run(["--contain", "--", "sh", "-c", &script]);
    // Not left to the next test, whatever this one finds.
    let outside = Path::new(&point).join(&name);
    let escaped = fs::remove_dir(&outside).is_ok();
    assert!(!escaped, "{} was made by a box: {output}", outside.display());
    output.ok().printed("made\n");
}

/// A launcher creates files with the same modes as without tare.
#[test]
fn a_contained_command_keeps_the_callers_umask() {
    let tare = tare!();
    tare.shell("umask 027; exec \"$TARE\" run --contain -- sh -c umask").ok().printed("0027\n");
}
