//! Records that are truncated, garbled, missing, foreign, of another version, links, or on a full
//! or read-only disk. Whatever is wrong with one, every other box is listed and cleaned up as
//! before, and `rm -f` ends the box by its id and leaves nothing.
//!
//! `identity.rs` tests that no damage causes a signal to a foreign process.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use serde_json::{Value, json};
use tare_harness::random::{Random, fresh_seed, number_in};
use tare_harness::skip::is_root;
use tare_harness::{Tare, TemporaryDirectory, eventually, skip, tare};

/// The kind of box whose record is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Live,
    Ended,
    /// Its creator wrote only the intent.
    HalfMade,
}

const KINDS: [Kind; 3] = [Kind::Live, Kind::Ended, Kind::HalfMade];

/// Twelve letters of an id that no box has.
const HALF_MADE: &str = "aaaabbbbcccc";
/// A foreign user.
const FOREIGN_USER: u32 = 65533;
/// Into how many lengths a file is cut.
const CUTS: usize = 24;
/// How many garbled files there are.
const GARBLED: usize = 12;

/// Boxes beside the damaged one. They must not change.
struct Scene {
    /// The directory to which files are moved.
    elsewhere: TemporaryDirectory,
    live: String,
    ended: String,
    listed: Vec<Value>,
    /// The disk of the state root, if the test has a special one.
    disk: Option<Disk>,
    // Last: all else is gone when it looks at the host.
    tare: Tare,
}

impl Scene {
    fn new(tare: Tare, disk: Option<Disk>) -> Self {
        let live = tare.detached(["--name", "live", "--", "sleep", "1000"]);
        let ended = tare.detached(["--name", "ended", "--", "sh", "-c", "exit 7"]);
        tare.ended(&ended);
        let listed = Self::others(&tare, &[&live, &ended]);
        Self { elsewhere: TemporaryDirectory::new(), live, ended, listed, disk, tare }
    }

    /// The listed fields of boxes, without those that change by themselves.
    #[track_caller]
    fn others(tare: &Tare, ids: &[&String]) -> Vec<Value> {
        let mut listed = tare.list();
        listed.retain(|one| ids.iter().any(|id| one["id"] == **id));
        let kept = ["id", "name", "state", "command", "exit_code", "cause"];
        let said = |one: &Value| kept.iter().map(|key| one[*key].clone()).collect();
        listed.iter().map(said).collect()
    }

    #[track_caller]
    fn make(&self, kind: Kind) -> String {
        match kind {
            Kind::Live => self.tare.detached(["--name", "damaged", "--", "sleep", "1000"]),
            Kind::Ended => {
                let id = self.tare.detached(["--name", "damaged", "--", "true"]);
                self.tare.ended(&id);
                id
            }
            Kind::HalfMade => {
                let record = self.tare.record(HALF_MADE);
                fs::create_dir(&record).expect("no box has this id");
                let other = self.tare.record(&self.live).join("record.json");
                let text = fs::read_to_string(other).expect("it is on record");
                let intent = text.lines().next().expect("an intent is a line");
                let intent = intent.replace("\"live\"", "\"damaged\"");
                fs::write(record.join("record.json"), intent + "\n").expect("it is ours");
                self.tare.forge_name("damaged", HALF_MADE);
                HALF_MADE.to_owned()
            }
        }
    }

    /// Checks that every other box is listed, usable and cleaned up, and that `rm -f` ends the
    /// damaged one by its id.
    #[track_caller]
    fn bears(&self, what: &str, id: &str) {
        let tare = &self.tare;
        self.lists_others(what);
        tare.exec(&self.live, ["true"]).ok();
        self.looks_after_others(what);
        for call in [&["audit"][..], &["inspect", id], &["explain", id], &["logs", id]] {
            let output = tare.call(call);
            assert!(output.code <= 2, "{what}: {output}");
            assert!(!output.stderr_text().contains("panicked"), "{what}: {output}");
        }
        self.ends(what, id);
        tare.call(["audit"]).ok();
    }

    #[track_caller]
    fn lists_others(&self, what: &str) {
        let others = Self::others(&self.tare, &[&self.live, &self.ended]);
        assert_eq!(others, self.listed, "{what}");
    }

    /// An empty record belongs to a box that was never created. It may be gone by now.
    #[track_caller]
    fn ends(&self, what: &str, id: &str) {
        let output = self.tare.call(["rm", "-f", id]);
        let is_gone = output.code == 1 && output.stderr_text().contains("no box");
        assert!(output.code == 0 || is_gone, "{what}: {output}");
        self.tare.assert_gone(id);
        let name = self.tare.name("damaged");
        assert!(!name.is_symlink(), "{what}: its name is left");
    }

    /// Checks that the next command cleans up a box that ended without any tare process.
    #[track_caller]
    fn looks_after_others(&self, what: &str) {
        let id = self.tare.detached(["--rm", "--", "true"]);
        eventually(&format!("{what}: what has ended is removed"), || {
            self.tare.listed(&id).is_none()
        });
        self.tare.assert_gone(&id);
    }

    #[track_caller]
    fn end(self) {
        self.tare.call(["rm", "-f", "--all"]).ok().said_nothing();
        let left = self.tare.footprint();
        assert!(left.records.is_empty(), "{left:?}");
        assert!(left.names.is_empty(), "{left:?}");
    }
}

/// Each kind of box with each of these done to its record.
#[track_caller]
fn each<D>(damages: &[D], what: impl Fn(&D) -> String, damage: impl Fn(&Scene, &Path, &D)) {
    let scene = Scene::new(tare!(), None);
    for kind in KINDS {
        for one in damages {
            let id = scene.make(kind);
            damage(&scene, &scene.tare.record(&id), one);
            scene.bears(&format!("{kind:?}, {}", what(one)), &id);
        }
    }
    scene.end();
}

#[test]
fn a_record_truncated_anywhere_harms_no_other_box() {
    let cuts: Vec<usize> = (0..CUTS).collect();
    let what = |cut: &usize| format!("cut {cut} of {CUTS}");
    each(&cuts, what, |_, record, cut| {
        for name in ["record.json", "journal"] {
            let path = record.join(name);
            let Ok(content) = fs::read(&path) else {
                continue;
            };
            // The last byte is the end of a line: without it, it may be half of one.
            let length = content.len() * cut / CUTS + cut % 2;
            fs::write(&path, &content[..length.min(content.len())]).expect("it is ours");
        }
    });
}

#[test]
fn a_garbled_record_harms_no_other_box() {
    let seed = number_in("TARE_DAMAGE_SEED").unwrap_or_else(fresh_seed);
    let mut random = Random::seeded(seed);
    let seeds: Vec<u64> = (0..GARBLED).map(|_| random.number()).collect();
    let what = |_: &u64| format!("the same again: TARE_DAMAGE_SEED={seed}");
    each(&seeds, what, |_, record, seed| {
        let mut random = Random::seeded(*seed);
        for name in ["record.json", "journal", "log.0", "log.1"] {
            let path = record.join(name);
            let Ok(mut content) = fs::read(&path) else {
                continue;
            };
            for _ in 0..1 + random.below(20) {
                if content.is_empty() {
                    break;
                }
                let at = random.below(content.len() as u64) as usize;
                // As what was never written, after a power cut.
                content[at] = 0;
            }
            fs::write(&path, content).expect("it is ours");
        }
    });
}

/// The damaged record states another name or none.
#[test]
fn a_name_that_its_record_no_longer_states_is_free_again() {
    let scene = Scene::new(tare!(), None);
    for (from, to) in [("\"damaged\"", "\"dameged\""), ("\"name\"", "\"neme\"")] {
        let id = scene.make(Kind::Ended);
        let path = scene.tare.record(&id).join("record.json");
        let text = fs::read_to_string(&path).expect("it is ours");
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, to)).expect("it is ours");
        scene.tare.remove(&id);
        // No other box may have the name.
        let next = scene.make(Kind::Ended);
        scene.ends(from, &next);
    }
    scene.end();
}

const FILES: [&str; 4] = ["record.json", "journal", "control", "log.0"];

#[test]
fn a_record_with_empty_or_missing_files_harms_no_other_box() {
    type Damage = (&'static [&'static str], fn(&Path));
    let empty = |path: &Path| {
        if path.is_file() {
            fs::write(path, "").expect("it is ours");
        }
    };
    let remove = |path: &Path| drop(fs::remove_file(path));
    let damages: [Damage; 8] = [
        (&["record.json"], empty),
        (&["journal"], empty),
        (&["record.json", "journal"], empty),
        (&["record.json"], remove),
        (&["journal"], remove),
        (&["control"], remove),
        (&["record.json", "journal"], remove),
        (&FILES, remove),
    ];
    let what = |(names, _): &Damage| format!("{names:?}");
    each(&damages, what, |_, record, (names, damage)| {
        names.iter().for_each(|name| damage(&record.join(name)));
    });
}

#[test]
fn a_record_with_special_files_harms_no_other_box() {
    #[derive(Debug, Clone, Copy)]
    enum Odd {
        Link,
        Dangling,
        Directory,
        Fifo,
    }
    let odds = [Odd::Link, Odd::Dangling, Odd::Directory, Odd::Fifo];
    let damages: Vec<(&str, Odd)> = ["record.json", "journal"]
        .into_iter()
        .flat_map(|name| odds.map(|odd| (name, odd)))
        .collect();
    let what = |damage: &(&str, Odd)| format!("{damage:?}");
    each(&damages, what, |scene, record, (name, odd)| {
        let path = record.join(name);
        let content = fs::read(&path).unwrap_or_default();
        let _ = fs::remove_file(&path);
        match odd {
            Odd::Link => {
                // What it leads to says all that it should.
                let target = scene.elsewhere.write("linked", content);
                symlink(target, &path).expect("it was removed");
            }
            Odd::Dangling => symlink("/nowhere", &path).expect("it was removed"),
            Odd::Directory => fs::create_dir(&path).expect("it was removed"),
            Odd::Fifo => {
                let mode = Mode::from_raw_mode(0o600);
                mknodat(CWD, &path, FileType::Fifo, mode, 0).expect("it was removed");
            }
        }
    });
}

#[test]
fn a_record_that_is_not_a_directory_harms_no_other_box() {
    let kept = |scene: &Scene| scene.elsewhere.join("kept");
    let what = |damage: &&str| (*damage).to_owned();
    each(&["link", "dangling", "file"], what, |scene, record, damage| {
        let _ = fs::remove_dir_all(kept(scene));
        fs::create_dir(kept(scene)).expect("it was removed");
        move_into(record, &kept(scene));
        match *damage {
            "link" => symlink(kept(scene), record).expect("it was moved"),
            "dangling" => symlink("/nowhere", record).expect("it was moved"),
            _ => fs::write(record, "not a directory\n").expect("it was moved"),
        }
    });
}

/// The temporary directory need not be on the same file system.
fn move_into(record: &Path, elsewhere: &Path) {
    for entry in fs::read_dir(record).expect("it is a directory").flatten() {
        if entry.path().is_file() {
            fs::copy(entry.path(), elsewhere.join(entry.file_name())).expect("it is ours");
        }
    }
    fs::remove_dir_all(record).expect("it is ours");
}

#[test]
fn a_record_of_another_version_of_tare_harms_no_other_box() {
    let damages = ["version", "all", "old"];
    let what = |damage: &&str| (*damage).to_owned();
    each(&damages, what, |_, record, damage| {
        let path = record.join("record.json");
        let text = fs::read_to_string(&path).expect("it is ours");
        let mut lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        lines[0]["intent"]["version"] = json!(if *damage == "old" { 1 } else { 99 });
        if *damage == "all" {
            lines[0]["intent"]["spec"] = json!({ "something": "else" });
            lines.truncate(1);
        }
        let text: Vec<String> = lines.iter().map(Value::to_string).collect();
        fs::write(&path, text.join("\n") + "\n").expect("it is ours");
    });
}

#[test]
fn a_record_of_another_user_harms_no_other_box() {
    if !is_root() {
        skip!("only root can give files away");
    }
    let damages = ["", "record.json", "journal"];
    let what = |damage: &&str| format!("{damage:?}");
    each(&damages, what, |_, record, damage| {
        let path = if damage.is_empty() { record.to_owned() } else { record.join(damage) };
        if path.exists() {
            chown(path, Some(FOREIGN_USER), Some(FOREIGN_USER)).expect("root may");
        }
    });
}

/// A state root on a disk of its own.
struct Disk {
    root: PathBuf,
}

impl Disk {
    fn under(tare: &Tare) -> Option<Self> {
        let root = tare.state_root();
        let flags = MountFlags::empty();
        mount("small", &root, "tmpfs", flags, c"size=1m,mode=700").ok()?;
        Some(Self { root })
    }

    /// Makes the disk read-only until the value is dropped. Processes with open files, such as
    /// keepers, can still write, as on a disk that failed.
    fn made_read_only(&self) -> Self {
        mount_bind(&self.root, &self.root).expect("root may");
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        mount_remount(&self.root, flags, c"").expect("root may");
        Self { root: self.root.clone() }
    }

    /// Fills the disk, and returns the file to remove.
    fn fill(&self) -> PathBuf {
        let free = rustix::fs::statvfs(&self.root).expect("it is mounted");
        let bytes = usize::try_from(free.f_bavail * free.f_bsize).expect("it is small");
        let filling = self.root.join("filling");
        fs::write(&filling, vec![0; bytes]).expect("there is room");
        filling
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.root, UnmountFlags::DETACH);
    }
}

#[test]
fn damaged_records_on_a_full_disk_harm_no_other_box() {
    on_its_own_disk(|scene, disk, id, what| {
        let filling = disk.fill();
        scene.lists_others(what);
        scene.ends(what, id);
        fs::remove_file(filling).expect("it is ours");
    });
}

/// Nothing can be removed from the disk. Commands do what they can and report the rest.
#[test]
fn boxes_on_a_read_only_disk_are_listed_ended_and_removed_later() {
    on_its_own_disk(|scene, disk, id, what| {
        let read_only = disk.made_read_only();
        scene.lists_others(what);
        let output = scene.tare.call(["rm", "-f", id]);
        output.exited(1).said(&["tare: ", "Read-only"]);
        let processes = scene.tare.processes_in(id);
        assert!(processes.is_empty(), "{what}: {processes:?}");
        assert!(scene.tare.cgroups_of(id).is_empty(), "{what}");
        drop(read_only);
        scene.bears(what, id);
    });
}

/// Each kind of box, on a disk of its own, with a record that is damaged.
#[track_caller]
fn on_its_own_disk(damage: impl Fn(&Scene, &Disk, &str, &str)) {
    let tare = tare!();
    let Some(disk) = Disk::under(&tare) else {
        skip!("only root can mount a small disk");
    };
    let scene = Scene::new(tare, Some(disk));
    for kind in KINDS {
        let id = scene.make(kind);
        fs::write(scene.tare.record(&id).join("record.json"), "{").expect("it is ours");
        let disk = scene.disk.as_ref().expect("it was just made");
        damage(&scene, disk, &id, &format!("{kind:?}"));
    }
    scene.end();
}
