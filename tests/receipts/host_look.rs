//! What the host shows about a box, read without tare: from `/proc`, `/sys/fs/cgroup`, the names
//! in the state root, and `/proc/net`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tare_harness::{Tare, unix_now, unix_seconds};

/// What a live box has on the host.
#[derive(Debug)]
pub struct HostLook {
    id: String,
    keeper: u32,
    /// Without the keeper.
    pub processes: BTreeSet<u32>,
    cgroups: BTreeSet<PathBuf>,
    /// `KIND INODE`, of all processes.
    namespaces: BTreeSet<String>,
    /// The host's id of the box's first user.
    first_uid: Option<u64>,
    mounts: u64,
    /// TCP ports of the host's network on which the box listens.
    pub ports: BTreeSet<u16>,
    name: Option<String>,
}

impl HostLook {
    pub fn at(tare: &Tare, id: &str) -> Self {
        let keeper = tare.keeper(id).pid;
        let processes: BTreeSet<u32> = tare.workload(id).iter().map(|it| it.pid).collect();
        let all = processes.iter().chain([&keeper]);
        let namespaces = all.clone().flat_map(|pid| namespaces_of(*pid)).collect();
        let inside: BTreeSet<u64> = all.flat_map(|pid| sockets_of(*pid)).collect();
        let names = tare.footprint().names;
        let leads =
            |name: &&String| fs::read_link(tare.name(name)).is_ok_and(|to| to == Path::new(id));
        let mounts = fs::read_to_string(format!("/proc/{keeper}/mountinfo")).unwrap_or_default();
        Self {
            id: id.to_owned(),
            keeper,
            processes,
            cgroups: tare.cgroups_of(id).into_iter().collect(),
            namespaces,
            first_uid: first_uid_of(keeper),
            mounts: mounts.lines().count() as u64,
            ports: listening()
                .into_iter()
                .filter(|(_, it)| inside.contains(it))
                .map(|(port, _)| port)
                .collect(),
            name: names.iter().find(leads).cloned(),
        }
    }

    /// Checks that the receipt names what this look has seen, and saw it gone since `before`.
    #[track_caller]
    pub fn agrees(&self, tare: &Tare, receipt: &Value, before: u64) {
        self.agrees_after_the_end(tare, receipt, before);
        assert!(receipt["looked"]["boot_ns"].as_u64() > Some(before), "{receipt}");
        let pids = self.processes.iter().map(|pid| format!("pid {pid}")).collect();
        assert_eq!(named(receipt, "process"), pids, "{receipt}");
        assert_eq!(item(receipt, "process")["count"], self.processes.len());
        if tare_harness::skip::is_root() {
            assert_eq!(named(receipt, "namespace"), self.namespaces, "{receipt}");
            assert_eq!(item(receipt, "mount")["count"], self.mounts, "{receipt}");
        }
        if !self.ports.is_empty() {
            assert_eq!(item(receipt, "port")["count"], self.ports.len(), "{receipt}");
        }
    }

    /// The same for a box that had ended before tare looked: the receipt names what the record says.
    #[track_caller]
    pub fn agrees_after_the_end(&self, tare: &Tare, receipt: &Value, before: u64) {
        assert_eq!(receipt["version"], 1);
        assert_eq!(receipt["id"], *self.id);
        assert_eq!(receipt["complete"], true, "{receipt}");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("/proc is mounted");
        assert_eq!(receipt["boot_id"], boot.trim_end());
        assert_eq!(named(receipt, "keeper"), [format!("pid {}", self.keeper)].into());
        let cgroups = self.cgroups.iter().map(|path| path.display().to_string()).collect();
        assert_eq!(named(receipt, "cgroup"), cgroups, "{receipt}");
        let record = tare.record(&self.id).display().to_string();
        assert_eq!(named(receipt, "record"), [record].into(), "{receipt}");
        let ranges = self.first_uid.map(|first| format!("{first}-{}", first + 65_535));
        assert_eq!(named(receipt, "uid_range"), ranges.into_iter().collect(), "{receipt}");
        assert_eq!(named(receipt, "name"), self.name.clone().into_iter().collect(), "{receipt}");
        let now = boot_ns();
        for item in receipt["held"].as_array().expect("an array") {
            match (&item["gone"], &item["not_observed"]) {
                (gone @ Value::Object(_), Value::Null) => {
                    let seen = gone["boot_ns"].as_u64().expect("a number");
                    assert!((before..=now).contains(&seen), "{item}");
                    let age = unix_now() - unix_seconds(gone["at"].as_str().expect("a time"));
                    assert!((0..600).contains(&age), "{item}");
                    assert!(gone["check"].is_string(), "{item}");
                }
                (Value::Null, Value::String(_)) => {}
                (_, _) => panic!("neither seen gone nor hidden: {item}"),
            }
        }
    }

    /// Checks that the host has nothing of the box any more.
    #[track_caller]
    pub fn is_gone(&self, tare: &Tare) {
        tare.reap_orphans();
        tare.assert_gone(&self.id);
        for pid in self.processes.iter().chain([&self.keeper]) {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is there");
        }
        for path in &self.cgroups {
            assert!(!path.exists(), "{} is there", path.display());
        }
        let ports: BTreeSet<u16> = listening().into_iter().map(|(port, _)| port).collect();
        assert!(self.ports.is_disjoint(&ports), "{ports:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        assert!(!mounts.contains(&self.id), "{mounts}");
        assert_eq!(tare.uid_claims(), 0);
        if let Some(name) = &self.name {
            assert!(tare.name(name).symlink_metadata().is_err(), "{name} is there");
        }
        let pids = fs::read_dir("/proc").expect("/proc is mounted").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let left: BTreeSet<String> = pids.flat_map(namespaces_of).collect();
        assert!(self.namespaces.is_disjoint(&left), "{:?}", self.namespaces);
    }
}

/// The boot clock, in nanoseconds.
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let number = |it: i64| u64::try_from(it).expect("the clock is past its start");
    number(now.tv_sec) * 1_000_000_000 + number(now.tv_nsec)
}

/// The item of a receipt about this kind; null if there is none.
pub fn item(receipt: &Value, kind: &str) -> Value {
    let held = receipt["held"].as_array().expect("an array").iter();
    held.clone().find(|item| item["kind"] == kind).cloned().unwrap_or(Value::Null)
}

fn named(receipt: &Value, kind: &str) -> BTreeSet<String> {
    let found = item(receipt, kind);
    let what = found["what"].as_array().into_iter().flatten();
    what.map(|one| one.as_str().expect("a text").to_owned()).collect()
}

/// The namespaces of a process that this process does not share.
fn namespaces_of(pid: u32) -> Vec<String> {
    let kinds = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let link = |of: &str, kind: &str| fs::read_link(format!("/proc/{of}/ns/{kind}")).ok();
    let found = kinds.into_iter().filter_map(|kind| {
        let theirs = link(&pid.to_string(), kind)?;
        let is_own = Some(&theirs) == link("self", kind).as_ref();
        let inode = theirs.to_str()?.split(['[', ']']).nth(1)?.to_owned();
        (!is_own).then(|| format!("{kind} {inode}"))
    });
    found.collect()
}

/// Inodes of the sockets that a process has open.
fn sockets_of(pid: u32) -> Vec<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let inode = |entry: fs::DirEntry| {
        let link = fs::read_link(entry.path()).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    entries.filter_map(inode).collect()
}

/// Listening TCP ports with the inodes of their sockets (proc_pid_net(5)).
fn listening() -> Vec<(u16, u64)> {
    let text = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let one = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = u16::from_str_radix(fields.get(1)?.split_once(':')?.1, 16).ok()?;
        (*fields.get(3)? == "0A").then_some((port, fields.get(9)?.parse().ok()?))
    };
    text.lines().filter_map(one).collect()
}

/// The host's id of user 0 of the box: the line of its map that begins with 0 (user_namespaces(7)).
fn first_uid_of(keeper: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{keeper}/uid_map")).ok()?;
    let mut fields = text.lines().next()?.split_whitespace();
    let (inside, outside) = (fields.next()?, fields.next()?);
    let count = fields.next()?;
    (inside == "0" && count == "65536").then(|| outside.parse().ok())?
}
