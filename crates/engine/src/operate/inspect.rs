//! Reports the state and the usage of a box, for `ls`, `inspect` and `stats`.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use serde_json::json;
use tare_control::{Call, KeeperUsage, Report};
use tare_kernel::clock::boot_ns;
use tare_kernel::procfs::Procfs;

use crate::care::tend::observe_tended;
use crate::error::{Error, ErrorKind};
use crate::holdings::cgroup::{CgroupReader, CgroupUsage};
use crate::holdings::with_keeper::MONITOR;
use crate::holdings::{HOLDINGS, Look, name};
use crate::host::layout::BoxAt;
use crate::host::state_root;
use crate::observe::view::{
    Details, GaugedUse, HeldObject, MachineDetails, State, Status, TemplateDetails, Usage,
    has_ended,
};
use crate::observe::{Observation, Ownership};
use crate::record::Record;
use crate::record::files::TemplateFacts;
use crate::record::lines::HeldItem;
use crate::session::link;
use crate::spec::{Isolation, Limits, Root, Spec, Tenant, Terminal, Volume};
use crate::time::Timestamp;

/// How long a command waits for the answers of all keepers together.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

pub fn status(at: BoxAt<'_>, observation: &Observation) -> Status {
    status_until(at, observation, Instant::now() + ANSWERS_WITHIN)
}

/// Returns the status of a box. Waits for the keeper of a machine until `until`, so that machines that do
/// not answer delay a list of many boxes no longer than the list of one.
pub fn status_until(at: BoxAt<'_>, observation: &Observation, until: Instant) -> Status {
    let asks = observation.is_live() && observation.record.is_machine();
    let seen = if asks { seen_by_keeper(at, observation, until) } else { KeeperAnswer::default() };
    status_of(at, observation, seen)
}

fn status_of(at: BoxAt<'_>, observation: &Observation, seen: KeeperAnswer) -> Status {
    let lines = &observation.record.lines;
    let spec = observation.spec();
    let used = if observation.is_live() {
        CgroupReader::new(at, &observation.record).usage()
    } else {
        CgroupUsage::default()
    };
    let booting = observation.is_booting();
    let ended = observation.ended(at);
    let ended = ended.as_ref();
    let created = lines.created.as_ref();
    Status {
        id: at.id.clone(),
        name: name::current(at, lines).map(ToString::to_string),
        key: lines.tenant().and_then(Tenant::key).map(str::to_owned),
        state: if booting { State::Starting } else { observation.state() },
        driver: spec.map(Spec::driver),
        booting,
        pool: lines.pool.clone(),
        created_at: created.map_or(Timestamp::from_ms(0), |created| created.created_at),
        lease_ends_at: lease_end(observation),
        command: spec.map_or_else(Vec::new, |spec| texts(&spec.command)),
        labels: spec.map(|spec| spec.labels.clone()).unwrap_or_default(),
        pids: seen.pids(observation, used.pids),
        memory_bytes: used.memory_bytes,
        exit_code: ended.map(|ended| ended.end.code()),
        attached: observation.is_attached(),
        ended_at: ended.map(|ended| ended.at),
        ended_after: ended.and_then(|ended| ended.after),
        cause: ended.map(|ended| ended.end.cause),
        oom: ended.is_some_and(|ended| ended.end.oom),
        stuck_on: observation.stuck_on(at),
    }
}

/// Returns the status of a box that was just started. A box that keeps nothing may have ended and been
/// removed since.
pub fn status_of_new(at: BoxAt<'_>, spec: &Spec) -> Result<Status, Error> {
    match observe_tended(at) {
        Err(error) if error.kind() == ErrorKind::NoSuchBox => Ok(Status {
            name: spec.name.as_ref().map(ToString::to_string),
            key: spec.tenant.key().map(str::to_owned),
            state: State::Exited,
            driver: Some(spec.driver()),
            created_at: Timestamp::now(),
            command: texts(&spec.command),
            labels: spec.labels.clone(),
            ..Status::unknown(at.id.clone())
        }),
        observation => Ok(status(at, &observation?)),
    }
}

/// Returns the status of a box that was detached. `None` for a box that is being made, and for a box
/// whose creator was killed before it detached the box: the next command removes it.
pub fn announced(at: BoxAt<'_>) -> Result<Option<Status>, Error> {
    let observation = observe_tended(at)?;
    let is_detached = observation.ownership == Ownership::Detached || observation.has_ended();
    Ok(is_detached.then(|| status(at, &observation)))
}

fn record(at: BoxAt<'_>) -> Option<Record> {
    let boxes = state_root::boxes(at.root).ok()?;
    Record::look(boxes.as_fd(), at.id).ok().flatten()
}

/// Returns everything that is known about a box.
pub fn details(at: BoxAt<'_>) -> Result<Details, Error> {
    let observation = observe_tended(at)?;
    let spec = observation.spec();
    let is_live = observation.is_live();
    let until = Instant::now() + ANSWERS_WITHIN;
    let seen =
        if is_live { seen_by_keeper(at, &observation, until) } else { KeeperAnswer::default() };
    let holdings = holdings(at, &observation);
    let monitor = holdings.iter().find(|held| held.kind == MONITOR.kind);
    let pid = monitor.and_then(|held| held.what.strip_prefix("pid ")?.parse().ok());
    Ok(Details {
        status: status_of(at, &observation, seen),
        spec: spec.map_or(serde_json::Value::Null, |spec| shown_spec(spec, &observation)),
        template: template(&observation.record),
        vm: observation.record.lines.machine.as_ref().map(|machine| MachineDetails {
            kernel: machine.kernel.clone(),
            monitor: machine.monitor.clone(),
            memory_bytes: machine.memory_bytes,
            pid,
        }),
        usage: is_live.then(|| usage_of(at, &observation, seen)),
        cgroup_parents: cgroup_parents(&observation.record),
        holdings,
    })
}

fn template(record: &Record) -> Option<TemplateDetails> {
    let TemplateFacts { imported, clones } = record.template()?;
    let age_ns = boot_ns().saturating_sub(record.lines.created.as_ref()?.created_ns);
    Some(TemplateDetails { imported, clones, age_ms: age_ns / 1_000_000 })
}

/// Returns the cgroups below which the box has its own.
fn cgroup_parents(record: &Record) -> Vec<String> {
    let recorded = record.lines.created.iter().flat_map(|created| &created.cgroup_roots);
    recorded.map(|parent| parent.display().to_string()).collect()
}

/// Returns what a live box uses. Waits for its keeper until `until`.
pub fn usage(at: BoxAt<'_>, until: Instant) -> Result<Usage, Error> {
    let observation = observe_tended(at)?;
    if observation.is_live() {
        Ok(usage_of(at, &observation, seen_by_keeper(at, &observation, until)))
    } else {
        Err(has_ended(at.id))
    }
}

pub fn gauged_use(at: BoxAt<'_>) -> GaugedUse {
    let Some(record) = record(at) else {
        return GaugedUse::default();
    };
    let cgroup = CgroupReader::new(at, &record);
    GaugedUse {
        pids: cgroup.pids().unwrap_or(0),
        memory_bytes: cgroup.memory_in_use().unwrap_or(0),
    }
}

/// Returns the limits of a box, by its record alone.
pub fn limits(at: BoxAt<'_>) -> Option<Limits> {
    Some(record(at)?.lines.created?.spec.limits)
}

/// Returns the processor time of a box, without asking its keeper.
pub fn cpu_us(at: BoxAt<'_>) -> Option<u64> {
    CgroupReader::new(at, &record(at)?).usage_with_cpu().cpu_us
}

fn usage_of(at: BoxAt<'_>, observation: &Observation, seen: KeeperAnswer) -> Usage {
    let used = CgroupReader::new(at, &observation.record).usage_with_cpu();
    let spec = observation.spec();
    let limits = spec.map(|spec| &spec.limits);
    // A contained box has no scratch space.
    let isolated = limits.filter(|_| spec.is_some_and(|spec| spec.isolation == Isolation::Full));
    let own = seen.usage;
    let logged = !observation.is_attached();
    Usage {
        memory_bytes: used.memory_bytes,
        memory_limit_bytes: limits.map(|limits| limits.memory_bytes.value()),
        cpu_us: used.cpu_us,
        pids: seen.pids(observation, used.pids),
        pids_limit: limits.map(|limits| u64::from(limits.pids.value())),
        scratch_bytes: own.and_then(|usage| usage.scratch_bytes),
        scratch_limit_bytes: isolated.map(|limits| limits.scratch_bytes.value()),
        output_bytes: own.filter(|_| logged).map(|usage| usage.output_bytes),
        output_dropped_bytes: own.filter(|_| logged).map(|usage| usage.output_dropped_bytes),
    }
}

/// What a keeper says, as far as it was asked and answered.
#[derive(Clone, Copy, Default)]
struct KeeperAnswer {
    /// Usage that only the keeper can see.
    usage: Option<KeeperUsage>,
    /// The number of processes in a machine.
    processes: Option<u64>,
}

impl KeeperAnswer {
    /// Returns the number of processes of a box. `counted` is what its cgroup counts.
    fn pids(self, observation: &Observation, counted: Option<u64>) -> Option<u64> {
        // The cgroup of a machine's box counts the threads of its monitor.
        let is_machine = observation.is_live() && observation.record.is_machine();
        if is_machine { self.processes } else { counted.map(without_keeper) }
    }
}

/// Asks the keeper, and waits for its answer until `until`. Does not ask a keeper that is stopped, because
/// it would not answer.
fn seen_by_keeper(at: BoxAt<'_>, observation: &Observation, until: Instant) -> KeeperAnswer {
    let Some(keeper) = observation.keeper() else { return KeeperAnswer::default() };
    let stat = Procfs::open().ok().and_then(|procfs| procfs.stat(keeper.pid()).ok());
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() || stat.is_some_and(|stat| stat.is_stopped) {
        return KeeperAnswer::default();
    }
    match link::call_within(left, &observation.record, at.id, &Call::Usage) {
        Ok((Report::Usage(usage), _)) => KeeperAnswer { usage: Some(usage), processes: None },
        Ok((Report::MachineUsage { usage, processes, .. }, _)) => {
            KeeperAnswer { usage: Some(usage), processes: Some(processes) }
        }
        Ok(_) | Err(_) => KeeperAnswer::default(),
    }
}

/// Returns what the box holds on the host now, as the table of holdings finds it.
fn holdings(at: BoxAt<'_>, observation: &Observation) -> Vec<HeldObject> {
    let keeper = observation.keeper().map(|keeper| keeper.pid());
    let look = Look::at(at, &observation.record, keeper);
    let found = HOLDINGS.iter().filter_map(|holding| Some((holding.kind, look.find(holding)?)));
    found.flat_map(|(kind, item)| shown(kind, &item)).collect()
}

/// One entry for each object that has a name, and one for those that only count.
fn shown(kind: &'static str, item: &HeldItem) -> Vec<HeldObject> {
    let named = item.what.iter().cloned();
    let unnamed = item.count.unwrap_or(0).saturating_sub(item.what.len() as u64);
    let rest = match (item.bytes, unnamed) {
        (Some(bytes), _) => Some(format!("{bytes} bytes")).filter(|_| item.what.is_empty()),
        (None, 0) => None,
        (None, some) if item.what.is_empty() => Some(some.to_string()),
        (None, some) => Some(format!("{some} more")),
    };
    named.chain(rest).map(|what| HeldObject { kind, what }).collect()
}

fn without_keeper(pids: u64) -> u64 {
    pids.saturating_sub(1)
}

fn lease_end(observation: &Observation) -> Option<Timestamp> {
    let identity = observation.record.lines.keeper.as_ref();
    identity?.lease.ends_at().filter(|_| observation.is_live())
}

fn texts<T: AsRef<OsStr>>(words: &[T]) -> Vec<String> {
    words.iter().map(text).collect()
}

/// Replaces bytes that are not text.
fn text<T: AsRef<OsStr>>(word: T) -> String {
    word.as_ref().to_string_lossy().into_owned()
}

/// Returns the spec as JSON, without the values of the environment.
fn shown_spec(spec: &Spec, observation: &Observation) -> serde_json::Value {
    let keys: Vec<_> = spec.env.iter().map(|(key, _)| key).collect();
    let options = observation.record.lines.detached();
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
        "driver": spec.driver(),
        "accel": spec.machine.as_ref().map(|machine| machine.accel),
        "kernel": spec.machine.as_ref().and_then(|machine| machine.kernel.as_ref()),
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
