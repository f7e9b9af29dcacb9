//! The outermost layer of every request: its id, its line in the log, and the body of
//! its error.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tare_engine::BoxId;
use utoipa::ToSchema;

use crate::app::App;
use crate::error::ApiError;
use crate::journal::Happening;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Who asked; in the request's extensions.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

tokio::task_local! {
    static CURRENT: String;
}

/// The id of the request that this task serves.
pub fn current_request() -> Option<String> {
    CURRENT.try_with(Clone::clone).ok()
}

/// An error of which the client was told already, in the words of another API.
#[derive(Debug, Clone)]
pub struct Told(pub ApiError);

/// Every error of the native API.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorObject,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorObject {
    /// Stable, for programs.
    pub code: String,
    /// A sentence, for people.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The same as the header `X-Request-Id`, and as in the server's log.
    pub request_id: String,
}

pub async fn layer(State(app): State<App>, mut request: Request, next: Next) -> Response {
    // The same kind of random name as a box has.
    let id = BoxId::random().to_string();
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    request.extensions_mut().insert(RequestId(id.clone()));
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = CURRENT.scope(id.clone(), next.run(request)).await;
    let told = response.extensions_mut().remove::<Told>();
    let untold = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = &untold {
        response = body_of(error, &id);
    }
    let error = untold.or(told.map(|Told(error)| error));
    app.journal.note(Happening::Request {
        request_id: &id,
        method: method.as_str(),
        path: &path,
        route: route.as_ref().map_or("other", MatchedPath::as_str),
        status: response.status().as_u16(),
        duration: started.elapsed(),
        error: error.as_ref(),
    });
    let value = HeaderValue::from_str(&id).expect("an id is of letters and digits");
    response.headers_mut().insert(REQUEST_ID, value);
    response
}

fn body_of(error: &ApiError, request_id: &str) -> Response {
    let body = ErrorBody {
        error: ErrorObject {
            code: error.code.to_owned(),
            message: error.message.clone(),
            hint: error.hint.clone(),
            request_id: request_id.to_owned(),
        },
    };
    let mut response = (error.status, axum::Json(body)).into_response();
    if let Some(seconds) = error.retry_after_s {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
