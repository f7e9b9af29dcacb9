//! The outermost layer of every request: its id, its line in the log, the body of its error, and
//! what it holds until its response is sent.

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use tare_engine::BoxId;

use crate::admission::Caller;
use crate::admission::bodies::{self, Charge};
use crate::admission::share::Share;
use crate::error::ServiceError;
use crate::http::error::{self, ReportedError};
use crate::http::listen::ClientAddress;
use crate::http::{Http, listen};
use crate::telemetry::LogEvent;
use crate::workers::locked;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The logged status of a request whose client did not wait for the response. nginx logs it too.
const CLIENT_GONE: u16 = 499;

/// What the server knows about a request while it serves it.
#[derive(Debug)]
struct RequestContext {
    id: String,
    /// The address of its client.
    client: String,
    /// Its method and path.
    route: String,
    /// The name of the key that it came with.
    key: OnceLock<String>,
    held: Mutex<HeldByRequest>,
}

/// What a request holds until the last byte of its response is sent.
#[derive(Debug, Default)]
struct HeldByRequest {
    body: Option<Charge>,
    response: Option<Charge>,
    stream: Option<Share>,
}

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

/// The caller of the current request. The log of the request names its key from now on.
pub fn of_request(caller: Caller) -> Caller {
    let current = CURRENT.try_with(|current| {
        if let Some(key) = caller.tenant.key() {
            current.key.set(key.to_owned()).ok();
        }
        (current.id.clone(), current.client.clone(), current.route.clone())
    });
    // Outside of a request, as in a test, there is no id.
    let (request_id, client, route) = current.unwrap_or_default();
    Caller { request_id, client, route, ..caller }
}

/// Returns an empty charge for the body of the current request.
pub fn charge(http: &Http) -> Charge {
    let config = http.config();
    let charge = CURRENT.try_with(|current| http.bodies.charge(&config, current.key()));
    charge.unwrap_or_else(|_no_request| http.bodies.charge(&config, None))
}

/// Holds the memory of the request's body until the request is over.
pub fn hold_body(charge: Charge) {
    CURRENT.try_with(|current| locked(&current.held).body = Some(charge)).ok();
}

/// Takes the charge of the body out of the request, for a process that outlives the request.
pub fn take_body() -> Option<Charge> {
    let taken = CURRENT.try_with(|current| locked(&current.held).body.take());
    taken.ok().flatten()
}

/// Counts the request as a stream until its response is over.
pub fn hold_stream(http: &Http) -> Result<(), ServiceError> {
    let stream = open_stream(http)?;
    CURRENT.try_with(|current| locked(&current.held).stream = Some(stream)).ok();
    Ok(())
}

/// Opens a stream that outlives the response, such as a terminal.
pub fn open_stream(http: &Http) -> Result<Share, ServiceError> {
    let config = http.config();
    let opened = CURRENT.try_with(|current| http.streams.open(&config, current.key()));
    opened.unwrap_or_else(|_no_request| http.streams.open(&config, None))
}

impl RequestContext {
    fn key(&self) -> Option<&str> {
        self.key.get().map(String::as_str)
    }

    /// Returns what the request holds, and holds the memory of its response, unless that is a
    /// stream.
    fn hold_response(&self, http: &Http, response: &Body) -> Result<HeldByRequest, ServiceError> {
        let mut held = std::mem::take(&mut *locked(&self.held));
        let length = response.size_hint().exact();
        if let Some(length) = length.filter(|length| !bodies::is_small(*length)) {
            let mut charge = http.bodies.charge(&http.config(), self.key());
            charge.hold_response(usize::try_from(length).unwrap_or(usize::MAX))?;
            held.response = Some(charge);
        }
        Ok(held)
    }
}

pub async fn layer(State(http): State<Http>, request: Request, next: Next) -> Response {
    let refused = listen::refused_in_reserve(&http, &request);
    let log = RequestLog::begin(http, &request);
    let current = Arc::clone(&log.current);
    let mut response = match refused {
        None => CURRENT.scope(current, next.run(request)).await,
        Some(error) => error.into_response(),
    };
    let held = log.current.hold_response(&log.http, response.body());
    let held = held.unwrap_or_else(|error| {
        response = error.into_response();
        HeldByRequest::default()
    });
    let id = log.current.id.clone();
    let reported = response.extensions_mut().remove::<ReportedError>();
    let error = response.extensions_mut().remove::<ServiceError>();
    if let Some(error) = &error {
        response = error::response(response.status(), error, &id);
    }
    let error = error.or(reported.map(|ReportedError(error)| error));
    log.end(response.status(), error.as_ref());
    let value = HeaderValue::from_str(&id).expect("an id consists of letters and digits");
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, value);
    keep_from_browsers(headers);
    match held {
        HeldByRequest { body: None, response: None, stream: None } => response,
        held => response.map(|body| Body::new(Holding { body, held: Arc::new(held) })),
    }
}

/// The body of a response, with what the request holds until it is sent or its client is gone.
struct Holding {
    body: Body,
    held: Arc<HeldByRequest>,
}

/// Bytes of a response. The connection drops the body before it has sent the last of them.
struct Unsent {
    bytes: Bytes,
    _held: Arc<HeldByRequest>,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Holding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let held = &self.held;
        let hold = |bytes| Bytes::from_owner(Unsent { bytes, _held: Arc::clone(held) });
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(hold))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Forbids a browser to run scripts of a response and to guess its type. Most responses contain
/// bytes that a box chose: files, output, names, errors. A browser must not take them for a page of
/// this server. Every response gets these headers, so that no route can forget them.
fn keep_from_browsers(headers: &mut HeaderMap) {
    let known = HeaderValue::from_static;
    headers.insert(header::CONTENT_SECURITY_POLICY, known("sandbox"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, known("nosniff"));
}

/// A request, until its line is in the log. If it is dropped before that, its client is gone.
struct RequestLog {
    http: Http,
    current: Arc<RequestContext>,
    method: Method,
    path: String,
    route: Option<MatchedPath>,
    started: Instant,
    is_logged: bool,
}

impl RequestLog {
    fn begin(http: Http, request: &Request) -> Self {
        // Random, as the id of a box.
        let id = BoxId::random().to_string();
        let client = request.extensions().get::<ClientAddress>();
        let current = RequestContext {
            id,
            client: client.map_or_else(|| "unknown".to_owned(), |ClientAddress(it)| it.to_string()),
            route: format!("{} {}", request.method(), request.uri().path()),
            key: OnceLock::new(),
            held: Mutex::default(),
        };
        Self {
            http,
            current: Arc::new(current),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            route: request.extensions().get().cloned(),
            started: Instant::now(),
            is_logged: false,
        }
    }

    fn end(mut self, status: StatusCode, error: Option<&ServiceError>) {
        self.log(status.as_u16(), error.map(|error| error.code), error);
    }

    fn log(&mut self, status: u16, code: Option<&str>, error: Option<&ServiceError>) {
        self.is_logged = true;
        self.http.journal.record(&LogEvent::Request {
            request_id: &self.current.id,
            key: self.current.key(),
            method: self.method.as_str(),
            path: &self.path,
            route: self.route.as_ref().map_or("other", MatchedPath::as_str),
            status,
            duration: self.started.elapsed(),
            code,
            error,
        });
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        if !self.is_logged {
            self.log(CLIENT_GONE, Some("client_gone"), None);
        }
    }
}
