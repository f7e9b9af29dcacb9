//! Memory for the bodies of requests and responses: all share one budget, `[limits] bodies_bytes`.
//!
//! A request's body is charged for its bytes as they arrive, and for its parsed values. The charge
//! lasts until the request ends. Output that is kept for a response is charged as it is read, and
//! the response until its last byte is sent. Bodies that are streamed are not charged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tare_engine::spec::quantity;

use crate::error::{Kind, ServiceError};

/// A body up to this size may use the whole budget, a larger one all but a part of it:
/// ordinary requests still come through when large ones have used up their share.
const SMALL_BYTES: u64 = 16 << 10;
/// The part of the budget that is for small bodies alone.
const SMALL_SHARE: u64 = 16;
/// What one value of a list or an object takes at most once it is parsed, beside its
/// bytes: an entry of a map with two short texts, twice while it is converted.
const VALUE_BYTES: u64 = 256;

/// The memory that all bodies use now.
#[derive(Debug, Clone, Default)]
pub struct Bodies {
    used: Arc<AtomicU64>,
}

/// The memory that one body uses, until this is dropped.
#[derive(Debug, Default)]
pub struct Charge {
    bodies: Bodies,
    budget: u64,
    bytes: u64,
}

/// What a body needs while it is read, and while it is parsed: its bytes, and the texts
/// that are made of them.
pub fn cost_of(length: usize, values: u64) -> u64 {
    let bytes = (length as u64).saturating_mul(2);
    bytes.saturating_add(values.saturating_mul(VALUE_BYTES))
}

/// How many values the lists and objects of a JSON text have, without parsing it.
pub fn values_in(json: &[u8]) -> u64 {
    let (mut values, mut in_text, mut is_escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_text,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values
}

impl Bodies {
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn charge(&self, budget: u64) -> Charge {
        Charge { bodies: self.clone(), budget, bytes: 0 }
    }
}

impl Charge {
    /// Changes the charge. If this is refused, the old charge stays.
    pub fn hold(&mut self, bytes: u64, length: usize) -> Result<(), ServiceError> {
        let most = if length as u64 <= SMALL_BYTES {
            self.budget
        } else {
            self.budget - self.budget / SMALL_SHARE
        };
        let before = self.bytes;
        let changed = |used: u64| {
            let used = used.saturating_sub(before).saturating_add(bytes);
            (bytes <= before || used <= most).then_some(used)
        };
        let used = &self.bodies.used;
        match used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed) {
            Ok(_) => {
                self.bytes = bytes;
                Ok(())
            }
            Err(_) if bytes > most => Err(too_large(bytes, most)),
            Err(used) => Err(full(used, self.budget)),
        }
    }

    /// The same for a response, or for output that is kept for one.
    pub fn hold_response(&mut self, length: usize) -> Result<(), ServiceError> {
        match self.hold(length as u64, length) {
            Err(error) if error.kind == Kind::TooLarge => {
                Err(response_too_large(length, self.budget))
            }
            held => held,
        }
    }
}

/// Returns whether a response is so small that the limit of connections bounds the memory of all.
pub fn is_small(length: u64) -> bool {
    length <= SMALL_BYTES
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.bodies.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

const HINT: &str = "the operator's limit is [limits] bodies_bytes";

/// The error for a body that is larger than the whole budget.
fn too_large(wanted: u64, most: u64) -> ServiceError {
    let (wanted, most) = (quantity::show_bytes(wanted), quantity::show_bytes(most));
    let message = format!("the body needs {wanted} of memory, and this server has {most} for it");
    ServiceError::too_large("too_large", message).with_hint(HINT)
}

/// The error for a response that is larger than the whole budget.
fn response_too_large(length: usize, budget: u64) -> ServiceError {
    let (needed, budget) = (quantity::show_bytes(length as u64), quantity::show_bytes(budget));
    let message = format!("the response needs {needed} of the {budget} of memory for bodies");
    ServiceError::unprocessable("response_too_large", message).with_hint(HINT)
}

fn full(used: u64, budget: u64) -> ServiceError {
    let (used, budget) = (quantity::show_bytes(used), quantity::show_bytes(budget));
    let message = format!("server busy: requests and responses hold {used} of {budget} of memory");
    ServiceError::unavailable("bodies_full", message).with_hint(HINT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 1 << 20;
    const LARGE: usize = 100 << 10;

    #[test]
    fn bodies_share_one_budget_and_give_it_back() {
        let bodies = Bodies::default();
        let mut first = bodies.charge(BUDGET);
        first.hold(BUDGET / 2, LARGE).expect("there is room");
        let mut second = bodies.charge(BUDGET);
        second.hold(BUDGET / 4, LARGE).expect("there is room");
        let refused = second.hold(BUDGET / 2, LARGE).expect_err("too much");
        assert_eq!(refused.code, "bodies_full");
        assert!(refused.retry_after_s.is_some());
        assert_eq!(bodies.used_bytes(), BUDGET * 3 / 4);
        first.hold(10, LARGE).expect("less is always granted");
        second.hold(BUDGET / 2, LARGE).expect("there is room now");
        drop((first, second));
        assert_eq!(bodies.used_bytes(), 0);
    }

    #[test]
    fn a_small_body_finds_room_where_large_ones_filled_their_share() {
        let bodies = Bodies::default();
        let mut large = bodies.charge(BUDGET);
        let share = BUDGET - BUDGET / SMALL_SHARE;
        large.hold(share, LARGE).expect("its share");
        let mut another = bodies.charge(BUDGET);
        assert!(another.hold(1, LARGE).is_err());
        another.hold(1000, 500).expect("it is small");
    }

    #[test]
    fn a_body_that_never_fits_is_too_large() {
        let mut charge = Bodies::default().charge(BUDGET);
        let refused = charge.hold(BUDGET, LARGE).expect_err("more than its share");
        assert_eq!(refused.code, "too_large");
    }

    #[test]
    fn a_response_that_never_fits_is_not_the_fault_of_the_request() {
        let bodies = Bodies::default();
        let mut charge = bodies.charge(BUDGET);
        let refused = charge.hold_response(BUDGET as usize).expect_err("more than its share");
        assert_eq!(refused.code, "response_too_large");
        charge.hold_response(LARGE).expect("there is room");
        let mut another = bodies.charge(BUDGET);
        let refused = another.hold_response(BUDGET as usize - LARGE).expect_err("too much");
        assert_eq!(refused.code, "bodies_full");
    }

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (json, values) in [
            ("", 0),
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[1,2],"b":{}}"#, 5),
            (r#""a,[{b""#, 0),
            (r#"["\",[",","]"#, 2),
            (r#"["\\",1]"#, 2),
            (r#"["open,,,"#, 1),
            (r#"["\"#, 1),
        ] {
            assert_eq!(values_in(json.as_bytes()), values, "{json}");
        }
    }
}
