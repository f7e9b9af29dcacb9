//! Foreign objects that look like tare's survive everything that tare does to its own objects:
//! listing, cleanup, audit, removal of all boxes, and crashes of tare.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use tare_harness::skip::is_root;
use tare_harness::{Running, Tare, TemporaryDirectory, eventually, hierarchies, skip, tare};

/// An id without a box, and a malformed one.
const OTHER_ID: &str = "aaaabbbbcccc";
const NO_ID: &str = "notanid";
/// A tag of the right length that no state root has.
const OTHER_TAG: &str = "zzzzzzzz";
/// How often a creator is met that is done already.
const TRIES: usize = 50;

/// A process that calls itself a keeper.
struct Impostor(Child);

impl Impostor {
    fn start(tag: &str, id: &str) -> Self {
        let mut command = Command::new("sh");
        // It reads from us, so that it ends with us.
        command.arg0("tare-keeper");
        command.args(["-c", "read line; :", "tare-keeper", tag, id]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        Self(command.spawn().expect("a shell can be started"))
    }

    #[track_caller]
    fn lives(&mut self, after: &str) {
        let ended = self.0.try_wait().expect("it is our child");
        assert_eq!(ended, None, "after {after}: an impostor is dead");
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cgroup in every hierarchy with a box-like name and a process in it.
struct Cgroups {
    paths: Vec<PathBuf>,
    inside: Impostor,
}

impl Cgroups {
    fn make(tag: &str, id: &str) -> Self {
        let name = format!("tare-{tag}-{id}");
        let inside = Impostor::start(tag, id);
        let mut paths = Vec::new();
        for path in hierarchies().iter().map(|root| root.join(&name)) {
            if fs::create_dir(&path).is_err() {
                continue;
            }
            // Some v1 controllers accept no process before they are configured.
            let _ = fs::write(path.join("cgroup.procs"), inside.0.id().to_string());
            paths.push(path);
        }
        assert!(!paths.is_empty(), "no cgroup can be made");
        Self { paths, inside }
    }

    #[track_caller]
    fn are_there(&mut self, after: &str) {
        self.inside.lives(after);
        for path in &self.paths {
            assert!(path.exists(), "after {after}: {} is gone", path.display());
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let _ = self.inside.0.kill();
        let _ = self.inside.0.wait();
        for path in &self.paths {
            eventually("a cgroup without processes can be removed", || {
                fs::remove_dir(path).is_ok() || !path.exists()
            });
        }
    }
}

/// A file system where a box of another state root would have its scratch space.
struct Mount(PathBuf);

impl Mount {
    fn at(path: PathBuf) -> Self {
        fs::create_dir_all(&path).expect("the directory is ours");
        mount("tare", &path, "tmpfs", MountFlags::empty(), c"size=1m").expect("root may");
        fs::write(path.join("precious"), "precious\n").expect("it is ours");
        Self(path)
    }

    #[track_caller]
    fn is_there(&self, after: &str) {
        holds(&self.0.join("precious"), after);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[track_caller]
fn holds(precious: &Path, after: &str) {
    let content = fs::read_to_string(precious);
    let content = content.unwrap_or_else(|error| {
        panic!("after {after}: {}: {error}", precious.display());
    });
    assert_eq!(content, "precious\n", "after {after}: {}", precious.display());
}

/// Files and links in the state root that no tare has made.
struct Files {
    made: Vec<PathBuf>,
}

impl Files {
    fn beside(state_root: &Path) -> Self {
        let directories = [
            state_root.join("others").join(OTHER_ID),
            state_root.join("boxes").join(NO_ID),
            state_root.join(format!("boxes-{OTHER_ID}")),
        ];
        for directory in &directories {
            fs::create_dir_all(directory).expect("the state root is ours");
            fs::write(directory.join("precious"), "precious\n").expect("it is ours");
        }
        let link = state_root.join("names/-/elsewhere");
        symlink("../others", link).expect("the name is free");
        Self { made: directories.into() }
    }

    #[track_caller]
    fn are_there(&self, after: &str) {
        for directory in &self.made {
            holds(&directory.join("precious"), after);
        }
    }

    fn remove(self, state_root: &Path) {
        for directory in &self.made {
            fs::remove_dir_all(directory).expect("it is ours");
        }
        fs::remove_dir(state_root.join("others")).expect("it is empty");
        fs::remove_file(state_root.join("names/-/elsewhere")).expect("it is there");
    }
}

/// Two boxes of another state root: one runs, and one is paused.
struct Neighbours<'a> {
    tare: &'a Tare,
    root: PathBuf,
}

impl<'a> Neighbours<'a> {
    fn move_in(tare: &'a Tare, elsewhere: &TemporaryDirectory) -> Self {
        let root = elsewhere.join("neighbours");
        let mut private = fs::DirBuilder::new();
        private.mode(0o700).create(&root).expect("it is fresh");
        let neighbours = Self { tare, root };
        for name in ["runs", "paused"] {
            let call = ["run", "-d", "--name", name, "--", "sleep", "1000"];
            neighbours.call(&call).wait().ok();
        }
        neighbours.call(&["pause", "paused"]).wait().ok();
        neighbours
    }

    fn call(&self, args: &[&str]) -> Running {
        let mut command = self.tare.command(args);
        command.env("TARE_STATE_ROOT", &self.root);
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.tare.start_command(command)
    }

    #[track_caller]
    fn live(&self, after: &str) {
        self.call(&["exec", "runs", "--", "true"]).wait().ok();
        let output = self.call(&["ls", "-a"]).wait().ok().stdout_text();
        // By its name and by its state.
        let paused = output.lines().filter(|line| line.matches("paused").count() == 2);
        assert_eq!(paused.count(), 1, "after {after}: {output}");
        assert_eq!(output.lines().count(), 3, "after {after}: {output}");
    }
}

impl Drop for Neighbours<'_> {
    fn drop(&mut self) {
        let output = self.call(&["rm", "-f", "--all"]).wait();
        if !std::thread::panicking() {
            output.ok();
        }
        self.tare.reap_orphans();
    }
}

/// Commands on boxes; each of them also cleans up other boxes.
const CALLS: [&[&str]; 7] = [
    &["ls", "-a"],
    &["audit"],
    &["sweep"],
    &["run", "--", "true"],
    &["rm", "-f", "--all"],
    &["sweep"],
    &["ls", "-a"],
];

#[test]
fn foreign_objects_that_look_like_boxes_survive_every_command() {
    if !is_root() {
        skip!("only root can make cgroups and mounts");
    }
    let tare = tare!();
    let mine = tare.detached(["--name", "mine", "--", "sleep", "1000"]);
    let tag = tag_of(&tare, &mine);
    let elsewhere = TemporaryDirectory::new();
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = port.local_addr().expect("it is bound");
    let files = Files::beside(&tare.state_root());
    {
        let ids = [(&*tag, &*mine), (&tag, OTHER_ID), (OTHER_TAG, &mine)];
        let mut impostors = ids.map(|(tag, id)| Impostor::start(tag, id));
        let names = [(OTHER_TAG, OTHER_ID), (OTHER_TAG, &mine), (&tag, NO_ID)];
        let mut cgroups = names.map(|(tag, id)| Cgroups::make(tag, id));
        let below = format!("state/boxes/{mine}/scratch");
        let mount = Mount::at(elsewhere.join(below));
        let neighbours = Neighbours::move_in(&tare, &elsewhere);
        let mut check = |after: &str| {
            impostors.iter_mut().for_each(|one| one.lives(after));
            cgroups.iter_mut().for_each(|one| one.are_there(after));
            mount.is_there(after);
            files.are_there(after);
            neighbours.live(after);
            TcpStream::connect(address).expect("the foreign process listens");
        };
        for call in CALLS {
            // An audit reports the link in `names/` that leads elsewhere.
            let code = i32::from(call[0] == "audit");
            tare.call(call).exited(code);
            check(&format!("{call:?}"));
        }
        for whom in ["run", "run -d"] {
            crash(&tare, whom);
            check(&format!("a crash of {whom}"));
        }
    }
    files.remove(&tare.state_root());
    drop(elsewhere);
    tare.reap_orphans();
}

/// The tag in the cgroup names of this state root.
fn tag_of(tare: &Tare, id: &str) -> String {
    let cgroups = tare.cgroups_of(id);
    let name = cgroups.first().and_then(|path| path.file_name()?.to_str());
    let name = name.expect("the box has a cgroup");
    let tag = name.strip_prefix("tare-").and_then(|it| it.split_once('-'));
    tag.expect("it is called after its state root").0.to_owned()
}

/// A tare is killed while it makes a box; the next one cleans up.
#[track_caller]
fn crash(tare: &Tare, whom: &str) {
    let mut call: Vec<&str> = whom.split(' ').collect();
    call.extend(["--", "sleep", "1000"]);
    let before = tare.footprint().records;
    let creator = tare.spawn_call(call);
    eventually("it has begun", || tare.footprint().records != before);
    creator.signal(Signal::KILL);
    creator.wait();
    tare.call(["rm", "-f", "--all"]).ok();
    tare.reap_orphans();
}

/// Its creator stands still for as long as others look, tend and crash.
#[test]
fn a_starting_box_is_left_to_its_creator() {
    let tare = tare!();
    let (creator, id) = (0..TRIES)
        .find_map(|_| stopped_creator(&tare))
        .expect("one of them was met before it was done");
    for call in [&["ls", "-a"][..], &["audit"], &["sweep"], &["run", "--", "true"], &["ls"]] {
        tare.call(call).ok();
        assert_eq!(tare.state(&id), "starting", "after {call:?}");
    }
    creator.signal(Signal::CONT);
    creator.wait().ok().printed(&format!("{id}\n"));
    assert_eq!(tare.state(&id), "running");
    tare.exec(&id, ["true"]).ok();
    tare.remove(&id);
}

/// `None` when it was done before it was stopped.
#[track_caller]
fn stopped_creator(tare: &Tare) -> Option<(Running, String)> {
    let before = tare.footprint().records;
    let creator = tare.spawn_call(["run", "-d", "--", "sleep", "1000"]);
    let mut id = None;
    eventually("it has begun", || {
        let now = tare.footprint().records;
        id = now.difference(&before).next().cloned();
        id.is_some()
    });
    creator.signal(Signal::STOP);
    let id = id.expect("it has begun");
    if tare.listed(&id).is_some_and(|one| one["state"] == "starting") {
        Some((creator, id))
    } else {
        creator.signal(Signal::CONT);
        creator.wait().ok();
        tare.remove(&id);
        None
    }
}

/// No other command ends, resumes or removes the box.
#[test]
fn a_paused_box_stays_paused_through_other_commands_and_crashes() {
    if !is_root() {
        skip!("only root has cgroups to pause with");
    }
    let tare = tare!();
    let id = tare.idle_box();
    tare.call(["pause", &id]).ok();
    for call in [&["ls", "-a"][..], &["audit"], &["sweep"], &["ls"]] {
        tare.call(call).ok();
        assert_eq!(tare.state(&id), "paused", "after {call:?}");
    }
    let creator = tare.spawn_call(["run", "--", "sleep", "1000"]);
    eventually("it has begun", || tare.footprint().records.len() == 2);
    creator.signal(Signal::KILL);
    creator.wait();
    eventually("what it left is gone", || tare.list().len() == 1);
    assert_eq!(tare.state(&id), "paused");
    tare.call(["resume", &id]).ok();
    tare.exec(&id, ["true"]).ok();
    tare.reap_orphans();
    tare.remove(&id);
}
