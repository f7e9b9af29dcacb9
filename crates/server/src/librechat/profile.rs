//! Profiles: whether files and processes of a program stay for the next one. A client may name the
//! profile that it expects, and every answer names the profile that it got.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::config::librechat::Profile;
use crate::error::ServiceError;
use crate::librechat::errors::Fields;
use crate::librechat::state::LibreChat;

const EXPECTED: HeaderName = HeaderName::from_static("x-codeapi-expected-profile");
const ACTUAL: HeaderName = HeaderName::from_static("x-codeapi-execution-profile");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disagreement {
    /// The client names an unknown profile, or more than one.
    Invalid,
    Mismatch {
        expected: Profile,
        actual: Profile,
    },
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Stateful => "stateful",
        }
    }

    fn parse(name: &[u8]) -> Option<Self> {
        let mut all = [Self::Default, Self::Stateful].into_iter();
        all.find(|one| one.name().as_bytes() == name)
    }
}

/// Adds the profile to every answer, also to errors.
pub async fn layer(State(app): State<LibreChat>, request: Request, next: Next) -> Response {
    let served = app.service.config().librechat.profiles.clone();
    let (profile, mut response) = match agreed(request.headers(), &served) {
        Ok(profile) => (profile, next.run(request).await),
        Err(disagreement) => (first(&served), disagreement.into_response()),
    };
    let value = HeaderValue::from_static(profile.name());
    response.headers_mut().insert(ACTUAL, value);
    response
}

fn first(served: &[Profile]) -> Profile {
    served.first().copied().unwrap_or(Profile::Default)
}

fn agreed(headers: &HeaderMap, served: &[Profile]) -> Result<Profile, Disagreement> {
    let mut expected = headers.get_all(EXPECTED).iter();
    let (one, another) = (expected.next(), expected.next());
    let Some(one) = one else {
        return Ok(first(served));
    };
    let known = Profile::parse(one.as_bytes()).filter(|_| another.is_none());
    let expected = known.ok_or(Disagreement::Invalid)?;
    if served.contains(&expected) {
        Ok(expected)
    } else {
        Err(Disagreement::Mismatch { expected, actual: first(served) })
    }
}

impl IntoResponse for Disagreement {
    fn into_response(self) -> Response {
        match self {
            Self::Invalid => ServiceError::invalid(
                "invalid_execution_profile",
                "there is no execution profile of the expected name",
            )
            .with_hint("there are 'default' and 'stateful'")
            .into_response(),
            Self::Mismatch { expected, actual } => {
                let error = ServiceError::conflict(
                    "execution_profile_mismatch",
                    "that profile is not served here",
                );
                let mut response = error.into_response();
                response.extensions_mut().insert(Fields(vec![
                    ("expected_profile", expected.name()),
                    ("actual_profile", actual.name()),
                ]));
                response
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(expected: &[&'static str], served: &[Profile]) -> Result<Profile, Disagreement> {
        let headers = expected.iter().map(|one| (EXPECTED, HeaderValue::from_static(one)));
        agreed(&headers.collect(), served)
    }

    #[test]
    fn an_expected_profile_is_served_or_refused() {
        use Profile::{Default, Stateful};
        let both = [Default, Stateful];
        assert_eq!(asked(&[], &both), Ok(Default));
        assert_eq!(asked(&["default"], &both), Ok(Default));
        assert_eq!(asked(&["stateful"], &both), Ok(Stateful));
        assert_eq!(asked(&[], &[Stateful]), Ok(Stateful));
        for (expected, actual) in [(Default, Stateful), (Stateful, Default)] {
            let mismatch = Err(Disagreement::Mismatch { expected, actual });
            assert_eq!(asked(&[expected.name()], &[actual]), mismatch);
        }
        for wrong in [&["Default"][..], &[""], &["x"], &["default", "default"]] {
            assert_eq!(asked(wrong, &both), Err(Disagreement::Invalid), "{wrong:?}");
        }
    }
}
