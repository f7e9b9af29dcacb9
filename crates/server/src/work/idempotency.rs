//! `Idempotency-Key`: a request that is sent again costs nothing.
//!
//! Nothing is stored but with the box. Its id is made of the key and of whose key it is,
//! and its record, of which there is one, says whether it is there, and as a label what
//! was asked for; that holds for several servers at once, and for one that was killed in
//! between.

use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use sha2::{Digest, Sha256};
use tare_engine::spec::Spec;
use tare_engine::{BoxId, DetachOptions, Engine, Error, ErrorKind, Status};

use crate::admission::{Caller, Need};
use crate::api::boxes::Created;
use crate::app::App;
use crate::error::ServiceError;

const HEADER: &str = "idempotency-key";
const KEY_BYTES_MAX: usize = 255;
/// How long a box is waited for that another request is making.
const MADE_WITHIN: Duration = Duration::from_secs(60);
/// Between looks at it.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Which request a box was made for.
pub const REQUEST_LABEL: &str = "tare.request";

/// What a key stands for.
#[derive(Debug, PartialEq, Eq)]
pub struct Keyed {
    pub box_id: BoxId,
    /// The same for the same request and key, and tells nothing of either.
    pub request: String,
}

/// What the key of a request stands for, if one was given. `body` is JSON, of which the
/// order of fields and the spaces do not count.
pub fn keyed(
    headers: &HeaderMap,
    caller: &Caller,
    body: &[u8],
) -> Result<Option<Keyed>, ServiceError> {
    let Some(key) = key(headers)? else {
        return Ok(None);
    };
    Ok(Some(Keyed { box_id: named(key, caller), request: request(key, body) }))
}

fn key(headers: &HeaderMap) -> Result<Option<&[u8]>, ServiceError> {
    let mut given = headers.get_all(HEADER).iter();
    let Some(key) = given.next() else {
        return Ok(None);
    };
    let key = key.as_bytes();
    let is_visible = key.iter().all(u8::is_ascii_graphic);
    if given.next().is_some() || key.is_empty() || key.len() > KEY_BYTES_MAX || !is_visible {
        return Err(ServiceError::invalid(
            "invalid_idempotency_key",
            "Idempotency-Key: it has to be one text of visible ASCII characters",
        )
        .with_hint(format!("send at most {KEY_BYTES_MAX}, such as a UUID")));
    }
    Ok(Some(key))
}

/// Two callers may use the same key and mean different boxes.
fn named(key: &[u8], caller: &Caller) -> BoxId {
    let mut hash = Sha256::new_with_prefix(b"tare box\0");
    hash.update([u8::from(caller.key.is_some())]);
    hash.update(caller.key.as_deref().unwrap_or(""));
    hash.update([0]);
    hash.update(key);
    let digest: [u8; 32] = hash.finalize().into();
    let (first, _) = digest.split_first_chunk().expect("32 are more than 12");
    BoxId::from_bytes(*first)
}

/// With the key in it nobody who reads the label can try what the request may have been.
fn request(key: &[u8], body: &[u8]) -> String {
    let sorted = serde_json::from_slice(body).map(|body: serde_json::Value| body.to_string());
    let mut hash = Sha256::new_with_prefix(b"tare request\0");
    hash.update(key);
    hash.update([0]);
    // It was read before; what cannot be is itself.
    hash.update(sorted.as_deref().map_or(body, str::as_bytes));
    let digest: [u8; 32] = hash.finalize().into();
    digest[..REQUEST_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// So many tell any two requests with the same key apart.
const REQUEST_BYTES: usize = 16;

/// A box of another server may not say what it was made for.
fn check_same(found: &Status, spec: &Spec) -> Result<(), ServiceError> {
    match (found.labels.get(REQUEST_LABEL), spec.labels.get(REQUEST_LABEL)) {
        (Some(before), Some(now)) if before != now => Err(ServiceError::unprocessable(
            "idempotency_key_reused",
            format!("box {} was made with this Idempotency-Key for another request", found.id),
        )
        .with_hint("send what was sent with it, or another key")),
        _ => Ok(()),
    }
}

/// Makes the box, or finds it. Whoever else makes it is waited for. Only one that is
/// made needs room and counts: a request that is sent again is never refused for it.
pub async fn start(
    app: &App,
    id: BoxId,
    spec: Spec,
    options: DetachOptions,
    caller: &Caller,
) -> Result<Created, ServiceError> {
    let until = Instant::now() + MADE_WITHIN;
    loop {
        let of = id.clone();
        match app.ask(move |engine| look(engine, &of)).await? {
            Found::Whole(status) => {
                check_same(&status, &spec)?;
                return Ok(Created::Before(*status));
            }
            Found::Half => {}
            Found::Nothing => {
                let admitted = app.admit(caller, Need::lasting_box(&spec)).await?;
                let (of, spec, options) = (id.clone(), spec.clone(), options.clone());
                let (server, caller) = (app.clone(), caller.clone());
                let start = move |engine: &Engine| {
                    let started = engine.start_as(&of, &spec, &options)?;
                    started
                        .map(|started| Created::watched(&server, &caller, started, &spec, admitted))
                        .transpose()
                };
                if let Some(created) = app.ask_to_create(start).await? {
                    return Ok(created);
                }
            }
        }
        if Instant::now() >= until {
            let message = "the box of this Idempotency-Key is still being made";
            return Err(ServiceError::unavailable("still_starting", message));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

enum Found {
    Whole(Box<Status>),
    /// Somebody makes it, or removes what was never whole.
    Half,
    Nothing,
}

fn look(engine: &Engine, id: &BoxId) -> Result<Found, Error> {
    match engine.announced(id) {
        Ok(Some(status)) => Ok(Found::Whole(Box::new(status))),
        Ok(None) => Ok(Found::Half),
        Err(error) if error.kind() == ErrorKind::NoSuchBox => Ok(Found::Nothing),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn asked(
        key: &'static [u8],
        caller: Option<&str>,
        body: &str,
    ) -> Result<Option<Keyed>, &'static str> {
        let value = HeaderValue::from_bytes(key).expect("a header");
        let headers = HeaderMap::from_iter([(HEADER.parse().expect("a name"), value)]);
        let caller = Caller { key: caller.map(str::to_owned), ..Caller::default() };
        keyed(&headers, &caller, body.as_bytes()).map_err(|error| error.code)
    }

    fn of(key: &'static [u8], caller: Option<&str>) -> Result<Option<BoxId>, &'static str> {
        Ok(asked(key, caller, "{}")?.map(|keyed| keyed.box_id))
    }

    #[test]
    fn the_order_of_fields_does_not_change_a_request() {
        let request = |body| asked(b"a", None, body).map(|keyed| keyed.map(|it| it.request));
        let plain = request(r#"{"a":1,"b":{"c":2,"d":3}}"#);
        assert_eq!(plain, request(r#"{ "b": {"d":3,"c":2}, "a":1 }"#));
        assert_ne!(plain, request(r#"{"a":1,"b":{"c":2,"d":4}}"#));
    }

    #[test]
    fn a_key_is_one_box_for_each_caller() {
        assert_eq!(of(b"a", Some("ci")), of(b"a", Some("ci")));
        assert_ne!(of(b"a", Some("ci")), of(b"b", Some("ci")));
        assert_ne!(of(b"a", Some("ci")), of(b"a", Some("desk")));
        assert_ne!(of(b"a", Some("")), of(b"a", None));
        let none = keyed(&HeaderMap::new(), &Caller::default(), b"{}");
        assert_eq!(none.ok(), Some(None));
    }

    #[test]
    fn a_key_has_bounds() {
        const LONGEST: &[u8] = &[b'x'; KEY_BYTES_MAX];
        const LONGER: &[u8] = &[b'x'; KEY_BYTES_MAX + 1];
        assert!(of(LONGEST, None).is_ok());
        for wrong in [b"", LONGER, b"a b", b"\xff", b"a\t"] {
            assert_eq!(of(wrong, None), Err("invalid_idempotency_key"), "{wrong:?}");
        }
    }
}
