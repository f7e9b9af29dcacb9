//! What a record says: lines that are only ever added, each a fact about the box.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tare_control::journal::Journal;
use tare_control::{Cause, End};
use tare_kernel::clock::boot_ns;

use crate::spec::{Cpus, DetachOptions, Limit, Name, Spec, Tenant};
use crate::time::{Timestamp, from_now};

/// The version of the format. A record of another version is not interpreted: the same words
/// may mean something else in it.
pub const VERSION: u32 = 2;

/// The first line, written before anything is acquired.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Created {
    /// The version of the whole record; see [`VERSION`].
    pub version: u32,
    pub boot_id: String,
    pub created_at: Timestamp,
    /// The creation on the boot clock. All times of a record that end in `_ns` are.
    pub created_ns: u64,
    pub cgroup_roots: Vec<PathBuf>,
    /// The spec that is read back has no values of the environment.
    pub spec: Spec,
    /// `None`: the box is attached.
    pub detached: Option<DetachOptions>,
}

/// What proves that a process is the keeper, and not another process with its pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperLine {
    pub boot_id: String,
    pub pid: i32,
    /// `None` on kernels where it would prove nothing.
    pub pidfd_inode: Option<u64>,
    pub cgroup_inode: Option<u64>,
    /// The host's id of the box's user 0, if it has a range of its own.
    pub first_uid: Option<u32>,
    pub lease: Lease,
    /// When this was written: the command may start from here on.
    pub at_ns: u64,
}

/// What `update` changed; `None` leaves it as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatedLine {
    pub at_ns: u64,
    pub memory_bytes: Option<u64>,
    pub pids: Option<u32>,
    pub cpus: Option<Cpus>,
    pub lease: Option<Lease>,
}

impl UpdatedLine {
    fn then(self, later: Self) -> Self {
        Self {
            at_ns: later.at_ns,
            memory_bytes: later.memory_bytes.or(self.memory_bytes),
            pids: later.pids.or(self.pids),
            cpus: later.cpus.or(self.cpus),
            lease: later.lease.or(self.lease),
        }
    }
}

/// When a box ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lease {
    Never,
    Ends {
        /// On the boot clock: this is what counts.
        at_ns: u64,
        /// The end for people, by the wall clock at the time when the lease was given.
        at: Timestamp,
    },
}

impl Lease {
    /// From now on.
    pub fn of(duration: Option<Duration>) -> Self {
        match duration {
            None => Self::Never,
            Some(left) => Self::Ends { at_ns: from_now(left), at: Timestamp::now().after(left) },
        }
    }

    pub fn ends_ns(self) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::Ends { at_ns, .. } => Some(at_ns),
        }
    }

    pub fn ends_at(self) -> Option<Timestamp> {
        match self {
            Self::Never => None,
            Self::Ends { at, .. } => Some(at),
        }
    }
}

/// A rename of the box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenamedLine {
    pub name: Name,
    pub at_ns: u64,
}

/// The removal of the box has begun. If the process that removes it is killed, the next
/// command finishes the removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovingLine {
    pub at_ns: u64,
}

/// Why tare ends or removes a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The creator could not complete the box, or has seen its end.
    ByCreator,
    /// A user stopped the box. If tare kills it, it has not stopped within the grace.
    Stopped,
    /// A user killed or removed the box.
    Requested,
    /// The creator of an attached box is gone.
    Abandoned,
    /// The lease has passed, and the keeper did not end the box.
    Overdue,
    /// The box has ended, and its retention has passed.
    Expired,
    /// The box has ended, and was to be removed then.
    RemoveAfterEnd,
    /// The host was restarted.
    Rebooted,
}

impl Reason {
    /// Why a box ended that tare killed for this reason.
    pub fn cause(self) -> Cause {
        match self {
            Self::Stopped => Cause::Stopped,
            Self::Abandoned => Cause::ClientGone,
            Self::Overdue => Cause::Lease,
            Self::ByCreator
            | Self::Requested
            | Self::Expired
            | Self::RemoveAfterEnd
            | Self::Rebooted => Cause::Killed,
        }
    }
}

/// A tare process is about to kill the box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndingLine {
    pub why: Reason,
    /// The tare process.
    pub pid: u32,
    pub at_ns: u64,
}

impl EndingLine {
    pub fn now(why: Reason) -> Self {
        Self { why, pid: std::process::id(), at_ns: boot_ns() }
    }
}

/// The last attempt to end the box failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckLine {
    /// The step that failed.
    pub step: String,
    /// Why it failed.
    pub why: String,
    /// How many attempts have failed.
    pub tries: u32,
    pub at_ns: u64,
    /// Whether the record was to be removed too, as by `tare rm`.
    #[serde(default)]
    pub remove: bool,
}

/// After two failed attempts to end a box, the next one waits for this long, then for twice
/// that, and so on up to the limit: each attempt takes a command some of its time.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
const TRY_AGAIN_WITHIN: Duration = Duration::from_secs(3600);

impl StuckLine {
    /// The line for one more failed attempt.
    pub fn after(last: Option<&Self>, step: String, why: String) -> Self {
        Self {
            step,
            why,
            tries: last.map_or(1, |last| last.tries.saturating_add(1)),
            at_ns: boot_ns(),
            remove: false,
        }
    }

    /// The time until the next attempt: none after the first failure, which may be chance.
    fn pause(&self) -> Duration {
        match self.tries.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => {
                let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
                TRY_AGAIN_AFTER.saturating_mul(factor).min(TRY_AGAIN_WITHIN)
            }
        }
    }

    /// Whether the next attempt is due. A line of the future is of an earlier boot.
    pub fn is_due(&self) -> bool {
        let passed = boot_ns().checked_sub(self.at_ns).map(Duration::from_nanos);
        passed.is_none_or(|passed| passed >= self.pause())
    }

    /// Whether this says nothing new. Then no line is added before the next attempt is due, so
    /// that frequent attempts do not fill the record.
    pub fn is_said(&self, last: Option<&Self>) -> bool {
        last.is_some_and(|last| {
            let same = (&last.step, &last.why, last.remove) == (&self.step, &self.why, self.remove);
            same && !last.is_due()
        })
    }
}

impl std::fmt::Display for StuckLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.why.is_empty() {
            f.write_str(&self.step)
        } else {
            write!(f, "{}: {}", self.step, self.why)
        }
    }
}

/// How a detached box ended. Only its record is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLine {
    #[serde(flatten)]
    pub end: End,
    /// When the box ended. If its keeper could not say: when tare found it ended.
    pub at: Timestamp,
    /// The last sign of life of a box whose keeper could not say when it ended. The box ended
    /// between this time and `at`.
    #[serde(default)]
    pub after: Option<Timestamp>,
    /// On the boot clock: retention counts from here.
    pub at_ns: u64,
    /// How long it took the process that ended the box, or found it ended, to see it empty.
    pub emptied_ms: u64,
}

impl EndedLine {
    /// Returns how the box ended, as its keeper wrote it. A keeper that wrote nothing was killed, at
    /// some time since `last_sign`: by tare if the record says so.
    pub fn of(
        journal: &Journal,
        ending: Option<&EndingLine>,
        last_sign: Option<Timestamp>,
        oom: bool,
        emptied: Duration,
    ) -> Self {
        let said = journal.ended.map(|it| (it.end, Timestamp::from_ms(it.at_ms)));
        let killed = || {
            let cause = ending.map_or(Cause::KeeperLost, |ending| ending.why.cause());
            (End::killed(cause), Timestamp::now())
        };
        let (end, at) = said.unwrap_or_else(killed);
        Self {
            end: end.with_oom(oom),
            at,
            after: last_sign.filter(|_| said.is_none()),
            at_ns: boot_ns(),
            emptied_ms: u64::try_from(emptied.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// One line of `record.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// Files of version 2 call it `intent`.
    #[serde(rename = "intent")]
    Created(Box<Created>),
    Keeper(KeeperLine),
    Renamed(RenamedLine),
    Updated(UpdatedLine),
    Removing(RemovingLine),
    Stuck(StuckLine),
    Ending(EndingLine),
    Ended(EndedLine),
}

impl Line {
    /// Returns the name that this line gives to the box.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Created(created) => created.spec.name.as_ref(),
            Self::Renamed(renaming) => Some(&renaming.name),
            Self::Keeper(_)
            | Self::Updated(_)
            | Self::Removing(_)
            | Self::Stuck(_)
            | Self::Ending(_)
            | Self::Ended(_) => None,
        }
    }

    /// Returns when this line was written, on the boot clock.
    pub fn at_ns(&self) -> u64 {
        match self {
            Self::Created(created) => created.created_ns,
            Self::Keeper(keeper) => keeper.at_ns,
            Self::Renamed(renaming) => renaming.at_ns,
            Self::Updated(update) => update.at_ns,
            Self::Removing(removing) => removing.at_ns,
            Self::Stuck(stuck) => stuck.at_ns,
            Self::Ending(ending) => ending.at_ns,
            Self::Ended(ended) => ended.at_ns,
        }
    }
}

/// Returns the lines that can be read.
pub fn parse(text: &str) -> impl Iterator<Item = Line> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// Returns the lines with one update in place of all, which has the same effect.
pub fn merge_updates(text: &str) -> serde_json::Result<String> {
    let mut merged = UpdatedLine::default();
    let mut kept = String::new();
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(Line::Updated(update)) => merged = merged.then(update),
            _ => {
                kept.push_str(line);
                kept.push('\n');
            }
        }
    }
    kept.push_str(&serde_json::to_string(&Line::Updated(merged))?);
    kept.push('\n');
    Ok(kept)
}

/// What the lines of a record say together.
#[derive(Debug, Default)]
pub struct RecordLines {
    /// Set if a tare of another version wrote the record.
    pub other_version: Option<u32>,
    pub created: Option<Created>,
    pub keeper: Option<KeeperLine>,
    /// Every name that it has had or was to get, the last one last.
    pub names: Vec<Name>,
    /// How many lines change limits or lease.
    pub updates: usize,
    /// The last of its names may not be taken yet: see `holdings::name::current`.
    pub is_renamed: bool,
    /// Since its end: why it cannot be removed.
    pub stuck: Option<StuckLine>,
    /// A removal was begun, and is to be finished.
    pub removing: bool,
    pub ending: Option<EndingLine>,
    pub ended: Option<EndedLine>,
}

impl RecordLines {
    /// Reads all lines. A line that is cut off or damaged is skipped.
    pub fn read(text: &str) -> Self {
        let mut lines = Self::default();
        for line in text.lines() {
            match serde_json::from_str(line) {
                Ok(Line::Created(created)) if created.version != VERSION => {
                    lines.other_version = Some(created.version);
                }
                Ok(line) => lines.note(line),
                Err(_) => {
                    lines.other_version = lines.other_version.or_else(|| other_version(line));
                }
            }
        }
        lines
    }

    pub fn note(&mut self, line: Line) {
        match line {
            Line::Created(created) => {
                self.names = created.spec.name.clone().into_iter().collect();
                self.created = Some(*created);
            }
            Line::Keeper(identity) => self.keeper = Some(identity),
            Line::Renamed(renaming) => {
                self.names.push(renaming.name);
                self.is_renamed = true;
            }
            Line::Updated(update) => {
                self.updates += 1;
                self.update(&update);
            }
            Line::Removing(_) => self.removing = true,
            Line::Stuck(stuck) => {
                self.removing |= stuck.remove;
                self.stuck = Some(stuck);
            }
            Line::Ending(ending) => self.ending = Some(ending),
            Line::Ended(ended) => {
                self.stuck = None;
                self.ended = Some(ended);
            }
        }
    }

    fn update(&mut self, update: &UpdatedLine) {
        if let (Some(keeper), Some(lease)) = (&mut self.keeper, update.lease) {
            keeper.lease = lease;
        }
        let Some(created) = &mut self.created else {
            return;
        };
        let limits = &mut created.spec.limits;
        if let Some(bytes) = update.memory_bytes {
            limits.memory_bytes = Limit::Asked(bytes);
        }
        if let Some(pids) = update.pids {
            limits.pids = Limit::Asked(pids);
        }
        if let Some(cpus) = update.cpus {
            limits.cpus = Some(cpus);
        }
    }

    /// Whether no line of the record could be read.
    pub fn is_empty(&self) -> bool {
        self.other_version.is_none()
            && self.created.is_none()
            && self.keeper.is_none()
            && self.names.is_empty()
            && self.stuck.is_none()
            && self.ending.is_none()
            && self.ended.is_none()
            && !self.removing
    }

    /// The tenant that the box belongs to; `None` if the record does not say it.
    pub fn tenant(&self) -> Option<&Tenant> {
        Some(&self.created.as_ref()?.spec.tenant)
    }

    pub fn detached(&self) -> Option<&DetachOptions> {
        self.created.as_ref()?.detached.as_ref()
    }
}

/// The version of a first line that this tare cannot read.
fn other_version(line: &str) -> Option<u32> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    #[derive(Deserialize)]
    struct Beginning {
        intent: Versioned,
    }
    let version = serde_json::from_str::<Beginning>(line).ok()?.intent.version;
    (version != VERSION).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_lease_differs_from_a_missing_one() {
        let hour = Lease::of(Some(Duration::from_secs(3600)));
        for lease in [None, Some(Lease::Never), Some(hour)] {
            let update = UpdatedLine { lease, ..UpdatedLine::default() };
            let text = serde_json::to_string(&update).unwrap();
            assert_eq!(serde_json::from_str::<UpdatedLine>(&text).unwrap(), update);
        }
    }

    fn failed(times: u32) -> StuckLine {
        let again = |last: Option<StuckLine>, _| {
            Some(StuckLine::after(last.as_ref(), "a".into(), "b".into()))
        };
        (0..times).fold(None, again).unwrap()
    }

    #[test]
    fn a_failed_teardown_is_retried_at_once_and_then_less_and_less_often() {
        let pauses = [1, 2, 3, 4, 13, 14, 40, 4000].map(|times| failed(times).pause().as_secs());
        assert_eq!(pauses, [0, 1, 2, 4, 2048, 3600, 3600, 3600]);
        assert!(failed(1).is_due() && !failed(3).is_due());
        let earlier_boot = StuckLine { at_ns: u64::MAX, ..failed(9) };
        assert!(earlier_boot.is_due());
    }

    #[test]
    fn a_repeated_failure_is_not_recorded_before_its_retry_time() {
        let last = failed(5);
        let again = |why: &str| StuckLine::after(Some(&last), "a".into(), why.into());
        assert!(again("b").is_said(Some(&last)));
        assert!(!again("c").is_said(Some(&last)));
        assert!(!again("b").is_said(None));
        assert!(!failed(2).is_said(Some(&failed(1))));
    }

    #[test]
    fn a_record_of_a_newer_version_is_known_as_one() {
        for version in [1, 3] {
            let text =
                format!("{{\"intent\":{{\"version\":{version},\"all\":\"new\"}}}}\n{{\"x\":1}}\n");
            assert_eq!(RecordLines::read(&text).other_version, Some(version));
        }
        let lines = RecordLines::read("{\"intent\":{\"version\":2,\"all\":\"new\"}}\n{\"x\":1}\n");
        assert_eq!(lines.other_version, None);
        assert!(lines.created.is_none());
    }

    #[test]
    fn a_damaged_line_hides_no_other() {
        let lines = RecordLines::read(
            "{\"keeper\":{\"boot\n\
             {\"stuck\":{\"step\":\"a\",\"why\":\"b\",\"tries\":1,\"at_ns\":1}}\n\
             \u{0}\u{0}\u{0}\n\
             {\"renamed\":{\"name\":\"b\",\"at_ns\":1}}\n\
             {\"renamed\":{\"name\":\"../c\",\"at_ns\":2}}\n\
             {\"ended\":{\"exit",
        );
        assert!(lines.created.is_none() && lines.keeper.is_none() && lines.ended.is_none());
        let stuck = lines.stuck.as_ref().map(ToString::to_string);
        assert_eq!(stuck.as_deref(), Some("a: b"));
        assert_eq!(lines.names.last().map(Name::as_str), Some("b"));
    }
}
