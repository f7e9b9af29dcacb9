//! A box whose creator stays with it: its streams, its events, its end.
//!
//! What the keeper says is untrusted: a frame that does not decode, or a
//! descriptor that is not a terminal, counts as a keeper that is gone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FileType, fstat, major, minor};
use tare_control::{REPORT_BYTES_MAX, Report, Request, decode};
use tare_kernel::clock::boot_ns;
use tare_kernel::fds::receive;

use crate::engine::{Made, Reserve};
use crate::error::{Doing, Error};
use crate::failure;
use crate::host::Host;
use crate::id::BoxId;
use crate::keeper;
use crate::layout::Layout;
use crate::record::Record;
use crate::teardown;

/// The host's ends of the command's standard streams. With a terminal they are
/// all absent: its master side comes as [`Event::Terminal`].
#[derive(Debug, Default)]
pub struct Streams {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(u8),
    Signal(i32),
}

#[derive(Debug)]
pub enum Event {
    /// The master side of the box's pseudo-terminal.
    Terminal(OwnedFd),
    /// The command's `execve` succeeded.
    Started,
    /// The command ended, and the box with it.
    Exited(Exit),
    /// `Spec::timeout` passed; the box ends.
    TimedOut,
    /// The box could not be made or the command not be started.
    Failed(Error),
    /// The keeper is gone without having said how the command ended (for
    /// example killed for memory together with it).
    Gone,
}

/// What the one way out observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Processes of the box that the kernel killed for the memory limit.
    pub oom_kills: u64,
}

/// What a keeper may need to end its box after the deadline.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Attached {
    layout: Layout,
    host: Host,
    id: BoxId,
    record: Record,
    made: Made,
    reserve: Reserve,
    /// Bytes of reports that are not complete yet.
    pending: Vec<u8>,
    /// A descriptor that came with them.
    passed: Option<OwnedFd>,
    over: bool,
}

impl Attached {
    pub(crate) fn new(
        layout: Layout,
        host: Host,
        id: BoxId,
        record: Record,
        made: Made,
        reserve: Reserve,
    ) -> Self {
        Self {
            layout,
            host,
            id,
            record,
            made,
            reserve,
            pending: Vec::new(),
            passed: None,
            over: false,
        }
    }

    pub fn id(&self) -> &BoxId {
        &self.id
    }

    /// Defaults that this host cannot enforce, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.made.notes
    }

    /// The host's ends; empty when called again.
    pub fn streams(&mut self) -> Streams {
        std::mem::take(&mut self.made.streams)
    }

    /// Readable (or hung up) when [`Self::next_event`] has something to say.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.made.control.as_fd()
    }

    /// The next event, without waiting; `None` when there is none yet. After
    /// `Exited`, `TimedOut`, `Failed` or `Gone` nothing more comes.
    pub fn next_event(&mut self) -> Option<Event> {
        while !self.over {
            match decode(&self.pending, REPORT_BYTES_MAX) {
                Ok(Some((report, length))) => {
                    self.pending.drain(..length);
                    return Some(self.event(report));
                }
                Ok(None) => {}
                Err(_) => return Some(self.last(Event::Gone)),
            }
            let mut buffer = [0; 4096];
            match receive(self.made.control.as_fd(), &mut buffer) {
                Ok(received) if received.bytes > 0 => {
                    self.pending.extend_from_slice(&buffer[..received.bytes]);
                    self.passed = received.fd.or(self.passed.take());
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
                Ok(_) | Err(_) => {
                    let event = self.unborn().map_or(Event::Gone, Event::Failed);
                    return Some(self.last(event));
                }
            }
        }
        None
    }

    fn event(&mut self, report: Report) -> Event {
        match report {
            Report::Started => Event::Started,
            Report::Terminal => match self.passed.take().filter(is_terminal_master) {
                Some(master) => Event::Terminal(master),
                None => self.last(Event::Gone),
            },
            Report::Exited { wait_status } => self.last(Event::Exited(exit(wait_status))),
            Report::TimedOut => self.last(Event::TimedOut),
            Report::SetupFailed {
                step,
                subject,
                errno,
            } => {
                let error = failure::setup(step, &subject, errno);
                self.last(Event::Failed(error))
            }
            Report::LaunchFailed { step, errno } => {
                let spec = self.record.intent().map(|intent| &intent.spec);
                let error = failure::launch(step, errno, spec);
                self.last(Event::Failed(error))
            }
        }
    }

    fn last(&mut self, event: Event) -> Event {
        self.over = true;
        event
    }

    /// Why the keeper never got to be one.
    fn unborn(&self) -> Option<Error> {
        let (step, error) = self.made.keeper.failure()?;
        Some(failure::birth(step, error))
    }

    /// How long until the keeper is late with the deadline that it keeps; for
    /// example because it hangs in a file system that does not answer.
    pub fn overdue_in(&self) -> Option<Duration> {
        let deadline = Duration::from_nanos(self.made.deadline_ns?);
        Some((deadline + GRACE).saturating_sub(Duration::from_nanos(boot_ns())))
    }

    /// Passes a signal to the command.
    pub fn signal(&mut self, signal: i32) -> Result<(), Error> {
        keeper::send_request(&self.made.control, &Request::Signal(signal))
            .doing(|| format!("cannot pass signal {signal} to box {}", self.id))
    }

    /// SIGKILL to the whole box, now; [`Self::end`] is still to be called.
    pub fn kill(&self) {
        // The keeper is our unreaped child: this cannot fail in a way that
        // `end` would not meet again and report.
        self.made.keeper.process.kill().ok();
    }

    /// The one way out: returns after emptiness was observed.
    pub fn end(self) -> Result<Ending, Error> {
        drop(self.reserve);
        let oom_kills = self.made.cgroups.oom_kills();
        let keeper = &self.made.keeper.process;
        teardown::attached(&self.layout, &self.host, &self.id, self.record, keeper)?;
        Ok(Ending { oom_kills })
    }
}

fn exit(wait_status: i32) -> Exit {
    match wait_status & 0x7f {
        0 => Exit::Code(((wait_status >> 8) & 0xff) as u8),
        signal => Exit::Signal(signal),
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

    #[test]
    fn a_wait_status_is_a_code_or_a_signal() {
        assert_eq!(exit(0x2500), Exit::Code(37));
        assert_eq!(exit(9), Exit::Signal(9));
        assert_eq!(exit(0x8b), Exit::Signal(11), "a core dump is a signal too");
    }

    /// E041: a keeper may pass any descriptor.
    #[test]
    fn only_a_terminals_master_side_is_taken_for_one() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_terminal_master(&null.into()));
        let master = std::fs::File::open("/dev/ptmx").unwrap();
        assert!(is_terminal_master(&master.into()));
    }
}
