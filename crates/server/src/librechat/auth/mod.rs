//! Authentication of LibreChat's routes: no credential, an API key, or a user's token.
//!
//! Replaces [`crate::http::auth::layer`] on these routes, with the same checks of web pages. An
//! accepted request gets a [`Principal`], the owner of its files, and a [`Caller`], whose boxes and
//! quota it uses.

pub mod keys;
mod pem;
mod signature;
mod token;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tare_engine::spec::Tenant;

use crate::admission::Caller;
use crate::config::Config;
use crate::config::librechat::{ANONYMOUS, Auth, JwtConfig};
use crate::error::ServiceError;
use crate::http::ServedAt;
use crate::http::auth::{self, API_KEY};
use crate::http::request_log;
pub use crate::librechat::auth::keys::{JwtKeys, Keys, read as read_keys};
use crate::librechat::auth::token::LEGACY;
pub use crate::librechat::auth::token::Token;
use crate::librechat::state::LibreChat;
use crate::store::owner::Principal;
use crate::telemetry::LogEvent;
use crate::workers::Workers;

/// The only route that LibreChat calls without a credential, whatever its settings.
const EXEC: &str = "/v1/exec";

/// The user, and whose boxes the request makes.
type Identified = (Principal, Caller);

/// The tenant of boxes for which no API key was sent, on a server with keys or tokens.
const TENANT: &str = "librechat";

pub async fn layer(State(app): State<LibreChat>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match identify(&app, &parts).await {
        Ok((principal, caller)) => {
            let mut request = Request::from_parts(parts, body);
            request.extensions_mut().insert(principal);
            request.extensions_mut().insert(request_log::of_request(caller));
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

async fn identify(app: &LibreChat, parts: &Parts) -> Result<Identified, ServiceError> {
    let config = app.service.config();
    let authenticator = Authenticator {
        config: &config,
        served: app.http.served_at(),
        now: now(),
        keys: &app.jwt_keys,
        workers: &app.service.workers,
    };
    let identified = authenticator.identify(parts).await;
    if let Err(AuthError::KeysNotRead(why)) = &identified {
        app.service.journal.record(&LogEvent::KeysNotRead { why });
    }
    identified.map_err(ServiceError::from)
}

fn now() -> Duration {
    // Before 1970, no token is valid yet.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Decides who sent a request. Knows nothing else of the server, so tests can make one.
struct Authenticator<'a> {
    config: &'a Config,
    served: ServedAt,
    now: Duration,
    keys: &'a JwtKeys,
    /// Threads that read the files with the keys of tokens.
    workers: &'a Workers,
}

/// Why a request is refused.
#[derive(Debug)]
enum AuthError {
    Refused(ServiceError),
    /// The key of the token may be in a file that cannot be read. The log gets the reason.
    KeysNotRead(String),
}

/// The credential of a request.
enum Credential<'a> {
    ApiKey(&'a [u8]),
    /// Empty for another scheme.
    Bearer(&'a [u8]),
}

impl Authenticator<'_> {
    async fn identify(&self, parts: &Parts) -> Result<Identified, AuthError> {
        let headers = &parts.headers;
        auth::check_page(headers, &parts.uri, self.config)?;
        let auth = self.config.librechat.auth(&self.config.keys);
        if auth == Auth::None {
            return Ok(self.anonymous(headers, LEGACY)?);
        }
        match (credential(headers)?, auth, &self.config.librechat.jwt) {
            (None, _, _) if self.allows_anonymous(parts) => Ok(self.anonymous(headers, ANONYMOUS)?),
            (credential, Auth::Jwt, Some(jwt)) => self.user(credential, jwt).await,
            (credential, _, _) => Ok(self.key_holder(credential)?),
        }
    }

    /// Without a credential, only the `Host` header distinguishes a web page from other clients.
    fn anonymous(&self, headers: &HeaderMap, tenant: &str) -> Result<Identified, ServiceError> {
        let librechat = &self.config.librechat;
        if librechat.lacks_authentication(&self.config.keys, self.served.reach) {
            return Err(unauthorized("API key is required"));
        }
        auth::check_host(headers, self.config, self.served)?;
        let principal = Principal { tenant: tenant.to_owned(), user: None };
        Ok((principal, self.without_key()))
    }

    fn without_key(&self) -> Caller {
        let has_no_credentials = self.config.keys.is_empty() && self.config.librechat.jwt.is_none();
        let tenant = Tenant::parse(TENANT).filter(|_| !has_no_credentials);
        Caller::of(tenant.unwrap_or_default())
    }

    fn allows_anonymous(&self, parts: &Parts) -> bool {
        let is_exec = parts.method == Method::POST && parts.uri.path() == EXEC;
        is_exec && self.config.librechat.anonymous_exec
    }

    fn key_holder(&self, credential: Option<Credential<'_>>) -> Result<Identified, ServiceError> {
        let given = match credential {
            Some(Credential::ApiKey(given) | Credential::Bearer(given)) => given,
            None => return Err(unauthorized("API key is required")),
        };
        let key = auth::key_for(&self.config.keys, given);
        let key = key.ok_or_else(|| unauthorized("Invalid API key"))?;
        let principal = Principal { tenant: key.name.to_string(), user: None };
        Ok((principal, Caller::with_key(key)))
    }

    async fn user(
        &self,
        credential: Option<Credential<'_>>,
        jwt: &JwtConfig,
    ) -> Result<Identified, AuthError> {
        let token = match credential {
            Some(Credential::Bearer(token)) if !token.is_empty() => token,
            Some(_) | None => return Err(unauthorized("Bearer token is required").into()),
        };
        let token = Token::parse(token).map_err(invalid)?;
        let key = self.keys.find(token.kid(), &jwt.keys, self.workers).await;
        let key = key.map_err(|error| AuthError::KeysNotRead(error.in_full()))?;
        let key = key.ok_or_else(|| invalid("its key is not known"))?;
        let principal = token.principal(&key, jwt, self.now).map_err(invalid)?;
        Ok((principal, self.without_key()))
    }
}

/// Returns the only credential. Two credentials could belong to two users.
fn credential(headers: &HeaderMap) -> Result<Option<Credential<'_>>, ServiceError> {
    let keys = headers.get_all(API_KEY).iter();
    let keys = keys.map(|value| Credential::ApiKey(value.as_bytes()));
    let bearers = headers.get_all(header::AUTHORIZATION).iter();
    let bearers = bearers.map(|value| Credential::Bearer(auth::bearer_token(value.as_bytes())));
    let mut all = keys.chain(bearers);
    match (all.next(), all.next()) {
        (one, None) => Ok(one),
        (_, Some(_)) => {
            Err(ServiceError::invalid("ambiguous_credentials", "Ambiguous authentication headers"))
        }
    }
}

fn unauthorized(message: &str) -> ServiceError {
    ServiceError::unauthorized("unauthorized", message)
}

fn invalid(why: token::Refusal) -> AuthError {
    AuthError::Refused(ServiceError { detail: Some(why.into()), ..unauthorized(INVALID) })
}

const INVALID: &str = "Invalid bearer token";

impl From<ServiceError> for AuthError {
    fn from(error: ServiceError) -> Self {
        Self::Refused(error)
    }
}

impl From<AuthError> for ServiceError {
    fn from(refused: AuthError) -> Self {
        match refused {
            AuthError::Refused(error) => error,
            AuthError::KeysNotRead(why) => {
                Self { detail: Some(why.into()), ..unauthorized(INVALID) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Uri;
    use serde_json::json;
    use tare_harness::{Signer, TemporaryDirectory, jwks};

    use super::*;
    use crate::config::{Exposure, Key};
    use crate::http::error::status;

    /// The client as `tenant/user` and the tenant of its boxes, or the status and the message.
    type Outcome = Result<String, (u16, String)>;

    struct Asked<'a> {
        config: &'a Config,
        reach: Exposure,
        method: Method,
        path: &'static str,
    }

    impl Asked<'_> {
        fn keys(&self) -> JwtKeys {
            let keys = JwtKeys::default();
            if let Some(jwt) = &self.config.librechat.jwt {
                keys.set(read_keys(&jwt.keys).expect("keys"));
            }
            keys
        }

        async fn with(&self, headers: &[(&'static str, &str)]) -> Outcome {
            let mut request =
                Request::builder().method(self.method.clone()).uri(Uri::from_static(self.path));
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).expect("a request").into_parts();
            let authenticator = Authenticator {
                config: self.config,
                served: ServedAt { reach: self.reach, port: Some(8080) },
                now: now(),
                keys: &self.keys(),
                workers: &Workers::start("test", 1).expect("threads"),
            };
            let identified = authenticator.identify(&parts).await.map_err(ServiceError::from);
            let (principal, caller) =
                identified.map_err(|error| (status(error.kind).as_u16(), error.message))?;
            let user = principal.user.unwrap_or_default();
            Ok(format!("{}/{user} {}", principal.tenant, caller.tenant.as_str()))
        }
    }

    fn asked(config: &Config) -> Asked<'_> {
        Asked { config, reach: Exposure::Loopback, method: Method::GET, path: "/v1/files/x" }
    }

    fn refused(status: u16, message: &str) -> Outcome {
        Err((status, message.to_owned()))
    }

    const LOCAL: (&str, &str) = ("host", "localhost");

    fn read(text: &str) -> Config {
        let config: Config = toml::from_str(text).expect("TOML");
        config.check().expect("a configuration");
        config
    }

    fn with_keys(signers: &[&Signer], more: &str) -> (TemporaryDirectory, Config) {
        let directory = TemporaryDirectory::new();
        let path = directory.path().join("jwks.json");
        std::fs::write(&path, jwks(signers)).expect("a file");
        let text = format!("[librechat]\n{more}\n[librechat.jwt]\nkeys = '{}'", path.display());
        (directory, read(&text))
    }

    #[tokio::test]
    async fn without_keys_and_tokens_all_on_this_host_are_one() {
        let config = Config::default();
        let asked = asked(&config);
        let legacy = Ok("legacy/ -".to_owned());
        assert_eq!(asked.with(&[LOCAL]).await, legacy);
        // Clients that have a key send it to every server.
        assert_eq!(asked.with(&[LOCAL, ("x-api-key", "any")]).await, legacy);
        let evil = ("host", "evil.example");
        assert_eq!(asked.with(&[evil]).await.map_err(|it| it.0), Err(403));
        let page = ("origin", "http://localhost");
        assert_eq!(asked.with(&[LOCAL, page]).await.map_err(|it| it.0), Err(403));
    }

    #[tokio::test]
    async fn beyond_loopback_anonymous_requests_must_be_allowed() {
        let mut config = Config::default();
        fn from_afar(config: &Config) -> Asked<'_> {
            Asked { reach: Exposure::Network, ..asked(config) }
        }
        let address = ("host", "192.0.2.1:8080");
        let status = from_afar(&config).with(&[address]).await.map_err(|it| it.0);
        assert_eq!(status, Err(401));
        config.librechat.allow_anonymous = true;
        config.allowed_hosts = vec!["tare".to_owned()];
        for name in ["192.0.2.1:8080", "[2001:db8::1]:80", "tare:8080", "localhost"] {
            let outcome = from_afar(&config).with(&[("host", name)]).await;
            assert!(outcome.is_ok(), "{name}");
        }
        for name in ["evil.example", "192.0.2.1.evil.example", "192.0.2.1:x", ""] {
            let outcome = from_afar(&config).with(&[("host", name)]).await;
            assert_eq!(outcome.map_err(|it| it.0), Err(403), "{name}");
        }
    }

    #[tokio::test]
    async fn the_holder_of_a_key_is_a_tenant() {
        let config = Config {
            keys: vec![Key::named("desk", b"secret"), Key::named("ci", b"other")],
            ..Config::default()
        };
        let asked = asked(&config);
        let desk = Ok("desk/ desk".to_owned());
        assert_eq!(asked.with(&[("x-api-key", "secret")]).await, desk);
        let bearer = ("authorization", "Bearer secret");
        assert_eq!(asked.with(&[bearer]).await, desk);
        assert_eq!(asked.with(&[]).await, refused(401, "API key is required"));
        let wrong = asked.with(&[("x-api-key", "x")]).await;
        assert_eq!(wrong, refused(401, "Invalid API key"));
        let both = [("x-api-key", "secret"), bearer];
        let ambiguous = refused(400, "Ambiguous authentication headers");
        assert_eq!(asked.with(&both).await, ambiguous);
        let page = [("x-api-key", "secret"), ("origin", "https://evil.example")];
        assert_eq!(asked.with(&page).await.map_err(|it| it.0), Err(403));
    }

    #[tokio::test]
    async fn a_token_is_required_and_checked() {
        let (ed, rsa) = (Signer::ed25519("ed", 1), Signer::rsa("rsa"));
        let (_directory, config) = with_keys(&[&ed, &rsa], "");
        let asked = asked(&config);
        for signer in [&ed, &rsa] {
            let bearer = format!("Bearer {}", signer.token("ann"));
            let outcome = asked.with(&[("authorization", &bearer)]).await;
            assert_eq!(outcome, Ok("legacy/ann librechat".to_owned()));
            let twice = [("authorization", &*bearer), ("authorization", &*bearer)];
            let ambiguous = refused(400, "Ambiguous authentication headers");
            assert_eq!(asked.with(&twice).await, ambiguous);
            let both = [("authorization", &*bearer), ("x-api-key", "x")];
            assert_eq!(asked.with(&both).await, ambiguous);
        }
        let required = refused(401, "Bearer token is required");
        assert_eq!(asked.with(&[]).await, required);
        assert_eq!(asked.with(&[("x-api-key", "x")]).await, required);
        for nothing in ["Bearer", "Bearer ", "Basic YTpi", ""] {
            let outcome = asked.with(&[("authorization", nothing)]).await;
            assert_eq!(outcome, required, "{nothing:?}");
        }
    }

    #[tokio::test]
    async fn a_token_of_another_key_or_algorithm_is_refused_without_a_reason() {
        let (ed, rsa) = (Signer::ed25519("ed", 1), Signer::rsa("rsa"));
        let (_directory, config) = with_keys(&[&ed, &rsa], "");
        let claims = Signer::claims("ann").to_string();
        let headed =
            |signer: &Signer, header| signer.sign_text(&json!(header).to_string(), &claims);
        for wrong in [
            "garbage".to_owned(),
            Signer::ed25519("unknown", 1).token("ann"),
            // A key of the one kind by the id of the other.
            Signer::ed25519("rsa", 1).token("ann"),
            Signer::rsa("ed").token("ann"),
            headed(&ed, json!({ "alg": "RS256", "kid": "rsa" })),
            headed(&rsa, json!({ "alg": "EdDSA", "kid": "ed" })),
            headed(&ed, json!({ "alg": "none", "kid": "ed" })),
            headed(&ed, json!({ "alg": "HS256", "kid": "ed" })),
            headed(&ed, json!({ "alg": "EdDSA" })),
        ] {
            let bearer = format!("Bearer {wrong}");
            let outcome = asked(&config).with(&[("authorization", &bearer)]).await;
            assert_eq!(outcome, refused(401, "Invalid bearer token"), "{wrong}");
        }
    }

    #[tokio::test]
    async fn anonymous_exec_allows_only_execution() {
        let ed = Signer::ed25519("ed", 1);
        let (_directory, config) = with_keys(&[&ed], "anonymous_exec = true");
        let exec = Asked { method: Method::POST, path: EXEC, ..asked(&config) };
        assert_eq!(exec.with(&[LOCAL]).await, Ok("anonymous/ librechat".to_owned()));
        let evil = exec.with(&[("host", "evil.example")]).await;
        assert_eq!(evil.map_err(|it| it.0), Err(403));
        let wrong = exec.with(&[LOCAL, ("authorization", "Bearer x")]).await;
        assert_eq!(wrong, refused(401, "Invalid bearer token"));
        let required = refused(401, "Bearer token is required");
        let key = exec.with(&[LOCAL, ("x-api-key", "x")]).await;
        assert_eq!(key, required);
        for path in ["/v1/exec/programmatic", "/v1/exec/", "/v1/files/x"] {
            let other = Asked { path, method: Method::POST, ..exec };
            assert_eq!(other.with(&[LOCAL]).await, required, "{path}");
        }
        let (_directory, config) = with_keys(&[&ed], "");
        let exec = Asked { config: &config, ..exec };
        assert_eq!(exec.with(&[LOCAL]).await, required);
    }
}
