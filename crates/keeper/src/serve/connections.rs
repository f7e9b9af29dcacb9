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

/// Connections whose calls are not complete yet, the oldest first.
#[derive(Debug, Default)]
pub struct Connections(Vec<Connection>);

impl Connections {
    pub fn iter(&self) -> std::slice::Iter<'_, Connection> {
        self.0.iter()
    }

    /// Returns whether another connection may be accepted.
    pub fn have_room(&self) -> bool {
        self.0.len() < CONNECTIONS_MAX || self.0[0].crowded_until_ns() <= boot_ns()
    }

    /// Adds a connection. If there are too many, it replaces the oldest.
    pub fn add(&mut self, connection: Connection) {
        if self.0.len() >= CONNECTIONS_MAX {
            self.0.remove(0);
        }
        self.0.push(connection);
    }

    /// Returns the time at which the oldest connection has been silent for too long.
    pub fn next_ns(&self) -> Option<u64> {
        let oldest = self.0.first()?;
        if self.have_room() { Some(oldest.until_ns()) } else { Some(oldest.crowded_until_ns()) }
    }

    /// Returns the complete calls. Drops connections that are closed, too late or malformed.
    pub fn receive(&mut self) -> Vec<(Channel, Call)> {
        let mut calls = Vec::new();
        let mut bytes = 0;
        for mut one in std::mem::take(&mut self.0) {
            match one.channel.receive_in_turn::<Versioned<Call>>(CALL_BYTES_MAX) {
                Received::Message(call) => calls.push((one.channel, call.message)),
                Received::Nothing if boot_ns() < one.until_ns() => {
                    bytes += one.channel.pending_bytes();
                    self.0.push(one);
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
        let sizes = self.0.iter().map(|one| one.channel.pending_bytes());
        let Some((largest, bytes)) = sizes.enumerate().max_by_key(|(_, bytes)| *bytes) else {
            return usize::MAX;
        };
        self.0.remove(largest);
        bytes
    }
}
