//! Connections to the box's socket, until each has sent its call.

use std::os::fd::OwnedFd;

use tare_control::{CALL_BYTES_MAX, Call, Channel, Received, Refusal, Report, Versioned};
use tare_kernel::clock::boot_ns;

/// How many connections may be sending their call at once. Others wait until one of them is done or
/// has been silent for too long.
const CONNECTIONS_MAX: usize = 256;
/// How much memory all incomplete calls together may take. Beyond that, the largest is dropped. An
/// honest client sends its call at once.
const PENDING_BYTES_MAX: usize = 8 * CALL_BYTES_MAX;
/// How long a connection may take to send its call.
const CALL_WITHIN_NS: u64 = 10_000_000_000;
/// How long a connection may take to send its call while other clients wait.
const CROWDED_CALL_WITHIN_NS: u64 = 100_000_000;

/// A connection whose call is not complete yet.
#[derive(Debug)]
pub struct Connection {
    pub channel: Channel,
    since_ns: u64,
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Self {
        Self { channel: Channel::new(socket), since_ns: boot_ns() }
    }

    fn until_ns(&self) -> u64 {
        self.since_ns.saturating_add(CALL_WITHIN_NS)
    }

    fn crowded_until_ns(&self) -> u64 {
        self.since_ns.saturating_add(CROWDED_CALL_WITHIN_NS)
    }
}

/// How long the keeper accepts no connection after it had no descriptor for one. The listener stays
/// readable meanwhile.
const ACCEPT_AGAIN_NS: u64 = 50_000_000;

/// Connections whose calls are not complete yet.
#[derive(Debug, Default)]
pub struct Connections {
    /// The oldest first.
    open: Vec<Connection>,
    /// Until then, no descriptor may be left for another connection.
    full_until_ns: u64,
}

impl Connections {
    pub fn iter(&self) -> std::slice::Iter<'_, Connection> {
        self.open.iter()
    }

    /// Notes that no descriptor was left for another connection.
    pub fn pause(&mut self) {
        self.full_until_ns = boot_ns().saturating_add(ACCEPT_AGAIN_NS);
    }

    fn is_crowded(&self) -> bool {
        self.open.len() >= CONNECTIONS_MAX && self.open[0].crowded_until_ns() > boot_ns()
    }

    /// Returns whether another connection may be accepted.
    pub fn have_room(&self) -> bool {
        !self.is_crowded() && self.full_until_ns <= boot_ns()
    }

    /// Adds a connection. If there are too many, it replaces the oldest.
    pub fn add(&mut self, connection: Connection) {
        if self.open.len() >= CONNECTIONS_MAX {
            self.open.remove(0);
        }
        self.open.push(connection);
    }

    /// Returns the time at which the oldest connection has been silent for too long, or at which another
    /// one may be accepted again.
    pub fn next_ns(&self) -> Option<u64> {
        let late_ns = |oldest: &Connection| {
            if self.is_crowded() { oldest.crowded_until_ns() } else { oldest.until_ns() }
        };
        let oldest = self.open.first().map(late_ns);
        let again = Some(self.full_until_ns).filter(|at_ns| *at_ns > boot_ns());
        oldest.into_iter().chain(again).min()
    }

    /// Returns the complete calls. Drops connections that are closed, too late or malformed.
    pub fn receive(&mut self) -> Vec<(Channel, Call)> {
        let mut calls = Vec::new();
        let mut bytes = 0;
        for mut one in std::mem::take(&mut self.open) {
            match one.channel.receive_in_turn::<Versioned<Call>>(CALL_BYTES_MAX) {
                Received::Message(call) => calls.push((one.channel, call.message)),
                Received::Nothing if boot_ns() < one.until_ns() => {
                    bytes += one.channel.pending_bytes();
                    self.open.push(one);
                }
                Received::Nothing => {}
                // So that a client of another version of tare learns the reason.
                Received::Closed => one.channel.report(&Report::Refused(Refusal::Malformed)),
            }
        }
        while bytes > PENDING_BYTES_MAX {
            bytes -= self.drop_largest();
        }
        calls
    }

    fn drop_largest(&mut self) -> usize {
        let sizes = self.open.iter().map(|one| one.channel.pending_bytes());
        let Some((largest, bytes)) = sizes.enumerate().max_by_key(|(_, bytes)| *bytes) else {
            return usize::MAX;
        };
        self.open.remove(largest);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_without_a_descriptor_for_a_client_is_not_polled_for_a_moment() {
        let mut connections = Connections::default();
        assert!(connections.have_room() && connections.next_ns().is_none());
        let before_ns = boot_ns();
        connections.pause();
        assert!(!connections.have_room());
        let again_ns = connections.next_ns().expect("the next turn comes by itself");
        assert!(again_ns >= before_ns + ACCEPT_AGAIN_NS);
        connections.full_until_ns = boot_ns();
        assert!(connections.have_room() && connections.next_ns().is_none());
    }
}
