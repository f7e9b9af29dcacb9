//! `Idempotency-Key`: a request that is sent twice creates one box.
//!
//! The id of the box is derived from the idempotency key and the API key, and a label of the box has
//! the hash of the request. Nothing else is stored, so this works with several servers at once, and
//! after a server was killed.

use sha2::{Digest, Sha256};
use tare_engine::spec::Spec;
use tare_engine::{BoxId, Status};

use crate::admission::Caller;
use crate::error::ServiceError;

const KEY_BYTES_MAX: usize = 255;

/// The label with the hash of the request that created a box.
pub const REQUEST_LABEL: &str = "tare.request";

/// The box and the request of an idempotency key.
#[derive(Debug, PartialEq, Eq)]
pub struct Keyed {
    pub box_id: BoxId,
    /// A hash of the request and the key.
    pub request: String,
}

impl Keyed {
    /// `body` is JSON. The order of its fields and its spaces do not matter.
    pub fn new(key: &[u8], caller: &Caller, body: &[u8]) -> Result<Self, ServiceError> {
        let is_visible = key.iter().all(u8::is_ascii_graphic);
        if key.is_empty() || key.len() > KEY_BYTES_MAX || !is_visible {
            return Err(invalid_key());
        }
        Ok(Self { box_id: named(key, caller), request: request(key, body) })
    }
}

pub fn invalid_key() -> ServiceError {
    let message = "Idempotency-Key: it has to be one value of visible ASCII characters";
    ServiceError::invalid("invalid_idempotency_key", message)
        .with_hint(format!("send at most {KEY_BYTES_MAX} characters, such as a UUID"))
}

/// Derives the id of the box. Two callers may use the same key for different boxes.
fn named(key: &[u8], caller: &Caller) -> BoxId {
    let mut hash = Sha256::new_with_prefix(b"tare box\0");
    hash.update(caller.tenant.as_str());
    hash.update([0]);
    hash.update(key);
    let digest: [u8; 32] = hash.finalize().into();
    let (first, _) = digest.split_first_chunk().expect("32 are more than 12");
    BoxId::from_bytes(*first)
}

/// Hashes the request. The hash includes the key, so that a reader of the label cannot guess the
/// request.
fn request(key: &[u8], body: &[u8]) -> String {
    let sorted = serde_json::from_slice(body).map(|body: serde_json::Value| body.to_string());
    let mut hash = Sha256::new_with_prefix(b"tare request\0");
    hash.update(key);
    hash.update([0]);
    // Requests whose body is not JSON were refused before.
    hash.update(sorted.as_deref().map_or(body, str::as_bytes));
    let digest: [u8; 32] = hash.finalize().into();
    digest[..REQUEST_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Enough to tell any two requests with the same key apart.
const REQUEST_BYTES: usize = 16;

/// Checks that a box was created by the same request. A box without the label passes: another
/// server may have created it.
pub fn check_same(found: &Status, spec: &Spec) -> Result<(), ServiceError> {
    match (found.labels.get(REQUEST_LABEL), spec.labels.get(REQUEST_LABEL)) {
        (Some(before), Some(now)) if before != now => Err(ServiceError::unprocessable(
            "idempotency_key_reused",
            format!("box {} was created by another request with this Idempotency-Key", found.id),
        )
        .with_hint("send the same request again, or use another key")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tare_engine::spec::Tenant;

    use super::*;

    fn keyed(key: &[u8], caller: Option<&str>, body: &str) -> Result<Keyed, &'static str> {
        let tenant = caller.map(|key| Tenant::parse(key).expect("a key"));
        let caller = Caller::of(tenant.unwrap_or_default());
        Keyed::new(key, &caller, body.as_bytes()).map_err(|error| error.code)
    }

    fn of(key: &[u8], caller: Option<&str>) -> Result<BoxId, &'static str> {
        Ok(keyed(key, caller, "{}")?.box_id)
    }

    #[test]
    fn the_order_of_fields_does_not_change_a_request() {
        let request = |body| keyed(b"a", None, body).map(|keyed| keyed.request);
        let plain = request(r#"{"a":1,"b":{"c":2,"d":3}}"#);
        assert_eq!(plain, request(r#"{ "b": {"d":3,"c":2}, "a":1 }"#));
        assert_ne!(plain, request(r#"{"a":1,"b":{"c":2,"d":4}}"#));
    }

    #[test]
    fn a_key_is_one_box_for_each_caller() {
        assert_eq!(of(b"a", Some("ci")), of(b"a", Some("ci")));
        assert_ne!(of(b"a", Some("ci")), of(b"b", Some("ci")));
        assert_ne!(of(b"a", Some("ci")), of(b"a", Some("desk")));
        assert_ne!(of(b"a", Some("ci")), of(b"a", None));
    }

    #[test]
    fn a_key_has_bounds() {
        const LONGEST: &[u8] = &[b'x'; KEY_BYTES_MAX];
        const LONGER: &[u8] = &[b'x'; KEY_BYTES_MAX + 1];
        assert!(of(LONGEST, None).is_ok());
        for wrong in [&b""[..], LONGER, b"a b", b"\xff", b"a\t"] {
            assert_eq!(of(wrong, None), Err("invalid_idempotency_key"), "{wrong:?}");
        }
    }
}
