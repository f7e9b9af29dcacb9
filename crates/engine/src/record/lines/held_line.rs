//! What a box held on the host, and when tare saw each object gone. The record keeps this between
//! the processes that end and remove a box, and a receipt is made from it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::time::Moment;

/// What a box held when tare looked at it, with what tare has seen gone since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLine {
    /// When tare looked. `None`: the box had ended before.
    pub looked: Option<Moment>,
    pub items: Vec<HeldItem>,
}

/// All objects of one kind that a box held.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldItem {
    /// The kind, as in `tare inspect`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub kind: Cow<'static, str>,
    /// How many there were. `None`: tare did not count them before the box ended.
    pub count: Option<u64>,
    /// How many bytes, for memory and space.
    pub bytes: Option<u64>,
    /// Their names, at most [`NAMED_MAX`].
    pub what: Vec<String>,
    /// When tare saw that all of them were gone. `None`: it has not seen that.
    pub gone: Option<SeenGone>,
    /// Why the kernel does not show that they are gone.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub not_observed: Option<Cow<'static, str>>,
}

/// A moment at which tare looked at a kernel object and saw that something was gone.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenGone {
    #[serde(flatten)]
    pub seen: Moment,
    /// Which kernel object tare looked at: a word of docs/audit.md.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub check: Cow<'static, str>,
}

/// How many objects of one kind an item names. It counts all of them.
pub const NAMED_MAX: usize = 32;
/// How many bytes the names of an item have together.
const NAMED_BYTES_MAX: usize = 4 << 10;

impl HeldItem {
    /// An item that names as many of its objects as fit.
    pub fn new(
        kind: &'static str,
        count: Option<u64>,
        bytes: Option<u64>,
        what: Vec<String>,
    ) -> Self {
        let mut item = Self {
            kind: kind.into(),
            count: count.map(|count| count.max(what.len() as u64)),
            bytes,
            what,
            gone: None,
            not_observed: None,
        };
        item.shorten();
        item
    }

    /// Adds what an earlier look found. The processes of a box may be fewer in a later look.
    pub fn add_earlier(&mut self, earlier: &Self) {
        let mut what = earlier.what.clone();
        what.extend(self.what.iter().filter(|it| !earlier.what.contains(it)).cloned());
        self.count = self.count.max(earlier.count).map(|it| it.max(what.len() as u64));
        self.bytes = self.bytes.max(earlier.bytes);
        self.what = what;
        self.shorten();
    }

    /// Returns whether the box held nothing of the kind.
    pub fn is_empty(&self) -> bool {
        self.count == Some(0) && self.bytes.is_none()
    }

    fn shorten(&mut self) {
        let mut bytes = 0;
        let fits = |it: &&String| {
            bytes += it.len();
            bytes <= NAMED_BYTES_MAX
        };
        let named = self.what.iter().take(NAMED_MAX).take_while(fits).count();
        self.what.truncate(named);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_counts_all_objects_and_names_a_bounded_number() {
        let pids = |range: std::ops::Range<u32>| range.map(|pid| format!("pid {pid}")).collect();
        let many = HeldItem::new("process", Some(1000), None, pids(0..1000));
        assert_eq!((many.count, many.what.len()), (Some(1000), NAMED_MAX));
        let long = HeldItem::new("cgroup", Some(3), None, vec!["x".repeat(3000); 3]);
        assert_eq!((long.count, long.what.len()), (Some(3), 1));
        let mut later = HeldItem::new("process", Some(2), None, pids(5..7));
        later.add_earlier(&HeldItem::new("process", Some(6), None, pids(0..6)));
        assert_eq!(later.count, Some(7));
        assert_eq!(later.what.last().map(String::as_str), Some("pid 6"));
    }
}
