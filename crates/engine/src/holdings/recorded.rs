//! The record of a box as one of its holdings. `record` makes and removes it.

use crate::holdings::{Ends, Found, Holding, Sight, is_missing};

pub const HOLDING: Holding = Holding {
    kind: "record",
    ends: Ends::WithRecord,
    probe: |look| Found::paths(Some(look.at.record()).filter(|path| !is_missing(path))),
    sight: Sight::Check { word: "path", is_gone: |at, _, _| is_missing(&at.record()) },
};
