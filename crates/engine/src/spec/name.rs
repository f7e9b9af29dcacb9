//! Names: box ids, the names and labels that users give to boxes, tenants, users in a box, and
//! signals.
//!
//! Every host object of a box derives its name from the box's id. Its tenant and the user's name
//! for it are part of one path only, that of the link in `names/`.

use std::collections::BTreeMap;
use std::fmt;

use rustix::process::Signal;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Hint};
use crate::spec::shown::{bad, quoted};

const ID_LENGTH: usize = 12;
/// The characters of a box id.
pub(crate) const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// One letter or digit and 62 more characters.
const NAME_BYTES_MAX: usize = 63;
const LABEL_VALUE_BYTES_MAX: usize = 256;
/// Every listing reads all labels.
const LABELS_MAX: usize = 64;

/// The label with which a server names the program that it runs in a box without a command.
pub const RUN_LABEL: &str = "tare.run";

/// The largest uid and gid in a box. A box has the 65,536 ids 0 to 65535. The last two are
/// excluded: the kernel shows 65534 for every owner that is not mapped, so a workload with that id
/// would seem to own foreign files, and 65535 means "no id" to programs that use 16-bit ids.
pub const USER_ID_MAX: u32 = 65_533;

/// The last real-time signal (signal(7)).
pub const SIGNAL_MAX: i32 = 64;

/// The id of a box: twelve characters of `[a-z2-7]`, which are 60 random bits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct BoxId(String);

impl BoxId {
    pub fn random() -> Self {
        let mut bytes = [0u8; ID_LENGTH];
        getrandom(&mut bytes, GetRandomFlags::empty()).expect("the kernel has random bytes");
        Self::from_bytes(bytes)
    }

    /// Makes an id that the caller can compute again before the box exists. The bytes must be as
    /// good as random, because ids are never checked for reuse.
    pub fn from_bytes(bytes: [u8; ID_LENGTH]) -> Self {
        let character = |byte: &u8| char::from(ALPHABET[usize::from(byte % 32)]);
        Self(bytes.iter().map(character).collect())
    }

    /// Returns `None` for text that is not a box id.
    pub fn parse(text: &str) -> Option<Self> {
        let is_known = |byte: u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
        let valid = text.len() == ID_LENGTH && text.bytes().all(is_known);
        valid.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for BoxId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not the id of a box")
    }
}

impl fmt::Display for BoxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a box: `[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}`. Only [`Name::parse`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

impl Name {
    pub fn parse(text: &str) -> Result<Self, Error> {
        if is_token(text, b"_.-") {
            return Ok(Self(text.to_owned()));
        }
        Err(bad(
            format!("{} is not a name", quoted(text)),
            "a name has 1 to 63 letters, digits, '_', '.' or '-', and begins with a letter or digit",
        ))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::parse(&text)
    }
}

/// The tenant that a box belongs to: an API key by its name, or `-`, which is the command line and
/// a server without keys. It is part of a path, and only [`Name`]s and `-` are tenants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Tenant(String);

impl Tenant {
    const COMMAND_LINE: &str = "-";

    /// Returns `None` for text that is not a tenant.
    pub fn parse(text: &str) -> Option<Self> {
        let is_tenant = text == Self::COMMAND_LINE || is_token(text, b"_.-");
        is_tenant.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the API key; `None` for the command line.
    pub fn key(&self) -> Option<&str> {
        (self.0 != Self::COMMAND_LINE).then_some(self.as_str())
    }

    /// A name of this tenant as [`with_key`] reads it. A word of a command line cannot begin with
    /// `-`.
    pub fn qualify(&self, name: &str) -> String {
        format!("{}:{name}", self.key().unwrap_or_default())
    }
}

impl From<Name> for Tenant {
    fn from(key: Name) -> Self {
        Self(key.0)
    }
}

/// The command line.
impl Default for Tenant {
    fn default() -> Self {
        Self(Self::COMMAND_LINE.to_owned())
    }
}

impl TryFrom<String> for Tenant {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not a tenant")
    }
}

/// Reads `KEY:NAME`, where an empty KEY and `-` are the command line. Other text has no tenant.
pub fn with_key(text: &str) -> (Option<Tenant>, &str) {
    let split = text.split_once(':');
    let parsed = split.and_then(|(key, name)| match key {
        "" => Some((Tenant::default(), name)),
        key => Some((Tenant::parse(key)?, name)),
    });
    parsed.map_or((None, text), |(tenant, name)| (Some(tenant), name))
}

/// Reads all labels of a box. The later of two labels with one key wins.
pub fn labels<'a>(
    texts: impl IntoIterator<Item = &'a str>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut labels = BTreeMap::new();
    for text in texts {
        let (key, value) = label(text)?;
        labels.insert(key, value);
        if labels.len() > LABELS_MAX {
            return Err(bad(
                format!("there are more than {LABELS_MAX} labels"),
                "give fewer labels",
            ));
        }
    }
    Ok(labels)
}

/// Reads one label, `KEY=VALUE`. The key is like a name and may also contain `/`. The value is any
/// text on one line.
pub fn label(text: &str) -> Result<(String, String), Error> {
    let refused = |why: &str| bad(format!("{} {why}", quoted(text)), Hint::LabelForm);
    let (key, value) = text.split_once('=').ok_or_else(|| refused("is a label without '='"))?;
    if !is_token(key, b"_.-/") {
        return Err(refused("is a label whose key is not a name"));
    }
    if value.len() > LABEL_VALUE_BYTES_MAX || value.chars().any(char::is_control) {
        return Err(refused(
            "is a label whose value has control characters or more than 256 bytes",
        ));
    }
    Ok((key.to_owned(), value.to_owned()))
}

pub(crate) fn is_token(text: &str, also: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= NAME_BYTES_MAX
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || also.contains(byte))
}

/// The workload's ids inside the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

impl User {
    /// Reads `UID[:GID]`. Both are numbers: names are never looked up in a file of the box. Without a
    /// group, the gid is the number of the uid, so leaving the group out never gives group 0.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        match (user_id(uid), user_id(gid)) {
            (Some(uid), Some(gid)) => Ok(Self { uid, gid }),
            (None, _) | (_, None) => Err(bad(
                format!("{} is not a user of a box", quoted(text)),
                format!(
                    "write UID or UID:GID in digits, each from 0 to {USER_ID_MAX}; names are not looked up"
                ),
            )),
        }
    }
}

/// Checks the digits itself, because `u32::from_str` accepts a leading `+`.
fn user_id(text: &str) -> Option<u32> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|id| *id <= USER_ID_MAX)
}

const SIGNALS: [(&str, Signal); 31] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ILL", Signal::ILL),
    ("TRAP", Signal::TRAP),
    ("ABRT", Signal::ABORT),
    ("BUS", Signal::BUS),
    ("FPE", Signal::FPE),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("SEGV", Signal::SEGV),
    ("USR2", Signal::USR2),
    ("PIPE", Signal::PIPE),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("STKFLT", Signal::STKFLT),
    ("CHLD", Signal::CHILD),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("TSTP", Signal::TSTP),
    ("TTIN", Signal::TTIN),
    ("TTOU", Signal::TTOU),
    ("URG", Signal::URG),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
    ("VTALRM", Signal::VTALARM),
    ("PROF", Signal::PROF),
    ("WINCH", Signal::WINCH),
    ("IO", Signal::IO),
    ("PWR", Signal::POWER),
    ("SYS", Signal::SYS),
];

/// Returns the name that the kernel's headers use, `SIGTERM`, or `SIG` and the number.
pub fn signal_name(number: i32) -> String {
    let found = SIGNALS.iter().find(|(_, signal)| signal.as_raw() == number);
    match found {
        Some((name, _)) => format!("SIG{name}"),
        None => format!("SIG{number}"),
    }
}

/// Reads a signal: `HUP`, `SIGHUP`, `sighup` or `1`. Returns its number.
pub fn signal(text: &str) -> Result<i32, Error> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits {
        text.parse().ok().filter(|number| (1..=SIGNAL_MAX).contains(number))
    } else {
        signal_named(text)
    };
    number.ok_or_else(|| {
        bad(
            format!("{} is not a signal", quoted(text)),
            "write a name such as TERM or SIGHUP, or a number from 1 to 64",
        )
    })
}

fn signal_named(text: &str) -> Option<i32> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = SIGNALS.iter().find(|(known, _)| *known == name);
    found.map(|(_, signal)| signal.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_id_is_an_id_and_no_other_text_is() {
        let id = BoxId::random();
        assert_eq!(BoxId::parse(id.as_str()), Some(id.clone()));
        assert_ne!(BoxId::random(), id);
        for text in ["", "..", "abcdefghijk/", "ABCDEFGHIJKL", "abcdefghijklm"] {
            assert_eq!(BoxId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn names_of_the_documented_form_are_taken() {
        for text in ["a", "7", "CON", "web-1", "a.b_c", &"x".repeat(63)] {
            assert_eq!(Name::parse(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn other_names_are_refused() {
        for text in [
            "",
            ".",
            "..",
            "../x",
            "-rf",
            "_a",
            "a/b",
            "a\0b",
            "a b",
            "a\n",
            "é",
            "%2e%2e",
            &"x".repeat(64),
            &"x".repeat(5000),
        ] {
            let error = Name::parse(text).unwrap_err().to_string();
            assert!(error.ends_with("is not a name"), "{error}");
            assert!(!error.contains(['\n', '\0']) && error.len() < 120, "{error}");
        }
    }

    #[test]
    fn a_record_cannot_bring_in_a_name_that_was_not_parsed() {
        let name: Name = serde_json::from_str("\"web\"").unwrap();
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"web\"");
        assert!(serde_json::from_str::<Name>("\"../x\"").is_err());
    }

    #[test]
    fn a_tenant_is_the_name_of_a_key_or_the_command_line() {
        let key = |text| Tenant::parse(text).map(|it| it.key().map(str::to_owned));
        assert_eq!(key("ci"), Some(Some("ci".to_owned())));
        assert_eq!(key("-"), Some(None));
        assert_eq!(Tenant::parse("-"), Some(Tenant::default()));
        for text in ["", ".", "..", "--", "a/b", "../x", "a:b", "a\n", &"x".repeat(64)] {
            assert_eq!(Tenant::parse(text), None, "{text:?}");
            assert!(serde_json::from_value::<Tenant>(text.into()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_key_stands_before_a_name_and_nothing_stands_for_the_command_line() {
        let read = |text| {
            let (tenant, name) = with_key(text);
            (tenant.map(|it| it.as_str().to_owned()), name)
        };
        assert_eq!(read("web"), (None, "web"));
        assert_eq!(read("ci:web"), (Some("ci".to_owned()), "web"));
        for text in ["-:web", ":web"] {
            assert_eq!(read(text), (Some("-".to_owned()), "web"));
        }
        assert_eq!(read("a/b:web"), (None, "a/b:web"));
        for text in ["ci", "-"] {
            let tenant = Tenant::parse(text).unwrap();
            let name = tenant.qualify("web");
            assert_eq!(with_key(&name), (Some(tenant), "web"));
        }
    }

    #[test]
    fn labels_are_pairs_and_the_later_wins() {
        let pairs = labels(["a=1", "org.x/y=", "a=2=3"]).unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("a", "2=3"), ("org.x/y", "")]);
        for text in ["", "a", "=1", "a b=1", "a=\n", "a=\u{1b}[0m"] {
            assert!(labels([text]).is_err(), "{text:?}");
        }
        let many: Vec<_> = (0..65).map(|n| format!("k{n}=v")).collect();
        assert!(labels(many.iter().map(String::as_str)).is_err());
    }

    #[test]
    fn digits_are_taken_as_ids() {
        for (text, uid, gid) in [
            ("0", 0, 0),
            ("1", 1, 1),
            ("1000", 1000, 1000),
            ("1000:0", 1000, 0),
            ("0:5", 0, 5),
            ("65533:65533", USER_ID_MAX, USER_ID_MAX),
        ] {
            assert_eq!(User::parse(text).unwrap(), User { uid, gid }, "{text}");
        }
    }

    #[test]
    fn nothing_else_is_a_user() {
        for text in [
            "",
            ":",
            "1:",
            ":1",
            "+0",
            " 0",
            "0 ",
            "0x0",
            "1:2:3",
            "-1",
            "65534",
            "65535",
            "65536",
            "2147483648",
            "4294967294",
            "4294967295",
            "4294967296",
            "18446744073709551616",
            "root",
            "1000:x",
            "0\n",
            "٠",
            "1:+0",
        ] {
            let error = User::parse(text).unwrap_err();
            assert!(error.to_string().ends_with("is not a user of a box"), "{error}");
            assert!(format!("{:?}", error.hint()).contains("0 to 65533"));
        }
    }

    #[test]
    fn a_signal_has_a_name_with_and_without_sig_and_a_number() {
        for text in ["TERM", "SIGTERM", "term", "sigterm", "15"] {
            assert_eq!(signal(text).unwrap(), 15, "{text}");
        }
        assert_eq!(signal("64").unwrap(), 64);
    }

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let numbers = SIGNALS.iter().map(|(_, signal)| signal.as_raw());
        assert!(numbers.eq(1..=31));
    }

    #[test]
    fn an_unknown_signal_is_refused() {
        for text in ["", "0", "65", "-9", "+9", "SIG", "SIGSIGTERM", "NOPE", "9.0"] {
            let error = signal(text).unwrap_err();
            assert!(error.to_string().ends_with("is not a signal"), "{error}");
            assert!(error.hint().is_some());
        }
    }
}
