//! Detached boxes in tests: creates, inspects and removes them from outside.
//!
//! A test removes its boxes itself. If a box is still listed at the end, the test fails and names
//! it. What a box consists of is read from the kernel, by the cgroups that have the box's id in
//! their name.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::running::{Output, Running, with_pipes};
use crate::snapshot::cgroup::hierarchies;
use crate::snapshot::process::{Process, box_processes};
use crate::tare::Tare;
use crate::terminal::{TerminalSize, UnderTerminal};
use crate::wait::eventually;

/// Twelve characters of the base 32 alphabet of RFC 4648, in lower case.
const ID_LENGTH: usize = 12;

impl Tare {
    /// `tare run -d ARGS`: the id that it printed.
    #[track_caller]
    pub fn detached<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> String {
        let mut command = self.command(["run", "-d"]);
        command.args(args);
        self.detached_by(command)
    }

    /// Runs a command that makes a detached box: the id that it printed.
    #[track_caller]
    pub fn detached_by(&self, command: Command) -> String {
        self.expect_lasting_boxes();
        let output = Running::start(with_pipes(command, Stdio::null())).wait().ok().said_nothing();
        id_of(&output)
    }

    /// Starts a box that only waits.
    #[track_caller]
    pub fn idle_box(&self) -> String {
        self.detached(["--", "sleep", "1000"])
    }

    /// Starts `tare ARGS` with pipes, and does not wait. It may create detached boxes.
    #[track_caller]
    pub fn spawn_call<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Running {
        self.expect_lasting_boxes();
        Running::start(with_pipes(self.command(args), Stdio::piped()))
    }

    /// Starts `sh -c SCRIPT` like [`Self::shell`], and does not wait. It may create detached boxes.
    #[track_caller]
    pub fn spawn_script(&self, script: &str) -> Running {
        self.expect_lasting_boxes();
        Running::start(with_pipes(self.shell_command(script), Stdio::piped()))
    }

    /// `tare ARGS`, with these bytes as standard input.
    #[track_caller]
    pub fn call_with_stdin<A: AsRef<OsStr>>(
        &self,
        bytes: impl Into<Vec<u8>>,
        args: impl IntoIterator<Item = A>,
    ) -> Output {
        let mut running = self.spawn_call(args);
        running.feed(bytes.into());
        running.wait()
    }

    /// `tare ARGS` under a terminal.
    #[track_caller]
    pub fn call_under_terminal<A: AsRef<OsStr>>(
        &self,
        size: TerminalSize,
        args: impl IntoIterator<Item = A>,
    ) -> UnderTerminal {
        self.expect_lasting_boxes();
        UnderTerminal::start(&self.command(args), size)
    }

    /// `tare exec BOX -- ARGS`, with an empty standard input.
    #[track_caller]
    pub fn exec<A: AsRef<OsStr>>(&self, of: &str, args: impl IntoIterator<Item = A>) -> Output {
        let mut command = self.command(["exec", of, "--"]);
        command.args(args);
        Running::start(with_pipes(command, Stdio::null())).wait()
    }

    /// Runs `tare ARGS` and parses its output, which must be JSON.
    #[track_caller]
    pub fn json<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Value {
        self.expect_lasting_boxes();
        let output = self.call(args).ok().said_nothing();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    /// The ids of all boxes that do not wait in a pool of a server, ended ones too. A box that is being
    /// made may be for a pool, so this waits until none is.
    #[track_caller]
    pub fn boxes_of_calls(&self) -> Vec<String> {
        let mut boxes = Vec::new();
        eventually("no box is being made", || {
            boxes = self.list();
            boxes.iter().all(|it| it["state"] != "starting")
        });
        let of_calls = boxes.iter().filter(|it| it["state"] != "warm");
        of_calls.map(|it| it["id"].as_str().expect("an id").to_owned()).collect()
    }

    /// Every box that tare knows, ended ones too.
    #[track_caller]
    pub fn list(&self) -> Vec<Value> {
        let listed = self.json(["ls", "-a", "--json"]);
        let boxes = listed.as_array();
        boxes.unwrap_or_else(|| panic!("not an array: {listed}")).clone()
    }

    /// The entry of `tare ls` for one box; `None` if it is not listed.
    #[track_caller]
    pub fn listed(&self, id: &str) -> Option<Value> {
        self.list().into_iter().find(|one| one["id"] == id)
    }

    /// The entry of `tare ls -a` for a box that must be listed.
    #[track_caller]
    pub fn look(&self, id: &str) -> Value {
        self.listed(id).unwrap_or_else(|| panic!("box {id} is not listed"))
    }

    #[track_caller]
    pub fn state(&self, id: &str) -> String {
        let state = &self.look(id)["state"];
        state.as_str().expect("a state is a word").to_owned()
    }

    /// Waits until the box is listed as ended, and returns its entry.
    #[track_caller]
    pub fn ended(&self, id: &str) -> Value {
        eventually(&format!("box {id} has ended"), || self.state(id) == "exited");
        self.look(id)
    }

    /// Waits until this text is in the log of the box.
    #[track_caller]
    pub fn logged(&self, id: &str, text: &str) {
        let mut log = String::new();
        let mut has_come = || {
            let output = self.call(["logs", id]).ok();
            log = output.stdout_text() + &output.stderr_text();
            log.contains(text)
        };
        // Ask once more, for the message.
        if !crate::wait::poll(crate::wait::PATIENCE, &mut has_come) {
            panic!("{text:?} is not in the log of {id}: {log:?}");
        }
    }

    /// Runs `tare rm -f BOX`, and checks that nothing of the box is left.
    #[track_caller]
    pub fn remove(&self, id: &str) {
        self.call(["rm", "-f", id]).ok().printed(&format!("{id}\n")).said_nothing();
        self.assert_gone(id);
    }

    /// Checks that the box has no process, no cgroup and no record now.
    #[track_caller]
    pub fn assert_gone(&self, id: &str) {
        let processes = self.processes_in(id);
        assert!(processes.is_empty(), "box {id} has {processes:?}");
        let cgroups = self.cgroups_of(id);
        assert!(cgroups.is_empty(), "box {id} has {cgroups:?}");
        let record = self.record(id);
        assert!(!record.exists(), "{} is there", record.display());
    }

    /// The directory of the box's record.
    pub fn record(&self, id: &str) -> PathBuf {
        self.state_root().join("boxes").join(id)
    }

    /// Every regular file of the record, by name.
    pub fn record_files(&self, id: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = fs::read_dir(self.record(id)).expect("the box has a record");
        let paths = entries.flatten().map(|entry| entry.path());
        let is_file = |path: &PathBuf| path.symlink_metadata().is_ok_and(|it| it.is_file());
        let mut files: Vec<_> = paths
            .filter(is_file)
            .map(|path| (path.clone(), fs::read(&path).expect("the record is ours")))
            .collect();
        files.sort();
        files
    }

    /// The live processes of the box, including its keeper.
    pub fn processes_in(&self, id: &str) -> Vec<Process> {
        let is_inside = |process: &Process| {
            let mut parts = process.cgroups.iter().flat_map(|path| path.split('/'));
            !process.is_zombie && parts.any(|part| is_cgroup_of(part, id))
        };
        box_processes().into_iter().filter(is_inside).collect()
    }

    /// The live processes of the box, without its keeper.
    pub fn workload(&self, id: &str) -> Vec<Process> {
        let mut processes = self.processes_in(id);
        processes.retain(|process| !is_first(process));
        processes
    }

    /// The first process of the box.
    #[track_caller]
    pub fn keeper(&self, id: &str) -> Process {
        let mut processes = self.processes_in(id).into_iter();
        processes.find(is_first).unwrap_or_else(|| panic!("box {id} has no keeper"))
    }

    /// The box's directories in all cgroup hierarchies.
    pub fn cgroups_of(&self, id: &str) -> Vec<PathBuf> {
        let roots = hierarchies().into_iter().filter_map(|root| fs::read_dir(root).ok());
        let is_of = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| is_cgroup_of(name, id))
        };
        let paths = roots.flat_map(|entries| entries.flatten().map(|entry| entry.path()));
        paths.filter(is_of).collect()
    }

    #[track_caller]
    pub(crate) fn assert_no_box_is_listed(&self) {
        let left: Vec<String> = self.list().iter().map(sentence).collect();
        assert!(left.is_empty(), "boxes are left:\n{}", left.join("\n"));
    }
}

/// Checks that `run -d` printed an id and nothing else, and returns it.
#[track_caller]
fn id_of(output: &Output) -> String {
    let text = output.stdout_text();
    let id = text.strip_suffix('\n').unwrap_or_default();
    let valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
    assert!(id.len() == ID_LENGTH && id.bytes().all(valid), "not an id: {output}");
    id.to_owned()
}

/// Whether a name has the form of a box's cgroup directory: `tare-<tag>-<id>`.
fn is_cgroup_of(name: &str, id: &str) -> bool {
    let tagged = name.strip_prefix("tare-");
    tagged.and_then(|rest| rest.split_once('-')).is_some_and(|(_, last)| last == id)
}

/// Whether it is the first process of a PID namespace: its last number is 1
/// (`NSpid` of proc_pid_status(5)).
fn is_first(process: &Process) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| {
        let numbers: Vec<&str> = numbers.split_whitespace().collect();
        numbers.len() > 1 && numbers.last() == Some(&"1")
    })
}

fn sentence(of: &Value) -> String {
    format!("{} ({}), {}: {}", of["id"], of["name"], of["state"], of["command"])
}
