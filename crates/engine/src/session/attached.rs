//! A box whose creator stays with it: its streams, its events, its end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use tare_control::{Report, Request};
use tare_kernel::clock::boot_ns;
use tare_kernel::process::Process;

use crate::create::birth;
use crate::create::{Made, Reserve};
use crate::error::{Context, Error};
use crate::host::layout::StateRoot;
use crate::record::Locked;
use crate::record::reason::Reason;
use crate::session::exit::Exit;
use crate::session::failure;
use crate::session::reports::{Heard, Reports};
use crate::spec::BoxId;
use crate::teardown::{Leave, OWN_WITHIN, Order, tear_down};

/// The host's ends of the command's standard streams. With a terminal they are
/// all absent: its master side comes as [`Event::Terminal`].
#[derive(Debug, Default)]
pub struct Streams {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

#[derive(Debug)]
pub enum Event {
    /// The master side of the box's pseudo-terminal.
    Terminal(OwnedFd),
    /// The command's `execve` succeeded.
    Started,
    /// The command ended; if it was the box's own, the box with it.
    Exited(Exit),
    /// Its timeout passed; everything that it started ends.
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
pub const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Attached {
    root: StateRoot,
    id: BoxId,
    record: Locked,
    made: Made,
    reserve: Option<Reserve>,
    reports: Reports,
    over: bool,
}

impl Attached {
    pub(crate) fn new(
        root: StateRoot,
        id: BoxId,
        record: Locked,
        made: Made,
        reserve: Reserve,
    ) -> Self {
        Self {
            root,
            id,
            record,
            made,
            reserve: Some(reserve),
            reports: Reports::default(),
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
        if self.over {
            return None;
        }
        let event = match self.reports.hear(self.made.control.as_fd()) {
            Heard::Nothing => return None,
            Heard::Report(report) => {
                self.made.keeper.has_executed();
                self.event(report)
            }
            Heard::Gone => self.unborn().map_or(Event::Gone, Event::Failed),
        };
        self.over = !matches!(event, Event::Started | Event::Terminal(_));
        Some(event)
    }

    fn event(&mut self, report: Report) -> Event {
        let spec = self.record.account.intent.as_ref();
        let spec = spec.map(|intent| &intent.spec);
        let subject = failure::Subject {
            command: spec.and_then(|spec| spec.command.first()),
            workdir: spec.and_then(|spec| spec.workdir.as_deref()),
        };
        event(report, &mut self.reports, subject)
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
        birth::send_request(&self.made.control, &Request::Signal(signal))
            .context(|| format!("cannot pass signal {signal} to box {}", self.id))
    }

    /// SIGKILL to the whole box, now; [`Self::end`] is still to be called.
    pub fn kill(&self) {
        // The keeper is our unreaped child: this cannot fail in a way that
        // `end` would not meet again and report.
        self.made.keeper.process.kill().ok();
    }

    /// The first process of the box.
    pub fn keeper(&self) -> &Process {
        &self.made.keeper.process
    }

    /// The one way out: returns after emptiness was observed.
    pub fn end(mut self) -> Result<Ending, Error> {
        self.try_end(OWN_WITHIN)
    }

    /// The same within this time; it can be tried again.
    pub fn try_end(&mut self, within: Duration) -> Result<Ending, Error> {
        drop(self.reserve.take());
        let oom_kills = self.made.cgroups.oom_kills();
        let at = self.root.at(&self.id);
        let child = Some(&self.made.keeper.process);
        let order = Order { reason: Reason::Own, leave: Leave::Nothing, within, child };
        tear_down(at, &mut self.record, order)?;
        Ok(Ending { oom_kills })
    }
}

/// What a report means to whoever waits for a command. One that has no place
/// here comes from a keeper that cannot be believed.
pub fn event(report: Report, reports: &mut Reports, subject: failure::Subject<'_>) -> Event {
    match report {
        Report::Started => Event::Started,
        Report::Terminal => match reports.take_terminal() {
            Some(master) => Event::Terminal(master),
            None => Event::Gone,
        },
        Report::Exited { wait_status } => Event::Exited(Exit::of(wait_status)),
        Report::TimedOut => Event::TimedOut,
        Report::SetupFailed { step, subject, errno } => {
            Event::Failed(failure::setup(step, &subject, errno))
        }
        Report::LaunchFailed { step, errno } => {
            Event::Failed(failure::launch(step, errno, subject))
        }
        Report::Detached
        | Report::Done
        | Report::Usage(_)
        | Report::Input { .. }
        | Report::Refused(_) => Event::Gone,
    }
}
