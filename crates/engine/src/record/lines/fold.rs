//! What the lines of a record say together. A later line changes what an earlier one said.

use serde::Deserialize;

use super::{
    ClaimedLine, Created, EndedLine, EndingLine, HeldLine, KeeperLine, Line, MachineLine,
    RequestLine, StuckLine, UpdatedLine, VERSION,
};
use crate::spec::{DetachOptions, Limit, Name, Tenant};

/// What the lines of a record say together.
#[derive(Debug, Default)]
pub struct RecordLines {
    /// Set if a tare of another version wrote the record.
    pub other_version: Option<u32>,
    pub created: Option<Created>,
    /// The memory limit that the box was made with, which later changes do not change.
    pub first_memory_bytes: Option<u64>,
    pub keeper: Option<KeeperLine>,
    pub machine: Option<MachineLine>,
    /// The keeper in the machine has answered.
    pub is_booted: bool,
    /// The pool in which the box waits, until it is claimed.
    pub pool: Option<String>,
    /// Every name that the box has had or was to get, the last one last.
    pub names: Vec<Name>,
    /// The box was renamed, so it may not have the last name yet: see `holdings::name::current`.
    pub is_renamed: bool,
    /// How many lines change limits or lease.
    pub updates: usize,
    /// Why the box could not be ended, or could not be removed since its end.
    pub stuck: Option<StuckLine>,
    /// A removal was begun, and is to be finished.
    pub removing: bool,
    pub ending: Option<EndingLine>,
    pub ended: Option<EndedLine>,
    pub held: Option<HeldLine>,
    /// What users asked for.
    pub requests: Vec<RequestLine>,
    /// How many lines could be read.
    pub count: usize,
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
                Ok(line) => lines.add(line),
                Err(_) => {
                    lines.other_version = lines.other_version.or_else(|| other_version(line));
                }
            }
        }
        lines
    }

    pub fn add(&mut self, line: Line) {
        self.count += 1;
        match line {
            Line::Created(created) => {
                self.names = created.spec.name.clone().into_iter().collect();
                self.first_memory_bytes = Some(created.spec.limits.memory_bytes.value());
                self.created = Some(*created);
            }
            Line::Keeper(keeper) => self.keeper = Some(keeper),
            Line::Renamed { name, .. } => {
                self.names.push(name);
                self.is_renamed = true;
            }
            Line::Updated(update) => {
                self.updates += 1;
                self.update(&update);
            }
            Line::Removing { .. } => self.removing = true,
            Line::Stuck(stuck) => {
                self.removing |= stuck.remove;
                self.stuck = Some(stuck);
            }
            Line::Ending(ending) => self.ending = Some(ending),
            Line::Warm { pool, .. } => {
                self.pool = Some(pool);
                // Until it is claimed, it ends with its server.
                if let Some(created) = &mut self.created {
                    created.detached = None;
                }
            }
            Line::Claimed(claimed) => self.claim(*claimed),
            Line::Held(held) => self.held = Some(held),
            Line::Ended(ended) => {
                self.stuck = None;
                self.ended = Some(*ended);
            }
            Line::Requested(request) => self.requests.push(request),
            Line::Machine(machine) => self.machine = Some(machine),
            Line::Booted { .. } => self.is_booted = true,
        }
    }

    /// For its users, a box begins when it is claimed.
    fn claim(&mut self, claimed: ClaimedLine) {
        self.pool = None;
        self.names = claimed.spec.name.clone().into_iter().collect();
        let (options, lease) = claimed.detached.map(|it| (it.options, it.lease)).unzip();
        if let Some(created) = &mut self.created {
            created.created_at = created.moment().at_ns(claimed.at_ns);
            created.created_ns = claimed.at_ns;
            created.spec = claimed.spec;
            created.detached = options;
        }
        if let (Some(keeper), Some(lease)) = (&mut self.keeper, lease) {
            keeper.lease = lease;
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

    /// Returns whether no line could be read.
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.other_version.is_none()
    }

    /// Returns the tenant that the box belongs to; `None` if the record does not say it.
    pub fn tenant(&self) -> Option<&Tenant> {
        Some(&self.created.as_ref()?.spec.tenant)
    }

    /// Returns the options of a detached box.
    pub fn detached(&self) -> Option<&DetachOptions> {
        self.created.as_ref()?.detached.as_ref()
    }
}

/// Returns the version of a first line that this tare cannot read.
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
