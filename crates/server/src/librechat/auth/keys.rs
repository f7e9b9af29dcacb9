//! The keys that sign tokens, by their ids.
//!
//! They are read with the configuration, completely or not at all. If a token names an unknown key,
//! the files are read again, so that a new key works before a reload. The rate of these reads is
//! limited.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tare_engine::Error;
use tokio::sync::Mutex;

use crate::config::librechat::{KeyFile, KeySource};
use crate::librechat::auth::pem;
use crate::librechat::auth::signature::PublicKey;
use crate::workers::Workers;

/// The shortest time between two reads of the files for unknown keys.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// The largest accepted file with keys.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Public keys by their ids.
pub type Keys = BTreeMap<String, Arc<PublicKey>>;

/// The keys that were read last.
#[derive(Debug, Default)]
pub struct JwtKeys {
    keys: RwLock<Keys>,
    /// When the files were last read for an unknown key. The lock is held during the read.
    looked: Mutex<Option<Instant>>,
}

impl JwtKeys {
    pub fn set(&self, keys: Keys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Finds a key, if necessary in the files; an error means that they could not be read. One of
    /// the server's own threads reads the files, because every client can send an unknown key id,
    /// and tokio's blocking pool panics if the host has no thread left.
    pub async fn find(
        &self,
        kid: &str,
        source: &KeySource,
        workers: &Workers,
    ) -> Result<Option<Arc<PublicKey>>, Error> {
        if let Some(key) = self.known(kid) {
            return Ok(Some(key));
        }
        let mut looked = self.looked.lock().await;
        // Another request may have read the files meanwhile.
        let known = self.known(kid);
        let is_early = looked.is_some_and(|at| at.elapsed() < LOOK_AGAIN_AFTER);
        if known.is_some() || is_early {
            return Ok(known);
        }
        *looked = Some(Instant::now());
        let source = source.clone();
        self.set(workers.call(move || read(&source)).await?);
        Ok(self.known(kid))
    }

    fn known(&self, kid: &str) -> Option<Arc<PublicKey>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).get(kid).cloned()
    }
}

/// Reads all keys. If one file is invalid, there is none.
pub fn read(source: &KeySource) -> Result<Keys, Error> {
    match source {
        KeySource::Jwks(path) => with_path(path, JWKS_FORM, of_jwks),
        KeySource::Files(files) => of_files(files),
    }
}

const JWKS_FORM: &str =
    "[librechat.jwt] keys names a file with a JSON Web Key Set, such as {\"keys\": [...]}";
const PEM_FORM: &str = "'openssl pkey -in PRIVATE -pubout' writes a public key";

/// Adds the path of the file to an error.
fn with_path<T>(
    path: &Path,
    hint: &'static str,
    parse: impl FnOnce(&str) -> Result<T, Box<dyn std::error::Error + Send + Sync>>,
) -> Result<T, Error> {
    let text = text_of(path).map_err(Into::into);
    text.and_then(|text| parse(&text)).map_err(|why| {
        let message = format!("cannot use the keys in {}", path.display());
        Error::bad_request(message).caused_by(why).with_hint(hint)
    })
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let mut file = File::open(path)?.take(FILE_BYTES_MAX + 1);
    if file.read_to_string(&mut text)? as u64 > FILE_BYTES_MAX {
        Err(io::ErrorKind::FileTooLarge.into())
    } else {
        Ok(text)
    }
}

fn of_files(files: &[KeyFile]) -> Result<Keys, Error> {
    let mut keys = Keys::new();
    for KeyFile { kid, file } in files {
        let add = |text: &str| add(&mut keys, kid, pem::public_key(text)?);
        with_path(file, PEM_FORM, add)?;
    }
    Ok(keys)
}

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Jwk>,
}

/// The fields of a JWK that identify a key (RFC 7517, RFC 7518, RFC 8037).
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    n: Option<String>,
    e: Option<String>,
    /// Only a private key has one.
    d: Option<IgnoredAny>,
}

fn of_jwks(text: &str) -> Result<Keys, Box<dyn std::error::Error + Send + Sync>> {
    let jwks: Jwks = serde_json::from_str(text)?;
    let mut keys = Keys::new();
    // Keys of other kinds are ignored.
    for jwk in jwks.keys.iter().filter(|jwk| jwk.is_ours()) {
        let kid = jwk.kid.as_deref().ok_or("a key in it has no 'kid'")?;
        if jwk.d.is_some() {
            return Err(format!("the key {kid:?} in it is a private one").into());
        }
        let key = jwk.public_key();
        let key = key.ok_or_else(|| format!("the key {kid:?} in it cannot be used"))?;
        add(&mut keys, kid, key)?;
    }
    if keys.is_empty() { Err("there is none of Ed25519 or RSA in it".into()) } else { Ok(keys) }
}

fn add(
    keys: &mut Keys,
    kid: &str,
    key: PublicKey,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    match keys.insert(kid.to_owned(), Arc::new(key)) {
        None => Ok(()),
        Some(_) => Err(format!("two keys have the id {kid:?}").into()),
    }
}

impl Jwk {
    fn is_ours(&self) -> bool {
        let is = |field: &Option<String>, value| field.as_deref().is_none_or(|it| it == value);
        let kind = match (self.kty.as_str(), self.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => is(&self.alg, "EdDSA"),
            ("RSA", _) => is(&self.alg, "RS256"),
            (_, _) => false,
        };
        kind && is(&self.usage, "sig")
    }

    fn public_key(&self) -> Option<PublicKey> {
        let bytes = |field: &Option<String>| BASE64_URL_SAFE_NO_PAD.decode(field.as_ref()?).ok();
        match self.kty.as_str() {
            "OKP" => PublicKey::ed25519(&bytes(&self.x)?),
            _ => PublicKey::rsa(&bytes(&self.n)?, &bytes(&self.e)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use serde_json::{Value, json};

    use super::*;
    use crate::librechat::auth::signature::Algorithm;
    use crate::librechat::auth::signature::tests::{ED_X, RSA_N};

    fn ed(kid: &str) -> Value {
        json!({ "kty": "OKP", "crv": "Ed25519", "x": ED_X, "kid": kid })
    }

    fn rsa(kid: &str) -> Value {
        json!({ "kty": "RSA", "n": RSA_N, "e": "AQAB", "kid": kid, "alg": "RS256", "use": "sig" })
    }

    fn with(mut jwk: Value, field: &str, value: Value) -> Value {
        jwk[field] = value;
        jwk
    }

    fn parsed(keys: &[Value]) -> Result<Keys, String> {
        let text = json!({ "keys": keys }).to_string();
        of_jwks(&text).map_err(|why| why.to_string())
    }

    /// A file of this test alone.
    fn fresh(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tare-jwt-keys-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_jwks_has_keys_of_both_kinds_and_those_of_others_do_not_matter() {
        let others = [
            json!({ "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "c" }),
            json!({ "kty": "oct", "k": "AA", "kid": "d" }),
            with(ed("e"), "crv", json!("X25519")),
            with(rsa("f"), "alg", json!("RS512")),
            with(rsa("g"), "use", json!("enc")),
        ];
        let keys = parsed(&[&[ed("a"), rsa("b")], &others[..]].concat()).expect("keys");
        let found = keys.iter().map(|(kid, key)| (kid.as_str(), key.algorithm()));
        let expected = [("a", Algorithm::EdDsa), ("b", Algorithm::Rs256)];
        assert!(found.eq(expected));
        assert!(parsed(&others).is_err_and(|why| why.contains("none of Ed25519")));
    }

    #[test]
    fn a_jwks_that_cannot_be_meant_is_refused_whole() {
        let wrong = |key: Value| parsed(&[rsa("good"), key]).expect_err("it is wrong");
        assert!(wrong(with(ed("a"), "d", json!("AA"))).contains("private"));
        assert!(wrong(with(rsa("a"), "d", json!("AA"))).contains("private"));
        assert!(wrong(with(ed("a"), "kid", Value::Null)).contains("no 'kid'"));
        assert!(wrong(with(ed("a"), "x", json!("AA"))).contains("cannot be used"));
        assert!(wrong(with(rsa("a"), "n", json!("AQAB"))).contains("cannot be used"));
        assert!(wrong(ed("good")).contains("two keys"));
        for text in ["", "[]", "{}", "{\"keys\":{}}", "-----BEGIN PUBLIC KEY-----"] {
            assert!(of_jwks(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_unreadable_key_file_is_named() {
        let path = fresh("broken");
        let source = KeySource::Jwks(path.clone());
        let said = read(&source).expect_err("there is no file").to_string();
        assert!(said.contains(&path.display().to_string()), "{said}");
        fs::write(&path, json!({ "keys": [ed("a")] }).to_string()).expect("a file");
        assert!(read(&source).is_ok_and(|keys| keys.contains_key("a")));
        fs::write(&path, " ".repeat((1 << 20) + 1)).expect("a file");
        assert!(read(&source).is_err());
        fs::remove_file(&path).expect("it is there");
    }

    #[tokio::test]
    async fn a_new_key_is_found_without_a_reload_at_a_limited_rate() {
        let path = fresh("rotated");
        let write = |keys: &[Value]| fs::write(&path, json!({ "keys": keys }).to_string());
        write(&[ed("old")]).expect("a file");
        let source = &KeySource::Jwks(path.clone());
        let keys = JwtKeys::default();
        keys.set(read(source).expect("keys"));
        let workers = &Workers::start("test", 1).expect("threads");
        write(&[ed("old"), rsa("new")]).expect("a file");
        assert!(keys.find("new", source, workers).await.is_ok_and(|key| key.is_some()));
        write(&[ed("newest")]).expect("a file");
        let just_now = Some(Instant::now() + Duration::from_secs(3600));
        *keys.looked.lock().await = just_now;
        assert!(keys.find("newest", source, workers).await.is_ok_and(|key| key.is_none()));
        assert!(keys.find("old", source, workers).await.is_ok_and(|key| key.is_some()));
        *keys.looked.lock().await = None;
        assert!(keys.find("newest", source, workers).await.is_ok_and(|key| key.is_some()));
        assert!(keys.known("old").is_none());
        fs::write(&path, "{").expect("a file");
        *keys.looked.lock().await = None;
        assert!(keys.find("other", source, workers).await.is_err());
        *keys.looked.lock().await = just_now;
        assert!(keys.find("other", source, workers).await.is_ok_and(|key| key.is_none()));
        assert!(keys.known("newest").is_some());
        fs::remove_file(&path).expect("it is there");
    }
}
