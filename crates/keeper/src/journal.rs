//! Writes what must be known about a detached box after its keeper is gone.

use std::os::fd::OwnedFd;

use rustix::time::{ClockId, clock_gettime};
use tare_control::EndedBy;
use tare_control::events::{Event, Happening};
use tare_control::life::LifeEvent;
use tare_kernel::clock::boot_ns;
use tare_kernel::step::step;

#[derive(Debug)]
pub struct Journal {
    file: OwnedFd,
    /// What has been written so far.
    bytes: u64,
    /// How many events there were.
    events: u32,
    /// How many processes were started for others.
    processes: u32,
}

impl Journal {
    pub fn new(file: OwnedFd) -> Self {
        Self { file, bytes: 0, events: 0, processes: 0 }
    }

    /// Numbers one more process that is started for a client.
    pub fn count_process(&mut self) -> u32 {
        self.processes = self.processes.saturating_add(1);
        self.processes
    }

    /// Writes one more event. A client that waits for an answer has it before.
    pub fn note(&mut self, what: Happening) {
        let event = Event { number: self.events, at_us: boot_ns() / 1000, what };
        let (slot, at) = event.slot();
        step("write an event", || rustix::io::pwrite(&self.file, &slot, at)).ok();
        self.events = self.events.saturating_add(1);
    }

    /// Writes that the box is detached. If that fails it is not: later commands could not
    /// tell that it no longer belongs to its creator.
    pub fn detached(&mut self) -> rustix::io::Result<()> {
        self.write(LifeEvent::Detached)
    }

    pub fn stopping(&mut self) {
        self.write(LifeEvent::Stopping).ok();
    }

    pub fn exited(&mut self, wait_status: i32, by: EndedBy) {
        let now = clock_gettime(ClockId::Realtime);
        let at_ms = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        self.write(LifeEvent::Exited { wait_status, by, at_ms }).ok();
    }

    /// The room was made when the file was: this cannot fail for want of it.
    fn write(&mut self, event: LifeEvent) -> rustix::io::Result<()> {
        let line = format!("{event}\n");
        let write = || rustix::io::pwrite(&self.file, line.as_bytes(), self.bytes);
        self.bytes += step("write the journal", write)? as u64;
        Ok(())
    }
}
