//! `[librechat]` in `tare.toml`: which profiles are served.

use serde::Deserialize;
use tare_engine::{Error, ErrorKind};

use super::profile::Profile;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LibreChatConfig {
    /// The first is what is said where no other is expected.
    pub profiles: Vec<Profile>,
}

impl Default for LibreChatConfig {
    fn default() -> Self {
        Self {
            profiles: vec![Profile::Default, Profile::Stateful],
        }
    }
}

impl LibreChatConfig {
    pub fn check(&self) -> Result<(), Error> {
        match self.profiles.is_empty() {
            true => Err(Error::new(ErrorKind::BadRequest, "no profile is served")
                .with_hint("leave 'profiles' out to serve all")),
            false => Ok(()),
        }
    }
}
