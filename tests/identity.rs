//! The identity of a box is its keeper, never a pid. Whatever a record claims, no foreign process
//! is signalled, and no live box is judged dead.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::{Value, json};
use tare_harness::record::{change, lines, write_lines};
use tare_harness::skip::is_root;
use tare_harness::witness::{assert_untouched, stranger};
use tare_harness::{Running, Tare, eventually, skip, tare};

/// A call that has nothing to wait for returns well within this, on any machine.
const SOON: Duration = Duration::from_secs(5);

/// The identity of a process as the kernel reports it.
fn identity(pid: u32) -> Value {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pidfd = pidfd_open(number.expect("a number"), PidfdFlags::empty()).expect("it is there");
    let inode = rustix::fs::fstat(&pidfd).expect("it is open").st_ino;
    json!({"pid": pid, "pidfd_inode": inode})
}

/// How the record of a box that never was is to lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    Detached,
    /// Without a journal: its creator seems to be gone.
    Attached,
    /// The host seems to have no cgroups.
    WithoutCgroup,
    /// The record has no pidfd inode, as before Linux 6.9.
    WithoutInode,
    /// The record has no keeper, but a process listens on the socket.
    Listening,
}

const LIES: [Lie; 5] =
    [Lie::Detached, Lie::Attached, Lie::WithoutCgroup, Lie::WithoutInode, Lie::Listening];

/// The record of a real box, from which the tests forge others.
struct Pattern {
    id: String,
    record: PathBuf,
    lines: Vec<Value>,
}

impl Pattern {
    fn take(tare: &Tare) -> Self {
        let id = tare.detached(["--name", "pattern", "--", "sleep", "1000"]);
        let record = tare.record(&id);
        let lines = lines(&record);
        tare.remove(&id);
        Self { id, record, lines }
    }

    /// Writes the record with this process as its keeper. Connections to its socket reach the test
    /// while the returned listener is open.
    fn forge(&self, lie: Lie, keeper: u32) -> Option<UnixListener> {
        fs::create_dir_all(&self.record).expect("the state root is ours");
        let journal = format!("{:63}\n", "0 1 detached").into_bytes();
        for (name, content) in [("journal", journal), ("log.0", vec![]), ("log.1", vec![])] {
            fs::write(self.record.join(name), content).expect("it is ours");
        }
        write_lines(&self.record, &self.lines);
        change(&self.record, "keeper", &identity(keeper));
        let control = self.record.join("control");
        match lie {
            Lie::Detached => None,
            Lie::Attached => {
                let mut lines = lines(&self.record);
                lines[0]["intent"]["detached"] = Value::Null;
                write_lines(&self.record, &lines);
                fs::remove_file(self.record.join("journal")).expect("it was made");
                None
            }
            Lie::WithoutCgroup => {
                change(&self.record, "keeper", &json!({"cgroup_inode": null}));
                None
            }
            Lie::WithoutInode => {
                change(&self.record, "keeper", &json!({"pidfd_inode": null}));
                None
            }
            Lie::Listening => {
                write_lines(&self.record, &self.lines[..1]);
                Some(UnixListener::bind(control).expect("the name is free"))
            }
        }
    }
}

/// Commands that wait for the end of a box, which never comes here.
const ENDLESS: [&[&str]; 3] = [&["wait", "ID"], &["logs", "-f", "ID"], &["attach", "ID"]];

const COMMANDS: [&[&str]; 19] = [
    &["ls"],
    &["ls", "-a", "--json"],
    &["inspect", "ID"],
    &["stats", "--json"],
    &["exec", "ID", "--", "true"],
    &["exec", "-d", "ID", "--", "true"],
    &["logs", "ID"],
    &["cp", "/etc/hostname", "ID:/work"],
    &["rename", "ID", "other"],
    &["update", "--lease", "1h", "ID"],
    &["pause", "ID"],
    &["resume", "ID"],
    &["kill", "-s", "TERM", "ID"],
    &["run", "--name", "pattern", "--", "true"],
    &["rm", "ID"],
    &["stop", "-t", "0", "ID"],
    &["kill", "ID"],
    &["rm", "-f", "ID"],
    &["rm", "-f", "--all"],
];

fn with_id<'a>(command: &[&'a str], id: &'a str) -> Vec<String> {
    let word = |word: &&str| word.replace("ID", id);
    command.iter().map(word).collect()
}

/// In another runtime, a pid file named a foreign process.
#[test]
fn a_record_that_names_a_foreign_process_never_signals_it() {
    let tare = tare!();
    let pattern = Pattern::take(&tare);
    for lie in LIES {
        let stranger = stranger(&tare, "sh", "");
        for command in COMMANDS {
            let _listener = pattern.forge(lie, stranger.pid());
            let output = tare.call(with_id(command, &pattern.id));
            assert!(!stranger.has_ended(), "{lie:?}: {command:?}");
            // No command waits for an answer of a process that is not a keeper.
            assert!(output.lasted < SOON, "{lie:?}: {output}");
            tare.call(["rm", "-f", "--all"]);
            assert!(!pattern.record.exists(), "{lie:?}: {command:?}");
        }
        assert_untouched(stranger);
    }
}

/// Other processes can have the box's id in their arguments too: `tare wait ID`, or an editor of
/// its log.
#[test]
fn a_process_with_a_box_id_in_its_arguments_is_not_the_keeper() {
    let tare = tare!();
    let pattern = Pattern::take(&tare);
    for lie in LIES {
        let stranger = stranger(&tare, "tare-keeper", &pattern.id);
        for command in COMMANDS {
            let _listener = pattern.forge(lie, stranger.pid());
            tare.call(with_id(command, &pattern.id));
            assert!(!stranger.has_ended(), "{lie:?}: {command:?}");
            tare.call(["rm", "-f", "--all"]);
        }
        assert_untouched(stranger);
    }
}

/// The commands wait for a process that is not a keeper, or report an error; they do not signal it.
#[test]
fn wait_on_a_forged_box_touches_no_process() {
    let tare = tare!();
    let pattern = Pattern::take(&tare);
    let stranger = stranger(&tare, "sh", "");
    for command in ENDLESS {
        let _listener = pattern.forge(Lie::Detached, stranger.pid());
        let waiting = tare.spawn_call(with_id(command, &pattern.id));
        for _ in 0..5 {
            tare.call(["ls", "-a"]).ok();
        }
        if !waiting.has_ended() {
            // The one signal that all of them end with, without a word to the box.
            waiting.signal(Signal::HUP);
        }
        waiting.wait();
        tare.call(["rm", "-f", "--all"]);
        assert!(!pattern.record.exists(), "{command:?}");
    }
    assert_untouched(stranger);
}

#[test]
fn records_of_an_earlier_boot_are_removed_without_signalling_any_process() {
    let tare = tare!();
    let pattern = Pattern::take(&tare);
    let name = tare.name("pattern");
    for lie in [Lie::Detached, Lie::Attached, Lie::WithoutCgroup] {
        let stranger = stranger(&tare, "sh", "");
        for command in [&["ls", "-a"][..], &["run", "--", "true"], &["rm", "-f", "--all"]] {
            pattern.forge(lie, stranger.pid());
            let mut lines = lines(&pattern.record);
            for (line, key) in lines.iter_mut().zip(["intent", "keeper"]) {
                line[key]["boot_id"] = json!("00000000-0000-0000-0000-000000000000");
            }
            write_lines(&pattern.record, &lines);
            tare.forge_name("pattern", &pattern.id);
            tare.call(command).ok();
            assert!(!pattern.record.exists(), "{lie:?}: {command:?}");
            assert!(!name.is_symlink(), "{lie:?}: {command:?}");
        }
        assert_untouched(stranger);
    }
}

/// Before Linux 6.9 a record has only pid and start time of the keeper, and another process can
/// have both.
#[test]
fn reused_pid_with_same_start_time_is_not_the_keeper() {
    let tare = tare!();
    let pattern = Pattern::take(&tare);
    let stranger = stranger(&tare, "sh", "");
    pattern.forge(Lie::WithoutInode, stranger.pid());
    assert_eq!(tare.state(&pattern.id), "exited");
    tare.call(["exec", &pattern.id, "--", "true"]).exited(125);
    tare.remove(&pattern.id);
    assert_untouched(stranger);
}

/// Runs the test in its own PID namespace, in which the pid of a dead keeper is reused at once.
const REUSE: &str = "import json, os, signal, subprocess, sys
def call(*words):
    return subprocess.run([os.environ['TARE'], *words], capture_output=True, text=True)
def ok(*words):
    result = call(*words)
    assert result.returncode == 0, (words, result)
    return result.stdout
box = ok('run', '-d', '--name', 'a', '--', 'sleep', '1000').strip()
held = json.loads(ok('inspect', box))[0]['holdings']
keeper, = [int(one['what'].split()[-1]) for one in held if one['kind'] == 'keeper']
os.kill(keeper, signal.SIGKILL)
os.waitpid(keeper, 0)
with open('/proc/sys/kernel/ns_last_pid', 'w') as last:
    last.write(str(keeper - 1))
stranger = subprocess.Popen(['sleep', '1000'])
assert stranger.pid == keeper, (stranger.pid, keeper)
for words in sys.argv[1:]:
    call(*words.replace('ID', box).split())
    assert stranger.poll() is None, words
    assert open('/proc/%d/stat' % keeper).read().split()[2] in 'RSD', words
for one in json.loads(ok('ls', '-a', '--json')):
    assert one['state'] == 'exited' and one['cause'] == 'keeper_lost', one
    ok('rm', box)
assert ok('ls', '-a', '-q') == ''
stranger.kill()
stranger.wait()
print('spared')";

#[test]
fn a_process_with_the_pid_of_a_dead_keeper_lives_on() {
    let tare = tare!();
    if !is_root() {
        skip!("only root can choose the next number of a process");
    }
    let mut orders = vec![vec!["ls -a"], vec!["exec ID true"], vec!["logs -f ID"]];
    orders.extend([vec!["wait ID"], vec!["stop ID"], vec!["kill ID"]]);
    orders.extend([vec!["pause ID"], vec!["kill -s TERM ID"], vec!["run true"]]);
    orders.extend([vec!["ls", "stop ID", "rm -f ID"], vec!["rm -f ID"]]);
    for order in orders {
        let mut command = tare.shell_command("exec unshare -p -f --mount-proc python3 \"$@\"");
        command.args(["sh", "-c", REUSE]).args(&order);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = tare.start_command(command).wait();
        assert_eq!(output.code, 0, "{order:?}: {output}");
        output.printed("spared\n");
    }
}

/// A wrong record about a live box neither ends the box nor changes which box it is.
#[test]
fn sweep_leaves_a_live_box_with_a_wrong_recorded_identity_alone() {
    let tare = tare!();
    let boot = json!({"boot_id": "00000000-0000-0000-0000-000000000000"});
    for wrong in [json!({"pidfd_inode": 1}), json!({"pid": 2_000_000}), boot] {
        let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
        let keeper = tare.keeper(&id);
        change(&tare.record(&id), "keeper", &wrong);
        for command in [&["ls", "-a"][..], &["run", "--", "true"], &["logs", "a"]] {
            tare.call(command);
        }
        tare.call(["run", "-d", "--name", "a", "--", "true"]).exited(125);
        assert_eq!(tare.keeper(&id), keeper, "{wrong}");
        assert_eq!(tare.workload(&id).len(), 1, "{wrong}");
        assert_eq!(tare.state(&id), "stuck", "{wrong}");
        tare.call(["rm", &id]).exited(1);
        tare.remove(&id);
        assert!(!Path::new(&format!("/proc/{}/root", keeper.pid)).exists());
    }
}

/// Many commands list and enter boxes at the same time.
#[test]
fn two_hundred_concurrent_commands_judge_no_live_box_dead() {
    let tare = tare!();
    let boxes: Vec<String> = (0..5)
        .map(|number| tare.detached(["--name", &format!("box-{number}"), "--", "sleep", "1000"]))
        .collect();
    // Except for its journal, to which its keeper writes each exec.
    let seen = |id: &String| {
        let mut files = tare.record_files(id);
        files.retain(|(path, _)| !path.ends_with("journal"));
        (tare.keeper(id), files)
    };
    let before: Vec<_> = boxes.iter().map(seen).collect();
    let start = |number: usize| {
        let id = boxes[number % boxes.len()].as_str();
        match number % 4 {
            0 => tare.spawn_call(["ls", "-a", "--json"]),
            1 => tare.spawn_call(["inspect", id]),
            2 => tare.spawn_call(["exec", id, "--", "true"]),
            _ => tare.spawn_call(["run", "--", "true"]),
        }
    };
    let calls: Vec<Running> = (0..200).map(start).collect();
    for (number, call) in calls.into_iter().enumerate() {
        let output = call.wait().ok().said_nothing();
        if number % 4 == 0 {
            let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let running = |one: &&Value| one["state"] == "running";
            let count = listed.as_array().expect("an array").iter().filter(running);
            assert!(count.count() >= boxes.len(), "{listed}");
        }
    }
    let after: Vec<_> = boxes.iter().map(seen).collect();
    assert_eq!(after, before);
    for id in &boxes {
        tare.remove(id);
    }
}

/// Twenty concurrent renames to one name: every link leads to its box.
#[test]
fn exactly_one_of_twenty_renames_gets_a_name_and_none_dangles() {
    let tare = tare!();
    let names = tare.state_root().join("names");
    for round in 0..5 {
        let boxes = ["a", "b"].map(|name| tare.detached(["--name", name, "--", "sleep", "1000"]));
        let rename = |number: usize| tare.spawn_call(["rename", &boxes[number % 2], "wanted"]);
        let calls: Vec<Running> = (0..20).map(rename).collect();
        let mut winners = [0, 0];
        for (number, call) in calls.into_iter().enumerate() {
            let output = call.wait();
            match output.code {
                0 => winners[number % 2] += 1,
                1 => drop(output.said(&["wanted", "taken"])),
                _ => panic!("{output}"),
            }
        }
        assert!(
            winners.contains(&0) && winners.iter().sum::<u32>() > 0,
            "round {round}: {winners:?}"
        );
        let winner = usize::from(winners[0] == 0);
        let mut links: Vec<(String, String)> = fs::read_dir(names.join("-"))
            .expect("names are there")
            .flatten()
            .map(|entry| (entry.path(), fs::read_link(entry.path()).expect("a link")))
            .map(|(path, target)| {
                let name = path.file_name().expect("a name").to_string_lossy();
                (name.into_owned(), target.to_string_lossy().into_owned())
            })
            .collect();
        links.sort();
        let mut expected = vec![
            (["b", "a"][winner].to_owned(), boxes[1 - winner].clone()),
            ("wanted".to_owned(), boxes[winner].clone()),
        ];
        expected.sort();
        assert_eq!(links, expected, "round {round}");
        tare.call(["rm", "-f", "--all"]).ok();
        eventually("all names are free", || {
            fs::read_dir(&names).expect("names are there").count() == 0
        });
    }
}

#[test]
fn a_symlink_to_another_record_is_not_a_box() {
    let tare = tare!();
    let id = tare.detached(["--name", "a", "--", "sleep", "1000"]);
    let keeper = tare.keeper(&id);
    let link = tare.state_root().join("boxes/aaaaaaaaaaaa");
    std::os::unix::fs::symlink(tare.record(&id), &link).expect("a free name");
    for command in [&["ls", "-a"][..], &["kill", "aaaaaaaaaaaa"], &["rm", "-f", "aaaaaaaaaaaa"]] {
        tare.call(command);
        assert_eq!(tare.keeper(&id), keeper, "{command:?}");
    }
    assert_eq!(tare.state(&id), "running");
    fs::remove_file(link).ok();
    tare.remove(&id);
}
