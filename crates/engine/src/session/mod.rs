//! Talks to a live box: runs, execs, files, logs.
//!
//! A [`Session`] is one process in a box, seen from outside: its streams, its events, its
//! end. The box's own command (`run`) and every later command (`exec`) have the same kind
//! of session. A run's session also owns its box, and ends it.
//!
//! This folder makes no boxes, and trusts nothing that a keeper sends.

pub mod attach;
pub mod exec;
pub mod failure;
pub mod files;
pub mod kept;
pub mod link;
pub mod logs;
pub mod stdio;

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat, major, minor};
use tare_control::{
    AtEnd, Cause, Channel, End, REPORT_BYTES_MAX, REQUEST_BYTES_MAX, Received, Report, Request,
};
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::fds::open_null;
use tare_kernel::process::Process;
use tare_kernel::spawn::Child;

use crate::actor::Actor;
use crate::error::{Context, Error, Hint};
use crate::history::{self, shown_stderr};
use crate::holdings::cgroup::{self, CgroupHolding, LimitWatch};
use crate::host::layout::StateRoot;
use crate::host::state_root;
use crate::receipt::{self, Receipt};
use crate::record::lines::{
    ClaimedDetached, ClaimedLine, EndedLine, Evidence, Failure, HeldLine, Line, Reason, asked_for,
};
use crate::record::{LockedRecord, Record};
use crate::session::failure::{LaunchSubject, START_WITHIN};
use crate::session::stdio::Streams;
use crate::spec::{BoxId, Spec};
use crate::teardown::{Leave, OWN_WITHIN, Order, Own, roll_back, tear_down};
use crate::time::from_now;

/// What happens to the process of a session.
#[derive(Debug)]
pub enum Event {
    /// The master side of the process's pseudo-terminal.
    Terminal(OwnedFd),
    /// The command's `execve` succeeded.
    Started,
    /// The command ended. If it was the box's own, the box ends with it.
    Ended(End),
    /// The box could not be made, or the command could not be started.
    Failed(Error),
}

/// How long a keeper may take to end its process after the deadline.
const GRACE: Duration = Duration::from_secs(1);

/// How much longer the end of an exec in a machine may take. Its keeper waits five seconds for the
/// machine.
const MACHINE_GRACE: Duration = Duration::from_secs(5);

/// A process in a box. It ends with this value, unless it was started detached.
#[derive(Debug)]
pub struct Session {
    id: BoxId,
    channel: Channel,
    streams: Streams,
    /// The program and the working directory, for errors.
    command: Option<OsString>,
    workdir: Option<PathBuf>,
    /// On the boot clock, like the keeper's deadline.
    deadline_ns: Option<u64>,
    over: bool,
    /// How the process ended, as far as this session knows.
    end: Option<End>,
    observed: Box<Observed>,
    /// Set for an exec. A run has the cgroups of its box.
    limits: Option<Box<LimitWatch>>,
    /// `None` for an exec: the box belongs to another process.
    owned: Option<Box<OwnedBox>>,
}

/// What a session and its owner learn about the end of the process, beside the end itself. In a box of
/// its own, because most sessions learn little.
#[derive(Debug, Default)]
struct Observed {
    /// How long the box's machine may boot before the command starts.
    boot_within: Duration,
    /// How much longer the end after the deadline may take.
    machine_grace: Duration,
    /// Counts from the start of the command, if it is in a machine.
    timeout: Option<Duration>,
    /// Why the process could not be started, or why its owner killed it.
    failure: Option<Failure>,
    /// The actor that ended the template of the box, and the box with it.
    by: Option<Actor>,
    /// The last signal that this session passed on, and when.
    passed_signal: Option<(i32, u64)>,
    /// The keeper reported that the scratch space was full.
    scratch_full: bool,
    /// The keeper reported that `/work` was empty.
    home_empty: bool,
    /// What the owner of a run adds.
    conclusion: Conclusion,
    /// The end with the kernel's evidence, when the box is being torn down.
    ended: Option<EndedLine>,
}

/// What the owner of a run knows about its end, and the keeper of its box does not.
#[derive(Debug, Default)]
pub struct Conclusion {
    /// How the command ended, if it was an exec.
    pub end: Option<End>,
    /// The keeper reported it for that exec.
    pub scratch_full: bool,
    pub timeout: Option<Duration>,
    pub output_bytes_max: Option<u64>,
    /// Why the command was not started, or why the owner killed it.
    pub failure: Option<Failure>,
    /// The last part of what the command wrote to stderr.
    pub stderr: Vec<u8>,
    /// The box of the template that made this one, and that this one ends with.
    pub template: Option<BoxId>,
}

/// The box of a run.
#[derive(Debug)]
pub struct OwnedBox {
    pub root: StateRoot,
    pub record: LockedRecord,
    pub keeper: Child,
    pub cgroups: CgroupHolding,
    /// Held until the box is gone, so that no other box gets its user ids earlier.
    pub claim: RefCell<Option<OwnedFd>>,
    pub receipt: WantedReceipt,
    pub reserve: Option<TeardownFds>,
    /// Defaults that this host cannot enforce, one sentence each.
    pub notes: Vec<String>,
}

/// Whether the owner of a box wants its receipt.
#[derive(Debug, Default)]
pub enum WantedReceipt {
    #[default]
    No,
    /// Yes. What the box held when its command began, and since.
    Wanted(HeldLine),
    /// The box is gone.
    Made(Receipt),
}

impl OwnedBox {
    /// Looks at what the box holds, if its owner wants a receipt. Adds that to what it held before.
    fn look(&mut self, id: &BoxId) {
        if let WantedReceipt::Wanted(held) = &mut self.receipt {
            let keeper = Some(self.keeper.process.pid());
            *held = receipt::look(self.root.at(id), &self.record, keeper, Some(held));
        }
    }
}

impl Session {
    /// A session with the process of the keeper at the other end of `channel`.
    pub fn new(id: BoxId, channel: Channel, streams: Streams, deadline_ns: Option<u64>) -> Self {
        Self {
            id,
            channel,
            streams,
            command: None,
            workdir: None,
            deadline_ns,
            over: false,
            end: None,
            observed: Box::default(),
            limits: None,
            owned: None,
        }
    }

    /// Sets the program and the working directory for errors.
    pub(crate) fn of_command(self, command: Option<OsString>, workdir: Option<PathBuf>) -> Self {
        Self { command, workdir, ..self }
    }

    /// Makes this the session that ends its box.
    pub(crate) fn owning(self, owned: OwnedBox) -> Self {
        Self { owned: Some(Box::new(owned)), ..self }
    }

    /// The process is in a machine, where its tree has more time to end.
    pub(crate) fn in_machine(mut self) -> Self {
        self.observed.machine_grace = MACHINE_GRACE;
        self
    }

    /// The box's machine boots first. The timeout counts from the start of the command.
    pub(crate) fn booting(mut self, within: Duration, timeout: Option<Duration>) -> Self {
        (self.observed.boot_within, self.observed.timeout) = (within, timeout);
        self
    }

    /// Returns whether the command waits until the machine of the box has booted.
    pub fn boots(&self) -> bool {
        !self.observed.boot_within.is_zero()
    }

    /// Returns how long the box may take to start its command: longer if a machine boots first.
    pub fn start_within(&self) -> Duration {
        START_WITHIN + self.observed.boot_within
    }

    /// Notices limits that the box reaches.
    pub(crate) fn watching(self, limits: LimitWatch) -> Self {
        Self { limits: Some(Box::new(limits)), ..self }
    }

    /// Sets the deadline that the keeper enforces.
    pub(crate) fn until(self, deadline_ns: Option<u64>) -> Self {
        Self { deadline_ns, ..self }
    }

    /// The process, which was started before its work was known, gets it now. The keeper ends it after the
    /// timeout.
    pub fn begin_work(&mut self, timeout: Option<Duration>, at_end: AtEnd) -> Result<(), Error> {
        let deadline_ns = timeout.map(from_now);
        self.deadline_ns = deadline_ns;
        self.channel
            .send(&Request::Work { deadline_ns, at_end }, REQUEST_BYTES_MAX, &[])
            .context(|| format!("cannot set the deadline of a process in box {}", self.id))
    }

    /// Takes the box out of its pool: it is a box of this spec from now on, and the record says so
    /// before anything runs for the request.
    pub fn claim(&mut self, spec: &Spec) -> Result<(), Error> {
        self.claim_as(spec, None)
    }

    /// As [`Self::claim`]. The box may be one that is to be detached.
    pub(crate) fn claim_as(
        &mut self,
        spec: &Spec,
        detached: Option<ClaimedDetached>,
    ) -> Result<(), Error> {
        let Some(owned) = &mut self.owned else { return Ok(()) };
        let line = ClaimedLine { spec: spec.clone(), detached, at_ns: boot_ns() };
        let claimed = owned.record.add(Line::Claimed(Box::new(line)));
        claimed.context(|| format!("cannot record the request of box {}", self.id))
    }

    /// Writes to the record what the template in this box has imported. One byte in the returned file
    /// counts one clone.
    pub fn record_template(&self, imported: &[String]) -> Result<OwnedFd, Error> {
        let Some(owned) = &self.owned else {
            return Err(Error::failed("a template in a box of another process"));
        };
        let made = owned.record.make_template_file(imported);
        made.context(|| format!("cannot record the template in box {}", self.id))
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Gives up a box that is detached: this process may end.
    pub(crate) fn release(self) -> (BoxId, Vec<String>) {
        let notes = self.owned.map(|owned| {
            let OwnedBox { mut keeper, record, notes, .. } = *owned;
            // Frees memory that a server, which makes very many boxes, would otherwise lose.
            keeper.has_executed();
            record.unlock();
            notes
        });
        (self.id, notes.unwrap_or_default())
    }

    /// Ends a box that could not be made completely, and returns the error for the user.
    pub(crate) fn abandon(self, why: Error) -> Error {
        let Some(owned) = self.owned else { return why };
        let OwnedBox { root, record, keeper, claim, reserve, .. } = *owned;
        drop(reserve);
        let own = Own { child: &keeper.process, claim: Some(&claim), held: None };
        roll_back(root.at(&self.id), record, Some(own), why)
    }

    pub fn id(&self) -> &BoxId {
        &self.id
    }

    /// Defaults that this host cannot enforce, one sentence each.
    pub fn notes(&self) -> &[String] {
        self.owned.as_ref().map_or(&[], |owned| &owned.notes)
    }

    /// Returns the host's ends of the standard streams that were not taken.
    pub fn its_streams(&self) -> &Streams {
        &self.streams
    }

    /// Takes the host's ends of the standard streams. A second call returns none.
    pub fn streams(&mut self) -> Streams {
        std::mem::take(&mut self.streams)
    }

    /// Readable (or hung up) when [`Self::next_event`] returns something.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Returns the next event without waiting. `Ended` or `Failed` is the last one.
    pub fn next_event(&mut self) -> Option<Event> {
        if self.over {
            return None;
        }
        let event = match self.receive() {
            Received::Nothing => return None,
            Received::Message(Report::ScratchFull) => {
                self.observed.scratch_full = true;
                return self.next_event();
            }
            Received::Message(Report::HomeEmpty) => {
                self.observed.home_empty = true;
                return self.next_event();
            }
            Received::Message(report) => self.event(report),
            Received::Closed => self.birth_failure().map_or_else(|| self.lost(), Event::Failed),
        };
        match &event {
            Event::Started => {
                self.deadline_ns = self.observed.timeout.map(from_now).or(self.deadline_ns);
                // When its command has ended, the keeper and what ends with it are gone.
                self.look_for_receipt();
                self.record_boot();
            }
            Event::Terminal(_) => {}
            Event::Ended(end) => (self.over, self.end) = (true, self.end.or(Some(*end))),
            Event::Failed(error) => {
                (self.over, self.observed.failure) = (true, Some(Failure::from(error)))
            }
        }
        Some(event)
    }

    /// Writes to the record that the machine of this box has booted. If that fails, the box is shown as
    /// one whose machine boots until it is detached.
    pub(crate) fn record_boot(&mut self) {
        if let Some(owned) = self.owned.as_mut().filter(|it| it.record.lines.machine.is_some()) {
            owned.record.add(Line::Booted { at_ns: boot_ns() }).ok();
        }
    }

    /// Waits until the command runs. An error says why it does not.
    pub fn wait_started(&mut self) -> Result<(), Error> {
        let until = Instant::now() + self.start_within();
        loop {
            match self.next_event() {
                Some(Event::Terminal(_)) => {}
                Some(Event::Failed(error)) => return Err(error),
                Some(Event::Started) => return Ok(()),
                Some(Event::Ended(end)) => {
                    if end.cause != Cause::KeeperLost {
                        return Ok(());
                    }
                    let message = format!("box {} ended before the command was started", self.id);
                    return Err(Error::conflict(message).with_hint(Hint::SeeHowItEnded));
                }
                None => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(failure::started_late(self.start_within()));
                    }
                    let mut fds = [PollFd::from_borrowed_fd(self.events_fd(), PollFlags::IN)];
                    // After an interrupted wait the loop looks again.
                    poll(&mut fds, Some(&timespec(left))).ok();
                }
            }
        }
    }

    /// Returns the next report of the keeper without waiting.
    pub(crate) fn receive(&mut self) -> Received<Report> {
        let received = self.channel.receive(REPORT_BYTES_MAX);
        if let (Received::Message(_), Some(owned)) = (&received, &mut self.owned) {
            owned.keeper.has_executed();
        }
        received
    }

    /// Returns the event for a report. A report that does not belong into a session comes from a
    /// keeper that cannot be trusted, which counts as lost.
    pub(crate) fn event(&mut self, report: Report) -> Event {
        match report {
            Report::Started => Event::Started,
            Report::Terminal => {
                let master = self.channel.take_passed().pop().filter(is_terminal_master);
                master.map_or_else(|| self.lost(), Event::Terminal)
            }
            Report::Ended(end) => Event::Ended(end),
            Report::SetupFailed { step, subject, errno } => {
                Event::Failed(failure::setup(step, &subject, errno, self.observed.boot_within))
            }
            Report::LaunchFailed { step, errno } => {
                let subject = LaunchSubject {
                    command: self.command.as_ref(),
                    workdir: self.workdir.as_deref(),
                };
                Event::Failed(failure::launch(step, errno, subject))
            }
            Report::Refused(refusal) => Event::Failed(link::refused(&self.id, refusal)),
            Report::Detached
            | Report::Done
            | Report::Usage(_)
            | Report::Input { .. }
            | Report::ScratchFull
            | Report::HomeEmpty
            | Report::MachineUsage { .. } => self.lost(),
        }
    }

    /// The keeper is gone and did not report how the command ended. If another tare process
    /// killed it, the record says why.
    fn lost(&mut self) -> Event {
        let killed = self.owned.as_mut().and_then(|owned| {
            let lines = owned.record.lines_now();
            let why = lines.ending?.why;
            // The command that killed the box may want its receipt.
            owned.receipt = WantedReceipt::Wanted(lines.held.unwrap_or_default());
            Some(why.cause())
        });
        Event::Ended(End::killed(killed.unwrap_or(Cause::KeeperLost)))
    }

    /// Returns why the process that was to become the keeper failed, if it did.
    pub(crate) fn birth_failure(&self) -> Option<Error> {
        let (step, error) = self.owned.as_ref()?.keeper.failure()?;
        Some(failure::birth(step, error))
    }

    /// Returns the time until the keeper is late with the timeout, for example because it hangs in a
    /// file system that does not answer.
    pub fn overdue_in(&self) -> Option<Duration> {
        let deadline = Duration::from_nanos(self.deadline_ns?);
        Some(
            (deadline + GRACE + self.observed.machine_grace)
                .saturating_sub(Duration::from_nanos(boot_ns())),
        )
    }

    /// Sends a signal to the process.
    pub fn signal(&mut self, signal: i32) -> Result<(), Error> {
        self.observed.passed_signal = Some((signal, boot_ns()));
        self.channel
            .send(&Request::Signal(signal), REQUEST_BYTES_MAX, &[])
            .context(|| format!("cannot pass signal {signal} to box {}", self.id))
    }

    /// Kills the process and every process that it started. A run's box ends as a whole. The caller
    /// still calls [`Self::end`], which returns this end, unless the process ended before.
    pub fn kill(&mut self, end: End) {
        self.end.get_or_insert(end);
        match &self.owned {
            // If this fails, `end` fails in the same way and reports it.
            Some(owned) => drop(owned.keeper.process.kill()),
            None => self.channel.hang_up(),
        }
    }

    /// Kills the process because its client cannot go on, unless it has ended or could not be started.
    pub fn give_up(&mut self, why: &Error) {
        if !self.over {
            self.kill(End::killed(Cause::Killed));
            self.observed.failure.get_or_insert_with(|| why.into());
        }
    }

    /// Returns the keeper of this session's box.
    pub fn keeper(&self) -> Result<Process, Error> {
        let doing = || format!("cannot watch the keeper of box {}", self.id);
        match &self.owned {
            Some(owned) => owned.keeper.process.try_clone().context(doing),
            None => Err(Error::failed(doing()).caused_by("the session is an exec")),
        }
    }

    /// Returns whether the keeper of this session's box was seen dead. Needs no descriptor and does not
    /// wait.
    pub fn is_keeper_dead(&self) -> bool {
        let keeper = self.owned.as_ref().map(|owned| &owned.keeper.process);
        keeper.is_some_and(|keeper| matches!(keeper.wait_dead(Duration::ZERO), Ok(true)))
    }

    /// Returns how the process has ended, without a check of the box's memory limit.
    pub fn seen_end(&self) -> End {
        self.end.unwrap_or(End::killed(Cause::StartFailed))
    }

    /// Ends the session, and returns how its process ended. For a run, returns after the box was
    /// seen empty and is removed, with the receipt if one was wanted.
    pub fn end(&mut self) -> Result<(End, Option<Receipt>), Error> {
        let end = self.try_end(OWN_WITHIN)?;
        Ok((end, self.take_receipt()))
    }

    /// Ends the session within this time. After an error it can be called again.
    pub fn try_end(&mut self, within: Duration) -> Result<End, Error> {
        let ended = match self.observed.ended.take() {
            Some(ended) => ended,
            None => self.observe_end(),
        };
        let ended = self.observed.ended.insert(ended);
        let Some(owned) = &mut self.owned else {
            self.channel.hang_up();
            return Ok(ended.end);
        };
        drop(owned.reserve.take());
        let held = match &owned.receipt {
            WantedReceipt::Wanted(held) => Some(held),
            WantedReceipt::No | WantedReceipt::Made(_) => None,
        };
        let own = Some(Own { child: &owned.keeper.process, claim: Some(&owned.claim), held });
        let (reason, leave) = (Reason::ByCreator, Leave::Nothing);
        let order = Order { reason, leave, within, own, ended: Some(ended) };
        let receipt = tear_down(owned.root.at(&self.id), &mut owned.record, order)?;
        owned.receipt = receipt.map_or(WantedReceipt::No, WantedReceipt::Made);
        Ok(ended.end)
    }

    /// Adds what the owner of a run knows about its end.
    pub fn conclude(&mut self, mut conclusion: Conclusion) {
        let failure = conclusion.failure.take();
        self.observed.failure = self.observed.failure.take().or(failure);
        self.end = conclusion.end.or(self.end);
        self.observed.scratch_full |= conclusion.scratch_full;
        self.observed.conclusion = conclusion;
        if self.end.is_some_and(|end| end.cause == Cause::KeeperLost)
            && let Event::Ended(end) = self.lost()
        {
            self.end = Some(end);
            if end.cause == Cause::KeeperLost {
                self.learn_from_template();
            }
        }
    }

    /// A box that a template made ends with the template's box. If a tare process ended that one, its
    /// record says why.
    fn learn_from_template(&mut self) {
        let template = self.observed.conclusion.template.as_ref();
        let (Some(owned), Some(template)) = (&self.owned, template) else { return };
        let boxes = state_root::boxes(&owned.root).ok();
        let record = boxes.and_then(|boxes| Record::look(boxes.as_fd(), template).ok().flatten());
        let lines = record.as_ref().map(|record| &record.lines);
        if let Some((lines, ending)) = lines.and_then(|it| Some((it, it.ending.as_ref()?))) {
            let end = End::killed(ending.why.cause());
            let asked = asked_for(end, lines.requests.iter());
            (self.end, self.observed.by) = (Some(end), asked.map(|asked| asked.by.clone()));
        }
    }

    /// Returns whether the keeper reported that the scratch space was full at the end of the process.
    pub fn saw_full_scratch(&self) -> bool {
        self.observed.scratch_full
    }

    /// Returns whether the keeper reported that `/work` was empty at the end of the process.
    pub fn saw_empty_home(&self) -> bool {
        self.observed.home_empty
    }

    /// Returns the end with everything that is known about it, once the session is being ended.
    pub fn ended(&self) -> Option<&EndedLine> {
        self.observed.ended.as_ref()
    }

    /// Looks at what the kernel counted, before the cgroups are removed. A success costs no more than
    /// the look at kills for memory.
    fn observe_end(&self) -> EndedLine {
        let end = self.seen_end();
        let mut evidence = match &self.owned {
            Some(owned) if end.is_success() && owned.cgroups.oom_kills() == 0 => {
                Evidence { oom_kills: Some(0), ..Evidence::default() }
            }
            Some(owned) => cgroup::evidence(owned.root.at(&self.id), &owned.record),
            None if end.is_success() => Evidence::default(),
            None => self.limits.as_deref().map(LimitWatch::evidence).unwrap_or_default(),
        };
        evidence.scratch_full = self.observed.scratch_full;
        let end = end.under(evidence.pressure());
        if let Some(owned) = self.owned.as_ref().filter(|_| !end.is_success()) {
            let Conclusion { timeout, output_bytes_max, stderr, .. } = &self.observed.conclusion;
            let ms = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
            (evidence.timeout_ms, evidence.output_limit_bytes) =
                (timeout.map(ms), *output_bytes_max);
            let keeps = history::settings(&owned.root).stderr;
            evidence.stderr = shown_stderr(stderr).filter(|_| keeps);
        }
        let (by, asked_before) = self.asked_for(end);
        EndedLine { asked_before, ..EndedLine::seen(end, by, evidence) }
            .with_failure(self.observed.failure.clone())
    }

    /// Returns the actor that asked for the act that ended the box of this session in this way, and how
    /// long ago if it was a signal.
    fn asked_for(&self, end: End) -> (Option<Actor>, Option<Duration>) {
        let Some(owned) = self.owned.as_ref().filter(|_| !end.is_success()) else {
            return (None, None);
        };
        if let Some(by) = &self.observed.by {
            return (Some(by.clone()), None);
        }
        let passed = self
            .observed
            .passed_signal
            .filter(|(signal, _)| end.cause == Cause::Signalled && end.signal() == Some(*signal));
        if let Some((_, at_ns)) = passed {
            let before = Duration::from_nanos(boot_ns().saturating_sub(at_ns));
            return (Some(owned.root.creator.clone()), Some(before));
        }
        match end.cause {
            Cause::Stopped | Cause::Killed | Cause::Signalled => {
                let lines = owned.record.lines_now();
                let asked = asked_for(end, lines.requests.iter());
                let before = asked.and_then(|asked| asked.before(boot_ns()));
                (asked.map(|asked| asked.by.clone()), before)
            }
            Cause::ServerStopping => (Some(owned.root.creator.clone()), None),
            Cause::Exited
            | Cause::Timeout
            | Cause::Lease
            | Cause::Memory
            | Cause::OutputLimit
            | Cause::ClientGone
            | Cause::KeeperLost
            | Cause::StartFailed
            | Cause::Pids
            | Cause::ScratchFull
            | Cause::HostRebooted
            | Cause::MachineLost => (None, None),
        }
    }

    /// Makes [`Self::try_end`] keep a receipt of a run's box. Call it before the command begins.
    pub fn want_receipt(&mut self) {
        if let Some(owned) = &mut self.owned {
            owned.receipt = WantedReceipt::Wanted(HeldLine::default());
        }
    }

    /// Looks at what the box holds now, if a receipt is wanted: its command has begun as an exec.
    pub fn look_for_receipt(&mut self) {
        if let Some(owned) = &mut self.owned {
            owned.look(&self.id);
        }
    }

    /// Takes the receipt of a box that has ended, if its owner wanted one.
    pub fn take_receipt(&mut self) -> Option<Receipt> {
        match std::mem::take(&mut self.owned.as_mut()?.receipt) {
            WantedReceipt::Made(receipt) => Some(receipt),
            WantedReceipt::No | WantedReceipt::Wanted(_) => None,
        }
    }
}

/// Returns whether this is the master side of a terminal, which is the device of the multiplexer. A
/// keeper may pass any descriptor.
fn is_terminal_master(fd: &OwnedFd) -> bool {
    let Ok(stat) = fstat(fd) else { return false };
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == (5, 2)
}

/// Reserves as many descriptors as teardown has open at once, so that a process that has used up its
/// descriptors can still end its boxes.
#[derive(Debug)]
pub struct TeardownFds {
    _spare: [OwnedFd; 6],
}

impl TeardownFds {
    pub(crate) fn take() -> std::io::Result<Self> {
        let first = open_null()?;
        let again = || first.try_clone();
        Ok(Self { _spare: [again()?, again()?, again()?, again()?, again()?, first] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminals_master_side_is_taken_for_one() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_terminal_master(&null.into()));
        let master = std::fs::File::open("/dev/ptmx").unwrap();
        assert!(is_terminal_master(&master.into()));
    }
}
