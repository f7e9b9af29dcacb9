//! What a keeper says, read without waiting. It is untrusted: a frame that does
//! not decode counts as a keeper that is gone.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FileType, fstat, major, minor};
use tare_control::{REPORT_BYTES_MAX, Report, decode};
use tare_kernel::fds::receive;

#[derive(Debug, Default)]
pub struct Reports {
    /// Bytes of reports that are not complete yet.
    pending: Vec<u8>,
    /// The descriptor that came with them.
    passed: Option<OwnedFd>,
}

#[derive(Debug)]
pub enum Heard {
    Report(Report),
    /// Nothing complete yet.
    Nothing,
    /// The keeper is gone, or talks nonsense.
    Gone,
}

impl Reports {
    pub fn hear(&mut self, socket: BorrowedFd<'_>) -> Heard {
        loop {
            match decode(&self.pending, REPORT_BYTES_MAX) {
                Ok(Some((report, length))) => {
                    self.pending.drain(..length);
                    return Heard::Report(report);
                }
                Ok(None) => {}
                Err(_) => return Heard::Gone,
            }
            let mut buffer = [0; 4096];
            match receive(socket, &mut buffer) {
                Ok(received) if received.bytes > 0 => {
                    self.pending.extend_from_slice(&buffer[..received.bytes]);
                    self.passed = received.fds.into_iter().next().or(self.passed.take());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Nothing,
                Ok(_) | Err(_) => return Heard::Gone,
            }
        }
    }

    /// The descriptor that came with the last report.
    pub fn take_passed(&mut self) -> Option<OwnedFd> {
        self.passed.take()
    }

    /// The same, if it is the master side of a terminal.
    pub fn take_terminal(&mut self) -> Option<OwnedFd> {
        self.passed.take().filter(is_terminal_master)
    }
}

/// The multiplexer's device number: what every master side is opened through.
fn is_terminal_master(fd: &OwnedFd) -> bool {
    let Ok(stat) = fstat(fd) else { return false };
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == (5, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E041: a keeper may pass any descriptor.
    #[test]
    fn only_a_terminals_master_side_is_taken_for_one() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_terminal_master(&null.into()));
        let master = std::fs::File::open("/dev/ptmx").unwrap();
        assert!(is_terminal_master(&master.into()));
    }
}
