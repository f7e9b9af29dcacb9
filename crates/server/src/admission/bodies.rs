//! Memory for the bodies of requests and responses: all share one budget, `[limits] bodies_bytes`.
//!
//! A request's body is charged for its bytes as they arrive, and for its parsed values. The charge
//! lasts until the request ends. Output that is kept for a response is charged as it is read. The
//! response is charged until its last byte is sent. Bodies that are streamed are not charged.

use tare_engine::spec::quantity;

use crate::admission::share::{NoShare, Share, SharedAmount};
use crate::config::Config;
use crate::error::{Kind, ServiceError};

/// A body up to this size may use the whole budget, a larger one all but a part of it. So there is
/// memory for ordinary requests after large ones have used up theirs.
const SMALL_BYTES: u64 = 16 << 10;
/// One sixteenth of the budget is for small bodies alone.
const SMALL_SHARE_DIVISOR: u64 = 16;
/// Upper bound for one parsed JSON value, beside its bytes: two short strings in a map entry, which
/// exist twice while they are converted.
const VALUE_BYTES: u64 = 256;

/// The memory that all bodies use now. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Bodies(SharedAmount);

/// The memory that one body uses, until this is dropped.
#[derive(Debug, Default)]
pub struct Charge {
    share: Share,
    budget: u64,
}

/// Returns the memory that a body needs while it is read and parsed: for its bytes, for the texts
/// that are made of them, and for its values.
pub fn cost_of(length: usize, values: u64) -> u64 {
    let bytes = (length as u64).saturating_mul(2);
    bytes.saturating_add(values.saturating_mul(VALUE_BYTES))
}

/// Counts the values in the lists and objects of a JSON text without parsing it.
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
        self.0.held()
    }

    /// Returns an empty charge for a body of this key.
    pub fn charge(&self, config: &Config, key: Option<&str>) -> Charge {
        let share = self.0.begin(key, config.keys.len());
        Charge { share, budget: config.limits.bodies_bytes.0 }
    }
}

impl Charge {
    /// Changes the charge. If this is refused, the old charge stays.
    pub fn hold(&mut self, bytes: u64, length: usize) -> Result<(), ServiceError> {
        let most = if is_small(length as u64) {
            self.budget
        } else {
            self.budget - self.budget / SMALL_SHARE_DIVISOR
        };
        let largest = self.share.largest(most);
        self.share.resize(bytes, most).map_err(|refused| match refused {
            _ if bytes > largest => too_large(bytes, largest),
            NoShare::Full(used) => full(used, self.budget),
            NoShare::OfKey(share) => share_used(share, self.budget),
        })
    }

    /// Changes the charge of a response, or of output that is kept for one.
    pub fn hold_response(&mut self, length: usize) -> Result<(), ServiceError> {
        match self.hold(length as u64, length) {
            Err(error) if error.kind == Kind::TooLarge => {
                Err(response_too_large(length, self.share.largest(self.budget)))
            }
            held => held,
        }
    }
}

/// Returns whether a body is small. Small responses are not charged: their number is bounded by the
/// limit of connections.
pub fn is_small(length: u64) -> bool {
    length <= SMALL_BYTES
}

const HINT: &str = "the operator's limit is [limits] bodies_bytes";
const RETRY_AFTER_S: u32 = 2;

/// The error for a request that never fits.
fn too_large(wanted: u64, most: u64) -> ServiceError {
    let (wanted, most) = (quantity::show_bytes(wanted), quantity::show_bytes(most));
    let message = format!("the body needs {wanted} of memory, and this server has {most} for it");
    ServiceError::too_large("too_large", message).with_hint(HINT)
}

/// The error for a response that never fits.
fn response_too_large(length: usize, most: u64) -> ServiceError {
    let (needed, most) = (quantity::show_bytes(length as u64), quantity::show_bytes(most));
    let message = format!("the response needs {needed} of the {most} of memory for bodies");
    ServiceError::unprocessable("response_too_large", message).with_hint(HINT)
}

fn full(used: u64, budget: u64) -> ServiceError {
    let (used, budget) = (quantity::show_bytes(used), quantity::show_bytes(budget));
    let message = format!("server busy: requests and responses hold {used} of {budget} of memory");
    ServiceError::unavailable("bodies_full", message).with_hint(HINT)
}

fn share_used(share: u64, budget: u64) -> ServiceError {
    let (share, budget) = (quantity::show_bytes(share), quantity::show_bytes(budget));
    let message = format!(
        "requests and responses of this key may hold {share} of {budget} of memory now: half of \
         what other keys leave"
    );
    ServiceError::limited("quota_bodies", message, RETRY_AFTER_S).with_hint(HINT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ByteSize, Key};

    const BUDGET: u64 = 1 << 20;
    const LARGE: usize = 100 << 10;

    fn config(keys: &[&str]) -> Config {
        let keys = keys.iter().map(|name| Key::named(name, b"x")).collect();
        let mut config = Config { keys, ..Config::default() };
        config.limits.bodies_bytes = ByteSize(BUDGET);
        config
    }

    /// A charge on a server without keys.
    fn charged(bodies: &Bodies) -> Charge {
        bodies.charge(&config(&[]), None)
    }

    #[test]
    fn bodies_share_one_budget_and_give_it_back() {
        let bodies = Bodies::default();
        let mut first = charged(&bodies);
        first.hold(BUDGET / 2, LARGE).expect("there is room");
        let mut second = charged(&bodies);
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
        let mut large = charged(&bodies);
        let share = BUDGET - BUDGET / SMALL_SHARE_DIVISOR;
        large.hold(share, LARGE).expect("its share");
        let mut another = charged(&bodies);
        assert!(another.hold(1, LARGE).is_err());
        another.hold(1000, 500).expect("it is small");
    }

    #[test]
    fn a_body_that_never_fits_is_too_large() {
        let mut charge = charged(&Bodies::default());
        let refused = charge.hold(BUDGET, LARGE).expect_err("more than its share");
        assert_eq!(refused.code, "too_large");
    }

    #[test]
    fn a_response_that_never_fits_is_not_the_fault_of_the_request() {
        let bodies = Bodies::default();
        let mut charge = charged(&bodies);
        let refused = charge.hold_response(BUDGET as usize).expect_err("more than its share");
        assert_eq!(refused.code, "response_too_large");
        charge.hold_response(LARGE).expect("there is room");
        let mut another = charged(&bodies);
        let refused = another.hold_response(BUDGET as usize - LARGE).expect_err("too much");
        assert_eq!(refused.code, "bodies_full");
    }

    #[test]
    fn one_key_leaves_memory_to_others() {
        let (bodies, config) = (Bodies::default(), config(&["a", "b", "c"]));
        let mut first = bodies.charge(&config, Some("a"));
        first.hold_response(400 << 10).expect("less than half");
        let mut again = bodies.charge(&config, Some("a"));
        let refused = again.hold_response(LARGE).expect_err("more than half");
        assert_eq!((refused.code, refused.kind), ("quota_bodies", Kind::Limited));
        for key in ["b", "c"] {
            let mut other = bodies.charge(&config, Some(key));
            other.hold_response(LARGE).expect("half of the rest");
            std::mem::forget(other);
        }
        let refused = again.hold_response(600 << 10).expect_err("more than a key ever gets");
        assert_eq!(refused.code, "response_too_large");
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
