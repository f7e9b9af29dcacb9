//! JSON Web Tokens as LibreChat makes them: one per request, for one user, valid for a few minutes.
//!
//! The claims are read only after the signature was verified. The reason for a refusal goes to the
//! log; the client learns only that the token was refused.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::config::librechat::{ANONYMOUS, JwtConfig};
use crate::librechat::auth::signature::PublicKey;
use crate::store::owner::Principal;

/// The largest accepted token. LibreChat's tokens have less than 1 KiB.
const TOKEN_BYTES_MAX: usize = 8 << 10;
/// The longest accepted name of a user or a tenant.
const NAME_BYTES_MAX: usize = 256;
/// Tenant used when a token names none.
pub const LEGACY: &str = "legacy";

/// Why a token is refused, for the log.
pub type Refusal = &'static str;

/// A token that was split into its parts and not verified yet.
#[derive(Debug)]
pub struct Token<'a> {
    header: Header,
    /// The first two parts, unchanged.
    signed: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: String,
    /// Critical extensions (RFC 7515, 4.1.11). None is supported.
    crit: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct Claims {
    iss: String,
    aud: Audience,
    sub: String,
    iat: u64,
    nbf: Option<u64>,
    exp: u64,
    tenant_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl<'a> Token<'a> {
    pub fn parse(text: &'a [u8]) -> Result<Self, Refusal> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err("it is too long");
        }
        let text = str::from_utf8(text).map_err(|_| "it is no text")?;
        let parts = text.rsplit_once('.').and_then(|(signed, signature)| {
            let (header, claims) = signed.split_once('.')?;
            Some((signed, header, claims, signature))
        });
        let (signed, header, claims, signature) = parts.ok_or("it has not three parts")?;
        let header: Header = json(header).ok_or("its header cannot be read")?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature);
        match header.crit {
            Some(_) => Err("it has a critical extension"),
            None => Ok(Self {
                header,
                signed,
                claims,
                signature: signature.map_err(|_| "its signature cannot be read")?,
            }),
        }
    }

    pub fn kid(&self) -> &str {
        &self.header.kid
    }

    /// Verifies the token and returns its user.
    pub fn principal(
        &self,
        key: &PublicKey,
        expected: &JwtConfig,
        now: Duration,
    ) -> Result<Principal, Refusal> {
        if self.header.alg != key.algorithm().name() {
            return Err("it names another algorithm than its key has");
        }
        if !key.has_signed(self.signed.as_bytes(), &self.signature) {
            return Err("its signature is wrong");
        }
        let claims: Claims = json(self.claims).ok_or("its claims cannot be read")?;
        claims.check_parties(expected)?;
        claims.check_times(expected, now.as_secs())?;
        claims.principal()
    }
}

/// Parses strictly: JSON with a duplicate known field is refused.
fn json<T: DeserializeOwned>(part: &str) -> Option<T> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).ok()?;
    serde_json::from_slice(&bytes).ok()
}

impl Claims {
    fn check_parties(&self, expected: &JwtConfig) -> Result<(), Refusal> {
        let is_audience = |one: &String| *one == expected.audience;
        let is_for_us = match &self.aud {
            Audience::One(one) => is_audience(one),
            Audience::Many(many) => many.iter().any(is_audience),
        };
        match (self.iss == expected.issuer, is_for_us) {
            (true, true) => Ok(()),
            (false, _) => Err("it has another issuer"),
            (_, false) => Err("it is for another audience"),
        }
    }

    /// Clocks may differ by the skew. The lifetime of a token does not depend on clocks.
    fn check_times(&self, expected: &JwtConfig, now: u64) -> Result<(), Refusal> {
        let skew = expected.skew.0.as_secs();
        let is_ahead = |time: u64| time > now.saturating_add(skew);
        let life = self.exp.checked_sub(self.iat);
        if is_ahead(self.iat) || self.nbf.is_some_and(is_ahead) {
            Err("it is not valid yet")
        } else if now >= self.exp.saturating_add(skew) {
            Err("it has expired")
        } else if life.is_none_or(|life| life > expected.lifetime_max.0.as_secs()) {
            Err("it is valid for too long")
        } else {
            Ok(())
        }
    }

    fn principal(self) -> Result<Principal, Refusal> {
        let tenant = self.tenant_id.unwrap_or_else(|| LEGACY.to_owned());
        if !is_name(&self.sub) {
            return Err("its user has no name that can be used");
        }
        if !is_name(&tenant) || tenant == ANONYMOUS {
            return Err("its tenant has no name that can be used");
        }
        Ok(Principal { tenant, user: Some(self.sub) })
    }
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tare_harness::{Signer, jwks, unix_now};

    use super::*;
    use crate::config::librechat::LibreChatConfig;

    fn ed() -> Signer {
        Signer::ed25519("ed", 1)
    }

    fn config() -> JwtConfig {
        let text = "[jwt]\nkeys = 'unread'";
        let config: LibreChatConfig = toml::from_str(text).expect("TOML");
        config.jwt.expect("it is there")
    }

    fn key(signer: &Signer) -> PublicKey {
        let x = signer.jwk()["x"].as_str().map(str::to_owned).expect("of Ed25519");
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(x).expect("base64url");
        PublicKey::ed25519(&bytes).expect("a key")
    }

    fn judged_at(token: &str, time: i64) -> Result<Principal, Refusal> {
        let time = Duration::from_secs(time.try_into().expect("after 1970"));
        let token = Token::parse(token.as_bytes())?;
        token.principal(&key(&ed()), &config(), time)
    }

    fn judged_now(token: &str) -> Result<Principal, Refusal> {
        judged_at(token, unix_now())
    }

    fn judged(claims: &Value) -> Result<Principal, Refusal> {
        judged_now(&ed().sign(claims))
    }

    fn changed(field: &str, value: Value) -> Value {
        let mut claims = Signer::claims("ann");
        claims[field] = value;
        claims
    }

    #[test]
    fn a_token_names_its_user_and_tenant() {
        let holder = |claims: &Value| judged(claims).map(|who| (who.tenant, who.user));
        let ann = |tenant: &str| Ok((tenant.to_owned(), Some("ann".to_owned())));
        assert_eq!(holder(&Signer::claims("ann")), ann("legacy"));
        assert_eq!(holder(&changed("tenant_id", json!("acme"))), ann("acme"));
        assert_eq!(holder(&changed("tenant_id", Value::Null)), ann("legacy"));
        let audiences = json!(["other", "codeapi"]);
        assert_eq!(holder(&changed("aud", audiences)), ann("legacy"));
        assert_eq!(holder(&changed("nbf", Value::Null)), ann("legacy"));
    }

    #[test]
    fn all_claims_are_required_and_must_match() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for (field, wrong) in [
            ("iss", json!("another")),
            ("aud", json!("another")),
            ("aud", json!([])),
            ("aud", json!({ "codeapi": true })),
            ("sub", json!("")),
            ("sub", json!(7)),
            ("sub", json!("a\u{0}b")),
            ("sub", json!(long)),
            ("tenant_id", json!("")),
            ("tenant_id", json!(ANONYMOUS)),
            ("tenant_id", json!(long)),
            ("exp", json!("tomorrow")),
            ("exp", json!(-1)),
            ("exp", json!(u64::MAX)),
            ("iat", json!(1.5)),
            ("nbf", json!("now")),
        ] {
            assert!(judged(&changed(field, wrong.clone())).is_err(), "{field}: {wrong}");
        }
        for missing in ["iss", "aud", "sub", "iat", "exp"] {
            assert!(judged(&changed(missing, Value::Null)).is_err(), "{missing}");
        }
    }

    /// With a duplicate claim, two parsers could read two different users.
    #[test]
    fn a_claim_is_made_once() {
        let header = ed().header().to_string();
        let claims = Signer::claims("ann").to_string();
        for twice in ["\"sub\":\"ben\"", "\"exp\":99999999999", "\"tenant_id\":\"x\""] {
            let claims = claims.replacen('{', &format!("{{{twice},"), 1);
            assert!(judged_now(&ed().sign_text(&header, &claims)).is_err(), "{twice}");
        }
    }

    #[test]
    fn clocks_may_differ_by_the_skew_and_not_by_a_second_more() {
        let now = unix_now();
        let mut claims = Signer::claims("ann");
        (claims["iat"], claims["nbf"], claims["exp"]) = (json!(now), json!(now), json!(now + 60));
        let token = ed().sign(&claims);
        let at = |time| judged_at(&token, time);
        assert!(at(now - 30).is_ok());
        assert_eq!(at(now - 31).err(), Some("it is not valid yet"));
        assert!(at(now + 60 + 29).is_ok());
        assert_eq!(at(now + 60 + 30).err(), Some("it has expired"));
    }

    #[test]
    fn no_token_lives_longer_than_it_may() {
        let living = |seconds: i64| judged(&changed("exp", json!(unix_now() + seconds)));
        assert!(living(299).is_ok());
        assert_eq!(living(400).err(), Some("it is valid for too long"));
        assert_eq!(
            judged(&changed("iat", json!(unix_now() - 400))).err(),
            Some("it is valid for too long")
        );
        // The token expires before it is valid.
        let mut claims = changed("iat", json!(unix_now() + 20));
        claims["exp"] = json!(unix_now() + 10);
        assert!(judged(&claims).is_err());
    }

    #[test]
    fn the_key_decides_the_signature_algorithm() {
        let claims = Signer::claims("ann").to_string();
        for algorithm in ["none", "None", "", "HS256", "RS256", "ES256", "eddsa"] {
            let header = json!({ "alg": algorithm, "kid": "ed" }).to_string();
            let signed = ed().sign_text(&header, &claims);
            assert!(judged_now(&signed).is_err(), "{algorithm}");
            let (unsigned, _) = signed.rsplit_once('.').expect("three parts");
            assert!(judged_now(&format!("{unsigned}.")).is_err(), "{algorithm}");
        }
        let others = Signer::ed25519("ed", 2).token("ann");
        assert_eq!(judged_now(&others).err(), Some("its signature is wrong"));
        let critical = json!({ "alg": "EdDSA", "kid": "ed", "crit": ["b64"], "b64": false });
        assert!(judged_now(&ed().sign_text(&critical.to_string(), &claims)).is_err());
    }

    #[test]
    fn a_malformed_token_is_refused_first() {
        let good = ed().token("ann");
        let long = ed().sign(&changed("jti", json!("x".repeat(TOKEN_BYTES_MAX))));
        assert_eq!(Token::parse(long.as_bytes()).err(), Some("it is too long"));
        let without_kid = ed().sign_text(r#"{"alg":"EdDSA"}"#, "{}");
        for wrong in [
            "",
            ".",
            "..",
            "a.b.c",
            &good[1..],
            &good[..good.len() - 1],
            &format!("{good}."),
            &format!("{good}="),
            &format!(" {good}"),
            &good.replacen('.', "..", 1),
            &jwks(&[&ed()]),
            &without_kid,
        ] {
            assert!(judged_now(wrong).is_err(), "{wrong}");
        }
        assert!(Token::parse(&[0xff, b'.', b'.']).is_err());
    }
}
