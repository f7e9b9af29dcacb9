//! A state root with one box that no operation touches. Operations on the other box run one after
//! another, so that their steps can be counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Signal, pidfd_send_signal};
use serde_json::Value;
use tare_harness::scene::{Fate, pidfd};
use tare_harness::{Output, Process, Running, Scope, Tare, TemporaryDirectory};
use tare_harness::{box_processes, eventually, hierarchies, names_in};

use crate::crash_steps::operations::{CONTENT, HERE, NAME, OTHER_NAME, PARENT, Whom};

/// The names in a state root without boxes.
const FIXED_NAMES: [&str; 5] = ["boxes", "claims", "histories", "names", "parents"];

pub struct Lane<'a> {
    tare: &'a Tare,
    faulty: &'a Path,
    /// Of machines.
    kernels: Option<&'a Path>,
    home: TemporaryDirectory,
    /// Below which boxes are made.
    scope: Scope,
    bystander: Bystander,
}

/// A box that no operation may change.
struct Bystander {
    id: String,
    /// The prefix of the cgroups of all boxes in the state root.
    prefix: String,
    processes: BTreeSet<u32>,
    account: Vec<u8>,
}

impl<'a> Lane<'a> {
    pub fn new(tare: &'a Tare, faulty: &'a Path, kernels: Option<&'a Path>, number: usize) -> Self {
        let home = TemporaryDirectory::new();
        let mut private = DirBuilder::new();
        private.mode(0o700).create(home.join("state")).expect("it is fresh");
        fs::create_dir(home.join("volume")).expect("it is fresh");
        home.write("in", CONTENT);
        home.write("volume/in", CONTENT);
        let mut lane = Self {
            tare,
            faulty,
            kernels,
            home,
            scope: Scope::new(&format!("steps-{number}")).expect("root makes cgroups"),
            bystander: Bystander {
                id: String::new(),
                prefix: String::new(),
                processes: BTreeSet::new(),
                account: Vec::new(),
            },
        };
        // Without a name, so that the operations make and remove the directory of names.
        let call = ["run", "-d", "--", "sleep", "1000"];
        let output = lane.ordinary(call).ok().said_nothing();
        lane.bystander = lane.look_at_bystander(output.stdout_text().trim_end());
        lane
    }

    fn look_at_bystander(&self, id: &str) -> Bystander {
        let cgroups = self.tare.cgroups_of(id);
        let name = cgroups.first().and_then(|path| path.file_name()?.to_str());
        let name = name.expect("it has a cgroup");
        let processes = self.tare.processes_in(id).into_iter();
        Bystander {
            prefix: name.trim_end_matches(id).to_owned(),
            processes: processes.map(|process| process.pid).collect(),
            account: fs::read(self.record(id).join("record.json")).expect("it is on record"),
            id: id.to_owned(),
        }
    }

    /// Runs the ordinary binary.
    #[track_caller]
    pub fn ordinary<'s>(&self, args: impl IntoIterator<Item = &'s str>) -> Output {
        let args = args.into_iter().map(|arg| self.filled_in(arg));
        self.start(self.tare.command(args)).wait()
    }

    /// Runs the binary with faults, with the fault for a step of tare or of the keeper, and logs
    /// its steps.
    #[track_caller]
    pub fn faulty(&self, args: &[&str], whom: Whom, fault: Option<&str>) -> Output {
        let args = args.iter().map(|arg| self.filled_in(arg));
        let mut command = Command::new(self.faulty);
        command.args(args).env("TARE_FAULT_LOG", self.home.join("log"));
        let plan = match whom {
            Whom::Tare => "TARE_FAULT",
            Whom::Keeper => "TARE_FAULT_KEEPER",
        };
        if let Some(fault) = fault {
            command.env(plan, fault);
        }
        self.start(command).wait()
    }

    fn filled_in(&self, arg: &str) -> String {
        arg.replace(HERE, self.home.text()).replace(PARENT, &self.scope.name)
    }

    #[track_caller]
    pub fn start(&self, mut command: Command) -> Running {
        command.env("TARE_STATE_ROOT", self.home.join("state"));
        if let Some(kernels) = self.kernels {
            command.env("TARE_VM_DIR", kernels).env("TARE_VM_BOOT", "55s");
        }
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.tare.start_command(command)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        self.tare.command(args)
    }

    /// Clears the logs of steps. The keeper is another user, so it needs write access to its own
    /// log.
    pub fn note_anew(&self) {
        for name in ["log", "log.keeper"] {
            let path = self.home.write(name, "");
            fs::set_permissions(path, Permissions::from_mode(0o666)).expect("it is ours");
        }
    }

    /// Clears the log of the command that prepared the box.
    pub fn forget_own_steps(&self) {
        self.home.write("log", "");
    }

    /// Returns how many steps were logged, once the keeper is idle.
    #[track_caller]
    pub fn steps_of(&self, whom: Whom) -> usize {
        self.settle();
        self.noted(whom).lines().count()
    }

    pub fn name_of(&self, whom: Whom, step: usize) -> String {
        let noted = self.noted(whom);
        noted.lines().nth(step - 1).unwrap_or("none").to_owned()
    }

    fn noted(&self, whom: Whom) -> String {
        let name = match whom {
            Whom::Tare => "log",
            Whom::Keeper => "log.keeper",
        };
        fs::read_to_string(self.home.join(name)).expect("it was made before")
    }

    /// Waits until the keeper, if it exists, is idle: it answers first and records afterwards.
    #[track_caller]
    fn settle(&self) {
        let Some(id) = self.id_of_subject() else {
            return;
        };
        for process in self.processes_of(&id) {
            eventually("everyone in the box waits, or is gone", || {
                let stat = fs::read_to_string(format!("/proc/{process}/stat"));
                let stat = stat.unwrap_or_default();
                let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
                matches!(state, None | Some('S' | 'Z' | 'X'))
            });
        }
    }

    fn id_of_subject(&self) -> Option<String> {
        self.id_of(NAME).or_else(|| self.id_of(OTHER_NAME))
    }

    pub fn id_of(&self, name: &str) -> Option<String> {
        let link = fs::read_link(self.home.join("state/names/-").join(name)).ok()?;
        Some(link.to_str()?.to_owned())
    }

    fn record(&self, id: &str) -> PathBuf {
        self.home.join("state/boxes").join(id)
    }

    fn processes_of(&self, id: &str) -> BTreeSet<u32> {
        let inside = self.inside().into_iter();
        let alive = inside.filter(|(of, process)| of == id && !process.is_zombie);
        alive.map(|(_, process)| process.pid).collect()
    }

    /// The live processes of the box that the operation works on.
    pub fn processes_of_subject(&self) -> BTreeSet<u32> {
        let id = self.id_of_subject();
        id.map(|id| self.processes_of(&id)).unwrap_or_default()
    }

    /// Kills the keeper, and returns when all processes of the box are dead.
    #[track_caller]
    pub fn kill_keeper(&self) {
        let id = self.id_of_subject().expect("it was just made");
        let keeper = pidfd(self.tare.keeper(&id).pid).expect("the box is alive");
        pidfd_send_signal(&keeper, Signal::KILL).expect("it is alive");
        eventually("the box is dead", || self.processes_of(&id).is_empty());
        self.tare.reap_orphans();
    }

    pub fn lose_record(&self) {
        let id = self.id_of_subject().expect("it was just made");
        fs::remove_dir_all(self.record(&id)).expect("it is ours");
    }

    /// The file that was copied out of the box, if there is one.
    pub fn copied(&self) -> Option<String> {
        fs::read_to_string(self.home.join("out")).ok()
    }

    fn listed(&self) -> BTreeMap<String, Value> {
        let output = self.ordinary(["ls", "-a", "--json"]).ok().said_nothing();
        let boxes: Vec<Value> = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output}"));
        let id = |one: &Value| one["id"].as_str().expect("an id").to_owned();
        boxes.into_iter().map(|one| (id(&one), one)).collect()
    }

    /// Checks that after one ordinary command every object belongs to a listed box, and that the
    /// bystander is unchanged. Returns the state of the other box.
    #[track_caller]
    pub fn check(&self) -> Fate {
        let first = self.listed();
        self.holds_only(&first);
        let listed = self.settled();
        self.holds_only(&listed);
        self.bystander_is_whole(&listed);
        self.ordinary(["audit"]).ok().said_nothing();
        let subject = listed.values().find(|one| one["id"] != self.bystander.id);
        let fate = Fate::of(subject);
        assert!(listed.len() <= 2, "{listed:?}");
        fate
    }

    /// Checks that the box still runs commands.
    #[track_caller]
    pub fn answers(&self) {
        let id = self.id_of_subject().expect("it is listed");
        self.ordinary(["exec", &id, "--", "true"]).ok().said_nothing();
    }

    #[track_caller]
    fn holds_only(&self, listed: &BTreeMap<String, Value>) {
        let ids: BTreeSet<String> = listed.keys().cloned().collect();
        assert_eq!(self.entries("boxes"), ids, "records and boxes");
        let names = listed.values().filter_map(|one| one["name"].as_str());
        let names: BTreeSet<String> = names.map(str::to_owned).collect();
        assert_eq!(names_in(&self.home.join("state")), names, "names and boxes");
        let fixed: BTreeSet<String> = FIXED_NAMES.map(str::to_owned).into();
        let others: Vec<_> = self.entries("").difference(&fixed).cloned().collect();
        assert!(others.is_empty(), "in the state root: {others:?}");
        let parents = self.entries("parents").len();
        assert!(parents <= self.scope.directories.len(), "{parents} parents");
        let living = listed.values().filter(|one| one["state"] != "exited");
        let living: BTreeSet<&str> = living.filter_map(|one| one["id"].as_str()).collect();
        let cgroups = self.cgroups();
        let left: Vec<_> = cgroups.iter().filter(|(id, _)| !living.contains(&**id)).collect();
        assert!(left.is_empty(), "cgroups: {left:?}");
        let is_of_gone = |path: &str| ids.iter().all(|id| !path.contains(id.as_str()));
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        let ours = mounts.lines().filter(|line| line.contains(self.home.text()));
        let left: Vec<_> = ours.filter(|line| is_of_gone(line)).collect();
        assert!(left.is_empty(), "mounts: {left:?}");
    }

    fn entries(&self, directory: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.home.join("state").join(directory));
        let names = entries.into_iter().flatten().flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// The cgroups of this state root, with the ids of their boxes.
    fn cgroups(&self) -> Vec<(String, PathBuf)> {
        let parents = hierarchies().into_iter().chain(self.scope.directories.clone());
        let entries = parents.flat_map(fs::read_dir).flatten().flatten();
        let id = |path: &Path| {
            let name = path.file_name()?.to_str()?;
            Some(name.strip_prefix(&self.bystander.prefix)?.to_owned())
        };
        let found = entries.map(|entry| entry.path());
        found.filter_map(|path| Some((id(&path)?, path))).collect()
    }

    /// Waits until no box is starting or ending, and returns the boxes. Each live box then has its
    /// keeper and one process, and the only zombies are children of the test.
    #[track_caller]
    fn settled(&self) -> BTreeMap<String, Value> {
        let mut listed = BTreeMap::new();
        eventually("only those in boxes that run are alive", || {
            listed = self.listed();
            let states = ["running", "paused", "exited"];
            let is_settled = |one: &Value| states.iter().any(|state| one["state"] == *state);
            let living = listed.values().filter(|one| one["state"] != "exited").count();
            let inside = self.inside();
            let alive = inside.iter().filter(|(_, process)| !process.is_zombie).count();
            let own = std::process::id();
            let mut zombies = inside.iter().filter(|(_, it)| it.is_zombie && it.parent != own);
            listed.values().all(is_settled) && alive == 2 * living && zombies.next().is_none()
        });
        listed
    }

    /// The processes of boxes of this state root, by box. A process belongs to a box by its cgroup
    /// or, without cgroups, by the PID namespace of the keeper.
    fn inside(&self) -> Vec<(String, Process)> {
        let all = box_processes();
        let kept: BTreeMap<_, _> = all.iter().filter_map(|it| self.namespace_of(it)).collect();
        let id = |process: &Process| {
            let mut parts = process.cgroups.iter().flat_map(|path| path.split('/'));
            let by_cgroup = parts.find_map(|part| part.strip_prefix(&self.bystander.prefix));
            let namespace = process.pid_namespace.as_ref();
            let by_namespace = namespace.and_then(|namespace| kept.get(namespace).cloned());
            by_cgroup.map(str::to_owned).or(by_namespace)
        };
        let inside = all.iter().filter_map(|it| Some((id(it)?, it.clone())));
        inside.collect()
    }

    /// The PID namespace of a keeper of this state root and the id of its box (`tare-keeper TAG
    /// ID`).
    fn namespace_of(&self, process: &Process) -> Option<(String, String)> {
        let line = fs::read(format!("/proc/{}/cmdline", process.pid)).ok()?;
        let line = String::from_utf8(line).ok()?;
        let arguments: Vec<&str> = line.trim_end_matches('\0').split('\0').collect();
        let [.., tag, id] = *arguments else {
            return None;
        };
        let is_ours = self.bystander.prefix == format!("tare-{tag}-");
        is_ours.then(|| Some((process.pid_namespace.clone()?, id.to_owned())))?
    }

    #[track_caller]
    fn bystander_is_whole(&self, listed: &BTreeMap<String, Value>) {
        let Bystander { id, processes, account, .. } = &self.bystander;
        let one = listed.get(id).expect("the bystander is listed");
        assert_eq!(one["state"], "running", "the bystander");
        assert_eq!(&self.processes_of(id), processes, "the bystander's processes");
        let now = fs::read(self.record(id).join("record.json")).expect("it is on record");
        assert!(now == *account, "the bystander's record has changed");
    }

    /// Removes the other box and checks that nothing of it is left.
    #[track_caller]
    pub fn clear(&self) {
        for id in self.listed().into_keys() {
            if id != self.bystander.id {
                self.ordinary(["rm", "-f", &id]).ok();
            }
        }
        self.tare.reap_orphans();
        let listed = self.settled();
        self.holds_only(&listed);
        assert_eq!(listed.len(), 1, "{listed:?}");
        let _ = fs::remove_file(self.home.join("out"));
    }

    /// Removes the bystander too and checks that nothing is left.
    #[track_caller]
    pub fn finish(self) {
        self.ordinary(["rm", "-f", "--all"]).ok();
        let listed = self.listed();
        assert!(listed.is_empty(), "{listed:?}");
        self.holds_only(&listed);
        self.ordinary(["sweep"]).ok();
        assert_eq!(self.entries("parents").len(), 0, "no box is below a parent");
        self.tare.reap_orphans();
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Best effort, and bounded: a tare that hangs must not hang the rest.
            let mut command = Command::new("timeout");
            command.args(["--kill-after=1", "30"]).arg(self.tare.program());
            command.args(["rm", "-f", "--all"]);
            command.env("TARE_STATE_ROOT", self.home.join("state"));
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}
