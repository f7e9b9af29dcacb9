//! The end of a page of boxes, as an opaque text for clients. It stays valid after its box is
//! removed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tare_engine::{BoxId, Status, Timestamp};

use crate::error::ServiceError;

/// The place of a box in the list. The list is sorted by time and id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    created_at: Timestamp,
    id: String,
}

impl Cursor {
    pub fn of(one: &Status) -> Self {
        Self { created_at: one.created_at, id: one.id.to_string() }
    }

    /// Parses `after`: a cursor, or the id of a box in the list.
    pub fn find(after: &str, boxes: &[Status]) -> Result<Self, ServiceError> {
        let named = boxes.iter().find(|one| one.id.as_str() == after);
        let place = named.map(Self::of).or_else(|| Self::decode(after));
        place.ok_or_else(|| {
            let message = format!("after: {after:?} is neither a cursor nor the id of a box");
            ServiceError::invalid("invalid_cursor", message).with_hint(
                "send the 'next' of the previous page, or leave 'after' out to begin again",
            )
        })
    }

    pub fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}/{}", self.created_at.as_ms(), self.id))
    }

    fn decode(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (ms, id) = std::str::from_utf8(&bytes).ok()?.split_once('/')?;
        Some(Self {
            created_at: Timestamp::from_ms(ms.parse().ok()?),
            id: BoxId::parse(id)?.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(ms: u64) -> Cursor {
        Cursor { created_at: Timestamp::from_ms(ms), id: BoxId::random().to_string() }
    }

    #[test]
    fn a_cursor_survives_its_encoding_and_is_sorted_by_time_first() {
        let (early, late) = (cursor(9), cursor(10));
        assert!(early < late);
        for one in [early, late, cursor(u64::MAX)] {
            assert_eq!(Cursor::find(&one.encode(), &[]).ok(), Some(one));
        }
    }

    #[test]
    fn a_malformed_cursor_is_refused() {
        let id = BoxId::random().to_string();
        let no_id = URL_SAFE_NO_PAD.encode("9/../../etc");
        let no_time = URL_SAFE_NO_PAD.encode(format!("-1/{id}"));
        for text in ["", "x", "%", id.as_str(), &no_id, &no_time, &"A".repeat(9_000)] {
            let refused = Cursor::find(text, &[]).expect_err(text);
            assert_eq!(refused.code, "invalid_cursor", "{text}");
        }
    }
}
