//! `POST /v1/exec/programmatic/cancel` ends the request of an id.
//!
//! Later clients name each request (`X-LibreChat-Code-Request-ID`) and cancel it when they no
//! longer need the answer. This also works behind a proxy that keeps its connection open.
//!
//! ```text
//! (unknown) ─ request ─▶ Runs ─ end ─▶ Ended ─▶ forgotten
//!     └────── cancel ──▶ Cancelled ──────────────┘
//! ```
//!
//! A cancel may arrive before its request, which is then refused. A user cannot cancel a request of
//! another user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::error::ServiceError;
use crate::http::extract::Json;
use crate::store::owner::Principal;
use crate::workers::locked;

const REQUEST_ID: &str = "x-librechat-code-request-id";
/// How long the server remembers an id that was cancelled or has ended.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// How many such ids it remembers of one user, and in total.
const OF_USER_MAX: usize = 64;
const REMEMBERED_MAX: usize = 4096;
/// The code of a request that was cancelled.
pub const CANCELLED: &str = "execution_cancelled";

/// Requests with an id. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Cancellable(Arc<Mutex<HashMap<RequestName, RequestState>>>);

/// The client of a request, and its id.
type RequestName = (Principal, String);

#[derive(Debug)]
enum RequestState {
    Runs(oneshot::Sender<()>),
    Cancelled(Instant),
    Ended(Instant),
}

impl RequestState {
    /// When the request was cancelled or ended.
    fn since(&self) -> Option<Instant> {
        match self {
            Self::Runs(_) => None,
            Self::Cancelled(since) | Self::Ended(since) => Some(*since),
        }
    }
}

/// Whether a request begins.
enum Begin<'a> {
    /// The request runs. It can be cancelled until the guard is dropped.
    Runs(Running<'a>, oneshot::Receiver<()>),
    /// A cancel came before the request.
    Cancelled,
    /// Another request with this id runs. This one cannot be cancelled.
    Twin,
}

/// Guard for one request in flight.
struct Running<'a> {
    all: &'a Cancellable,
    name: RequestName,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(state @ RequestState::Runs(_)) = all.get_mut(&self.name) {
            *state = RequestState::Ended(Instant::now());
        }
    }
}

impl Cancellable {
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestName, RequestState>> {
        locked(&self.0)
    }

    fn begin(&self, name: RequestName) -> Begin<'_> {
        let mut all = self.lock();
        make_room(&mut all, &name.0);
        match all.get(&name) {
            Some(RequestState::Runs(_)) => return Begin::Twin,
            Some(RequestState::Cancelled(_)) => return Begin::Cancelled,
            Some(RequestState::Ended(_)) | None => {}
        }
        let (cancel, cancelled) = oneshot::channel();
        all.insert(name.clone(), RequestState::Runs(cancel));
        Begin::Runs(Running { all: self, name }, cancelled)
    }

    fn cancel(&self, name: RequestName) -> Result<(StatusCode, &'static str), ServiceError> {
        let mut all = self.lock();
        make_room(&mut all, &name.0);
        let is_foreign = |(user, id): &RequestName| *id == name.1 && *user != name.0;
        if !all.contains_key(&name) && all.keys().any(is_foreign) {
            let message = "this request belongs to another user";
            return Err(ServiceError::forbidden("forbidden", message));
        }
        if let Some(RequestState::Ended(_)) = all.get(&name) {
            return Ok((StatusCode::OK, "already_completed"));
        }
        let before = all.insert(name, RequestState::Cancelled(Instant::now()));
        if let Some(RequestState::Runs(cancel)) = before {
            // A request that ends at this moment needs no cancel.
            cancel.send(()).ok();
        }
        Ok((StatusCode::ACCEPTED, "cancellation_requested"))
    }
}

/// Forgets old ids. Beyond the limits, it forgets the oldest id of the user, or of all.
fn make_room(all: &mut HashMap<RequestName, RequestState>, user: &Principal) {
    all.retain(|_, state| state.since().is_none_or(|since| since.elapsed() < REMEMBERED_FOR));
    let remembered = || all.iter().filter_map(|(name, state)| Some((state.since()?, name)));
    let of_user = || remembered().filter(|(_, name)| name.0 == *user);
    let oldest = if of_user().count() >= OF_USER_MAX {
        of_user().min_by_key(|(since, _)| *since)
    } else if remembered().count() >= REMEMBERED_MAX {
        remembered().min_by_key(|(since, _)| *since)
    } else {
        None
    };
    if let Some((_, name)) = oldest {
        let name = name.clone();
        all.remove(&name);
    }
}

/// Serves a request unless it is cancelled. A request without a valid id cannot be cancelled.
pub async fn unless_cancelled<T>(
    cancellable: &Cancellable,
    principal: &Principal,
    headers: &HeaderMap,
    served: impl Future<Output = Result<T, ServiceError>>,
) -> Result<T, ServiceError> {
    let id = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let Some(id) = id.filter(|id| is_id(id)) else {
        return served.await;
    };
    match cancellable.begin((principal.clone(), id.to_owned())) {
        Begin::Twin => served.await,
        Begin::Cancelled => Err(cancelled_error()),
        Begin::Runs(_running, cancelled) => tokio::select! {
            answer = served => answer,
            Ok(()) = cancelled => Err(cancelled_error()),
        },
    }
}

fn cancelled_error() -> ServiceError {
    ServiceError::conflict(CANCELLED, "Execution cancelled")
}

fn is_id(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (16..=128).contains(&text.len()) && text.bytes().all(is_known)
}

#[derive(Debug, Deserialize)]
pub struct CancelRequest {
    request_id: String,
}

pub async fn cancel(
    State(cancellable): State<Cancellable>,
    Extension(principal): Extension<Principal>,
    Json(request): Json<CancelRequest>,
) -> Result<(StatusCode, axum::Json<Value>), ServiceError> {
    if !is_id(&request.request_id) {
        let message = "request_id: write 16 to 128 characters of A-Z a-z 0-9 _ -";
        return Err(ServiceError::invalid("invalid_request_id", message));
    }
    let (code, status) = cancellable.cancel((principal, request.request_id))?;
    Ok((code, axum::Json(json!({ "status": status }))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(user: &str, id: &str) -> RequestName {
        (Principal { tenant: "t".to_owned(), user: Some(user.to_owned()) }, id.to_owned())
    }

    #[test]
    fn a_request_is_cancelled_before_it_begins_and_while_it_runs_and_not_after_it_ended() {
        let all = Cancellable::default();
        let cancel = |id: &str| all.cancel(name("ann", id)).map(|(_, status)| status);
        let Begin::Runs(running, mut cancelled) = all.begin(name("ann", "a")) else {
            panic!("nothing cancelled it");
        };
        assert_eq!(cancel("a"), Ok("cancellation_requested"));
        assert!(cancelled.try_recv().is_ok());
        drop(running);
        assert_eq!(cancel("b"), Ok("cancellation_requested"));
        assert!(matches!(all.begin(name("ann", "b")), Begin::Cancelled));
        drop(all.begin(name("ann", "c")));
        assert_eq!(cancel("c"), Ok("already_completed"));
        assert!(matches!(all.begin(name("ann", "c")), Begin::Runs(..)), "its next round");
    }

    #[test]
    fn no_user_can_cancel_or_push_out_a_request_of_another_user() {
        let all = Cancellable::default();
        let Begin::Runs(_running, mut cancelled) = all.begin(name("ann", "a")) else {
            panic!("nothing cancelled it");
        };
        let refused = all.cancel(name("eve", "a")).expect_err("it is not hers");
        assert_eq!(refused.code, "forbidden");
        assert!(cancelled.try_recv().is_err());
        all.cancel(name("ben", "b")).expect("it is unknown");
        for number in 0..2 * OF_USER_MAX {
            all.cancel(name("eve", &number.to_string())).expect("it is unknown");
        }
        assert_eq!(all.lock().len(), OF_USER_MAX + 2);
        assert!(matches!(all.begin(name("ben", "b")), Begin::Cancelled));
        // A cancel by another user does not stop a request that comes later.
        assert!(matches!(all.begin(name("ann", "1")), Begin::Runs(..)));
    }
}
