//! The machine of a box, seen from outside: its monitor, its console, and the relay to its keeper.
//!
//! ```text
//! Booting ─hello─▶ Starting ─Done─▶ Ready
//!    └───────────────┴───────────────┴──▶ Failed
//! ```
//!
//! In every state, the machine fails if its monitor ends or its port breaks. Before it is ready, it also
//! fails at the deadline of its boot. While it starts, it also fails with the report `SetupFailed`.
//!
//! Data from the machine is untrusted: it can end its box, and nothing else. No function here
//! blocks, except `Machine::sync`, which has a deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::Pid;
use tare_control::port::{Side, ToMachine};
use tare_control::{
    Channel, Exec, ExecStreams, GuestPlan, MachinePlan, PLAN_BYTES_MAX, Program, REPORT_BYTES_MAX,
    Received, Report, SetupStep, encode,
};
use tare_kernel::clock::{boot_ns, timespec};
use tare_kernel::fds::open_null;
use tare_kernel::launch::PLACED_BELOW;

use crate::make::{Failing, Failure};
use crate::output::Streams;
use crate::process::ExecContext;
use crate::process::launch::{self, Launch};
use crate::relay::{Relay, RelayError};

/// How much of the console is kept: the last bytes.
const CONSOLE_BYTES: usize = 2 << 10;
const CONSOLE_READ_BYTES: usize = 16 << 10;
/// The most reads of the console in one turn.
const CONSOLE_ROUNDS_MAX: usize = 8;
/// How long a machine may take to write its files to the volumes at its end.
const SYNC_WITHIN: Duration = Duration::from_secs(10);

/// The kernel and the first files of a machine.
#[derive(Debug)]
pub struct MachineFiles {
    pub kernel: OwnedFd,
    pub initramfs: OwnedFd,
}

/// A monitor that was started, and what the outer keeper knows about its machine.
#[derive(Debug)]
pub struct Machine {
    monitor: Pid,
    relay: Relay,
    console: Console,
    /// Where the monitor takes commands. Its answers are read and dropped, so that it never blocks.
    commands: Console,
    memory_bytes: u64,
    set_memory: String,
    /// It can write to a volume.
    has_writable_share: bool,
    /// The connection to the first process of the machine.
    own: Option<Channel>,
    /// How many requests over `own` it has not answered yet.
    unanswered: u32,
    stage: BootStage,
    boot_until_ns: u64,
}

#[derive(Debug)]
enum BootStage {
    Booting(Box<GuestPlan>),
    Starting,
    Ready,
    /// The box ends with the machine. `errno` is the reason.
    Failed {
        errno: i32,
    },
}

impl Machine {
    /// Starts the monitor, confined like any workload.
    pub fn start(
        plan: MachinePlan,
        files: MachineFiles,
        context: &ExecContext,
    ) -> Result<Self, Report> {
        let streams = |error: io::Error| {
            Failure::of(SetupStep::Streams, "machine", errno(&error)).into_report()
        };
        let MachinePlan { monitor, boot_ns: boot_within_ns, memory_bytes, set_memory, guest } =
            plan;
        let (port, monitors_port) = UnixStream::pair().map_err(streams)?;
        let (console, monitors_console) = UnixStream::pair().map_err(streams)?;
        let (commands, monitors_commands) = UnixStream::pair().map_err(streams)?;
        for own in [&console, &commands] {
            own.set_nonblocking(true).map_err(streams)?;
        }
        let console_fds = [&monitors_console, &monitors_console].map(|it| it.try_clone());
        let [stdout, stderr] = console_fds.map(|it| it.map(OwnedFd::from));
        let exec = Exec {
            program: Program::Command(monitor.clone()),
            env: Vec::new(),
            workdir: None,
            identity: None,
            streams: ExecStreams::Passed,
            timeout_ns: None,
        };
        // In the order of `MonitorFd`.
        let given = [
            monitors_port.as_fd(),
            monitors_console.as_fd(),
            files.kernel.as_fd(),
            files.initramfs.as_fd(),
            monitors_commands.as_fd(),
        ];
        // Those that are placed must not overwrite one that is still needed.
        let out_of_the_way = |fd: BorrowedFd<'_>| fcntl_dupfd_cloexec(fd, PLACED_BELOW);
        let given: Result<Vec<OwnedFd>, Errno> = given.into_iter().map(out_of_the_way).collect();
        let given = given.failing(SetupStep::Streams, "machine").map_err(Failure::into_report)?;
        let tasks = context.tasks.as_ref().map(|tasks| out_of_the_way(tasks.as_fd())).transpose();
        let tasks = tasks.failing(SetupStep::Streams, "machine").map_err(Failure::into_report)?;
        let passed: Vec<BorrowedFd<'_>> = given.iter().map(AsFd::as_fd).collect();
        let null = open_null().failing(SetupStep::Streams, "null").map_err(Failure::into_report)?;
        let pid = launch::start(
            &Launch {
                profile: &context.profile,
                exec: &exec,
                streams: Streams::Given([null, stdout.map_err(streams)?, stderr.map_err(streams)?]),
                cgroup: context.cgroup.as_ref().map(AsFd::as_fd),
                tasks: tasks.as_ref().map(AsFd::as_fd),
                passed: &passed,
            },
            &monitor,
        )
        .map_err(not_started)?;
        Ok(Self {
            monitor: pid,
            relay: Relay::new(port.into(), Side::Outer).map_err(streams)?,
            console: Console { fd: Some(console.into()), last: Vec::new() },
            commands: Console { fd: Some(commands.into()), last: Vec::new() },
            memory_bytes,
            set_memory,
            has_writable_share: guest.trees.iter().any(|tree| tree.writable),
            own: None,
            unanswered: 0,
            stage: BootStage::Booting(Box::new(guest)),
            boot_until_ns: boot_ns().saturating_add(boot_within_ns),
        })
    }

    pub fn is_monitor(&self, pid: Pid) -> bool {
        self.monitor == pid
    }

    /// Notes that the monitor has ended, and with it the machine.
    pub fn ended(&mut self) {
        self.fail(Errno::CHILD);
    }

    /// Notes that the machine has reported the end of a command that it has not started.
    pub fn lied(&mut self) {
        self.fail(Errno::PROTO);
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.stage, BootStage::Ready)
    }

    /// Returns why the box has to end with its machine, as a report for its creator.
    pub fn failure(&mut self) -> Option<Report> {
        let BootStage::Failed { errno } = self.stage else { return None };
        self.console.read();
        let subject = String::from_utf8_lossy(&self.console.last).into_owned();
        Some(Report::SetupFailed { step: SetupStep::Boot, subject, errno })
    }

    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let own = self.own.iter().map(|own| (own.as_fd(), PollFlags::IN));
        let texts = [&self.console, &self.commands].into_iter().filter_map(|it| it.fd.as_ref());
        let texts = texts.map(|fd| (fd.as_fd(), PollFlags::IN));
        self.relay.interests().chain(own).chain(texts)
    }

    /// Returns the time at which the next turn is due.
    pub fn next_ns(&self) -> Option<u64> {
        let boot = match self.stage {
            BootStage::Booting(_) | BootStage::Starting => Some(self.boot_until_ns),
            BootStage::Ready => None,
            BootStage::Failed { .. } => Some(0),
        };
        let look = self.relay.next_look().map(|it| boot_ns().saturating_add(it.as_nanos() as u64));
        boot.into_iter().chain(look).min()
    }

    /// Does what can be done without waiting.
    pub fn turn(&mut self) {
        self.console.read();
        self.commands.read();
        self.move_bytes();
        match &self.stage {
            BootStage::Booting(_) if self.relay.is_greeted() => self.send_plan(),
            BootStage::Starting => self.read_start(),
            BootStage::Ready => self.read_answers(),
            BootStage::Booting(_) | BootStage::Failed { .. } => {}
        }
        if matches!(self.stage, BootStage::Booting(_) | BootStage::Starting)
            && self.boot_until_ns <= boot_ns()
        {
            self.fail(Errno::TIMEDOUT);
        }
    }

    /// Opens a connection to the machine. The first one leads to its first process, the second is
    /// the creator's socket of its keeper, and all others are clients of that keeper
    /// (`relay/inner.rs`).
    pub fn connect(&mut self, first: &[u8], passed: Vec<OwnedFd>) -> io::Result<Channel> {
        let socket = self.relay.connect(first, passed)?;
        // Sends the first bytes at once.
        self.move_bytes();
        Ok(Channel::new(socket))
    }

    /// Moves bytes that the machine sent before it ended. Returns `false` when there are no more.
    pub fn move_last(&mut self) -> bool {
        self.relay.turn().is_ok()
    }

    /// Waits until the machine has written everything to its volumes, at most until `until_ns` and
    /// for `SYNC_WITHIN`.
    pub fn sync(&mut self, until_ns: u64) {
        if !self.has_writable_share {
            return;
        }
        let within_ns = boot_ns().saturating_add(SYNC_WITHIN.as_nanos() as u64);
        let until_ns = until_ns.min(within_ns);
        self.ask(&ToMachine::Sync);
        loop {
            self.turn();
            let left = Duration::from_nanos(until_ns.saturating_sub(boot_ns()));
            if self.unanswered == 0 || !self.is_ready() || left.is_zero() {
                return;
            }
            let polled = self.interests();
            let mut polled: Vec<_> =
                polled.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
            poll(&mut polled, Some(&timespec(left))).ok();
        }
    }

    /// Sets the clock of the machine after a pause.
    pub fn set_clock(&mut self) {
        self.ask(&ToMachine::SetClock { now_ns: now_ns() });
    }

    /// Sets how many processes the box in the machine may have.
    pub fn set_pids(&mut self, pids: u32) {
        self.ask(&ToMachine::SetPids(pids));
    }

    /// Makes the monitor ask the machine for memory, or give memory back to it. Returns whether the
    /// monitor gets the command.
    pub fn set_memory(&mut self, less_bytes: u64) -> bool {
        let mib = self.memory_bytes.saturating_sub(less_bytes) >> 20;
        let command = self.set_memory.replace("{}", &mib.to_string());
        let sent = self.commands.fd.as_ref().map(|fd| rustix::io::write(fd, command.as_bytes()));
        sent.is_some_and(|sent| sent == Ok(command.len()))
    }

    /// Sends a request to the first process of a machine that is ready. A machine that takes no requests
    /// any more does without.
    fn ask(&mut self, what: &ToMachine) {
        if let (BootStage::Ready, Some(own)) = (&self.stage, &self.own)
            && own.send(what, PLAN_BYTES_MAX, &[]).is_ok()
        {
            self.unanswered += 1;
        }
    }

    /// Reads that requests were carried out.
    fn read_answers(&mut self) {
        while let Some(own) = &mut self.own {
            match own.receive(REPORT_BYTES_MAX) {
                Received::Message(Report::Done) if self.unanswered > 0 => self.unanswered -= 1,
                Received::Nothing => return,
                Received::Message(_) | Received::Closed => {
                    self.own = None;
                    return self.fail(Errno::PROTO);
                }
            }
        }
    }

    fn move_bytes(&mut self) {
        match self.relay.turn() {
            Ok(()) => {}
            Err(RelayError::Gone(_)) => self.fail(Errno::PIPE),
            Err(RelayError::Broken(error)) => {
                self.console.keep(format!("\n{error}\n").as_bytes());
                self.fail(Errno::PROTO);
            }
        }
    }

    fn send_plan(&mut self) {
        let stage = std::mem::replace(&mut self.stage, BootStage::Starting);
        let BootStage::Booting(mut guest) = stage else { return };
        guest.now_ns = now_ns();
        let first = encode(&ToMachine::Start(guest), PLAN_BYTES_MAX).map_err(io::Error::other);
        match first.and_then(|first| self.connect(&first, Vec::new())) {
            Ok(own) => self.own = Some(own),
            Err(_) => self.fail(Errno::PIPE),
        }
    }

    /// Reads whether the keeper in the machine has its plan.
    fn read_start(&mut self) {
        let Some(own) = &mut self.own else { return };
        match own.receive(REPORT_BYTES_MAX) {
            Received::Message(Report::Done) => self.stage = BootStage::Ready,
            Received::Nothing => {}
            Received::Message(Report::SetupFailed { subject, errno, .. }) => {
                self.console.last = subject.into_bytes();
                self.stage = BootStage::Failed { errno };
            }
            Received::Message(_) | Received::Closed => self.fail(Errno::PROTO),
        }
    }

    fn fail(&mut self, why: Errno) {
        if !matches!(self.stage, BootStage::Failed { .. }) {
            self.stage = BootStage::Failed { errno: why.raw_os_error() };
        }
    }
}

/// Turns a failed launch into a failed boot: the monitor did not start. The command of the user is
/// not to blame.
fn not_started(report: Report) -> Report {
    let Report::LaunchFailed { errno, .. } = report else { return report };
    let subject = format!("cannot start it: {}", io::Error::from_raw_os_error(errno));
    Report::SetupFailed { step: SetupStep::Boot, subject, errno }
}

/// Returns the time of the host, in nanoseconds since 1970.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The output of the machine and its monitor, or the answers of the monitor to commands.
#[derive(Debug)]
struct Console {
    /// `None` after its end.
    fd: Option<OwnedFd>,
    last: Vec<u8>,
}

impl Console {
    fn read(&mut self) {
        let mut buffer = [0; CONSOLE_READ_BYTES];
        for _ in 0..CONSOLE_ROUNDS_MAX {
            let Some(fd) = &self.fd else { return };
            match rustix::io::read(fd, &mut buffer) {
                Ok(0) => self.fd = None,
                Ok(length) => self.keep(&buffer[..length]),
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => self.fd = None,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.last.extend_from_slice(bytes);
        let excess = self.last.len().saturating_sub(CONSOLE_BYTES);
        self.last.drain(..excess);
        // The reads are larger than what is kept.
        self.last.shrink_to(CONSOLE_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tare_control::CALL_BYTES_MAX;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        ours.set_nonblocking(true).expect("it is ours");
        (ours, theirs)
    }

    #[test]
    fn a_machine_can_print_without_end_before_it_answers_that_its_files_are_written() {
        let ((port, _monitors_port), (console, mut printed)) = (pair(), pair());
        let ((commands, mut answers), (own, machines)) = (pair(), pair());
        let mut machine = Machine {
            monitor: rustix::process::getpid(),
            relay: Relay::new(port.into(), Side::Outer).expect("a relay"),
            console: Console { fd: Some(console.into()), last: Vec::new() },
            commands: Console { fd: Some(commands.into()), last: Vec::new() },
            memory_bytes: 0,
            set_memory: String::new(),
            has_writable_share: true,
            own: Some(Channel::new(own.into())),
            unanswered: 0,
            stage: BootStage::Ready,
            boot_until_ns: u64::MAX,
        };
        let prints = std::thread::spawn(move || {
            let mut machines = Channel::new(machines.into());
            let asked = machines.wait_until::<ToMachine>(CALL_BYTES_MAX, u64::MAX);
            printed
                .write_all(&[b'x'; 4 << 20])
                .and_then(|()| answers.write_all(&[b'y'; 4 << 20]))?;
            machines.report(&Report::Done);
            io::Result::Ok(asked.is_some())
        });
        machine.sync(u64::MAX);
        assert_eq!(machine.unanswered, 0);
        drop(machine);
        assert!(prints.join().expect("it does not panic").expect("all is read"));
    }
}
