//! JSON bodies: strict, bounded in size and time, and with errors that name the place;
//! and names in paths.

use std::fmt;
use std::marker::PhantomData;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, OptionalFromRequest, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeOwned, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tare_engine::spec::quantity;

use crate::admission::bodies::{self, Charge};
use crate::app::App;
use crate::error::{Kind, ServiceError, in_plain_words};
use crate::http::request_log;

/// A body that is one JSON value of this type and nothing else.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = ServiceError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ServiceError> {
        check_type(request.headers())?;
        let (value, _) = whole(request, app).await?.parse()?;
        Ok(Self(value))
    }
}

/// Where all of it may be left out, so may the body.
impl<T: DeserializeOwned> OptionalFromRequest<App> for Json<T> {
    type Rejection = ServiceError;

    async fn from_request(request: Request, app: &App) -> Result<Option<Self>, ServiceError> {
        if request.body().is_end_stream() {
            return Ok(None);
        }
        let sent = <Json<Option<T>> as FromRequest<App>>::from_request(request, app).await?;
        Ok(sent.0.map(Self))
    }
}

/// The same with the bytes that it came in.
#[derive(Debug)]
pub struct Sent<T> {
    pub request: T,
    pub bytes: Vec<u8>,
}

impl<T: DeserializeOwned> FromRequest<App> for Sent<T> {
    type Rejection = ServiceError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ServiceError> {
        check_type(request.headers())?;
        let (request, bytes) = whole(request, app).await?.parse()?;
        Ok(Self { request, bytes })
    }
}

/// What a path names, or our own words for what is wrong with it.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Path<T> {
    type Rejection = ServiceError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ServiceError> {
        match axum::extract::Path::from_request_parts(parts, app).await {
            Ok(axum::extract::Path(named)) => Ok(Self(named)),
            Err(rejection) => Err(ServiceError::invalid("invalid_path", rejection.body_text())),
        }
    }
}

/// Only a page that this server allows can send this type: whatever a browser sends by
/// itself has another.
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

/// A body that was read, and what it is charged.
struct Whole {
    bytes: Vec<u8>,
    charge: Charge,
}

async fn whole(request: Request, app: &App) -> Result<Whole, ServiceError> {
    let config = app.config();
    let limits = &config.limits;
    let most = usize::try_from(limits.body_bytes).unwrap_or(usize::MAX);
    let charge = app.bodies.charge(limits.bodies_bytes);
    let mut body = Limited::new(request.into_body(), most);
    if body.size_hint().lower() > limits.body_bytes {
        return Err(too_large(limits.body_bytes));
    }
    let slow = |_| {
        let message = "the body did not come in time";
        ServiceError::too_slow("slow_body", message)
    };
    let read = async {
        let read = read(&mut body, charge, limits.body_bytes).await;
        if read.as_ref().is_err_and(|error| error.kind == Kind::Unavailable) {
            // A client reads no answer before it has sent its body.
            while let Some(Ok(_)) = body.frame().await {}
        }
        read
    };
    tokio::time::timeout(limits.client, read).await.map_err(slow)?
}

/// Reads into one block, which goes back to the system as a whole.
async fn read(
    body: &mut Limited<Body>,
    mut charge: Charge,
    bytes_max: u64,
) -> Result<Whole, ServiceError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) if error.is::<LengthLimitError>() => return Err(too_large(bytes_max)),
            Err(_) => {
                let message = "the body ended too early";
                return Err(ServiceError::invalid("incomplete", message));
            }
        };
        if let Ok(data) = frame.into_data() {
            let length = bytes.len() + data.len();
            charge.hold(bodies::cost_of(length, 0), length)?;
            bytes.extend_from_slice(&data);
        }
    }
    Ok(Whole { bytes, charge })
}

fn too_large(most: u64) -> ServiceError {
    let message = format!("the body has more than {}", quantity::show_bytes(most));
    ServiceError::too_large("too_large", message)
}

impl Whole {
    /// The value, and the bytes that it came in. The request is charged for both.
    fn parse<T: DeserializeOwned>(mut self) -> Result<(T, Vec<u8>), ServiceError> {
        let length = self.bytes.len();
        let cost = bodies::cost_of(length, bodies::values_in(&self.bytes));
        self.charge.hold(cost, length)?;
        let value = parse(&self.bytes)?;
        request_log::hold_body(self.charge);
        Ok((value, self.bytes))
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ServiceError> {
    let mut input = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut input).map_err(|error| {
        let (path, why) = (error.path().to_string(), error.inner().to_string());
        // Of what is no JSON the place is not known, and its line is in the reason.
        match path.as_str() {
            "." | "?" => invalid(&why),
            path => invalid(&format!("{path}: {why}")),
        }
    })?;
    input.end().map_err(|error| invalid(&error.to_string()))?;
    Ok(value)
}

/// A list of at most so many, of which no more is ever in memory.
pub fn at_most<'de, D, T, const MAX: usize>(input: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Few<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Few<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut taken = Vec::new();
            while let Some(one) = list.next_element()? {
                if taken.len() == MAX {
                    return Err(A::Error::invalid_length(MAX + 1, &self));
                }
                taken.push(one);
            }
            Ok(taken)
        }
    }
    input.deserialize_seq(Few::<T, MAX>(PhantomData))
}

fn invalid(why: &str) -> ServiceError {
    ServiceError::invalid("invalid_json", in_plain_words(why))
        .with_hint("GET /openapi.json describes what is taken")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "what is parsed is not looked at")]
    struct Body {
        command: Vec<String>,
        env: Option<BTreeMap<String, String>>,
    }

    fn refusal(text: &str) -> String {
        let error = parse::<Body>(text.as_bytes()).expect_err(text);
        assert_eq!(error.kind, Kind::Invalid);
        error.message
    }

    #[test]
    fn an_invalid_body_is_reported_with_its_place() {
        assert!(refusal(r#"{"command":["a",1]}"#).contains("command[1]"));
        assert!(refusal(r#"{"command":[],"env":{"A":null}}"#).contains("env.A"));
        assert!(refusal(r#"{"command":[],"commnad":1}"#).contains("commnad"));
        assert!(refusal(r#"{"command":[],"command":[]}"#).contains("duplicate field"));
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
