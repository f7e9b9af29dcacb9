//! Notifies the service manager (`sd_notify(3)`), if there is one.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

pub fn ready() {
    send(b"READY=1");
}

pub fn stopping() {
    send(b"STOPPING=1");
}

/// Sends a state. A manager that does not listen is ignored.
fn send(state: &[u8]) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state, &address));
    sent.ok();
}
