//! Arguments and paths in a record: bytes that are nearly always text, and are
//! written as text where they are. Anything else is a list of bytes.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeSeq, Serializer};

/// One of them, borrowed or owned.
struct Text<T>(T);

impl<T: AsRef<OsStr>> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.0.as_ref();
        match text.to_str() {
            Some(text) => serializer.serialize_str(text),
            None => text.as_bytes().serialize(serializer),
        }
    }
}

impl<'de, T: From<OsString>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_any(TextOrBytes)?;
        Ok(Self(T::from(text)))
    }
}

struct TextOrBytes;

impl<'de> Visitor<'de> for TextOrBytes {
    type Value = OsString;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of bytes")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<OsString, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<OsString, A::Error> {
        let mut text = Vec::new();
        while let Some(byte) = bytes.next_element()? {
            text.push(byte);
        }
        Ok(OsString::from_vec(text))
    }
}

/// `#[serde(with = "text::one")]`
pub mod one {
    use super::*;

    pub fn serialize<T, S>(value: &T, serializer: S) -> Result<S::Ok, S::Error>
    where
        T: AsRef<OsStr>,
        S: Serializer,
    {
        Text(value).serialize(serializer)
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: From<OsString>,
        D: Deserializer<'de>,
    {
        Text::deserialize(deserializer).map(|Text(value)| value)
    }
}

/// `#[serde(with = "text::optional")]`
pub mod optional {
    use super::*;

    pub fn serialize<T, S>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error>
    where
        T: AsRef<OsStr>,
        S: Serializer,
    {
        value.as_ref().map(Text).serialize(serializer)
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: From<OsString>,
        D: Deserializer<'de>,
    {
        let value = Option::<Text<T>>::deserialize(deserializer)?;
        Ok(value.map(|Text(value)| value))
    }
}

/// `#[serde(with = "text::list")]`
pub mod list {
    use super::*;

    pub fn serialize<S: Serializer>(values: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(Text))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<OsString>, D::Error> {
        let values = Vec::<Text<OsString>>::deserialize(deserializer)?;
        Ok(values.into_iter().map(|Text(value)| value).collect())
    }
}

/// `#[serde(with = "text::keys")]`: the names of variables and not their values,
/// which may be secret and are written down nowhere.
pub mod keys {
    use super::*;

    pub fn serialize<S: Serializer>(
        pairs: &[(OsString, OsString)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_seq(Some(pairs.len()))?;
        for (key, _) in pairs {
            keys.serialize_element(&Text(key))?;
        }
        keys.end()
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(OsString, OsString)>, D::Error> {
        let keys = list::deserialize(deserializer)?;
        Ok(keys.into_iter().map(|key| (key, OsString::new())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    struct Sample {
        #[serde(with = "one")]
        path: PathBuf,
        #[serde(with = "optional")]
        workdir: Option<PathBuf>,
        #[serde(with = "list")]
        command: Vec<OsString>,
        #[serde(with = "keys")]
        env: Vec<(OsString, OsString)>,
    }

    fn sample(env: &[(&str, &str)]) -> Sample {
        let raw = OsString::from_vec(b"/\xff\xfe".to_vec());
        Sample {
            path: raw.clone().into(),
            workdir: Some("/work".into()),
            command: vec!["sh".into(), raw],
            env: env.iter().map(|(key, value)| (key.into(), value.into())).collect(),
        }
    }

    #[test]
    fn what_is_no_text_comes_back_as_it_was() {
        let text = serde_json::to_string(&sample(&[])).unwrap();
        assert_eq!(
            text,
            r#"{"path":[47,255,254],"workdir":"/work","command":["sh",[47,255,254]],"env":[]}"#
        );
        assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), sample(&[]));
    }

    /// E038
    #[test]
    fn no_value_of_the_environment_is_written_down() {
        let text = serde_json::to_string(&sample(&[("TOKEN", "s3cret")])).unwrap();
        assert!(text.contains("TOKEN") && !text.contains("s3cret"), "{text}");
        let read: Sample = serde_json::from_str(&text).unwrap();
        assert_eq!(read, sample(&[("TOKEN", "")]));
    }
}
