//! The keeper: PID 1 of a box.
//!
//! It makes the box from a plan, waits for the go, starts the command as its first
//! execution, and supervises: it reaps every process that ends, starts what clients ask
//! for over the box's socket, enforces deadlines and, in a detached box, keeps the output
//! and the journal. It cannot outlive its box and its box cannot outlive it: when it
//! exits, the kernel kills every process in its PID namespace. It has no threads.
//!
//! ```text
//! plan ─▶ make ─▶ go ─▶ start ─▶ supervise ─▶ conclude ─▶ exit (and the box with it)
//!           │             │          ├─ the command ended      Ended
//!           │             │          ├─ a deadline passed      Ended
//!      SetupFailed   LaunchFailed    └─ the creator is gone    (no report)
//! ```

mod cgroup;
mod inherited;
pub mod inner;
mod journal;
mod machine;
mod make;
mod output;
mod process;
mod programs;
mod relay;
mod serve;

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use cgroup::Freezer;
use inherited::InheritedFds;
use journal::Journal;
use machine::{Machine, MachineFiles};
use make::files::RewritableFiles;
use make::{Companion, Failing, Failure};
use output::Output;
use process::ExecContext;
use process::clone::WaitingClone;
use rustix::io::Errno;
use serve::Supervisor;
use serve::calls::{memory_bytes, raise_descriptor_limit};
use serve::connections::Connections;
use serve::deadlines::Deadlines;
use tare_control::journal::BoxEvent;
use tare_control::{
    CALL_BYTES_MAX, Cause, Channel, End, Go, MachinePlan, PLAN_BYTES_MAX, Plan, Report, Request,
    Role, SetupStep,
};
use tare_kernel::clock;
use tare_kernel::signals;
use tare_kernel::step::step;

/// The whole life of a keeper. Its process does nothing else.
pub fn main() -> ExitCode {
    let Ok(creator) = inherited::creator() else {
        return ExitCode::FAILURE;
    };
    let mut creator = Channel::new(creator);
    let made = match MadeBox::make(&mut creator) {
        Ok(made) => made,
        Err(failure) => {
            creator.report(&failure.into_report());
            return ExitCode::FAILURE;
        }
    };
    // Without a go, nothing runs: the creator has died or given up.
    let Some(Request::Go(go)) = creator.wait_until(CALL_BYTES_MAX, u64::MAX) else {
        return ExitCode::SUCCESS;
    };
    let Some(mut supervisor) = made.start(creator, *go) else {
        return ExitCode::FAILURE;
    };
    let Some(end) = supervisor.supervise() else {
        return ExitCode::FAILURE;
    };
    supervisor.settle_machine(end);
    conclude(&mut supervisor, end);
    ExitCode::SUCCESS
}

/// A box that is made and waits for its go.
struct MadeBox {
    context: ExecContext,
    journal: Option<Journal>,
    listener: OwnedFd,
    child_signal: OwnedFd,
    freezer: Option<Freezer>,
    has_scratch: bool,
    rewritable: RewritableFiles,
    /// The machine to start.
    machine: Option<(MachinePlan, MachineFiles)>,
    /// The claim on the box's user ids, which the keeper holds until the box has ended.
    uid_lock: OwnedFd,
}

impl MadeBox {
    fn make(creator: &mut Channel) -> Result<Self, Failure> {
        let Some(plan) = creator.wait_until::<Plan>(PLAN_BYTES_MAX, u64::MAX) else {
            return Err(Failure::of(SetupStep::ReadPlan, "", Errno::PIPE));
        };
        clock::set_namespace_offset(plan.clock_offset_ns);
        let mut fds = InheritedFds::new(&plan.roles).failing(SetupStep::ReadPlan, "descriptors")?;
        let cgroup = fds.take(Role::WorkloadCgroup);
        // Before the box is made: no path in the box leads to this file.
        let freezer = cgroup.as_ref().map(|cgroup| Freezer::open(cgroup.as_fd())).transpose();
        let freezer = freezer.failing(SetupStep::ReadPlan, "cgroup.freeze")?;
        let tasks = fds.take(Role::WorkloadTasks);
        let clone = fds.take(Role::Clone);
        let companion = if clone.is_some() { Companion::Clone } else { Companion::None };
        let (rules, rewritable) = make::make_box(&plan, &mut fds, companion)?;
        let clone = clone.map(|socket| WaitingClone::new(socket, rules));
        let mut required = |role| {
            fds.take(role).ok_or_else(|| Failure::of(SetupStep::ReadPlan, "role", Errno::BADF))
        };
        let (journal, output) = match &plan.detached {
            Some(detached) => {
                let journal = Journal::new(required(Role::Journal)?);
                let log = [required(Role::Log(0))?, required(Role::Log(1))?];
                let output = Output::open(detached, log, plan.profile.identity)
                    .failing(SetupStep::Streams, "pipes")?;
                (Some(journal), Some(output))
            }
            None => (None, None),
        };
        // Before the first child is started, so that the keeper misses no child's end.
        let child_signal =
            step("watch children", signals::child_signal).failing(SetupStep::Fork, "signals")?;
        Ok(Self {
            listener: required(Role::Listener)?,
            uid_lock: required(Role::UidLock)?,
            has_scratch: plan.filesystem.is_some() && plan.machine.is_none(),
            machine: match plan.machine {
                Some(plan) => {
                    let kernel = required(Role::Kernel)?;
                    Some((*plan, MachineFiles { kernel, initramfs: required(Role::Initramfs)? }))
                }
                None => None,
            },
            context: ExecContext {
                profile: plan.profile,
                cgroup,
                tasks,
                output,
                clone,
                machine_bytes: plan.in_machine.then(memory_bytes),
            },
            journal,
            child_signal,
            freezer,
            rewritable,
        })
    }

    /// Returns `None` if the command could not be started. The creator has the report.
    fn start(mut self, creator: Channel, go: Go) -> Option<Supervisor> {
        if let Some(claim) = go.claim
            && let Err(failure) = make::claim(claim, &mut self.context.profile, self.rewritable)
        {
            creator.report(&failure.into_report());
            return None;
        }
        if self.machine.is_some() {
            raise_descriptor_limit();
        }
        let machine = self.machine.map(|(plan, files)| Machine::start(plan, files, &self.context));
        let machine = machine.transpose().map_err(|report| creator.report(&report)).ok()?;
        let mut supervisor = Supervisor {
            executions: Vec::new(),
            context: self.context,
            journal: self.journal,
            listener: self.listener,
            child_signal: self.child_signal,
            deadlines: Deadlines {
                timeout_ns: go.deadline_ns,
                lease_ns: go.lease_ns,
                is_detached: false,
                stop_ns: None,
            },
            freezer: self.freezer,
            has_scratch: self.has_scratch,
            connections: Connections::default(),
            machine,
            usage_calls: Vec::new(),
            lost: None,
            is_failed: false,
            _uid_lock: self.uid_lock,
        };
        supervisor.start_command(creator, go.exec).then_some(supervisor)
    }
}

/// Reports to the creator, or writes to the journal, how the box ended.
fn conclude(supervisor: &mut Supervisor, end: End) {
    // The command can end before the creator has detached the box.
    supervisor.await_detachment();
    if end.cause == Cause::ClientGone {
        return supervisor.note(BoxEvent::Abandoned);
    }
    let is_scratch_full = supervisor.is_scratch_full();
    if let Some(creator) = supervisor.creator() {
        if is_scratch_full {
            creator.report(&Report::ScratchFull);
        }
        return creator.report(&Report::Ended(end));
    }
    if is_scratch_full {
        supervisor.note(BoxEvent::ScratchFull);
    }
    if let Some(output) = &mut supervisor.context.output {
        output.collect_last();
    }
    if let Some(journal) = &mut supervisor.journal {
        journal.ended(end);
    }
}
