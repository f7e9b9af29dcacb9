//! Ports that somebody listens on, and abstract unix names, of our own network
//! namespace.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Things;

/// `TCP_LISTEN` and `TCP_CLOSE` of the kernel's `tcp_states.h`; a UDP socket that
/// is bound and not connected is in the latter.
const LISTENING: &str = "0A";
const UNCONNECTED: &str = "07";

pub fn observe() -> Things {
    let tables = [
        ("tcp", LISTENING),
        ("tcp6", LISTENING),
        ("udp", UNCONNECTED),
        ("udp6", UNCONNECTED),
    ];
    let ports = tables
        .into_iter()
        .flat_map(|(table, state)| ports(table, state));
    ports.chain(abstract_names()).collect()
}

fn ports(table: &str, state: &str) -> Vec<String> {
    // Absent where the kernel has no IPv6.
    let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
    let listening = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(3) == Some(&state)).then(|| address(fields[1]))
    });
    listening
        .map(|address| format!("{table} port {address}"))
        .collect()
}

/// `0100007F:1F90` is 127.0.0.1:8080: each 32-bit word of the address is printed
/// as the machine stores it.
fn address(text: &str) -> String {
    let parsed = || {
        let (address, port) = text.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let mut bytes = Vec::new();
        for at in (0..address.len()).step_by(8) {
            let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
            bytes.extend(word.to_ne_bytes());
        }
        let ip = match bytes.len() {
            4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
            _ => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        };
        Some(SocketAddr::new(ip, port).to_string())
    };
    parsed().unwrap_or_else(|| text.to_owned())
}

fn abstract_names() -> Vec<String> {
    let text = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_once(" @"));
    names
        .map(|(_, name)| format!("abstract unix name @{name}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_people_write_them() {
        assert_eq!(address("0100007F:1F90"), "127.0.0.1:8080");
        assert_eq!(address("00000000000000000000000001000000:0050"), "[::1]:80");
        assert_eq!(address("nonsense"), "nonsense");
    }
}
