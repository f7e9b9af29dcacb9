//! `[pool]`: boxes and interpreters that the server starts ahead of requests.

use serde::Deserialize;
use tare_engine::Error;

use crate::config::Period;

/// The pools, by name.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolsConfig {
    /// Boxes without a command.
    #[serde(rename = "box")]
    pub boxes: PoolConfig,
    /// Boxes in which Python has started.
    pub python: PythonConfig,
    /// Boxes in which Node has started.
    pub node: NodeConfig,
}

/// Without configuration, only clones of Python wait: they cost little.
impl Default for PoolsConfig {
    fn default() -> Self {
        let python = PythonConfig { is_asked: false, ..PythonConfig::default() };
        Self { boxes: PoolConfig::default(), python, node: NodeConfig::default() }
    }
}

/// How many boxes wait, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// Boxes that wait, for each kind of box. With 0, there is no pool.
    pub warm: usize,
    /// Boxes of all kinds that wait, at most.
    pub max: usize,
    /// Boxes of a kind end after this time without a request for that kind.
    pub idle: Period,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { warm: 0, max: 32, idle: Period::seconds(600) }
    }
}

/// `[pool.python]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PythonConfig {
    pub start: PoolStart,
    /// Modules that a template imports once, and each interpreter without a template for itself.
    pub preload: Vec<String>,
    pub warm: usize,
    pub max: usize,
    pub idle: Period,
    /// Start each interpreter in its box. Otherwise each is a copy of a template.
    pub fresh: bool,
    /// A template is replaced after it has made this many copies.
    pub clones: u32,
    /// A template is replaced after this time.
    pub age: Period,
    /// The operator has written this section. Then interpreters are started one by one where a clone is
    /// not possible. They take more memory, so they are not the default.
    #[serde(skip)]
    pub is_asked: bool,
}

impl Default for PythonConfig {
    fn default() -> Self {
        let PoolConfig { max, idle, .. } = PoolConfig::default();
        Self {
            start: PoolStart::OnDemand,
            preload: Vec::new(),
            warm: 2,
            max,
            idle,
            fresh: false,
            clones: 10_000,
            age: Period::seconds(3600),
            is_asked: true,
        }
    }
}

impl PythonConfig {
    /// The part that all pools have.
    pub fn common(&self) -> PoolConfig {
        PoolConfig { warm: self.warm, max: self.max, idle: self.idle }
    }
}

/// `[pool.node]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeConfig {
    pub start: PoolStart,
    /// Modules that each interpreter loads before it waits.
    pub preload: Vec<String>,
    pub warm: usize,
    pub max: usize,
    pub idle: Period,
}

impl Default for NodeConfig {
    fn default() -> Self {
        let PoolConfig { warm, max, idle } = PoolConfig::default();
        Self { start: PoolStart::OnDemand, preload: Vec::new(), warm, max, idle }
    }
}

impl NodeConfig {
    /// The part that all pools have.
    pub fn common(&self) -> PoolConfig {
        PoolConfig { warm: self.warm, max: self.max, idle: self.idle }
    }
}

/// When the first boxes of a pool are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum PoolStart {
    /// After the first request.
    #[serde(rename = "on demand")]
    OnDemand,
    /// Before the server listens. If that fails, the server does not start.
    #[serde(rename = "at start")]
    AtStart,
}

/// Each box that waits takes about 20 descriptors of the server.
const WAITING_MAX: usize = 1000;

impl PoolsConfig {
    pub fn check(&self) -> Result<(), Error> {
        for (name, pool) in [
            ("box", self.boxes.clone()),
            ("python", self.python.common()),
            ("node", self.node.common()),
        ] {
            if pool.warm > pool.max || pool.max > WAITING_MAX {
                let PoolConfig { warm, max, .. } = pool;
                let message = format!("[pool.{name}] warm = {warm}, max = {max} is not possible");
                return Err(Error::bad_request(message)
                    .with_hint(format!("warm is at most max, and max at most {WAITING_MAX}")));
            }
        }
        let is_name = |name: &str| {
            let is_part = |part: &str| {
                let mut letters = part.chars();
                let first = letters.next();
                first.is_some_and(|one| one.is_alphabetic() || one == '_')
                    && letters.all(|one| one.is_alphanumeric() || one == '_')
            };
            name.split('.').all(is_part)
        };
        if let Some(name) = self.python.preload.iter().find(|name| !is_name(name)) {
            let message = format!("[pool.python] preload: {name:?} is not a module");
            return Err(Error::bad_request(message).with_hint("write names such as \"numpy\""));
        }
        if self.python.clones == 0 {
            return Err(Error::bad_request("[pool.python] clones = 0 is not possible")
                .with_hint("set fresh = true to have no clones"));
        }
        let has_nul = |name: &&String| name.is_empty() || name.contains('\0');
        if let Some(name) = self.node.preload.iter().find(has_nul) {
            let message = format!("[pool.node] preload: {name:?} is not a module");
            return Err(Error::bad_request(message).with_hint("write names such as \"lodash\""));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pool_of_python_is_on_by_default() {
        let read = |text: &str| toml::from_str::<PoolsConfig>(text).expect(text);
        let usual = read("");
        assert_eq!(usual, PoolsConfig::default());
        assert_eq!((usual.boxes.warm, usual.python.warm, usual.node.warm), (0, 2, 0));
        assert!(!usual.python.is_asked && read("[python]").python.is_asked);
        assert_eq!(read("[python]\nwarm = 0").python.warm, 0);
        toml::from_str::<PoolsConfig>("[node]\nfresh = true").expect_err("Node is never cloned");
    }

    #[test]
    fn a_pool_that_cannot_be_is_refused() {
        for (text, is_good) in [
            ("", true),
            ("[box]\nwarm = 2\n[python]\nwarm = 1\npreload = ['numpy', 'os.path', '_a1']", true),
            ("[python]\nstart = 'at start'\nwarm = 32", true),
            ("[box]\nwarm = 33", false),
            ("[python]\nclones = 0", false),
            ("[python]\nfresh = true\nclones = 1\nage = '1s'", true),
            ("[box]\nmax = 1001", false),
            ("[python]\npreload = ['a b']", false),
            ("[python]\npreload = ['a..b']", false),
            ("[python]\npreload = ['1a']", false),
        ] {
            let config: PoolsConfig = toml::from_str(text).expect(text);
            assert_eq!(config.check().is_ok(), is_good, "{text}");
        }
    }
}
