//! A receipt: what a removed box had held, and when tare saw each object gone, by which check.
//!
//! ```text
//! look ─▶ [the record keeps it] ─▶ kill, release ─▶ see the end ─▶ [the record keeps it]
//!     ─▶ remove ─▶ see the removal ─▶ receipt ─▶ history
//! ```
//!
//! The process that looks, the one that ends the box and the one that removes it may be three. Each
//! adds to what the record says ([`HeldLine`]). A receipt contains only what tare observed: an item
//! without `gone` and `not_observed` was not seen gone. This file only looks. Teardown decides when.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::holdings::{Ends, HOLDINGS, Holding, Look, Sight, name};
use crate::host::layout::BoxAt;
use crate::record::Record;
use crate::record::lines::{HeldItem, HeldLine, Reason, SeenGone};
use crate::spec::{BoxId, Root, Tenant};
use crate::time::{Moment, Timestamp};

/// The version of the fields of a receipt. A field that changes its meaning changes it; a new field
/// does not.
const VERSION: u32 = 1;

#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub version: u32,
    /// The id of the box.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: BoxId,
    /// The last name that the box had.
    pub name: Option<String>,
    /// The API key that the box belonged to.
    pub key: Option<String>,
    /// The boot of the host that the times of the boot clock belong to.
    pub boot_id: String,
    /// When the box was created.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub created_at: Option<Timestamp>,
    /// When tare looked at what the live box held. Null: the box had ended before.
    pub looked: Option<Moment>,
    /// Why tare removed the box.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub why: Reason,
    /// The tare process that removed the box. Null for a client that is not an admin.
    pub pid: Option<u32>,
    /// Whether tare has seen everything gone that can be seen.
    pub complete: bool,
    /// What the box held, one item for each kind.
    pub held: Vec<HeldItem>,
    /// What the box used and tare left alone.
    pub left_alone: Vec<LeftAlone>,
}

/// Files of the host that a box used.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAlone {
    /// `volume` or `rootfs`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub kind: Cow<'static, str>,
    pub count: Option<u64>,
    /// Their paths on the host, at most 32.
    pub what: Vec<String>,
}

/// What tare saw when it had removed a box. The history has it beside the receipt, which is kept before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenRemoval {
    /// The last name of the box, by which its history is found.
    name: Option<String>,
    complete: bool,
    /// What was seen gone, by its kind.
    gone: Vec<(Cow<'static, str>, SeenGone)>,
}

/// When a holding is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The box has ended.
    End,
    /// The record and the names of the box are removed.
    Removal,
}

/// Looks at what a box holds, and adds what it held in an earlier look. `keeper` is alive. Without an
/// earlier look, a dead box held what its record says.
pub fn look(
    at: BoxAt<'_>,
    record: &Record,
    keeper: Option<i32>,
    known: Option<&HeldLine>,
) -> HeldLine {
    let known = known.filter(|known| !known.items.is_empty());
    let includes_past = known.is_none();
    let look = Look { includes_past, ..Look::at(at, record, keeper) };
    let item = |holding: &Holding| {
        let of_kind = |item: &&HeldItem| item.kind == holding.kind;
        let earlier = known.and_then(|known| known.items.iter().find(of_kind));
        match (look.find(holding), earlier) {
            (Some(mut now), Some(earlier)) => {
                now.add_earlier(earlier);
                Some(now)
            }
            (now, earlier) => now.or_else(|| earlier.cloned()),
        }
    };
    let looked = known.and_then(|known| known.looked);
    HeldLine {
        looked: if keeper.is_some() { Some(Moment::now()) } else { looked },
        items: HOLDINGS.iter().filter_map(item).collect(),
    }
}

/// Looks whether what ends at this stage is gone, and notes when that was seen.
pub fn see_gone(at: BoxAt<'_>, record: &Record, stage: Stage, items: &mut [HeldItem]) {
    for item in items {
        let holding = HOLDINGS.iter().find(|holding| item.kind == holding.kind);
        let Some(holding) = holding.filter(|holding| holding.ends.stage() == stage) else {
            continue;
        };
        match holding.sight {
            Sight::Hidden { reason } => item.not_observed = Some(reason.into()),
            Sight::Check { word, is_gone } if item.gone.is_none() && is_gone(at, record, item) => {
                item.gone = Some(SeenGone { seen: Moment::now(), check: word.into() });
            }
            Sight::Check { .. } => {}
        }
    }
}

impl Ends {
    fn stage(self) -> Stage {
        match self {
            Self::WithKeeper | Self::AtEnd(_) => Stage::End,
            Self::AtRemoval(_) | Self::WithRecord => Stage::Removal,
        }
    }
}

impl Receipt {
    /// Drops the names of all objects; their numbers stay. Returns false if there are none.
    pub fn drop_names(&mut self) -> bool {
        let held = self.held.iter_mut().map(|item| &mut item.what);
        let names = held.chain(self.left_alone.iter_mut().map(|item| &mut item.what));
        names.fold(false, |had, names| {
            let has = !names.is_empty();
            names.clear();
            had || has
        })
    }

    /// Drops what describes the host: the names of all objects, and the process that removed the box.
    /// Numbers, times and checks stay.
    pub fn without_host(mut self) -> Self {
        self.drop_names();
        Self { pid: None, ..self }
    }

    /// The receipt of a box that is about to be removed.
    pub fn new(at: BoxAt<'_>, record: &Record, held: HeldLine, why: Reason) -> Self {
        let lines = &record.lines;
        let name = name::current(at, lines).or(lines.names.last());
        Self {
            version: VERSION,
            id: at.id.clone(),
            name: name.map(ToString::to_string),
            key: lines.tenant().and_then(Tenant::key).map(str::to_owned),
            boot_id: at.root.host.boot_id.clone(),
            created_at: lines.created.as_ref().map(|created| created.created_at),
            looked: held.looked,
            why,
            pid: Some(std::process::id()),
            complete: false,
            held: held.items,
            left_alone: left_alone(record),
        }
    }

    /// Completes the receipt when the box is removed, and returns what it adds.
    pub fn see_removal(&mut self, at: BoxAt<'_>, record: &Record) -> SeenRemoval {
        let is_open = |item: &HeldItem| item.gone.is_none() && item.not_observed.is_none();
        let before: Vec<_> = self.held.iter().map(is_open).collect();
        see_gone(at, record, Stage::Removal, &mut self.held);
        self.complete = !self.held.iter().any(is_open);
        let new = self.held.iter().zip(before).filter(|(_, was_open)| *was_open);
        let gone = new.filter_map(|(item, _)| Some((item.kind.clone(), item.gone.clone()?)));
        SeenRemoval { name: self.name.clone(), complete: self.complete, gone: gone.collect() }
    }

    /// Adds what was seen when the box was removed.
    pub fn add(&mut self, seen: SeenRemoval) {
        self.complete = seen.complete;
        for (kind, gone) in seen.gone {
            let item = self.held.iter_mut().find(|item| item.kind == kind);
            if let Some(item) = item {
                item.gone = Some(gone);
            }
        }
    }
}

/// The volumes and the root of the box. tare neither changes nor removes them.
fn left_alone(record: &Record) -> Vec<LeftAlone> {
    let Some(created) = &record.lines.created else {
        return Vec::new();
    };
    let spec = &created.spec;
    let volumes = spec.volumes.iter().map(|volume| volume.host.display().to_string()).collect();
    let root = match &spec.root {
        Root::HostView => Vec::new(),
        Root::Directory(path) => vec![path.display().to_string()],
    };
    let named = [("volume", volumes), ("rootfs", root)].into_iter();
    named
        .filter(|(_, what): &(_, Vec<String>)| !what.is_empty())
        .map(|(kind, what)| {
            let HeldItem { kind, count, what, .. } =
                HeldItem::new(kind, Some(what.len() as u64), None, what);
            LeftAlone { kind, count, what }
        })
        .collect()
}
