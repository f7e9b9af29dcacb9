//! `[librechat]` in `tare.toml`: authentication, profiles, and the boxes of executions.

use std::fmt;
use std::path::PathBuf;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tare_engine::Error;
use tare_engine::spec::{Driver, quantity};

use crate::config::boxes::{Programs, named};
use crate::config::{ByteSize, Exposure, Key, Listen, Period};

/// The tenant of executions without a credential. No key and no token can have this name.
pub const ANONYMOUS: &str = "anonymous";

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LibreChatConfig {
    /// The authentication method; [`Self::auth`] gives the default.
    auth: Option<Auth>,
    /// Allows requests without credentials from other hosts.
    pub allow_anonymous: bool,
    /// Serves `POST /v1/exec` without a credential.
    pub anonymous_exec: bool,
    /// The served profiles. The first is the default.
    pub profiles: Vec<Profile>,
    /// How long a call waits while its session runs other code.
    pub session_wait: Period,
    /// How many calls may wait for one session.
    pub session_queue: usize,
    pub jwt: Option<JwtConfig>,
    pub boxes: BoxesConfig,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    None,
    Key,
    Jwt,
}

/// Whether files and processes of a program stay for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    Default,
    Stateful,
}

/// The requirements for a token.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtConfig {
    pub keys: KeySource,
    #[serde(default = "issuer")]
    pub issuer: String,
    #[serde(default = "audience")]
    pub audience: String,
    /// The tolerated difference between the clocks of LibreChat and tare.
    #[serde(default = "skew")]
    pub skew: Period,
    /// The longest time from `iat` to `exp`.
    #[serde(default = "lifetime_max")]
    pub lifetime_max: Period,
}

/// The files with the keys that sign tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A JWKS (RFC 7517).
    Jwks(PathBuf),
    Files(Vec<KeyFile>),
}

/// One key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    pub kid: String,
    pub file: PathBuf,
}

/// The path of a JWKS, or a list of keys.
impl<'de> Deserialize<'de> for KeySource {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = KeySource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the path of a JWKS, or keys with 'kid' and 'file'")
            }

            fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<KeySource, E> {
                Ok(KeySource::Jwks(PathBuf::from(path)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, files: A) -> Result<KeySource, A::Error> {
                match Vec::deserialize(SeqAccessDeserializer::new(files))? {
                    files if files.is_empty() => Err(A::Error::custom("there is no key")),
                    files => Ok(KeySource::Files(files)),
                }
            }
        }
        input.deserialize_any(Either)
    }
}

/// A larger skew would extend the life of every token.
const SKEW_MAX: Period = Period::seconds(30);

fn issuer() -> String {
    "librechat".to_owned()
}

fn audience() -> String {
    "codeapi".to_owned()
}

fn skew() -> Period {
    SKEW_MAX
}

fn lifetime_max() -> Period {
    Period::seconds(300)
}

/// `[librechat.boxes]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BoxesConfig {
    /// `None`: that of `[boxes]`.
    pub driver: Option<Driver>,
    pub memory: ByteSize,
    /// Space for files and everything else that is written.
    pub scratch: ByteSize,
    pub pids: u32,
    /// Whether programs use the host's network.
    pub host_network: bool,
    /// Another root than the host's own programs.
    pub rootfs: Option<PathBuf>,
    /// As `packages` of `[boxes]`.
    pub packages: Option<PathBuf>,
    /// How many files one execution may return.
    pub output_files: usize,
    /// A session that is not used for this long is ended.
    pub session_idle: Period,
}

impl Default for BoxesConfig {
    fn default() -> Self {
        Self {
            driver: None,
            memory: ByteSize(1 << 30),
            scratch: ByteSize(512 << 20),
            pids: 256,
            host_network: false,
            rootfs: None,
            packages: None,
            output_files: 100,
            session_idle: Period::seconds(30 * 60),
        }
    }
}

impl BoxesConfig {
    /// Checks what every box would be refused for.
    fn check(&self) -> Result<(), Error> {
        let named = |name: &str, error| named(&format!("[librechat.boxes] {name}"), &error);
        quantity::memory_bytes(&self.memory.0.to_string()).map_err(|it| named("memory", it))?;
        quantity::scratch_bytes(&self.scratch.0.to_string()).map_err(|it| named("scratch", it))?;
        quantity::pids(&self.pids.to_string()).map_err(|it| named("pids", it))?;
        // A box gets less than the default if it has little memory.
        if self.scratch > self.memory && self.scratch != Self::default().scratch {
            let (scratch, memory) =
                (quantity::show_bytes(self.scratch.0), quantity::show_bytes(self.memory.0));
            let message = format!("scratch of {scratch} is more than the memory of {memory}");
            return Err(named("scratch", Error::bad_request(message)));
        }
        Ok(())
    }

    pub fn programs(&self) -> Programs<'_> {
        Programs { rootfs: self.rootfs.as_deref(), packages: self.packages.as_deref() }
    }
}

impl Default for LibreChatConfig {
    fn default() -> Self {
        Self {
            auth: None,
            allow_anonymous: false,
            anonymous_exec: false,
            profiles: vec![Profile::Default, Profile::Stateful],
            session_wait: Period::seconds(15),
            session_queue: 32,
            jwt: None,
            boxes: BoxesConfig::default(),
        }
    }
}

impl LibreChatConfig {
    /// The named authentication method, or the strongest that is configured.
    pub fn auth(&self, keys: &[Key]) -> Auth {
        match (self.auth, &self.jwt) {
            (Some(named), _) => named,
            (None, Some(_)) => Auth::Jwt,
            (None, None) if !keys.is_empty() => Auth::Key,
            (None, None) => Auth::None,
        }
    }

    /// Whether other hosts could send requests without a credential, although the operator does not
    /// allow that. Such a server must not serve LibreChat's API.
    pub fn lacks_authentication(&self, keys: &[Key], exposure: Exposure) -> bool {
        self.auth(keys) == Auth::None && !exposure.is_local() && !self.allow_anonymous
    }

    pub fn check(&self, keys: &[Key], listen: &Listen) -> Result<(), Error> {
        let wrong = |message: &str, hint: &str| Err(Error::bad_request(message).with_hint(hint));
        if self.lacks_authentication(keys, listen.exposure()) {
            let message = format!("refusing to run code without authentication on {listen}");
            let hint = "under [librechat] say auth = \"key\" or \"jwt\", or allow_anonymous = true";
            return wrong(&message, hint);
        }
        if self.auth == Some(Auth::Key) && keys.is_empty() {
            let hint = "give --api-key-file, or [[keys]] in the configuration";
            return wrong("[librechat] auth = \"key\" needs a key", hint);
        }
        if self.auth == Some(Auth::Jwt) && self.jwt.is_none() {
            let hint = "name the keys of the tokens there, as keys = \"/path/of/jwks.json\"";
            return wrong("[librechat] auth = \"jwt\" needs [librechat.jwt]", hint);
        }
        if self.anonymous_exec && keys.iter().any(|key| key.name.as_str() == ANONYMOUS) {
            let message = format!("no key can have the name {ANONYMOUS:?}");
            return wrong(&message, "tare uses this name for requests without a credential");
        }
        self.boxes.check()?;
        if self.profiles.is_empty() {
            return wrong("no profile is served", "leave 'profiles' out to serve all");
        }
        match &self.jwt {
            Some(jwt) if jwt.skew > SKEW_MAX => {
                wrong("the skew of clocks is more than 30s", "let both hosts have the right time")
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const JWT: &str = "[librechat.jwt]\nkeys = '/jwks.json'\n";

    fn key(name: &str) -> String {
        format!("[[keys]]\nname = '{name}'\nsha256 = '{}'\n", "0".repeat(64))
    }

    fn read(text: &str) -> Config {
        toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// `Err` has what is said, with its hint.
    fn checked(text: &str) -> Result<Auth, String> {
        let config = read(text);
        let said = |error: Error| format!("{error} ({:?})", error.hint());
        config.check().map_err(said)?;
        Ok(config.librechat.auth(&config.keys))
    }

    #[test]
    fn the_strongest_that_is_configured_is_in_force() {
        let keys = key("a");
        assert_eq!(checked(""), Ok(Auth::None));
        assert_eq!(checked(&keys), Ok(Auth::Key));
        assert_eq!(checked(JWT), Ok(Auth::Jwt));
        assert_eq!(checked(&(keys.clone() + JWT)), Ok(Auth::Jwt));
        let named = |auth| format!("{keys}[librechat]\nauth = '{auth}'\n{JWT}");
        assert_eq!(checked(&named("key")), Ok(Auth::Key));
        assert_eq!(checked(&named("none")), Ok(Auth::None));
        assert!(checked("[librechat]\nauth = 'key'").is_err());
        let refused = checked("[librechat]\nauth = 'jwt'").expect_err("no keys");
        assert!(
            refused.starts_with("[librechat] auth = \"jwt\" needs [librechat.jwt]"),
            "{refused}"
        );
    }

    #[test]
    fn the_page_for_operators_has_the_defaults_as_they_are() {
        let page = include_str!("../../../../docs/librechat.md");
        let (_, section) = page.split_once("## Every setting").expect("a section");
        let (_, rest) = section.split_once("```toml\n").expect("a block");
        let (block, _) = rest.split_once("```").expect("its end");
        let mut shown = read(block);
        let jwt = shown.librechat.jwt.take();
        assert_eq!(shown, Config::default());
        let keys = "[librechat.jwt]\nkeys = '/etc/tare/jwks.json'\n";
        assert_eq!(jwt, read(keys).librechat.jwt);
    }

    #[test]
    fn beyond_loopback_a_credential_or_allow_anonymous_is_required() {
        let afar = |rest: &str| checked(&format!("listen = '0.0.0.0:80'\n{rest}"));
        assert!(afar("").is_err_and(|said| said.contains("without an API key")));
        assert_eq!(afar(&key("a")), Ok(Auth::Key));
        assert_eq!(afar(JWT), Ok(Auth::Jwt));
        let none = key("a") + "[librechat]\nauth = 'none'\n";
        assert!(afar(&none).is_err_and(|said| said.contains("allow_anonymous")));
        assert_eq!(afar(&(none + "allow_anonymous = true")), Ok(Auth::None));
        let allowed = "[librechat]\nallow_anonymous = true";
        assert_eq!(afar(allowed), Ok(Auth::None));
        let config = read(&format!("listen = '0.0.0.0:80'\n{allowed}"));
        assert!(!config.allows_anonymous(config.listen.exposure()));
    }

    #[test]
    fn keys_are_in_one_file_or_in_several() {
        let several = "[[librechat.jwt.keys]]\nkid = 'a'\nfile = '/a'\n\
                       [[librechat.jwt.keys]]\nkid = 'b'\nfile = '/b'\n";
        assert_ne!(read(several), read(JWT));
        assert_eq!(checked(several), Ok(Auth::Jwt));
        let wrong = |text: &str| toml::from_str::<Config>(text).expect_err(text).to_string();
        assert!(wrong("[librechat.jwt]").contains("keys"));
        assert!(wrong("[librechat.jwt]\nkeys = []").contains("no key"));
        assert!(wrong("[librechat.jwt]\nkeys = 7").contains("JWKS"));
        assert!(wrong("[[librechat.jwt.keys]]\nkid = 'a'\nfiel = 'x'").contains("fiel"));
        assert!(wrong(&format!("{JWT}isuer = 'x'")).contains("isuer"));
    }

    #[test]
    fn settings_that_weaken_protection_are_refused() {
        assert!(checked(&format!("{JWT}skew = '30s'")).is_ok());
        assert!(checked(&format!("{JWT}skew = '31s'")).is_err());
        let anonymous = key(ANONYMOUS) + "[librechat]\nanonymous_exec = true";
        assert!(checked(&anonymous).is_err_and(|said| said.contains(ANONYMOUS)));
        assert!(checked("[librechat]\nprofiles = []").is_err());
    }

    #[test]
    fn settings_that_no_box_could_have_are_refused_by_name() {
        let boxes = |text: &str| checked(&format!("[librechat.boxes]\n{text}"));
        assert!(boxes("memory = '256m'\npids = 1").is_ok());
        for (text, named) in [
            ("memory = '1m'", "memory"),
            ("scratch = '1k'", "scratch"),
            ("memory = '64m'\nscratch = '128m'", "scratch"),
            ("pids = 0", "pids"),
        ] {
            let refused = boxes(text).expect_err(text);
            let named = format!("[librechat.boxes] {named}: ");
            assert!(refused.starts_with(&named), "{refused}");
        }
    }
}
