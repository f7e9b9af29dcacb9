//! What `tare.toml` says: plain data and checks, no behaviour. A file with one error is refused
//! as a whole.

pub mod boxes;
pub mod current;
pub mod files;
pub mod hook;
mod keys;
pub mod languages;
pub mod librechat;
mod listen;
pub mod pool;
mod units;
pub mod vm;

use std::path::Path;

use serde::Deserialize;
use tare_engine::spec::quantity;
use tare_engine::{Error, GaugeSettings, Thresholds, history_bytes};

use crate::config::boxes::{AllowedVolume, Boxes};
use crate::config::files::FilesConfig;
use crate::config::hook::HookConfig;
pub use crate::config::keys::Key;
use crate::config::languages::Languages;
use crate::config::librechat::{Auth, LibreChatConfig};
pub use crate::config::listen::{Exposure, Listen};
use crate::config::pool::PoolsConfig;
pub use crate::config::units::{ByteSize, Period};
use crate::config::vm::VmConfig;
use crate::error::in_plain_words;

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub listen: Listen,
    /// Other names of this host that requests without a key may use.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may use this server.
    pub allowed_origins: Vec<String>,
    /// If there are any, a request needs one. If there are none, every process on this host may
    /// use the server.
    pub keys: Vec<Key>,
    pub limits: Limits,
    pub files: FilesConfig,
    pub gauges: Levels,
    pub admission: PromisedShares,
    pub boxes: Boxes,
    pub vm: VmConfig,
    /// Directories of the host that clients may use in boxes, by name.
    pub volumes: Vec<AllowedVolume>,
    pub history: HistoryConfig,
    /// Overrides the built-in languages.
    pub languages: Languages,
    pub pool: PoolsConfig,
    pub hooks: HookConfig,
    pub librechat: LibreChatConfig,
    pub metrics: MetricsConfig,
    pub log: LogFormat,
}

/// What `GET /metrics` has beside the metrics of the whole server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// How many boxes have metrics of their own.
    pub boxes: usize,
}

/// Each box is four series in Prometheus, and a few reads of files at each scrape.
const METRICS_BOXES_MAX: usize = 1000;

impl MetricsConfig {
    fn check(self) -> Result<(), Error> {
        if self.boxes <= METRICS_BOXES_MAX {
            return Ok(());
        }
        let message = format!("[metrics] boxes = {} is more than {METRICS_BOXES_MAX}", self.boxes);
        Err(Error::bad_request(message).with_hint("each box is several series in Prometheus"))
    }
}

/// Where each level of a gauge begins, in percent of its limit.
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
    pub fn thresholds(self) -> Result<Thresholds, Error> {
        Thresholds::new(self.warn, self.alert, self.full, LEVEL_MARGIN)
    }
}

impl Default for Levels {
    fn default() -> Self {
        Self { warn: 60, alert: 80, full: 95 }
    }
}

/// How much of its limits a box is promised: a new box is admitted only if the host has that much
/// beside what it promised to others.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromisedShares {
    pub pids_share: f64,
    /// With 0, only what is used counts.
    pub memory_share: f64,
}

impl Default for PromisedShares {
    fn default() -> Self {
        Self { pids_share: 0.125, memory_share: 0.0 }
    }
}

impl PromisedShares {
    fn check(self) -> Result<(), Error> {
        let named = [("pids_share", self.pids_share), ("memory_share", self.memory_share)];
        match named.into_iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            None => Ok(()),
            Some((name, share)) => {
                let message = format!("[admission] {name} = {share} is not a share");
                Err(Error::bad_request(message).with_hint("write a number from 0 to 1"))
            }
        }
    }
}

/// What is kept of boxes that are gone. Both settings belong to the state root. A setting that is
/// left out keeps the value that an earlier server wrote there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistoryConfig {
    /// The size of all histories together.
    pub bytes: Option<ByteSize>,
    /// Whether a history contains the last part of stderr.
    pub stderr: Option<bool>,
}

impl HistoryConfig {
    fn check(self) -> Result<(), Error> {
        self.bytes
            .map_or(Ok(()), |ByteSize(bytes)| history_bytes(bytes).map(drop))
            .map_err(|error| Error::bad_request("[history] bytes cannot be used").caused_by(error))
    }
}

/// Limits of the server, and of what one request may ask for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub connections: usize,
    /// Streams without an end, such as events and followed logs; by default half of the
    /// connections.
    pub streams: Option<usize>,
    /// Runs at once.
    pub runs: usize,
    /// Runs that wait for one of those to end.
    pub runs_waiting: usize,
    /// Processes in boxes at once, including detached ones and terminals.
    pub execs: usize,
    /// Boxes at once.
    pub boxes: usize,
    pub body_bytes: ByteSize,
    /// Memory for the bodies of all requests and responses together.
    pub bodies_bytes: ByteSize,
    /// The largest file or archive that can be uploaded into a box.
    pub upload_bytes: ByteSize,
    /// The limit for each stream of a run, and for the files that it returns.
    pub output_bytes: ByteSize,
    pub timeout: Period,
    pub timeout_max: Period,
    /// The lease of a box that is created without one.
    pub lease: Period,
    pub lease_max: Period,
    pub memory_max: ByteSize,
    /// Whether a box may use the host's network.
    pub host_network: bool,
    /// How long a client may take to send a body, or to read what is sent to it.
    pub client: Period,
    /// How long runs may take to end after SIGTERM.
    pub drain: Period,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Human,
    Json,
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
            body_bytes: ByteSize(32 << 20),
            bodies_bytes: ByteSize(256 << 20),
            upload_bytes: ByteSize(1 << 30),
            output_bytes: ByteSize(8 << 20),
            timeout: Period::seconds(30),
            timeout_max: Period::seconds(600),
            lease: Period::seconds(24 * 3600),
            lease_max: Period::seconds(30 * 24 * 3600),
            memory_max: ByteSize(4 << 30),
            host_network: false,
            client: Period::seconds(30),
            drain: Period::seconds(30),
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

    /// Checks what can be checked without the host.
    pub fn check(&self) -> Result<(), Error> {
        let exposure = self.listen.exposure();
        if self.keys.is_empty() && self.librechat.lacks_authentication(&self.keys, exposure) {
            let message = format!("refusing to listen on {} without an API key", self.listen);
            return Err(Error::bad_request(message)
                .with_hint("give --api-key-file, or [[keys]] in the configuration"));
        }
        self.check_host_network(exposure)?;
        self.limits.check()?;
        self.gauges.thresholds()?;
        self.admission.check()?;
        self.metrics.check()?;
        self.history.check()?;
        self.files.check()?;
        self.pool.check()?;
        self.check_keys()?;
        self.check_volumes()?;
        self.check_machines()?;
        self.librechat.check(&self.keys, &self.listen)
    }

    /// A box with the host's network reaches the host's loopback, and the API there.
    pub fn check_host_network(&self, exposure: Exposure) -> Result<(), Error> {
        let is_given = self.limits.host_network || self.librechat.boxes.host_network;
        let accepts_anonymous =
            self.librechat.auth(&self.keys) == Auth::None || self.librechat.anonymous_exec;
        if !is_given || !accepts_anonymous || exposure == Exposure::Socket {
            return Ok(());
        }
        let message = "host_network gives boxes this API: set [[keys]] or listen on unix:PATH";
        Err(Error::bad_request(message).with_hint(
            "auth = \"none\" and anonymous_exec under [librechat] let boxes in without a key",
        ))
    }

    /// Returns whether the native API accepts requests without a key: only from this host, and
    /// only if LibreChat's API needs no credential either.
    pub fn allows_anonymous(&self, exposure: Exposure) -> bool {
        let auth = self.librechat.auth(&self.keys);
        self.keys.is_empty() && auth == Auth::None && exposure.is_local()
    }

    /// The name of a key identifies its boxes and its quota. One secret with two names would leave
    /// open whose boxes a request means.
    fn check_keys(&self) -> Result<(), Error> {
        let wrong = |message| Err(Error::bad_request(message));
        for (place, key) in self.keys.iter().enumerate() {
            let name = key.name.as_str();
            for other in &self.keys[..place] {
                if other.name == key.name {
                    return wrong(format!("two keys have the name {name:?}"));
                }
                if other.sha256 == key.sha256 {
                    return wrong(format!(
                        "the keys {:?} and {name:?} are equal",
                        other.name.as_str()
                    ));
                }
            }
            let rate = key.runs_per_second;
            if rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
                return wrong(format!(
                    "runs_per_second of the key {name:?} is not a positive number"
                ));
            }
        }
        Ok(())
    }

    fn check_volumes(&self) -> Result<(), Error> {
        let wrong = |message: String, hint| Err(Error::bad_request(message).with_hint(hint));
        for (place, volume) in self.volumes.iter().enumerate() {
            let name = volume.name.as_str();
            if self.volumes[..place].iter().any(|other| other.name == volume.name) {
                let message = format!("two [[volumes]] have the name {name:?}");
                return wrong(message, "give each volume a name of its own");
            }
            let is_key = |one: &&String| self.keys.iter().any(|key| key.name.as_str() == *one);
            if let Some(key) = volume.keys.iter().flatten().find(|one| !is_key(one)) {
                let message = format!("[[volumes]] {name:?}: there is no key {key:?}");
                return wrong(message, "'keys' has the names of [[keys]]; leave it out for all");
            }
        }
        Ok(())
    }

    /// Reports a directory that no box could use at start, and not with the first box.
    pub fn find_directories(&self) -> Result<(), Error> {
        self.boxes.programs().find("[boxes]")?;
        self.librechat.boxes.programs().find("[librechat.boxes]")?;
        self.volumes.iter().try_for_each(AllowedVolume::find)
    }

    /// Whether there are keys, and none of them is an admin's.
    pub fn lacks_admin(&self) -> bool {
        !self.keys.is_empty() && !self.keys.iter().any(|key| key.admin)
    }

    /// `descriptors_reserved` is what boxes must leave free.
    pub fn gauge_settings(&self, descriptors_reserved: u64) -> GaugeSettings {
        GaugeSettings {
            thresholds: self.gauges.thresholds().unwrap_or_default(),
            boxes_max: Some(self.limits.boxes as u64),
            descriptors_reserved,
        }
    }
}

impl Limits {
    pub fn streams_max(&self) -> usize {
        self.streams.unwrap_or((self.connections / 2).max(1))
    }

    fn check(&self) -> Result<(), Error> {
        let maxima =
            [("timeout", self.timeout, self.timeout_max), ("lease", self.lease, self.lease_max)];
        if let Some((name, default, max)) = maxima.into_iter().find(|(_, it, max)| it > max) {
            let [default, max] = [default, max].map(|Period(it)| quantity::show_duration(it));
            let message = format!("[limits] {name} = {default} is above {name}_max = {max}");
            return Err(Error::bad_request(message).with_hint("lower the one, or raise the other"));
        }
        let (max, least) = (self.memory_max.0, quantity::MEMORY_BYTES_MIN);
        if max < least {
            let [max, least] = [max, least].map(quantity::show_bytes);
            let message =
                format!("[limits] memory_max = {max} is less than the {least} that a box needs");
            return Err(Error::bad_request(message).with_hint("raise it"));
        }
        self.check_counts()
    }

    /// With a limit of 0, every request would wait forever.
    fn check_counts(&self) -> Result<(), Error> {
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

/// Returns a TOML error as one line with its place. The crate's own message has several lines.
fn in_a_line(text: &str, error: &toml::de::Error) -> String {
    let what = error.message().replace('\n', ", ");
    let before = error.span().and_then(|span| text.get(..span.start));
    match before.map(|before| before.split('\n').count()) {
        Some(number) => {
            let line = text.split('\n').nth(number - 1).unwrap_or_default();
            format!("line {number}: {}", in_words_of_toml(&what, line))
        }
        None => in_words_of_toml(&what, ""),
    }
}

/// Says what to write instead, where serde says what it expected. `line` is where it found something else.
fn in_words_of_toml(what: &str, line: &str) -> String {
    let found = what.strip_prefix("invalid type: ");
    let found = found.and_then(|it| it.strip_suffix(", expected a sequence"));
    let table = line.trim().strip_prefix('[').and_then(|it| it.split(']').next());
    match (found, table) {
        (Some("map"), Some(name)) => {
            format!("[{name}] is one table, expected a list: write [[{name}]]")
        }
        (Some(found), _) => match found.strip_prefix("string ") {
            Some(text) => format!("expected a list: write [{text}]"),
            None => format!("invalid type: {found}, expected a list: write [ and ] around it"),
        },
        (None, _) if what == "missing field `sha256`" => {
            format!("{what}, which is the output of: printf %s KEY | sha256sum")
        }
        (None, _) => in_plain_words(what),
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
    fn unknown_settings_are_refused_by_name() {
        let wrong = |text: &str| toml::from_str::<Config>(text).expect_err(text).to_string();
        assert!(wrong("listn = 'x'").contains("listn"));
        assert!(wrong("[limits]\ntimeout = '-1s'").contains("timeout"));
        assert!(wrong("listen = '8080'").contains("ADDRESS:PORT"));
        assert!(wrong("[gauges]\nwran = 50").contains("wran"));
        assert!(wrong("[files]\nttl = 'soon'").contains("ttl"));
        assert!(wrong("[boxes]\ncgroup_parent = '../x'").contains("tare.slice"));
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
        for (text, wanted) in [
            ("[keys]\nname = 'a'", "line 1: [keys] is one table, expected a list: write [[keys]]"),
            ("[hooks]\ncommand = '/x'", "line 2: expected a list: write [\"/x\"]"),
            ("[pool.python]\npreload = 'numpy'", "line 2: expected a list: write [\"numpy\"]"),
        ] {
            assert_eq!(said(text), wanted);
        }
        assert!(said("[[keys]]\nname = 'a'").ends_with("printf %s KEY | sha256sum"));
        assert!(!said("[[keys]\nname = 'a\n").contains('\n'));
    }

    #[test]
    fn limits_of_zero_are_refused() {
        for limit in ["connections", "runs"] {
            let config: Config = toml::from_str(&format!("[limits]\n{limit} = 0")).expect("TOML");
            let refused = config.check().expect_err(limit).to_string();
            assert!(refused.contains(limit), "{refused}");
        }
        let config: Config = toml::from_str("[metrics]\nboxes = 1001").expect("TOML");
        let refused = config.check().expect_err("too many").to_string();
        assert_eq!(refused, "[metrics] boxes = 1001 is more than 1000");
    }

    #[test]
    fn a_maximum_below_its_default_or_below_the_least_is_refused() {
        for (limits, said) in [
            ("timeout = '20m'", "[limits] timeout = 20m is above timeout_max = 10m"),
            ("timeout_max = '10s'", "[limits] timeout = 30s is above timeout_max = 10s"),
            ("lease = '60d'", "[limits] lease = 60d is above lease_max = 30d"),
            (
                "memory_max = '1m'",
                "[limits] memory_max = 1 MiB is less than the 6 MiB that a box needs",
            ),
        ] {
            let config: Config = toml::from_str(&format!("[limits]\n{limits}")).expect("TOML");
            assert_eq!(config.check().expect_err(limits).to_string(), said);
        }
    }

    #[test]
    fn equal_gauge_levels_are_refused() {
        let config: Config = toml::from_str("[gauges]\nwarn = 90").expect("TOML");
        let refused = config.check().expect_err("warn is above alert");
        assert!(!refused.in_full().contains("margin"), "{}", refused.in_full());
        let config: Config = toml::from_str("[gauges]\nwarn = 50").expect("TOML");
        assert!(config.check().is_ok());
    }

    #[test]
    fn a_promised_share_is_from_0_to_1() {
        let check = |text: &str| {
            let config: Config = toml::from_str(&format!("[admission]\n{text}")).expect("TOML");
            config.check()
        };
        assert!(check("pids_share = 1\nmemory_share = 0.5").is_ok());
        for share in ["pids_share = 1.5", "memory_share = -0.1", "pids_share = nan"] {
            let refused = check(share).expect_err(share).to_string();
            assert!(refused.contains("[admission]"), "{refused}");
        }
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
        let key = |name: &str, digit: &str, quota: &str| {
            let sha256 = digit.repeat(64);
            format!("[[keys]]\nname = '{name}'\nsha256 = '{sha256}'\n{quota}\n")
        };
        let is_good = |text: &str| {
            let config: Result<Config, _> = toml::from_str(text);
            config.is_ok_and(|config| config.check().is_ok())
        };
        let quota = "boxes = 3\nruns_per_second = 0.5\nmemory_bytes = '2g'";
        assert!(is_good(&(key("a", "0", quota) + &key("b", "1", "admin = true"))));
        assert!(!is_good(&(key("a", "0", "") + &key("a", "1", ""))));
        assert!(!is_good(&(key("a", "0", "") + &key("b", "0", ""))));
        assert!(!is_good(&key("a b", "0", "")));
        assert!(!is_good(&key("-", "0", "")));
        assert!(!is_good(&key("a", "0", "runs_per_second = 0.0")));
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
            config.keys = vec![Key::named("ci", b"secret")];
            assert!(config.check().is_ok(), "{listen}");
        }
    }
}
