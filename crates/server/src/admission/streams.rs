//! Streams: requests whose client only listens, to events, logs, output, a terminal or the end of a
//! box. They have a share of the connections, and each key a share of that, so that listeners
//! cannot use up all connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Config;
use crate::error::ServiceError;

#[derive(Debug, Clone, Default)]
pub struct Streams(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    all: usize,
    /// The open streams of each key that has any.
    of_key: HashMap<String, usize>,
}

/// One open stream, until it is dropped.
#[derive(Debug)]
pub struct Stream {
    streams: Streams,
    key: Option<String>,
}

const RETRY_AFTER_S: u32 = 5;

impl Streams {
    pub fn open(&self, config: &Config, key: Option<&str>) -> Result<Stream, ServiceError> {
        let most = config.limits.streams_max();
        let mut open = self.lock();
        if open.all >= most {
            let message = format!("server busy: {most} of {most} streams are open");
            let hint = "close one, or raise [limits] streams";
            return Err(ServiceError::unavailable("streams_full", message).with_hint(hint));
        }
        if let Some(key) = key {
            let share = share_of_a_key(most, config.keys.len());
            let of_key = open.of_key.entry(key.to_owned()).or_default();
            if *of_key >= share {
                return Err(share_used(key, share));
            }
            *of_key += 1;
        }
        open.all += 1;
        Ok(Stream { streams: self.clone(), key: key.map(str::to_owned) })
    }

    /// The number of open streams.
    pub fn count(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one key may have of something that all share: half of it if there are other keys.
pub fn share_of_a_key(most: usize, keys: usize) -> usize {
    match keys {
        0 | 1 => most,
        _ => (most / 2).max(1),
    }
}

fn share_used(key: &str, share: usize) -> ServiceError {
    let message = format!("key {key:?} has {share} of {share} streams open");
    ServiceError::limited("quota_streams", message, RETRY_AFTER_S)
        .with_hint("close one, or raise [limits] streams: a key may have half of them")
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut open = self.streams.lock();
        open.all = open.all.saturating_sub(1);
        let Some(key) = &self.key else {
            return;
        };
        if let Some(of_key) = open.of_key.get_mut(key) {
            *of_key = of_key.saturating_sub(1);
            if *of_key == 0 {
                open.of_key.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Key;

    fn config(streams: usize, keys: &[&str]) -> Config {
        let mut config = Config {
            keys: keys.iter().map(|name| Key::named(name, b"x")).collect(),
            ..Config::default()
        };
        config.limits.streams = Some(streams);
        config
    }

    #[test]
    fn a_key_has_half_of_the_streams_where_there_are_others() {
        let streams = Streams::default();
        let both = config(4, &["a", "b"]);
        let open = |key| streams.open(&both, Some(key));
        let first = [open("a"), open("a")].map(|one| one.expect("its share"));
        assert_eq!(open("a").expect_err("its share is used").code, "quota_streams");
        let _second = [open("b"), open("b")].map(|one| one.expect("the other half"));
        drop(first);
        assert!(open("a").is_ok());
        let alone = config(4, &["a"]);
        let all = [(); 2].map(|()| streams.open(&alone, Some("a")));
        assert!(all.iter().all(Result::is_ok));
        let full = streams.open(&alone, Some("a")).expect_err("all are open");
        assert_eq!(full.code, "streams_full");
    }

    /// The map has no entries for keys without streams.
    #[test]
    fn a_key_without_streams_is_forgotten() {
        let streams = Streams::default();
        let config = config(4, &["a", "b"]);
        for number in 0..100_000 {
            drop(streams.open(&config, Some(&number.to_string())));
        }
        assert_eq!((streams.count(), streams.lock().of_key.len()), (0, 0));
    }
}
