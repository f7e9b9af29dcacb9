//! Makes tokens as LibreChat does. A test decides what they contain, and what is wrong with them.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::clock::unix_now;

/// One key, by its id.
#[derive(Debug, Clone)]
pub struct Signer {
    kid: String,
    key: Key,
}

#[derive(Debug, Clone)]
enum Key {
    Ed25519(Box<SigningKey>),
    Rsa,
}

/// The public example RSA key of RFC 7515, A.2.1.
const RSA_N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qP\
    CJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0\
    LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qC\
    o5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRW\
    yuXpoQ";
const RSA_D: &str = "Eq5xpGnNCivDflJsRQBXHx1hdR1k6Ulwe2JZD50LpXyWPEAeP88vLNO97IjlA7_GQ5sLKMgv\
    fTeXZx9SE-7YwVol2NXOoAJe46sui395IW_GO-pWJ1O0BkTGoVEn2bKVRUCgu-GjBVaYLU6f3l9kJfFNS3E0QbVd\
    xzubSu3Mkqzjkn439X0M_V51gfpRLI9JYanrC4D4qAdGcopV_0ZHHzQlBjudU2QvXt4ehNYTCBr6XCLQUShb1juU\
    O1ZdiYoFaFQT5Tw8bGUl_x_jTj3ccPDVZFD9pIuhLhBOneufuBiB4cS98l2SR_RQyGWSeWjnczT0QU91p1DhOVRu\
    OopznQ";
/// A SHA-256 as it is signed (RFC 8017, 9.2).
const SHA256_PREFIX: &str = "MDEwDQYJYIZIAWUDBAIBBQAEIA";
/// The public key of an Ed25519 key in DER, without the key (RFC 8410, 4).
const ED25519_PREFIX: &str = "MCowBQYDK2VwAyEA";

impl Signer {
    /// Makes a key. Each seed gives another one.
    pub fn ed25519(kid: &str, seed: u8) -> Self {
        Self {
            kid: kid.to_owned(),
            key: Key::Ed25519(Box::new(SigningKey::from_bytes(&[seed; 32]))),
        }
    }

    pub fn rsa(kid: &str) -> Self {
        Self { kid: kid.to_owned(), key: Key::Rsa }
    }

    /// The key as an entry of a JWKS.
    pub fn jwk(&self) -> Value {
        match &self.key {
            Key::Ed25519(key) => {
                let x = encoded(key.verifying_key().as_bytes());
                json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": self.kid })
            }
            Key::Rsa => json!({ "kty": "RSA", "n": RSA_N, "e": "AQAB", "kid": self.kid }),
        }
    }

    /// The public key as `openssl pkey -pubout` writes it.
    pub fn pem(&self) -> String {
        let Key::Ed25519(key) = &self.key else {
            panic!("the test has no use for one of RSA");
        };
        let der = [&decoded(ED25519_PREFIX), &key.verifying_key().as_bytes()[..]].concat();
        let text = BASE64_STANDARD.encode(der);
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }

    /// The claims that LibreChat sends for this user now.
    pub fn claims(user: &str) -> Value {
        let now = unix_now();
        json!({
            "iss": "librechat", "aud": "codeapi", "sub": user, "tenant_id": "legacy",
            "iat": now, "nbf": now, "exp": now + 300, "jti": format!("{user}-{now}"),
            "role": "USER", "principal_source": "librechat_jwt", "auth_context_hash": "0",
        })
    }

    /// A valid token for this user.
    pub fn token(&self, user: &str) -> String {
        self.sign(&Self::claims(user))
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.sign_text(&self.header().to_string(), &claims.to_string())
    }

    /// Signs a header and claims that need not be JSON.
    pub fn sign_text(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encoded(header.as_bytes()), encoded(claims.as_bytes()));
        let signature = match &self.key {
            Key::Ed25519(key) => key.sign(signed.as_bytes()).to_bytes().to_vec(),
            Key::Rsa => signed_by_rsa(signed.as_bytes()),
        };
        format!("{signed}.{}", encoded(&signature))
    }

    pub fn header(&self) -> Value {
        let algorithm = match self.key {
            Key::Ed25519(_) => "EdDSA",
            Key::Rsa => "RS256",
        };
        json!({ "alg": algorithm, "typ": "JWT", "kid": self.kid })
    }
}

/// A JWKS with the keys of these signers.
pub fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({ "keys": keys }).to_string()
}

fn signed_by_rsa(message: &[u8]) -> Vec<u8> {
    let modulus = BoxedUint::from_be_slice_vartime(&decoded(RSA_N));
    let modulus = Odd::new(modulus).into_option().expect("it is odd");
    let hash = [decoded(SHA256_PREFIX), Sha256::digest(message).to_vec()].concat();
    let mut block = vec![0, 1];
    block.resize(255 - hash.len(), 0xff);
    block.push(0);
    block.extend(hash);
    let block = BoxedUint::from_be_slice_vartime(&block);
    let block = BoxedMontyForm::new(block, &BoxedMontyParams::new_vartime(modulus));
    let exponent = BoxedUint::from_be_slice_vartime(&decoded(RSA_D));
    block.pow(&exponent).retrieve().to_be_bytes().to_vec()
}

fn encoded(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn decoded(text: &str) -> Vec<u8> {
    BASE64_URL_SAFE_NO_PAD.decode(text).expect("base64url")
}
