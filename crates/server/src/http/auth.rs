//! Authentication of the native API: an API key if keys are configured, and no web page.
//!
//! A web page in a browser on this host can send requests to the server. If the page makes a name of
//! its own point to this host, it can also read the responses. So the server refuses a request with
//! a foreign `Origin`. Without keys, it also refuses a request for a host name that is not its own,
//! unless the request came through a socket in the file system, which no page reaches.
//!
//! LibreChat's routes have their own authentication, with the same checks of web pages
//! ([`crate::librechat`]).

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::admission::Caller;
use crate::config::{Config, Exposure, Key};
use crate::error::ServiceError;
use crate::http::{Http, ServedAt, request_log};

pub const API_KEY: &str = "x-api-key";
const BEARER: &str = "bearer ";

pub async fn layer(State(http): State<Http>, mut request: Request, next: Next) -> Response {
    let config = http.config();
    match admit(request.headers(), request.uri(), &config, http.served_at()) {
        Ok(caller) => {
            request.extensions_mut().insert(request_log::of_request(caller));
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

/// Refuses a request to a route for operators, unless it has the key of an admin.
pub async fn admins_only(
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if caller.is_admin {
        return next.run(request).await;
    }
    ServiceError::forbidden("admin_only", "this route needs the key of an admin")
        .with_hint("the operator sets admin = true in [[keys]], or admin: in the key file")
        .into_response()
}

fn admit(
    headers: &HeaderMap,
    target: &Uri,
    config: &Config,
    served: ServedAt,
) -> Result<Caller, ServiceError> {
    check_page(headers, target, config)?;
    if config.keys.is_empty() {
        if !config.allows_anonymous(served.reach) {
            return Err(unauthorized("the native API needs an API key, and none is configured")
                .with_hint("name one in [[keys]] of the configuration"));
        }
        check_host(headers, config, served)?;
        return Ok(Caller::without_keys());
    }
    let given = presented_key(headers)?;
    let found = given.and_then(|given| key_for(&config.keys, given));
    found.map(Caller::with_key).ok_or_else(|| {
        unauthorized("no valid API key was given")
            .with_hint("send it as 'X-API-Key: KEY' or 'Authorization: Bearer KEY'")
    })
}

fn unauthorized(message: &str) -> ServiceError {
    ServiceError::unauthorized("unauthorized", message)
}

/// Refuses requests of web pages, with or without a credential.
pub fn check_page(headers: &HeaderMap, target: &Uri, config: &Config) -> Result<(), ServiceError> {
    check_one_host(headers, target)?;
    check_origin(headers, config)
}

/// Refuses a request that names two hosts: a proxy could have checked the other one.
fn check_one_host(headers: &HeaderMap, target: &Uri) -> Result<(), ServiceError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().map(|host| host.as_bytes());
    let in_target = target.authority();
    let differs = in_target.is_some_and(|named| host != Some(named.as_str().as_bytes()));
    if hosts.next().is_some() || differs {
        Err(ServiceError::invalid("ambiguous_host", "more than one host is named"))
    } else {
        Ok(())
    }
}

fn check_origin(headers: &HeaderMap, config: &Config) -> Result<(), ServiceError> {
    let allowed = |origin: &[u8]| {
        let mut known = config.allowed_origins.iter();
        known.any(|one| one.as_bytes() == origin)
    };
    let mut origins = headers.get_all(header::ORIGIN).iter();
    if origins.all(|origin| allowed(origin.as_bytes())) {
        Ok(())
    } else {
        Err(ServiceError::forbidden("foreign_origin", "web pages may not use this server")
            .with_hint("name the page's origin in 'allowed_origins'"))
    }
}

/// Names of this host that a browser does not let a page choose.
const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Checks `Host` if no key is needed.
///
/// - A name in `allowed_hosts` may have any port, because a proxy or a port mapping may listen on
///   another one. `NAME:PORT` there allows only that port.
/// - On loopback, the names of this host are allowed, with the port of this server.
/// - Beyond loopback, every IP address is allowed too: a page can make a name point here, but not
///   an address. Any port is allowed, because the ports of a container may be mapped to others.
pub fn check_host(
    headers: &HeaderMap,
    config: &Config,
    served: ServedAt,
) -> Result<(), ServiceError> {
    let host = headers.get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or("");
    let (name, port) = split_port(host);
    let mut configured = config.allowed_hosts.iter();
    if served.reach == Exposure::Socket || configured.any(|one| one == name || one == host) {
        return Ok(());
    }
    let is_named = match served.reach {
        Exposure::Socket | Exposure::Loopback => LOCAL_HOSTS.contains(&name),
        Exposure::Network => LOCAL_HOSTS.contains(&name) || is_address(name),
    };
    let is_port = match served.reach {
        Exposure::Socket | Exposure::Network => true,
        Exposure::Loopback => port.is_empty() || port.parse().ok() == served.port,
    };
    let message = match (is_named, is_port) {
        (true, true) => return Ok(()),
        (false, _) => "the Host header names a host that is not this server".to_owned(),
        (true, false) => format!("the Host header names port {port}, which is not this server's"),
    };
    let hint = "add it to 'allowed_hosts', as NAME, or as NAME:PORT for that port alone";
    Err(ServiceError::forbidden("foreign_host", message).with_hint(hint))
}

fn is_address(name: &str) -> bool {
    match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(inside) => inside.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<Ipv4Addr>().is_ok(),
    }
}

/// Splits `Host` into name and port. The port is empty if there is none.
fn split_port(host: &str) -> (&str, &str) {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => (name, port),
        Some(_) | None => (host, ""),
    }
}

/// Returns the only key of a request. Two keys could belong to two clients.
fn presented_key(headers: &HeaderMap) -> Result<Option<&[u8]>, ServiceError> {
    let mut given = headers.get_all(API_KEY).iter().map(|value| value.as_bytes()).chain(
        headers.get_all(header::AUTHORIZATION).iter().map(|value| bearer_token(value.as_bytes())),
    );
    match (given.next(), given.next()) {
        (first, None) => Ok(first),
        (_, Some(_)) => {
            Err(ServiceError::invalid("ambiguous_key", "more than one API key was given"))
        }
    }
}

/// Returns the token of a `Bearer` header, or nothing for another scheme. No key is empty.
pub fn bearer_token(value: &[u8]) -> &[u8] {
    match value.split_at_checked(BEARER.len()) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(BEARER.as_bytes()) => key,
        Some(_) | None => b"",
    }
}

/// Compares all keys, each in constant time, so that the time reveals nothing about them.
pub fn key_for<'a>(keys: &'a [Key], given: &[u8]) -> Option<&'a Key> {
    let given: [u8; 32] = Sha256::digest(given).into();
    let matches = |key: &Key| bool::from(key.sha256.ct_eq(&given));
    keys.iter().fold(None, |found, key| if matches(key) { Some(key) } else { found })
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;
    use crate::http::error::status;

    fn admitted(
        pairs: &[(&'static str, &'static str)],
        config: &Config,
        reach: Exposure,
    ) -> Result<Caller, u16> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let target = Uri::from_static("/v1/boxes");
        let served = ServedAt { reach, port: Some(8080) };
        admit(&pairs.collect(), &target, config, served)
            .map_err(|error| status(error.kind).as_u16())
    }

    fn with_key(key: &str) -> Config {
        Config { keys: vec![Key::named("ci", key.as_bytes())], ..Config::default() }
    }

    #[test]
    fn only_the_whole_key_is_the_key() {
        let config = with_key("secret");
        let code =
            |pairs: &[(&'static str, &'static str)]| admitted(pairs, &config, Exposure::Loopback);
        let ci = Ok(Caller::with_key(&config.keys[0]));
        assert_eq!(code(&[("x-api-key", "secret")]), ci);
        assert_eq!(code(&[("authorization", "Bearer secret")]), ci);
        assert_eq!(code(&[("authorization", "bearer secret")]), ci);
        for wrong in ["", "secre", "secret ", "secrets", "Secret"] {
            assert_eq!(code(&[("x-api-key", wrong)]), Err(401), "{wrong:?}");
        }
        for wrong in ["Bearer", "Bearer ", "Basic secret", "secret"] {
            assert_eq!(code(&[("authorization", wrong)]), Err(401), "{wrong:?}");
        }
        assert_eq!(code(&[]), Err(401));
        let both = [("x-api-key", "secret"), ("authorization", "Bearer secret")];
        assert_eq!(code(&both), Err(400));
    }

    #[test]
    fn a_web_page_is_refused_even_with_a_key() {
        let mut config = with_key("secret");
        let asked = |origin, config: &Config| {
            let pairs = [("x-api-key", "secret"), ("origin", origin)];
            admitted(&pairs, config, Exposure::Loopback)
        };
        for origin in ["https://evil.example", "null", "", "http://localhost"] {
            assert_eq!(asked(origin, &config), Err(403), "{origin:?}");
        }
        config.allowed_origins = vec!["https://desk.example".into()];
        assert!(asked("https://desk.example", &config).is_ok());
    }

    /// A name of the page's own that it made point to this host.
    #[test]
    fn without_keys_only_this_hosts_own_names_are_answered_to() {
        let config = Config::default();
        let asked = |host| admitted(&[("host", host)], &config, Exposure::Loopback).is_ok();
        for host in ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "[::1]"] {
            assert!(asked(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "",
            "localhost:x",
            "localhost:1",
            "127.0.0.1:80",
            "[::1]:65536",
            "localhost:8080:8080",
        ] {
            assert!(!asked(host), "{host}");
        }
    }

    /// Behind a proxy or a mapping of ports a client names another port than ours.
    #[test]
    fn a_configured_name_has_any_port_unless_it_names_one() {
        let config = Config {
            allowed_hosts: vec!["tare.example".into(), "localhost:9000".into()],
            ..Config::default()
        };
        let asked = |host| admitted(&[("host", host)], &config, Exposure::Loopback).is_ok();
        for host in ["tare.example", "tare.example:8443", "localhost:9000", "localhost:8080"] {
            assert!(asked(host), "{host}");
        }
        for host in ["localhost:9001", "other.example", "tare.example.org"] {
            assert!(!asked(host), "{host}");
        }
    }

    /// A client of a socket has to write some name, and writes any.
    #[test]
    fn through_a_socket_every_name_is_ours_and_pages_are_still_refused() {
        let config = Config::default();
        let asked = |pairs: &[(&'static str, &'static str)]| {
            admitted(pairs, &config, Exposure::Socket).map(|_| ())
        };
        for host in ["tare", "evil.example", ""] {
            assert_eq!(asked(&[("host", host)]), Ok(()), "{host}");
        }
        assert_eq!(asked(&[]), Ok(()));
        let page = [("host", "tare"), ("origin", "https://evil.example")];
        assert_eq!(asked(&page), Err(403));
    }

    /// Also after a configuration was read again that says it listens elsewhere.
    #[test]
    fn without_keys_only_loopback_hosts_are_accepted() {
        let local = [("host", "localhost")];
        let open = Config::default();
        assert!(admitted(&local, &open, Exposure::Loopback).is_ok());
        assert_eq!(admitted(&local, &open, Exposure::Network), Err(401));
        let tokens = "[librechat.jwt]\nkeys = '/jwks.json'";
        let tokens: Config = toml::from_str(tokens).expect("TOML");
        let given = [("host", "localhost"), ("authorization", "Bearer x")];
        for reach in [Exposure::Socket, Exposure::Loopback, Exposure::Network] {
            assert_eq!(admitted(&local, &tokens, reach), Err(401));
            assert_eq!(admitted(&given, &tokens, reach), Err(401));
        }
    }
}
