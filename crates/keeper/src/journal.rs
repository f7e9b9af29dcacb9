//! Writes the journal of a detached box: what must be known after its keeper is gone.
//!
//! The creator made the file with room for everything, so writing never fails for lack of space.

use std::os::fd::OwnedFd;

use rustix::time::{ClockId, clock_gettime};
use tare_control::End;
use tare_control::journal::{BoxEvent, Event};
use tare_kernel::clock::boot_ns;
use tare_kernel::step::step;

/// The journal of a box, open for writing.
#[derive(Debug)]
pub struct Journal {
    file: OwnedFd,
    /// The number of events in the ring so far.
    events: u32,
    /// The number of processes that clients have started.
    processes: u32,
}

impl Journal {
    pub fn new(file: OwnedFd) -> Self {
        Self { file, events: 0, processes: 0 }
    }

    /// Returns the number of the next process that a client starts.
    pub fn count_process(&mut self) -> u32 {
        self.processes = self.processes.saturating_add(1);
        self.processes
    }

    /// Writes an event. A failure is ignored: the box works without the event.
    pub fn note(&mut self, what: BoxEvent) {
        self.write(what).ok();
    }

    /// Writes that the box is detached. A box whose journal does not say so belongs to its creator.
    pub fn detached(&mut self) -> rustix::io::Result<()> {
        self.write(BoxEvent::Detached)
    }

    /// Writes that the box is about to be paused. Other commands take a box for paused only if its
    /// journal says so.
    pub fn paused(&mut self) -> rustix::io::Result<()> {
        self.write(BoxEvent::Paused)
    }

    pub fn ended(&mut self, end: End) {
        let End { cause, wait_status, .. } = end;
        let now = clock_gettime(ClockId::Realtime);
        let at_ms = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        self.note(BoxEvent::Ended { wait_status, cause, at_ms });
    }

    fn write(&mut self, what: BoxEvent) -> rustix::io::Result<()> {
        let event = Event { number: self.events, at_us: boot_ns() / 1000, what };
        self.events = self.events.saturating_add(u32::from(event.what.is_in_ring()));
        for (slot, at) in event.slots() {
            step("write the journal", || rustix::io::pwrite(&self.file, &slot, at))?;
        }
        Ok(())
    }
}
