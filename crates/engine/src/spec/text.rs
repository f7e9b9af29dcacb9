//! Arguments and paths in JSON. They are bytes that are nearly always UTF-8: a record has them as
//! strings where they are, and as lists of bytes where they are not.
//!
//! Use it as `#[serde(with = "text")]` on fields of the types that implement [`AsText`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::spec::command::Variable;

/// A byte string in its JSON form.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    Utf8(String),
    Bytes(Vec<u8>),
}

/// A type whose JSON form is made of [`Text`].
pub trait AsText {
    type Json: Serialize + DeserializeOwned;
    fn to_json(&self) -> Self::Json;
    fn from_json(json: Self::Json) -> Self;
}

pub fn serialize<T: AsText, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    value.to_json().serialize(serializer)
}

pub fn deserialize<'de, T: AsText, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::Json::deserialize(deserializer).map(T::from_json)
}

impl Text {
    fn of(text: impl AsRef<OsStr>) -> Self {
        let text = text.as_ref();
        match text.to_str() {
            Some(text) => Self::Utf8(text.to_owned()),
            None => Self::Bytes(text.as_bytes().to_owned()),
        }
    }

    fn into_os(self) -> OsString {
        match self {
            Self::Utf8(text) => text.into(),
            Self::Bytes(bytes) => OsString::from_vec(bytes),
        }
    }
}

impl AsText for PathBuf {
    type Json = Text;

    fn to_json(&self) -> Text {
        Text::of(self)
    }

    fn from_json(json: Text) -> Self {
        json.into_os().into()
    }
}

impl AsText for Option<PathBuf> {
    type Json = Option<Text>;

    fn to_json(&self) -> Option<Text> {
        self.as_ref().map(Text::of)
    }

    fn from_json(json: Option<Text>) -> Self {
        json.map(PathBuf::from_json)
    }
}

impl AsText for Vec<OsString> {
    type Json = Vec<Text>;

    fn to_json(&self) -> Vec<Text> {
        self.iter().map(Text::of).collect()
    }

    fn from_json(json: Vec<Text>) -> Self {
        json.into_iter().map(Text::into_os).collect()
    }
}

/// Writes the names of variables only: their values may be secret.
impl AsText for Vec<Variable> {
    type Json = Vec<Text>;

    fn to_json(&self) -> Vec<Text> {
        self.iter().map(|(key, _)| Text::of(key)).collect()
    }

    fn from_json(json: Vec<Text>) -> Self {
        json.into_iter().map(|key| (key.into_os(), OsString::new())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Sample {
        #[serde(with = "super")]
        path: PathBuf,
        #[serde(with = "super")]
        workdir: Option<PathBuf>,
        #[serde(with = "super")]
        command: Vec<OsString>,
        #[serde(with = "super")]
        env: Vec<Variable>,
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
    fn bytes_that_are_not_utf8_are_read_back_unchanged() {
        let text = serde_json::to_string(&sample(&[])).unwrap();
        assert_eq!(
            text,
            r#"{"path":[47,255,254],"workdir":"/work","command":["sh",[47,255,254]],"env":[]}"#
        );
        assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), sample(&[]));
    }

    #[test]
    fn values_of_variables_are_not_written() {
        let text = serde_json::to_string(&sample(&[("TOKEN", "s3cret")])).unwrap();
        assert!(text.contains("TOKEN") && !text.contains("s3cret"), "{text}");
        let read: Sample = serde_json::from_str(&text).unwrap();
        assert_eq!(read, sample(&[("TOKEN", "")]));
    }
}
