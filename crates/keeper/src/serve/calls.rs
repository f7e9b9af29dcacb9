//! Answers the calls that clients make over the box's socket.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tare_control::journal::BoxEvent;
use tare_control::{
    Call, Channel, Exec, ExecStreams, KeeperUsage, REPORT_BYTES_MAX, Refusal, Report,
};
use tare_kernel::clock::boot_ns;

use crate::cgroup::Freezer;
use crate::machine::Machine;
use crate::process;
use crate::serve::Supervisor;

const SIGTERM: i32 = 15;
/// How many processes a keeper runs for clients at once.
const EXECS_MAX: usize = 256;
/// The descriptors of an exec in a machine: its client, both ends of its connection, its streams.
const DESCRIPTORS_OF_EXEC: u64 = 6;
/// The descriptors that a keeper with a machine needs besides.
const OTHER_DESCRIPTORS: u64 = 128;

impl Supervisor {
    /// Carries out a call and reports. Starts nothing for a client that has hung up.
    pub fn answer(&mut self, channel: Channel, call: Call) {
        if channel.is_hung_up() {
            return;
        }
        let (report, happened) = match call {
            Call::Exec(exec) => return self.execute(channel, exec),
            Call::Signal(signal) => {
                self.signal(signal);
                (Report::Done, Some(BoxEvent::Signalled { signal }))
            }
            Call::Stop { grace_ns } => {
                self.stop(grace_ns);
                let grace_ms = u32::try_from(grace_ns / 1_000_000).unwrap_or(u32::MAX);
                (Report::Done, Some(BoxEvent::StopRequested { grace_ms }))
            }
            Call::Lease { ends_ns } => {
                self.deadlines.lease_ns = ends_ns;
                (Report::Done, None)
            }
            Call::Freeze => (self.freeze(), None),
            Call::Resumed => {
                self.machine.iter_mut().for_each(Machine::set_clock);
                (Report::Done, Some(BoxEvent::Resumed))
            }
            Call::Usage if self.machine.is_some() => return self.ask_for_usage(channel),
            Call::Usage => (self.report_usage(), None),
            Call::Input => return self.hand_over_input(&channel),
            Call::MachineMemory { less_bytes } => {
                (self.of_machine(|machine| machine.set_memory(less_bytes)), None)
            }
            Call::MachinePids(pids) => {
                let set = |machine: &mut Machine| {
                    machine.set_pids(pids);
                    true
                };
                (self.of_machine(set), None)
            }
        };
        // Before the report: a client that has its answer finds the event in the journal.
        happened.into_iter().for_each(|one| self.note(one));
        channel.report(&report);
    }

    fn execute(&mut self, mut channel: Channel, exec: Exec) {
        if self.freezer.as_ref().is_some_and(Freezer::is_frozen) {
            return channel.report(&Report::Refused(Refusal::Paused));
        }
        let running = self.executions.iter().filter(|one| !one.ends_box).count();
        let started = if running < self.execs_max() {
            if self.machine.is_some() {
                return self.execute_in_machine(channel, exec);
            }
            process::start(&mut channel, &exec, &mut self.context, false)
        } else {
            Err(Report::Refused(Refusal::Busy))
        };
        channel.report(started.as_ref().err().unwrap_or(&Report::Started));
        let number = self.journal.as_mut().map_or(0, |journal| {
            let number = journal.count_process();
            journal.note(process::begun(number, &exec.program, started.is_ok()));
            number
        });
        if let Ok(mut execution) = started {
            execution.number = number;
            execution.is_copy = exec.program.is_copy();
            self.executions.push(match exec.streams {
                ExecStreams::Log { .. } => execution,
                ExecStreams::Passed | ExecStreams::Terminal(_) | ExecStreams::Inherited => {
                    execution.for_client(channel)
                }
            });
        }
    }

    /// Returns how many processes this keeper runs for clients at once: fewer in a machine, if it cannot
    /// have as many descriptors.
    fn execs_max(&self) -> usize {
        let descriptors = getrlimit(Resource::Nofile).current.filter(|_| self.machine.is_some());
        let fit = descriptors
            .map_or(u64::MAX, |most| most.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS_OF_EXEC);
        usize::try_from(fit).unwrap_or(usize::MAX).min(EXECS_MAX)
    }

    /// Changes the machine of the box. A box without a machine refuses that.
    fn of_machine(&mut self, change: impl FnOnce(&mut Machine) -> bool) -> Report {
        match self.machine.as_mut().map(change) {
            Some(true) => Report::Done,
            Some(false) => Report::Refused(Refusal::NoMonitor),
            None => Report::Refused(Refusal::Malformed),
        }
    }

    fn stop(&mut self, grace_ns: u64) {
        self.deadlines.stop_at(boot_ns().saturating_add(grace_ns));
        self.signal(SIGTERM);
    }

    /// Writes to the journal first. Without that entry, no command would resume the frozen box.
    fn freeze(&mut self) -> Report {
        let Some(freezer) = &self.freezer else {
            return Report::Refused(Refusal::NoFreezer);
        };
        if self.journal.as_mut().is_some_and(|journal| journal.paused().is_err()) {
            return Report::Refused(Refusal::NoJournal);
        }
        match freezer.freeze() {
            Ok(()) => Report::Done,
            Err(_) => {
                self.note(BoxEvent::Resumed);
                Report::Refused(Refusal::NoFreezer)
            }
        }
    }

    fn report_usage(&self) -> Report {
        let usage = self.usage();
        match self.context.machine_bytes {
            Some(first_bytes) => Report::MachineUsage {
                usage,
                processes: processes(),
                given_back_bytes: first_bytes.saturating_sub(memory_bytes()),
            },
            None => Report::Usage(usage),
        }
    }

    /// Returns the usage that only the keeper can see.
    pub fn usage(&self) -> KeeperUsage {
        let output = self.context.output.as_ref();
        KeeperUsage {
            scratch_bytes: if self.has_scratch { scratch_bytes() } else { None },
            output_bytes: output.map_or(0, |output| output.received_bytes()),
            output_dropped_bytes: output.map_or(0, |output| output.dropped_bytes()),
        }
    }

    /// Returns whether the box has scratch space of its own, and nothing more can be written to it.
    pub fn is_scratch_full(&self) -> bool {
        self.has_scratch && is_scratch_full()
    }

    fn hand_over_input(&self, channel: &Channel) {
        match self.context.output.as_ref().and_then(|output| output.input()) {
            Some((fd, is_terminal)) => {
                channel.send(&Report::Input { is_terminal }, REPORT_BYTES_MAX, &[fd]).ok();
            }
            None => channel.report(&Report::Refused(Refusal::NoInput)),
        }
    }
}

/// Raises the limit on descriptors of a keeper with a machine to what its execs need, if the host allows
/// it.
pub fn raise_descriptor_limit() {
    let needed = EXECS_MAX as u64 * DESCRIPTORS_OF_EXEC + OTHER_DESCRIPTORS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(needed, |most| most.min(needed));
    if current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).ok();
    }
}

/// Returns the number of processes of this box without the keeper.
fn processes() -> u64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &std::ffi::OsStr| name.as_encoded_bytes()[0].is_ascii_digit();
    let count = entries.filter(|entry| is_process(&entry.file_name())).count();
    count.saturating_sub(1) as u64
}

/// Returns how much memory the kernel manages.
pub fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|it| it.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Returns whether there is nothing in the directory of the box's files. Not if it cannot be read.
pub fn is_home_empty() -> bool {
    std::fs::read_dir(HOME).is_ok_and(|mut entries| entries.next().is_none())
}

/// No process of an unprivileged box can put another directory here.
const HOME: &str = "/work";

/// Every box has this directory on its scratch space. A volume can hide `/work` and `/tmp`.
const ON_SCRATCH: &str = "/dev";

/// Returns the used space of the tmpfs that holds everything writable.
fn scratch_bytes() -> Option<u64> {
    let space = rustix::fs::statfs(ON_SCRATCH).ok()?;
    let used = space.f_blocks.saturating_sub(space.f_bfree);
    Some(used.saturating_mul(u64::try_from(space.f_bsize).ok()?))
}

/// Returns whether the scratch space has no free block, or no free inode.
fn is_scratch_full() -> bool {
    // A file system that does not count inodes has 0 of 0.
    let is_full =
        |space: rustix::fs::StatFs| space.f_bfree == 0 || (space.f_files > 0 && space.f_ffree == 0);
    rustix::fs::statfs(ON_SCRATCH).is_ok_and(is_full)
}
