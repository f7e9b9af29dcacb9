//! `tare.toml`: what an operator says once. A file that is not understood whole is
//! refused whole.

pub mod files;
pub mod hook;
pub mod librechat;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use tare_engine::spec::{Name, quantity};
use tare_engine::{Error, GaugeSettings, Thresholds};

use crate::admission::descriptors::Room;
use crate::admission::quota::Quota;
use crate::config::files::FilesConfig;
use crate::config::hook::HookConfig;
use crate::config::librechat::{Auth, LibreChatConfig};
use crate::error::in_plain_words;
use crate::work::languages::Languages;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    #[serde(deserialize_with = "parsed")]
    pub listen: Listen,
    /// Other names of this host under which it is asked without a key.
    pub allowed_hosts: Vec<String>,
    /// Web pages that may use this server.
    pub allowed_origins: Vec<String>,
    /// Whoever has none of these is refused; without any, all on this host are heard.
    pub keys: Vec<Key>,
    pub limits: Limits,
    /// What clients send, and programs make for them.
    pub files: FilesConfig,
    pub gauges: Levels,
    /// Over those that are built in.
    pub languages: Languages,
    /// Called when a gauge comes to another level.
    pub hooks: HookConfig,
    pub librechat: LibreChatConfig,
    pub log: LogFormat,
    /// What of the limits was lowered, for want of descriptors.
    #[serde(skip)]
    pub lowered: Vec<&'static str>,
}

/// Where the levels of gauges begin, in percent of their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Levels {
    pub warn: u8,
    pub alert: u8,
    pub full: u8,
}

/// How far below its threshold a level ends.
const LEVEL_MARGIN: u8 = 5;

impl Levels {
    fn thresholds(self) -> Result<Thresholds, Error> {
        Thresholds::new(self.warn, self.alert, self.full, LEVEL_MARGIN)
    }
}

impl Default for Levels {
    fn default() -> Self {
        Self { warn: 60, alert: 80, full: 95 }
    }
}

/// Where the server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    /// A socket of mode 0600.
    Unix(PathBuf),
}

/// Who comes as far as being asked for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Who may open a file of this host. No web page can.
    Socket,
    /// Everybody on this host, with the web pages in a browser there.
    Host,
    Network,
}

impl Reach {
    pub fn is_local(self) -> bool {
        match self {
            Self::Socket | Self::Host => true,
            Self::Network => false,
        }
    }
}

/// A key is known by its hash: the file can be read by whoever may see that.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Under which it is in the log.
    pub name: String,
    #[serde(deserialize_with = "hex")]
    pub sha256: [u8; 32],
    /// Boxes that its holder may have at once, with those of runs.
    pub boxes: Option<u64>,
    /// On average; as many may come at once.
    pub runs_per_second: Option<f64>,
    /// The sum of what those boxes may use.
    #[serde(default, deserialize_with = "optional_size")]
    pub memory_bytes: Option<u64>,
}

/// What one server takes on at once, and what one request may ask for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub connections: usize,
    /// Clients that only listen; half of the connections if left out.
    pub streams: Option<usize>,
    /// `POST /v1/run` at once.
    pub runs: usize,
    /// That wait for one of those to end.
    pub runs_waiting: usize,
    /// Processes in boxes that are looked after at once, detached ones and terminals
    /// included.
    pub execs: usize,
    /// Boxes that live at once.
    pub boxes: usize,
    #[serde(deserialize_with = "size")]
    pub body_bytes: u64,
    /// Memory for all bodies at once.
    #[serde(deserialize_with = "size")]
    pub bodies_bytes: u64,
    /// A file or an archive that is put into a box.
    #[serde(deserialize_with = "size")]
    pub upload_bytes: u64,
    /// Of each stream of a `run`, and of the files that come back.
    #[serde(deserialize_with = "size")]
    pub output_bytes: u64,
    #[serde(deserialize_with = "time")]
    pub timeout: Duration,
    #[serde(deserialize_with = "time")]
    pub timeout_max: Duration,
    /// After which a box ends that was asked for without one.
    #[serde(deserialize_with = "time")]
    pub lease: Duration,
    #[serde(deserialize_with = "time")]
    pub lease_max: Duration,
    #[serde(deserialize_with = "size")]
    pub memory_max: u64,
    /// Whether a box may be given the host's network.
    pub host_network: bool,
    /// For a whole request body to come, and for a client to take what is sent.
    #[serde(deserialize_with = "time")]
    pub client: Duration,
    /// For what runs to end after SIGTERM.
    #[serde(deserialize_with = "time")]
    pub drain: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Human,
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 8080))),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            keys: Vec::new(),
            limits: Limits::default(),
            files: FilesConfig::default(),
            gauges: Levels::default(),
            languages: Languages::default(),
            hooks: HookConfig::default(),
            librechat: LibreChatConfig::default(),
            log: LogFormat::default(),
            lowered: Vec::new(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            streams: None,
            runs: 64,
            runs_waiting: 256,
            execs: 256,
            boxes: 1000,
            body_bytes: 32 << 20,
            bodies_bytes: 256 << 20,
            upload_bytes: 1 << 30,
            output_bytes: 8 << 20,
            timeout: Duration::from_secs(30),
            timeout_max: Duration::from_secs(600),
            lease: Duration::from_secs(24 * 3600),
            lease_max: Duration::from_secs(30 * 24 * 3600),
            memory_max: 4 << 30,
            host_network: false,
            client: Duration::from_secs(30),
            drain: Duration::from_secs(30),
        }
    }
}

impl Config {
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
            let message = format!("cannot use the configuration {}", path.display());
            Error::bad_request(message).caused_by(source)
        };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.into()))?;
        toml::from_str(&text).map_err(|error| failed(in_a_line(&text, &error).into()))
    }

    /// Keys and tokens are what stands between the network and this host.
    pub fn check(&self) -> Result<(), Error> {
        let is_open = self.librechat.is_open(&self.keys, self.listen.reach());
        if self.keys.is_empty() && is_open {
            let message = format!("refusing to listen on {} without an API key", self.listen);
            return Err(Error::bad_request(message)
                .with_hint("give --api-key-file, or [[keys]] in the configuration"));
        }
        self.check_host_network(self.listen.reach())?;
        self.limits.check()?;
        self.gauges.thresholds()?;
        self.files.check()?;
        self.check_keys()?;
        self.librechat.check(&self.keys, &self.listen)
    }

    /// A box with the host's network reaches the host's loopback, and the API there.
    pub fn check_host_network(&self, reach: Reach) -> Result<(), Error> {
        let is_given = self.limits.host_network || self.librechat.boxes.host_network;
        let needs_none = self.librechat.auth(&self.keys) == Auth::None;
        if !is_given || !needs_none || reach == Reach::Socket {
            return Ok(());
        }
        let message = "host_network gives boxes this API: set [[keys]] or listen on unix:PATH";
        Err(Error::bad_request(message)
            .with_hint("with auth = \"none\" under [librechat], boxes need no key there either"))
    }

    /// Whether the native API is everybody's who reaches it: of this host alone, and not
    /// where others have to prove who they are.
    pub fn hears_anybody(&self, reach: Reach) -> bool {
        let auth = self.librechat.auth(&self.keys);
        self.keys.is_empty() && auth == Auth::None && reach.is_local()
    }

    /// A name is a label of what was made with the key, and whose quota that is.
    fn check_keys(&self) -> Result<(), Error> {
        let wrong = |message| Err(Error::bad_request(message));
        for (place, key) in self.keys.iter().enumerate() {
            let name = &key.name;
            Name::parse(name)?;
            if self.keys[..place].iter().any(|other| other.name == *name) {
                return wrong(format!("two keys have the name {name:?}"));
            }
            let rate = key.runs_per_second;
            if rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
                return wrong(format!("runs_per_second of the key {name:?} is no rate"));
            }
        }
        Ok(())
    }

    /// What there are not enough descriptors for is lowered.
    pub fn fit(&mut self, room: Room) {
        self.lowered = room.fit(&mut self.limits);
    }

    pub fn gauge_settings(&self) -> GaugeSettings {
        GaugeSettings {
            thresholds: self.gauges.thresholds().unwrap_or_default(),
            boxes_max: Some(self.limits.boxes as u64),
            descriptors_reserved: Room::found().reserved(),
        }
    }
}

impl Limits {
    pub fn streams_max(&self) -> usize {
        self.streams.unwrap_or((self.connections / 2).max(1))
    }

    /// Whoever came would wait for ever, and nobody would be told.
    fn check(&self) -> Result<(), Error> {
        let named = [
            ("connections", self.connections),
            ("streams", self.streams.unwrap_or(1)),
            ("runs", self.runs),
        ];
        match named.into_iter().find(|(_, limit)| *limit == 0) {
            None => Ok(()),
            Some((name, _)) => {
                let message = format!("cannot serve with [limits] {name} = 0");
                Err(Error::bad_request(message).with_hint("write 1 or more"))
            }
        }
    }
}

impl Listen {
    pub fn reach(&self) -> Reach {
        match self {
            Self::Tcp(address) if address.ip().is_loopback() => Reach::Host,
            Self::Tcp(_) => Reach::Network,
            Self::Unix(_) => Reach::Socket,
        }
    }
}

impl FromStr for Listen {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        let named = text.rsplit_once(':');
        let named = named.and_then(|(name, port)| Some((name, port.parse().ok()?)));
        match named.filter(|(name, _)| !name.is_empty()) {
            Some((name, port)) => at_loopback(name, port).map(Self::Tcp),
            None => Err(no_address(text)),
        }
    }
}

/// Where a name of this host alone is. With others it would not be seen from the name
/// who is let in. As without a name, IPv4 is taken where there is both.
fn at_loopback(name: &str, port: u16) -> Result<SocketAddr, Error> {
    let found = (name, port).to_socket_addrs();
    let found: Vec<_> = found.map_err(|error| no_address(name).caused_by(error))?.collect();
    if let Some(other) = found.iter().find(|it| !it.ip().is_loopback()) {
        let message = format!("{name:?} is {}, which is not loopback", other.ip());
        return Err(Error::bad_request(message)
            .with_hint("to listen beyond this host, write the address itself"));
    }
    let address = found.iter().find(|it| it.is_ipv4()).or(found.first());
    address.copied().ok_or_else(|| no_address(name))
}

fn no_address(text: &str) -> Error {
    let message = format!("{text:?} is no address to listen on");
    Error::bad_request(message)
        .with_hint("write ADDRESS:PORT, such as 127.0.0.1:8080, or unix:PATH")
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Key {
    pub fn of(name: &str, key: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            sha256: Sha256::digest(key).into(),
            boxes: None,
            runs_per_second: None,
            memory_bytes: None,
        }
    }

    /// A key that is named by itself, `key-` and the first 8 digits of its SHA-256: its
    /// boxes and quotas stay its own when other keys come and go.
    fn by_hash(key: &[u8]) -> Self {
        let unnamed = Self::of("", key);
        let [a, b, c, d, ..] = unnamed.sha256;
        let name = format!("key-{:08x}", u32::from_be_bytes([a, b, c, d]));
        Self { name, ..unnamed }
    }

    pub fn quota(&self) -> Quota {
        Quota {
            boxes: self.boxes,
            runs_per_second: self.runs_per_second,
            memory_bytes: self.memory_bytes,
        }
    }

    /// A file with a key on each line; empty ones and those that begin with # do not
    /// count.
    pub fn read_file(path: &Path) -> Result<Vec<Self>, Error> {
        let message = || format!("cannot use the keys in {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::bad_request(message()).caused_by(error))?;
        let lines = text.lines().map(str::trim);
        let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        // A key that stands there twice is one key: its name is its hash.
        let keys: BTreeSet<&str> = keys.collect();
        let keys = keys.into_iter().map(|key| Self::by_hash(key.as_bytes()));
        let keys: Vec<Self> = keys.collect();
        if keys.is_empty() {
            Err(Error::bad_request(message()).caused_by("there is none"))
        } else {
            Ok(keys)
        }
    }
}

/// What is wrong with a text, and where: an error is one line, and what TOML says by
/// itself is a drawing of several.
fn in_a_line(text: &str, error: &toml::de::Error) -> String {
    let what = in_plain_words(&error.message().replace('\n', ", "));
    let before = error.span().and_then(|span| text.get(..span.start));
    match before.map(|before| before.split('\n')) {
        Some(lines) => format!("line {}: {what}", lines.count()),
        None => what,
    }
}

fn parsed<'de, D: Deserializer<'de>>(input: D) -> Result<Listen, D::Error> {
    with(input, "127.0.0.1:8080", str::parse)
}

pub fn size<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    with(input, "512m", quantity::bytes)
}

fn optional_size<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    size(input).map(Some)
}

pub fn time<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    with(input, "30s", quantity::duration)
}

fn hex<'de, D: Deserializer<'de>>(input: D) -> Result<[u8; 32], D::Error> {
    let wrong = || {
        let message = "a sha256 has 64 hexadecimal digits";
        Error::bad_request(message).with_hint("printf %s KEY | sha256sum")
    };
    with(input, &"0a".repeat(32), |text| {
        let digits = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 32];
        if !text.is_ascii() || !digits.1.is_empty() || digits.0.len() != bytes.len() {
            return Err(wrong());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.0) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(bytes)
    })
}

/// A text that the engine's own parser takes, with its hint.
/// A text that is more than that. Whoever writes a bare number is shown one in quotes.
pub fn with<'de, D: Deserializer<'de>, T>(
    input: D,
    example: &str,
    parse: impl FnOnce(&str) -> Result<T, Error>,
) -> Result<T, D::Error> {
    let text = input.deserialize_str(Text { example })?;
    parse(&text).map_err(|error| match error.hint() {
        Some(hint) => D::Error::custom(format!("{error} ({hint})")),
        None => D::Error::custom(error),
    })
}

struct Text<'a> {
    example: &'a str,
}

impl Visitor<'_> for Text<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text in quotes, such as {:?}", self.example)
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_default() {
        let config: Config = toml::from_str("").expect("an empty file");
        assert_eq!(config, Config::default());
        assert!(config.check().is_ok());
    }

    #[test]
    fn a_key_of_a_file_keeps_its_name_when_other_lines_come_and_go() {
        let directory = tare_harness::TemporaryDirectory::new();
        let names = |text: &str| {
            let keys = Key::read_file(&directory.write("keys", text)).expect("keys");
            keys.into_iter().map(|key| key.name).collect::<Vec<_>>()
        };
        let secret = names("secret\n");
        assert_eq!(secret, ["key-2bb80d53"]);
        assert!(names("one\nsecret\n").contains(&secret[0]));
        assert!(names("# a comment\nnew\nsecret\n").contains(&secret[0]));
        assert_eq!(names("secret\nsecret\n"), secret);
    }

    #[test]
    fn unknown_settings_are_refused_by_name() {
        let wrong = |text: &str| toml::from_str::<Config>(text).expect_err(text).to_string();
        assert!(wrong("listn = 'x'").contains("listn"));
        assert!(wrong("[limits]\ntimeout = '-1s'").contains("timeout"));
        assert!(wrong("listen = '8080'").contains("ADDRESS:PORT"));
        assert!(wrong("[gauges]\nwran = 50").contains("wran"));
        assert!(wrong("[files]\nttl = 'soon'").contains("ttl"));
        assert!(wrong("[[keys]]\nname = 'a'\nsha256 = '00'").contains("64 hexadecimal"));
    }

    #[test]
    fn errors_are_one_line_with_their_place() {
        let said = |text: &str| in_a_line(text, &toml::from_str::<Config>(text).expect_err(text));
        let wrong = said("[limits]\n\ntimeout = 30\n");
        assert_eq!(
            wrong,
            "line 3: invalid type: integer `30`, expected a text in quotes, such as \"30s\""
        );
        assert!(said("[files]\nfile_bytes = 1").ends_with("such as \"512m\""));
        assert!(said("listen =\n").starts_with("line 1: "));
        assert!(!said("[[keys]\nname = 'a\n").contains('\n'));
    }

    #[test]
    fn limits_of_zero_are_refused() {
        for limit in ["connections", "runs"] {
            let config: Config = toml::from_str(&format!("[limits]\n{limit} = 0")).expect("TOML");
            let refused = config.check().expect_err(limit).to_string();
            assert!(refused.contains(limit), "{refused}");
        }
    }

    #[test]
    fn equal_gauge_levels_are_refused() {
        let config: Config = toml::from_str("[gauges]\nwarn = 90").expect("TOML");
        assert!(config.check().is_err());
        let config: Config = toml::from_str("[gauges]\nwarn = 50").expect("TOML");
        assert!(config.check().is_ok());
    }

    #[test]
    fn files_are_in_one_place_wherever_the_server_is_started() {
        let config: Config = toml::from_str("[files]\ndirectory = 'files'").expect("TOML");
        assert!(config.check().is_err());
        let config: Config = toml::from_str("[files]\ndirectory = '/srv/x'").expect("TOML");
        assert!(config.check().is_ok());
    }

    #[test]
    fn a_key_needs_a_unique_name_and_a_possible_quota() {
        let key = |name: &str, quota: &str| {
            let sha256 = "0".repeat(64);
            format!("[[keys]]\nname = '{name}'\nsha256 = '{sha256}'\n{quota}\n")
        };
        let is_good = |text: &str| {
            let config: Config = toml::from_str(text).expect("TOML");
            config.check().is_ok()
        };
        let quota = "boxes = 3\nruns_per_second = 0.5\nmemory_bytes = '2g'";
        assert!(is_good(&(key("a", quota) + &key("b", ""))));
        assert!(!is_good(&(key("a", "") + &key("a", ""))));
        assert!(!is_good(&key("a b", "")));
        assert!(!is_good(&key("a", "runs_per_second = 0.0")));
    }

    #[test]
    fn a_name_is_as_good_as_its_address_where_that_is_loopback() {
        let listen = |text: &str| text.parse::<Listen>();
        let local = listen("localhost:8080").expect("every host has it");
        assert_eq!(local.reach(), Reach::Host, "{local}");
        assert!(local.to_string().ends_with(":8080"), "{local}");
        for wrong in ["", ":8080", "localhost", "localhost:", "localhost:65536"] {
            let refused = listen(wrong).expect_err(wrong).to_string();
            assert!(refused.contains("no address to listen on"), "{refused}");
        }
        // Not looked up: a resolver takes it for an address.
        let beyond = listen("192.0.2:80").expect_err("not loopback");
        assert!(beyond.to_string().contains("192.0.0.2"), "{beyond}");
    }

    #[test]
    fn beyond_loopback_a_key_is_required() {
        let open = |listen: &str| Config {
            listen: listen.parse().expect("an address"),
            ..Config::default()
        };
        for listen in ["127.0.0.1:0", "[::1]:80", "unix:/run/tare.sock"] {
            assert!(open(listen).check().is_ok(), "{listen}");
        }
        for listen in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80"] {
            let mut config = open(listen);
            assert!(config.check().is_err(), "{listen}");
            config.keys = vec![Key::of("ci", b"secret")];
            assert!(config.check().is_ok(), "{listen}");
        }
    }
}
