//! Request data with our own errors: JSON bodies (strict, bounded in size and time, with errors
//! that name the place), query strings, paths.

use axum::body::HttpBody;
use axum::extract::{FromRef, FromRequest, FromRequestParts, OptionalFromRequest, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use serde::de::DeserializeOwned;

use crate::admission::bodies::{self, Charge};
use crate::error::{ServiceError, in_plain_words};
use crate::http::body::{self, BoundedBody};
use crate::http::{Http, request_log};

const DESCRIPTION: &str = "GET /openapi.json describes every field";

/// A body that is one JSON value of this type and nothing else.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T>
where
    Http: FromRef<S>,
{
    type Rejection = ServiceError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ServiceError> {
        let JsonWithBytes { value, .. } = JsonWithBytes::from_request(request, state).await?;
        Ok(Self(value))
    }
}

/// A body that may be absent, because all of its fields may be.
impl<T: DeserializeOwned, S: Send + Sync> OptionalFromRequest<S> for Json<T>
where
    Http: FromRef<S>,
{
    type Rejection = ServiceError;

    async fn from_request(request: Request, state: &S) -> Result<Option<Self>, ServiceError> {
        if request.body().is_end_stream() {
            return Ok(None);
        }
        let sent = <Json<Option<T>> as FromRequest<S>>::from_request(request, state).await?;
        Ok(sent.0.map(Self))
    }
}

/// A JSON body, with the bytes that it came in.
#[derive(Debug)]
pub struct JsonWithBytes<T> {
    pub value: T,
    pub bytes: Vec<u8>,
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonWithBytes<T>
where
    Http: FromRef<S>,
{
    type Rejection = ServiceError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ServiceError> {
        check_type(request.headers())?;
        let (bytes, mut charge) = read(request, &Http::from_ref(state)).await?;
        let cost = bodies::cost_of(bytes.len(), bodies::values_in(&bytes));
        charge.hold(cost, bytes.len())?;
        let value = parse(&bytes)?;
        request_log::hold_body(charge);
        Ok(Self { value, bytes })
    }
}

/// A query string.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ServiceError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ServiceError> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                let text = rejection.body_text();
                let why = text.strip_prefix("Failed to deserialize query string: ");
                let why = in_plain_words(why.unwrap_or(&text));
                Err(ServiceError::invalid("invalid_query", why).with_hint(DESCRIPTION))
            }
        }
    }
}

/// The variable parts of a path.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ServiceError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ServiceError> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(named)) => Ok(Self(named)),
            Err(rejection) => Err(ServiceError::invalid("invalid_path", rejection.body_text())),
        }
    }
}

/// Requires JSON. A page can make a browser send other types to any server, but this type only to
/// one that allows the page.
fn check_type(headers: &HeaderMap) -> Result<(), ServiceError> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|given| given.to_str().ok());
    let essence = given.map(|given| given.split(';').next().unwrap_or("").trim());
    if essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        Ok(())
    } else {
        Err(ServiceError::wrong_type("unsupported_media_type", "the body has to be JSON")
            .with_hint("send 'Content-Type: application/json'"))
    }
}

async fn read(request: Request, http: &Http) -> Result<(Vec<u8>, Charge), ServiceError> {
    let config = http.config();
    let limits = &config.limits;
    let body = request.into_body();
    let mut body = BoundedBody::new(body, limits.body_bytes.0, limits.client.0, None)?;
    let mut charge = request_log::charge(http);
    let read = async {
        match read_all(&mut body, &mut charge).await {
            Ok(bytes) => Ok((bytes, charge)),
            Err(error) => {
                // Other requests can use its memory while the rest of the body is read and dropped.
                drop(charge);
                if error.may_work_later() {
                    body.drain().await;
                }
                Err(error)
            }
        }
    };
    tokio::time::timeout(limits.client.0, read).await.map_err(|_| body::too_slow())?
}

/// Reads into one block of memory, which returns to the system as a whole.
async fn read_all(body: &mut BoundedBody, charge: &mut Charge) -> Result<Vec<u8>, ServiceError> {
    let mut bytes = Vec::new();
    while let Some(data) = body.next().await? {
        let length = bytes.len() + data.len();
        charge.hold(bodies::cost_of(length, 0), length)?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ServiceError> {
    let mut input = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut input).map_err(|error| {
        let (path, why) = (error.path().to_string(), error.inner().to_string());
        // If the body is not JSON there is no path, and the reason contains the line.
        match path.as_str() {
            "." | "?" => invalid(&why),
            // A command line in one string is the usual mistake.
            "command" if why.starts_with("invalid type: string") => {
                invalid("command: expected a list of strings, such as [\"ls\", \"-la\"]")
            }
            // serde_json does not say which texts an enum accepts.
            "warm" if why.starts_with("expected value ") => {
                invalid("warm: expected one of \"any\", \"clone\", \"fresh\", \"off\"")
            }
            path => invalid(&format!("{path}: {why}")),
        }
    })?;
    input.end().map_err(|error| invalid(&error.to_string()))?;
    Ok(value)
}

fn invalid(why: &str) -> ServiceError {
    ServiceError::invalid("invalid_json", in_plain_words(why)).with_hint(DESCRIPTION)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::error::Kind;
    use crate::work::request::run::WarmWish;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "what is parsed is not looked at")]
    struct Body {
        command: Vec<String>,
        env: Option<BTreeMap<String, String>>,
        #[serde(default)]
        warm: WarmWish,
    }

    fn refusal(text: &str) -> String {
        let error = parse::<Body>(text.as_bytes()).expect_err(text);
        assert_eq!(error.kind, Kind::Invalid);
        error.message
    }

    #[test]
    fn an_invalid_body_is_reported_with_its_place() {
        assert!(refusal(r#"{"command":["a",1]}"#).contains("command[1]"));
        assert!(refusal(r#"{"command":"ls -la"}"#).ends_with(r#"such as ["ls", "-la"]"#));
        assert!(refusal(r#"{"command":[],"env":{"A":null}}"#).contains("env.A"));
        assert!(refusal(r#"{"command":[],"commnad":1}"#).contains("commnad"));
        assert!(refusal(r#"{"command":[],"command":[]}"#).contains("duplicate field"));
        let warm = refusal(r#"{"command":[],"warm":true}"#);
        assert_eq!(warm, r#"warm: expected one of "any", "clone", "fresh", "off""#);
        let unknown = refusal(r#"{"command":[],"warm":"x"}"#).replace('`', "\"");
        assert!(unknown.contains(warm.trim_start_matches("warm: ")), "{unknown}");
        assert!(refusal("{}").contains("missing field `command`"));
        assert!(refusal("[]").contains("expected an object"));
        assert!(refusal("{bad").starts_with("key must be a string"));
        for text in ["", "null", "[]", "7", "\u{feff}{}", r#"{"command":[],}"#] {
            refusal(text);
        }
        assert!(refusal(r#"{"command":[]} x"#).contains("trailing"));
        refusal(&"[".repeat(100_000));
    }
}
