//! Connections to the box's socket, up to what each of them wants.

use std::os::fd::OwnedFd;

use tare_control::{CALL_BYTES_MAX, Call, Channel, Received};
use tare_kernel::clock::boot_ns;

/// How many connections may be on their first frame at once; the others wait to
/// be accepted, or for the place of one that has said nothing for a while.
const CALLERS_MAX: usize = 256;
/// What all their unfinished frames together may take of the keeper's memory;
/// past it the largest is given up. Who means it is done with its frame at once.
const PENDING_BYTES_MAX: usize = 8 * CALL_BYTES_MAX;
/// How long a connection may take for its first frame.
const CALL_WITHIN_NS: u64 = 10_000_000_000;
/// The same when others want its place.
const CROWDED_CALL_WITHIN_NS: u64 = 100_000_000;

/// A connection that has not said yet what it wants.
#[derive(Debug)]
pub struct Caller {
    pub channel: Channel,
    since_ns: u64,
}

/// What became of a caller.
#[derive(Debug)]
enum Said {
    Nothing,
    Call(Call),
    Gone,
}

impl Caller {
    pub fn new(socket: OwnedFd) -> Self {
        Self { channel: Channel::new(socket), since_ns: boot_ns() }
    }

    fn hear(&mut self) -> Said {
        match self.channel.receive_in_turn(CALL_BYTES_MAX) {
            Received::Message(call) => Said::Call(call),
            Received::Nothing if boot_ns() >= self.until_ns() => Said::Gone,
            Received::Nothing => Said::Nothing,
            Received::Closed => Said::Gone,
        }
    }

    fn until_ns(&self) -> u64 {
        self.since_ns.saturating_add(CALL_WITHIN_NS)
    }

    fn crowded_until_ns(&self) -> u64 {
        self.since_ns.saturating_add(CROWDED_CALL_WITHIN_NS)
    }
}

/// Connections that have not said yet what they want, the oldest first.
#[derive(Debug, Default)]
pub struct Callers(Vec<Caller>);

impl Callers {
    pub fn iter(&self) -> std::slice::Iter<'_, Caller> {
        self.0.iter()
    }

    /// Whether another connection may be accepted.
    pub fn have_room(&self) -> bool {
        self.0.len() < CALLERS_MAX || self.0[0].crowded_until_ns() <= boot_ns()
    }

    /// One more, in place of the oldest if there are too many.
    pub fn add(&mut self, caller: Caller) {
        if self.0.len() >= CALLERS_MAX {
            self.0.remove(0);
        }
        self.0.push(caller);
    }

    /// When something is due: somebody has been silent for too long, or for long
    /// enough to lose its place.
    pub fn next_ns(&self) -> Option<u64> {
        let oldest = self.0.first()?;
        if self.have_room() { Some(oldest.until_ns()) } else { Some(oldest.crowded_until_ns()) }
    }

    /// What has come by now; who is gone or too late is forgotten.
    pub fn hear(&mut self) -> Vec<(Channel, Call)> {
        let mut said = Vec::new();
        let mut bytes = 0;
        for mut caller in std::mem::take(&mut self.0) {
            match caller.hear() {
                Said::Nothing => {
                    bytes += caller.channel.pending_bytes();
                    self.0.push(caller);
                }
                Said::Call(call) => said.push((caller.channel, call)),
                Said::Gone => {}
            }
        }
        while bytes > PENDING_BYTES_MAX {
            bytes -= self.forget_largest();
        }
        said
    }

    fn forget_largest(&mut self) -> usize {
        let sizes = self.0.iter().map(|one| one.channel.pending_bytes());
        let Some((largest, bytes)) = sizes.enumerate().max_by_key(|(_, bytes)| *bytes) else {
            return usize::MAX;
        };
        self.0.remove(largest);
        bytes
    }
}
