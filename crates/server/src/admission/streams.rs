//! Streams: requests whose client only listens, to events, logs, output, a terminal or the end of a
//! box. Their number is limited, so that listeners leave connections for other requests.

use crate::admission::share::{NoShare, Share, SharedAmount};
use crate::config::Config;
use crate::error::ServiceError;

#[derive(Debug, Clone, Default)]
pub struct OpenStreams(SharedAmount);

const RETRY_AFTER_S: u32 = 5;

impl OpenStreams {
    /// Counts one stream, until the share is dropped.
    pub fn open(&self, config: &Config, key: Option<&str>) -> Result<Share, ServiceError> {
        let most = config.limits.streams_max() as u64;
        let mut share = self.0.begin(key, config.keys.len());
        share.resize(1, most).map_err(|refused| match refused {
            NoShare::Full(_) => {
                let message = format!(
                    "server busy: {most} streams are open, the limit set by [limits] streams"
                );
                ServiceError::unavailable("streams_full", message)
                    .with_hint("close one, or try again later")
            }
            NoShare::OfKey(most) => {
                let message = format!("limit reached: {most} streams for this key");
                ServiceError::limited("quota_streams", message, RETRY_AFTER_S)
                    .with_hint("close one: a key may have half of those that other keys leave")
            }
        })?;
        Ok(share)
    }

    /// The number of open streams.
    pub fn count(&self) -> u64 {
        self.0.held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Key;

    #[test]
    fn a_refusal_says_whether_the_server_or_the_key_has_too_many_streams() {
        let streams = OpenStreams::default();
        let config = |keys: &[&str]| {
            let keys = keys.iter().map(|name| Key::named(name, b"x")).collect();
            let mut config = Config { keys, ..Config::default() };
            config.limits.streams = Some(2);
            config
        };
        let (alone, both) = (config(&["a"]), config(&["a", "b"]));
        let first = streams.open(&both, Some("a")).expect("its share");
        let refused = streams.open(&both, Some("a")).expect_err("its share is used");
        assert_eq!(refused.code, "quota_streams");
        let _second = streams.open(&alone, Some("a")).expect("it is alone");
        let refused = streams.open(&alone, Some("a")).expect_err("all are open");
        assert_eq!((refused.code, streams.count()), ("streams_full", 2));
        drop(first);
        assert_eq!(streams.count(), 1);
    }
}
