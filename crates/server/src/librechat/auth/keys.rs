//! The keys that sign tokens, by their ids.
//!
//! They are read with the configuration, completely or not at all. If a token names an unknown key,
//! the files are read again, so that a new key works before a reload. The rate of these reads is
//! limited.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::{Error as _, IgnoredAny, SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Deserializer};
use tare_engine::Error;
use tokio::sync::Mutex;

use crate::librechat::auth::pem;
use crate::librechat::auth::signature::PublicKey;
use crate::workers::Workers;

/// The shortest time between two reads of the files for unknown keys.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// The largest accepted file with keys.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The place of the keys, and the keys that were read. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Keyring(Arc<Ring>);

#[derive(Debug)]
struct Ring {
    source: Source,
    keys: RwLock<Arc<Keys>>,
    /// When the files were last read for an unknown key. The lock is held during the read.
    looked: Mutex<Option<Instant>>,
}

type Keys = BTreeMap<String, Arc<PublicKey>>;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// A JWKS (RFC 7517).
    Jwks(PathBuf),
    Files(Vec<KeyFile>),
}

/// One key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    kid: String,
    file: PathBuf,
}

impl Keyring {
    fn new(source: Source) -> Self {
        Self(Arc::new(Ring { source, keys: RwLock::default(), looked: Mutex::default() }))
    }

    /// Replaces all keys with those in the files. If a file is invalid, the old keys stay.
    pub fn read(&self) -> Result<(), Error> {
        let keys = match &self.0.source {
            Source::Jwks(path) => with_path(path, of_jwks)?,
            Source::Files(files) => of_files(files)?,
        };
        *self.0.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        Ok(())
    }

    /// Finds a key, if necessary in the files; an error means that they could not be read. One of
    /// the server's own threads reads the files, because every client can send an unknown key id,
    /// and tokio's blocking pool panics if the host has no thread left.
    pub async fn find(
        &self,
        kid: &str,
        workers: &Workers,
    ) -> Result<Option<Arc<PublicKey>>, Error> {
        if let Some(key) = self.known(kid) {
            return Ok(Some(key));
        }
        let mut looked = self.0.looked.lock().await;
        // Another request may have read the files meanwhile.
        let known = self.known(kid);
        let is_early = looked.is_some_and(|at| at.elapsed() < LOOK_AGAIN_AFTER);
        if known.is_some() || is_early {
            return Ok(known);
        }
        *looked = Some(Instant::now());
        let ring = self.clone();
        workers.call(move || ring.read()).await?;
        Ok(self.known(kid))
    }

    fn known(&self, kid: &str) -> Option<Arc<PublicKey>> {
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.get(kid).cloned()
    }
}

/// Two keyrings are equal if they read the same files.
impl PartialEq for Keyring {
    fn eq(&self, other: &Self) -> bool {
        self.0.source == other.0.source
    }
}

/// The path of a JWKS, or a list of keys.
impl<'de> Deserialize<'de> for Keyring {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Source;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the path of a JWKS, or keys with 'kid' and 'file'")
            }

            fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<Source, E> {
                Ok(Source::Jwks(PathBuf::from(path)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, files: A) -> Result<Source, A::Error> {
                match Vec::deserialize(SeqAccessDeserializer::new(files))? {
                    files if files.is_empty() => Err(A::Error::custom("there is no key")),
                    files => Ok(Source::Files(files)),
                }
            }
        }
        input.deserialize_any(Either).map(Self::new)
    }
}

/// Adds the path of the file to an error.
fn with_path<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, Box<dyn std::error::Error + Send + Sync>>,
) -> Result<T, Error> {
    let text = text_of(path).map_err(Into::into);
    text.and_then(|text| parse(&text)).map_err(|why| {
        let message = format!("cannot use the keys in {}", path.display());
        Error::bad_request(message)
            .caused_by(why)
            .with_hint("'openssl pkey -in PRIVATE -pubout' writes a public key")
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
        with_path(file, add)?;
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
        std::env::temp_dir().join(format!("tare-keyring-{}-{name}", std::process::id()))
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
    fn an_unreadable_key_file_is_named_and_the_old_keys_stay() {
        let path = fresh("broken");
        let ring = Keyring::new(Source::Jwks(path.clone()));
        let said = ring.read().expect_err("there is no file").to_string();
        assert!(said.contains(&path.display().to_string()), "{said}");
        fs::write(&path, json!({ "keys": [ed("a")] }).to_string()).expect("a file");
        ring.read().expect("keys");
        fs::write(&path, " ".repeat((1 << 20) + 1)).expect("a file");
        assert!(ring.read().is_err());
        fs::remove_file(&path).expect("it is there");
        assert!(ring.known("a").is_some());
    }

    #[tokio::test]
    async fn a_new_key_is_found_without_a_reload_at_a_limited_rate() {
        let path = fresh("rotated");
        let write = |keys: &[Value]| fs::write(&path, json!({ "keys": keys }).to_string());
        write(&[ed("old")]).expect("a file");
        let ring = Keyring::new(Source::Jwks(path.clone()));
        ring.read().expect("keys");
        let workers = &Workers::start("test", 1).expect("threads");
        write(&[ed("old"), rsa("new")]).expect("a file");
        assert!(ring.find("new", workers).await.is_ok_and(|key| key.is_some()));
        write(&[ed("newest")]).expect("a file");
        let just_now = Some(Instant::now() + Duration::from_secs(3600));
        *ring.0.looked.lock().await = just_now;
        assert!(ring.find("newest", workers).await.is_ok_and(|key| key.is_none()));
        assert!(ring.find("old", workers).await.is_ok_and(|key| key.is_some()));
        *ring.0.looked.lock().await = None;
        assert!(ring.find("newest", workers).await.is_ok_and(|key| key.is_some()));
        assert!(ring.known("old").is_none());
        fs::write(&path, "{").expect("a file");
        *ring.0.looked.lock().await = None;
        assert!(ring.find("other", workers).await.is_err());
        *ring.0.looked.lock().await = just_now;
        assert!(ring.find("other", workers).await.is_ok_and(|key| key.is_none()));
        assert!(ring.known("newest").is_some());
        fs::remove_file(&path).expect("it is there");
    }
}
