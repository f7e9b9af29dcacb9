//! `Idempotency-Key`: a request that is sent again costs nothing.
//!
//! Nothing is stored for it. The id of a box is made of the key and of whose key it is,
//! and the box's record, of which there is one, says whether it is there; that holds
//! for several servers at once, and for one that was killed in between.

use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use sha2::{Digest, Sha256};
use tare_engine::spec::Spec;
use tare_engine::{BoxId, DetachOptions, Engine, Error, ErrorKind, State, Status};

use crate::api::boxes::{Asking, Created};
use crate::app::App;
use crate::error::ApiError;
use crate::guard::Caller;

const HEADER: &str = "idempotency-key";
const KEY_BYTES_MAX: usize = 255;
/// How long a box is waited for that another request is making.
const MADE_WITHIN: Duration = Duration::from_secs(60);
/// Between looks at it.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The box that a key stands for, if one was given.
pub fn box_of(headers: &HeaderMap, caller: &Caller) -> Result<Option<BoxId>, ApiError> {
    let mut given = headers.get_all(HEADER).iter();
    let Some(key) = given.next() else {
        return Ok(None);
    };
    let key = key.as_bytes();
    let is_visible = key.iter().all(u8::is_ascii_graphic);
    if given.next().is_some() || key.is_empty() || key.len() > KEY_BYTES_MAX || !is_visible {
        return Err(ApiError::bad_request(
            "invalid_idempotency_key",
            "Idempotency-Key: it has to be one text of visible ASCII characters",
        )
        .with_hint(format!("send at most {KEY_BYTES_MAX}, such as a UUID")));
    }
    Ok(Some(named(key, caller)))
}

/// Two callers may use the same key and mean different boxes.
fn named(key: &[u8], Caller(caller): &Caller) -> BoxId {
    let mut hash = Sha256::new_with_prefix(b"tare box\0");
    hash.update([u8::from(caller.is_some())]);
    hash.update(caller.as_deref().unwrap_or(""));
    hash.update([0]);
    hash.update(key);
    let digest: [u8; 32] = hash.finalize().into();
    let (first, _) = digest.split_first_chunk().expect("32 are more than 12");
    BoxId::from_bytes(*first)
}

/// Makes the box, or finds it. Whoever else makes it is waited for. Only one that is
/// made needs room and counts: a request that is sent again is never refused for it.
pub async fn start(
    app: &App,
    id: BoxId,
    spec: Spec,
    options: DetachOptions,
    asking: &Asking,
) -> Result<Created, ApiError> {
    let until = Instant::now() + MADE_WITHIN;
    loop {
        let of = id.clone();
        match app.ask(move |engine| look(engine, &of)).await? {
            Found::Whole(status) => return Ok(Created::Before(status)),
            Found::Half => {}
            Found::Nothing => {
                let admitted = asking.admit(app).await?;
                let (of, spec, options) = (id.clone(), spec.clone(), options.clone());
                let note = asking.note(app);
                let start = move |engine: &Engine| {
                    let started = engine.start_as(&of, &spec, &options)?;
                    started
                        .map(|started| Created::watched(engine, &note, started, admitted))
                        .transpose()
                };
                if let Some(created) = app.ask(start).await? {
                    return Ok(created);
                }
            }
        }
        if Instant::now() >= until {
            let message = "the box of this Idempotency-Key is still being made";
            return Err(ApiError::unavailable("still_starting", message));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

enum Found {
    Whole(Status),
    /// Somebody makes it, or removes what was never whole.
    Half,
    Nothing,
}

fn look(engine: &Engine, id: &BoxId) -> Result<Found, Error> {
    match engine.status(id) {
        Ok(status) => Ok(match status.state {
            // Its creator may just have been killed.
            State::Starting | State::Stuck => Found::Half,
            State::Running | State::Paused | State::Stopping | State::Exited => {
                Found::Whole(status)
            }
        }),
        Err(error) if error.kind() == ErrorKind::NoSuchBox => Ok(Found::Nothing),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn of(key: &'static [u8], caller: Option<&str>) -> Result<Option<BoxId>, u16> {
        let value = HeaderValue::from_bytes(key).expect("a header");
        let headers = HeaderMap::from_iter([(HEADER.parse().expect("a name"), value)]);
        let caller = Caller(caller.map(str::to_owned));
        box_of(&headers, &caller).map_err(|error| error.status.as_u16())
    }

    #[test]
    fn a_key_is_one_box_for_each_caller() {
        assert_eq!(of(b"a", Some("ci")), of(b"a", Some("ci")));
        assert_ne!(of(b"a", Some("ci")), of(b"b", Some("ci")));
        assert_ne!(of(b"a", Some("ci")), of(b"a", Some("desk")));
        assert_ne!(of(b"a", Some("")), of(b"a", None));
        assert_eq!(box_of(&HeaderMap::new(), &Caller(None)).ok(), Some(None));
    }

    #[test]
    fn a_key_has_bounds() {
        const LONGEST: &[u8] = &[b'x'; KEY_BYTES_MAX];
        const LONGER: &[u8] = &[b'x'; KEY_BYTES_MAX + 1];
        assert!(of(LONGEST, None).is_ok());
        for wrong in [b"", LONGER, b"a b", b"\xff", b"a\t"] {
            assert_eq!(of(wrong, None), Err(400), "{wrong:?}");
        }
    }
}
