//! Finding boxes and telling about them.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use serde_json::json;
use tare_control::{Call, KeeperUsage, Report};

use crate::engine::{Engine, Manner};
use crate::error::{Context, Error, ErrorKind};
use crate::holdings::cgroup::{self, CgroupReader, CgroupUsage};
use crate::holdings::name;
use crate::host::layout;
use crate::observe::view::{Details, Holding, State, Status, Usage};
use crate::observe::{Depth, Observed};
use crate::record::damage::Flaw;
use crate::record::{self, Record};
use crate::session::link;
use crate::spec::shown::quoted;
use crate::spec::{BoxId, Isolation, Limits, Name, Root, Spec, Terminal, Volume};
use crate::time::Timestamp;

impl Engine {
    /// The box with this id, this name, or an id that begins so.
    pub fn find(&self, reference: &str) -> Result<BoxId, Error> {
        let found = self.find_recorded(reference)?;
        found.ok_or_else(|| no_box(reference))
    }

    /// The same; `None` when there is no such box.
    pub(crate) fn find_recorded(&self, reference: &str) -> Result<Option<BoxId>, Error> {
        let Some(boxes) = self.boxes_if_any()? else {
            return by_prefix(reference, Vec::new(), self.tended());
        };
        let is_there = |id: &BoxId| record::is_there(boxes.as_fd(), id);
        let named = || {
            let wanted = Name::parse(reference).ok()?;
            name::holder(&self.root.layout, &wanted).filter(is_there)
        };
        if let Some(id) = BoxId::parse(reference).filter(is_there).or_else(named) {
            return Ok(Some(id));
        }
        // Only whoever gives a part of an id pays for reading all of them.
        let ids = record::ids(boxes.as_fd()).context(|| "cannot list the boxes".into())?;
        by_prefix(reference, ids, self.tended())
    }

    /// Every box, the oldest first.
    pub fn list(&self) -> Result<Vec<Status>, Error> {
        let Some(boxes) = self.boxes_if_any()? else {
            return Ok(Vec::new());
        };
        let ids = record::ids(boxes.as_fd()).context(|| "cannot list the boxes".into())?;
        let status = |id: &BoxId| match self.tend_in(boxes.as_fd(), id, Depth::List) {
            Ok(observed) => Some(self.status_of(id, &observed?)),
            // It is there: what is not known of it is no reason to hide it.
            Err(error) => Some(Status::unknown(id, Flaw::unreadable(&error).to_string())),
        };
        let mut statuses: Vec<Status> = ids.iter().filter_map(status).collect();
        statuses.sort_by(|one, other| {
            let key = |status: &Status| (status.created_at, status.id.to_string());
            key(one).cmp(&key(other))
        });
        Ok(statuses)
    }

    pub fn status(&self, id: &BoxId) -> Result<Status, Error> {
        Ok(self.status_of(id, &self.observe(id)?))
    }

    /// A box that was just started. One that keeps nothing may have ended and be gone.
    pub fn status_of_new(&self, id: &BoxId, spec: &Spec) -> Result<Status, Error> {
        match self.status(id) {
            Err(error) if error.kind() == ErrorKind::NoSuchBox => Ok(Status {
                name: spec.name.as_ref().map(ToString::to_string),
                state: State::Exited,
                created_at: Timestamp::now(),
                command: texts(&spec.command),
                labels: spec.labels.clone(),
                stuck_on: None,
                ..Status::unknown(id, String::new())
            }),
            status => status,
        }
    }

    /// How many of its processes the kernel has killed for memory so far.
    pub fn oom_kills(&self, id: &BoxId) -> u64 {
        let roots = self.root.host.cgroups.all().into_iter();
        let roots: Vec<_> = roots.map(Path::to_owned).collect();
        cgroup::oom_kills(&roots, self.at(id).tagged())
    }

    /// Everything that is known of a box.
    pub fn details(&self, id: &BoxId) -> Result<Details, Error> {
        let observed = self.observe(id)?;
        let spec = spec_of(&observed);
        let live = observed.is_live();
        Ok(Details {
            status: self.status_of(id, &observed),
            spec: spec.map_or(serde_json::Value::Null, |spec| shown_spec(spec, &observed)),
            usage: live.then(|| self.usage_of(id, &observed)),
            holdings: self.holdings(id, &observed),
        })
    }

    /// What a live box uses.
    pub fn usage(&self, id: &BoxId) -> Result<Usage, Error> {
        let observed = self.observe(id)?;
        if observed.is_live() { Ok(self.usage_of(id, &observed)) } else { Err(has_ended(id)) }
    }

    pub(crate) fn boxes(&self) -> Result<OwnedFd, Error> {
        let doing = || format!("cannot open {}", self.root.layout.boxes().display());
        match self.manner {
            Manner::Tending => record::open_all(&self.root.layout).context(doing),
            Manner::Looking => {
                let boxes = self.boxes_if_any()?;
                boxes.ok_or(rustix::io::Errno::NOENT).context(doing)
            }
        }
    }

    /// `None` where there has never been a box.
    pub(crate) fn boxes_if_any(&self) -> Result<Option<OwnedFd>, Error> {
        let doing = || format!("cannot open {}", self.root.layout.boxes().display());
        record::open_all_if_any(&self.root.layout).context(doing)
    }

    /// A box as it is now, after it was looked after.
    pub(crate) fn observe(&self, id: &BoxId) -> Result<Observed, Error> {
        let boxes = self.boxes()?;
        let observed = self.tend_in(boxes.as_fd(), id, Depth::State);
        observed
            .context(|| format!("cannot open the record of box {id}"))?
            .ok_or_else(|| no_box(id.as_str()))
    }

    /// The record of a box whose keeper is to be asked for something.
    pub(crate) fn awake(&self, id: &BoxId) -> Result<Record, Error> {
        let observed = self.observe(id)?;
        let problem =
            |what: &str, hint: &str| Error::conflict(format!("box {id} {what}")).with_hint(hint);
        match observed.state() {
            State::Running | State::Stopping => Ok(observed.record),
            State::Paused => Err(problem("is paused", "'tare resume' lets it go on")),
            State::Starting => Err(problem("is still starting", "try again in a moment")),
            State::Stuck => Err(problem(
                "is stuck",
                "'tare inspect' says on what; 'tare rm -f' tries again to end it",
            )),
            State::Exited => Err(has_ended(id)),
        }
    }

    pub(crate) fn status_of(&self, id: &BoxId, observed: &Observed) -> Status {
        let account = &observed.record.account;
        let spec = spec_of(observed);
        let used = if observed.is_live() {
            CgroupReader::at(self.at(id)).usage()
        } else {
            CgroupUsage::default()
        };
        let ended = observed.ended.as_ref();
        let intent = account.intent.as_ref();
        Status {
            id: id.clone(),
            name: account.name().map(ToString::to_string),
            state: observed.state(),
            created_at: intent.map_or(Timestamp::from_ms(0), |intent| intent.created_at),
            lease_ends_at: lease_end(observed),
            command: spec.map_or_else(Vec::new, |spec| texts(&spec.command)),
            labels: spec.map(|spec| spec.labels.clone()).unwrap_or_default(),
            pids: used.pids.map(without_keeper),
            memory_bytes: used.memory_bytes,
            exit_code: ended.map(|ended| ended.exit_code),
            attached: observed.is_attached(),
            ended_at: ended.map(|ended| ended.at),
            ended_after: ended.and_then(|ended| ended.after),
            ended_by: ended.map(|ended| ended.by),
            oom: ended.is_some_and(|ended| ended.oom),
            stuck_on: observed.stuck_on(),
        }
    }

    fn usage_of(&self, id: &BoxId, observed: &Observed) -> Usage {
        let used = CgroupReader::at(self.at(id)).usage_with_cpu();
        let spec = spec_of(observed);
        let limits = spec.map(|spec| &spec.limits);
        // Containment has no scratch space of its own.
        let isolated =
            limits.filter(|_| spec.is_some_and(|spec| spec.isolation == Isolation::Full));
        let seen = self.seen_by_keeper(id, observed);
        let logged = !observed.is_attached();
        Usage {
            memory_bytes: used.memory_bytes,
            memory_limit_bytes: limits.map(|limits| limits.memory_bytes.value()),
            cpu_us: used.cpu_us,
            pids: used.pids.map(without_keeper),
            pids_limit: limits.map(|limits| u64::from(limits.pids.value())),
            scratch_bytes: seen.and_then(|usage| usage.scratch_bytes),
            scratch_limit_bytes: isolated.map(|limits| limits.scratch_bytes.value()),
            output_bytes: seen.filter(|_| logged).map(|usage| usage.output_bytes),
            output_dropped_bytes: seen.filter(|_| logged).map(|usage| usage.output_dropped_bytes),
        }
    }

    /// A keeper that does not answer takes nothing away from the rest. One that
    /// cannot, because it is paused with its box, is not asked, nor is whoever
    /// else answers.
    fn seen_by_keeper(&self, id: &BoxId, observed: &Observed) -> Option<KeeperUsage> {
        observed.keeper.as_ref()?;
        if observed.is_attached() && observed.state() == State::Paused {
            return None;
        }
        match link::call(&observed.record, id, &Call::Usage).ok()?.0 {
            Report::Usage(usage) => Some(usage),
            Report::Terminal
            | Report::SetupFailed { .. }
            | Report::LaunchFailed { .. }
            | Report::Started
            | Report::Exited { .. }
            | Report::TimedOut
            | Report::Detached
            | Report::Done
            | Report::Input { .. }
            | Report::Refused(_) => None,
        }
    }

    /// What of the host it holds now, by looking.
    fn holdings(&self, id: &BoxId, observed: &Observed) -> Vec<Holding> {
        let mut holdings = vec![holding("record", self.at(id).record().display())];
        if let Some(keeper) = &observed.keeper {
            holdings.push(holding("keeper", format!("pid {}", keeper.pid())));
        }
        for root in self.root.host.cgroups.all() {
            let directory = layout::cgroup(root, self.at(id).tagged());
            if directory.exists() {
                holdings.push(holding("cgroup", directory.display()));
            }
        }
        let scratch = self.at(id).scratch();
        if scratch.exists() {
            holdings.push(holding("scratch", scratch.display()));
        }
        if let Some(name) = observed.record.account.name() {
            holdings.push(holding("name", name));
        }
        holdings
    }
}

fn holding(kind: &'static str, what: impl ToString) -> Holding {
    Holding { kind, what: what.to_string() }
}

pub(crate) fn spec_of(observed: &Observed) -> Option<&Spec> {
    Some(&observed.record.account.intent.as_ref()?.spec)
}

/// A box that this very command has found half-made and removed is not unknown.
fn by_prefix(reference: &str, ids: Vec<BoxId>, removed: &[BoxId]) -> Result<Option<BoxId>, Error> {
    let begins = |id: &&BoxId| !reference.is_empty() && id.as_str().starts_with(reference);
    let mut found: Vec<BoxId> = ids.iter().filter(begins).cloned().collect();
    found.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    match found.as_slice() {
        [] => Ok(removed.iter().find(begins).cloned()),
        [one] => Ok(Some(one.clone())),
        several => Err(ambiguous(reference, several)),
    }
}

/// How many candidates are named.
const CANDIDATES_MAX: usize = 4;

fn ambiguous(reference: &str, several: &[BoxId]) -> Error {
    let shown = several.iter().take(CANDIDATES_MAX);
    let mut shown: Vec<&str> = shown.map(BoxId::as_str).collect();
    if several.len() > CANDIDATES_MAX {
        shown.push("...");
    }
    let message = format!("{} is the beginning of several boxes", quoted(reference));
    Error::bad_request(message).caused_by(shown.join(", ")).with_hint("give more of the id")
}

pub(crate) fn no_box(reference: &str) -> Error {
    let message = format!("there is no box {}", quoted(reference));
    Error::new(ErrorKind::NoSuchBox, message).with_hint("'tare ls -a' lists all")
}

pub(crate) fn has_ended(id: &BoxId) -> Error {
    Error::conflict(format!("box {id} has ended"))
        .with_hint("'tare ls -a' says how; 'tare run -d' starts another")
}

fn without_keeper(pids: u64) -> u64 {
    pids.saturating_sub(1)
}

fn lease_end(observed: &Observed) -> Option<Timestamp> {
    let keeper = observed.record.account.keeper.as_ref();
    keeper?.lease.ends_at().filter(|_| observed.is_live())
}

fn texts<T: AsRef<OsStr>>(words: &[T]) -> Vec<String> {
    words.iter().map(text).collect()
}

/// What is no text is shown as well as it can be.
fn text<T: AsRef<OsStr>>(word: T) -> String {
    word.as_ref().to_string_lossy().into_owned()
}

/// What was asked for, without the values of the environment.
fn shown_spec(spec: &Spec, observed: &Observed) -> serde_json::Value {
    let keys: Vec<_> = spec.env.iter().map(|(key, _)| key).collect();
    let options = observed.record.account.detached();
    json!({
        "command": texts(&spec.command),
        "env": texts(&keys),
        "workdir": spec.workdir.as_ref().map(text),
        "workspace": spec.workspace.as_ref().map(text),
        "user": format!("{}:{}", spec.user.uid, spec.user.gid),
        "rootfs": match &spec.root {
            Root::HostView => None,
            Root::Directory(path) => Some(text(path)),
        },
        "volumes": spec.volumes.iter().map(shown_volume).collect::<Vec<_>>(),
        "network": spec.network,
        "isolation": spec.isolation,
        "seccomp": spec.seccomp,
        "privilege": spec.privilege,
        "terminal": spec.terminal != Terminal::Pipes,
        "stdin": options.map(|options| options.stdin),
        "timeout_ms": spec.timeout.map(|timeout| timeout.as_millis()),
        "limits": shown_limits(&spec.limits),
        "retention_ms": options.map(|options| options.retention.as_millis()),
        "remove": options.is_none_or(|options| options.remove),
        "keep": options.is_some_and(|options| options.keep),
        "log_bytes_max": options.map(|options| options.log_bytes_max.value()),
        "output_kill": options.map(|options| options.kill_past_log),
    })
}

fn shown_limits(limits: &Limits) -> serde_json::Value {
    json!({
        "memory_bytes": limits.memory_bytes.value(),
        "cpus": limits.cpus.map(|cpus| f64::from(cpus.milli) / 1000.0),
        "pids": limits.pids.value(),
        "nofile": limits.nofile,
        "scratch_bytes": limits.scratch_bytes.value(),
    })
}

fn shown_volume(volume: &Volume) -> serde_json::Value {
    json!({
        "host": text(&volume.host),
        "target": text(&volume.target),
        "access": volume.access,
    })
}
