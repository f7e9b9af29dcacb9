//! Lists the listening ports of our network namespace, by sock_diag(7). Unlike
//! `/proc/net/tcp`, it returns no connections, and it names the cgroup of a socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// The bit of the state of a listening socket: `TCP_LISTEN`, and `TCP_CLOSE` for a UDP socket
    /// that is bound and not connected (net/tcp_states.h).
    fn states(self) -> u32 {
        match self {
            Self::Tcp => 1 << 10,
            Self::Udp => 1 << 7,
        }
    }
}

/// A listening port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listening {
    pub transport: Transport,
    pub address: SocketAddr,
    /// 0 if no descriptor is open on the socket.
    pub inode: u64,
    /// The inode of the v2 cgroup that the socket was made in. That cgroup may be gone.
    pub cgroup: Option<u64>,
}

/// Returns all listening ports.
pub fn listening() -> io::Result<Vec<Listening>> {
    let flags = SocketFlags::CLOEXEC;
    let kind = Some(netlink::SOCK_DIAG);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, kind)?;
    let mut found = Vec::new();
    for transport in [Transport::Tcp, Transport::Udp] {
        for family in [INET, INET6] {
            send(&socket, &request(transport, family), SendFlags::empty())?;
            receive(&socket, transport, &mut found)?;
        }
    }
    Ok(found)
}

const INET: u8 = 2;
const INET6: u8 = 10;

/// Constants of linux/netlink.h and linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_AND_DUMP: u16 = 0x301;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
const HEADER_BYTES: usize = 16;
/// `struct inet_diag_req_v2` and `inet_diag_msg` of linux/inet_diag.h.
const REQUEST_BYTES: usize = 56;
const MESSAGE_BYTES: usize = 72;
/// `INET_DIAG_CGROUP_ID`
const CGROUP_ID: u16 = 21;
/// No message of the kernel is longer (netlink(7)).
const ANSWER_BYTES: usize = 32 << 10;

fn request(transport: Transport, family: u8) -> Vec<u8> {
    let length = HEADER_BYTES + REQUEST_BYTES;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST_AND_DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, transport.number(), 0, 0]);
    bytes.extend(transport.states().to_ne_bytes());
    bytes.resize(length, 0);
    bytes
}

/// Reads until the kernel has sent the end of the list.
fn receive(socket: &OwnedFd, transport: Transport, found: &mut Vec<Listening>) -> io::Result<()> {
    let mut buffer = vec![0; ANSWER_BYTES];
    loop {
        let (length, _) = recv(socket, &mut buffer, RecvFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some((kind, body)) = next_message(&mut rest) {
            match kind {
                MESSAGE_DONE => return Ok(()),
                MESSAGE_ERROR => return Err(error(body)),
                _ => found.extend(parse(transport, body)),
            }
        }
    }
}

fn error(body: &[u8]) -> io::Error {
    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    io::Error::from_raw_os_error(-code)
}

/// Splits off the next message, and returns its type and body.
fn next_message<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let length = number_u32(rest, 0)? as usize;
    let kind = number_u16(rest, 4)?;
    let body = rest.get(HEADER_BYTES..length)?;
    *rest = rest.get(aligned(length)..).unwrap_or_default();
    Some((kind, body))
}

fn parse(transport: Transport, body: &[u8]) -> Option<Listening> {
    let family = *body.first()?;
    let port = u16::from_be_bytes(body.get(4..6)?.try_into().ok()?);
    let source = body.get(8..24)?;
    let ip = match family {
        INET => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(&source[..4]).ok()?)),
        INET6 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(source).ok()?)),
        _ => return None,
    };
    Some(Listening {
        transport,
        address: SocketAddr::new(ip, port),
        inode: u64::from(number_u32(body, 68)?),
        cgroup: attribute(body.get(MESSAGE_BYTES..)?, CGROUP_ID),
    })
}

/// Returns the 64-bit value of an attribute.
fn attribute(mut rest: &[u8], wanted: u16) -> Option<u64> {
    while let (Some(length), Some(kind)) = (number_u16(rest, 0), number_u16(rest, 2)) {
        let length = usize::from(length);
        let value = rest.get(4..length)?;
        if kind == wanted {
            return Some(u64::from_ne_bytes(value.try_into().ok()?));
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    None
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn number_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn number_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::fs::MetadataExt;

    fn inode(fd: &impl std::os::fd::AsRawFd) -> u64 {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        std::fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn listening_sockets_are_found_and_connected_ones_are_not() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        let found = listening().unwrap();
        let of = |address| found.iter().find(move |it| it.address == address);
        let listener = of(tcp.local_addr().unwrap()).unwrap();
        assert_eq!(listener.transport, Transport::Tcp);
        assert_eq!(listener.inode, inode(&tcp));
        let bound = of(udp.local_addr().unwrap()).unwrap();
        assert_eq!((bound.transport, bound.inode), (Transport::Udp, inode(&udp)));
        assert!(of(client.local_addr().unwrap()).is_none());
    }

    #[test]
    fn the_other_family_is_found_too() {
        let Ok(tcp) = TcpListener::bind("[::1]:0") else {
            return;
        };
        let address = tcp.local_addr().unwrap();
        assert!(listening().unwrap().iter().any(|it| it.address == address));
    }

    #[test]
    fn truncated_messages_are_ignored() {
        for length in 0..MESSAGE_BYTES {
            let mut body = vec![0; length];
            if let Some(family) = body.first_mut() {
                *family = INET;
            }
            assert_eq!(parse(Transport::Tcp, &body), None);
        }
        assert_eq!(attribute(&[0, 0, 21, 0], CGROUP_ID), None);
        assert!(next_message(&mut &[8, 0, 0, 0, 3, 0, 0, 0][..]).is_none());
    }
}
