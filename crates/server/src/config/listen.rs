//! `listen`: an address or a socket, and which clients can reach it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use tare_engine::Error;

use crate::config::units::parsed;

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    /// A socket of mode 0600.
    Unix(PathBuf),
}

/// Which clients can connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// Processes that may open the socket file. No web page can.
    Socket,
    /// Every process on this host, including a browser with its web pages.
    Loopback,
    Network,
}

impl Exposure {
    pub fn is_local(self) -> bool {
        match self {
            Self::Socket | Self::Loopback => true,
            Self::Network => false,
        }
    }
}

impl Default for Listen {
    fn default() -> Self {
        Self::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)))
    }
}

impl Listen {
    pub fn exposure(&self) -> Exposure {
        match self {
            Self::Tcp(address) if address.ip().is_loopback() => Exposure::Loopback,
            Self::Tcp(_) => Exposure::Network,
            Self::Unix(_) => Exposure::Socket,
        }
    }
}

impl FromStr for Listen {
    type Err = Error;

    /// `localhost` is the only name: with another one, the text would not show which clients can
    /// connect.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        if let Some(Ok(port)) = text.strip_prefix("localhost:").map(str::parse) {
            return Ok(Self::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            let port = text.rsplit_once(':').and_then(|(_, port)| port.parse::<u64>().ok());
            let hint = match port {
                Some(port) if port > u16::MAX.into() => "a port is at most 65535",
                Some(_) | None => {
                    "write ADDRESS:PORT, such as 127.0.0.1:8080, localhost:PORT or unix:PATH"
                }
            };
            Error::bad_request(format!("{text:?} is not an address to listen on")).with_hint(hint)
        })
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        parsed(input, "127.0.0.1:8080", str::parse)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_the_only_name_that_is_accepted() {
        let listen = |text: &str| text.parse::<Listen>();
        let local = listen("localhost:8080").expect("loopback");
        assert_eq!(local.exposure(), Exposure::Loopback);
        assert_eq!(local.to_string(), "http://127.0.0.1:8080");
        let wrong = [
            "",
            ":8080",
            "localhost",
            "localhost:",
            "localhost:65536",
            "192.0.2:80",
            "box.test:80",
        ];
        for wrong in wrong {
            let refused = listen(wrong).expect_err(wrong).to_string();
            assert!(refused.contains("not an address to listen on"), "{refused}");
        }
        let refused = listen("127.0.0.1:99999").expect_err("a port of 99999");
        assert_eq!(refused.hint(), Some(&"a port is at most 65535".into()));
    }
}
