//! The keeper: PID 1 of a box.
//!
//! It makes the box from a plan, starts the command, and supervises: it reaps
//! whoever ends, starts what is asked for over the box's socket, keeps deadlines
//! and, for a box that outlives its creator, the output and the account of its
//! life. It cannot outlive its box and its box cannot outlive it: when it exits,
//! for whatever reason, the kernel kills everyone in its PID namespace. It has no
//! threads, and nothing in memory but its own needs.
//!
//! ```text
//! plan ─▶ setup ─▶ go ─▶ fork ─▶ supervise ─▶ exit (and the box with it)
//!           │             │         ├─ the command ended      Exited
//!           │             │         ├─ a deadline passed      TimedOut
//!      SetupFailed        │         └─ the creator is gone    (nobody to tell)
//!                     LaunchFailed
//! ```

mod cgroup;
mod detached;
mod inherited;
mod journal;
mod make;
mod output;
mod process;
mod programs;
mod serve;

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use cgroup::Freezer;
use detached::Detached;
use inherited::{Inherited, Planned};
use make::terminal::Pair;
use make::{Failing, Failure};
use process::launch::{Birth, Streams};
use rustix::io::Errno;
use serve::connections::Callers;
use serve::{Deadlines, End, Supervisor};
use tare_control::events::Happening;
use tare_control::{
    Channel, EndedBy, PLAN_BYTES_MAX, Plan, REPORT_BYTES_MAX, REQUEST_BYTES_MAX, Report, Request,
    SetupStep,
};
use tare_kernel::clock::boot_ns;
use tare_kernel::signals;
use tare_kernel::step::step;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 256;
/// The `wait` status of a process that SIGKILL ended.
const KILLED: i32 = 9;

/// A keeper's whole life; its process does nothing else.
pub fn main() -> ExitCode {
    // The first look at the clock reads `/proc`, which is the host's until the box is made.
    let _since_boot = boot_ns();
    let Ok(inherited) = Inherited::take() else {
        return ExitCode::FAILURE;
    };
    let _claim = inherited.claim;
    let mut link = Channel::new(inherited.link);
    let supervisor = match prepare(&mut link, inherited.socket) {
        Ok(Some(ready)) => ready.start(link),
        Ok(None) => return ExitCode::SUCCESS,
        Err(failure) => {
            link.report(&failure.into_report());
            return ExitCode::FAILURE;
        }
    };
    match supervisor {
        Some(mut supervisor) => {
            let end = supervisor.supervise();
            conclude(&mut supervisor, end);
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}

/// A box that is made and may start its command.
struct Ready {
    plan: Plan,
    socket: OwnedFd,
    child_signal: OwnedFd,
    cgroup: Option<OwnedFd>,
    freezer: Option<Freezer>,
    detached: Option<Detached>,
    streams: Streams,
}

/// Makes the box and waits for its go; `None` when the creator is gone.
fn prepare(link: &mut Channel, socket: OwnedFd) -> Result<Option<Ready>, Failure> {
    let Some(plan) = link.wait_until::<Plan>(PLAN_BYTES_MAX, u64::MAX) else {
        return Err(Failure::of(SetupStep::ReadPlan, "", Errno::PIPE));
    };
    let mut planned = Planned::new();
    let cgroup = if plan.workload_cgroup {
        Some(planned.take().failing(SetupStep::ReadPlan, "cgroup")?)
    } else {
        None
    };
    // The box that is made next has no way to it.
    let freezer = match &cgroup {
        Some(cgroup) => {
            let opened = Freezer::open(cgroup.as_fd()).map_err(std::io::Error::from);
            Some(opened.failing(SetupStep::ReadPlan, "cgroup.freeze")?)
        }
        None => None,
    };
    let files = match plan.detached {
        Some(_) => Some(detached::Files::take(&mut planned)?),
        None => None,
    };
    let terminal = make::make_box(&plan, &mut planned)?;
    let (detached, streams) = streams(&plan, files, terminal, link)?;
    // Anything but its go ends a command before it began.
    if link.wait_until::<Request>(REQUEST_BYTES_MAX, u64::MAX) != Some(Request::Go) {
        return Ok(None);
    }
    // Before there is a child, so that no end of one is missed.
    let child_signal =
        step("children listened to", signals::child_signal).failing(SetupStep::Fork, "signals")?;
    Ok(Some(Ready { plan, socket, child_signal, cgroup, freezer, detached, streams }))
}

/// What the command's standard streams are, and who has their other ends: the
/// creator, or the keeper of a detached box.
fn streams(
    plan: &Plan,
    files: Option<detached::Files>,
    terminal: Option<Pair>,
    link: &Channel,
) -> Result<(Option<Detached>, Streams), Failure> {
    let owner = plan.workload.identity;
    match (&plan.detached, files, terminal) {
        (Some(detached), Some(files), terminal) => {
            let (detached, streams) = Detached::open(detached, files, terminal, owner)?;
            Ok((Some(detached), streams))
        }
        (None, _, Some(Pair { master, slave })) | (_, None, Some(Pair { master, slave })) => {
            link.send(&Report::Terminal, REPORT_BYTES_MAX, &[master.as_fd()])
                .failing(SetupStep::Terminal, "hand-over")?;
            Ok((None, Streams::Terminal(slave)))
        }
        (None, _, None) | (_, None, None) => Ok((None, Streams::Keepers)),
    }
}

impl Ready {
    /// Starts the command; `None` when that failed and was said.
    fn start(mut self, link: Channel) -> Option<Supervisor> {
        let birth = Birth {
            workload: &self.plan.workload,
            streams: self.streams,
            cgroup: self.cgroup.as_ref().map(AsFd::as_fd),
        };
        // Before the command runs: a caller that has seen its output can call the box.
        let listening = step("socket listened on", || rustix::net::listen(&self.socket, BACKLOG));
        let listening = listening.failing(SetupStep::Streams, "socket");
        let begun = listening.map_err(Failure::into_report).and_then(|()| {
            match self.plan.workload.argv.as_slice() {
                [] => Ok(None),
                [..] => process::launch::start(&birth).map(Some),
            }
        });
        let started = begun.and_then(|command| {
            process::launch::let_go_of_streams().map_err(Failure::into_report)?;
            Ok(command)
        });
        drop(birth);
        let command = match started {
            Ok(command) => command,
            Err(report) => {
                link.report(&report);
                return None;
            }
        };
        link.report(&Report::Started);
        if let (Some(detached), Some(_)) = (&mut self.detached, command) {
            detached.life.note(Happening::Started);
        }
        Some(Supervisor {
            command,
            link: Some(link),
            listener: self.socket,
            child_signal: self.child_signal,
            deadlines: Deadlines {
                timeout_ns: self.plan.deadline_ns,
                lease_ns: self.plan.detached.and_then(|detached| detached.lease_ns),
                stop_ns: None,
            },
            template: self.plan.workload,
            cgroup: self.cgroup,
            freezer: self.freezer,
            has_scratch: self.plan.filesystem.is_some(),
            detached: self.detached,
            callers: Callers::default(),
            executions: Vec::new(),
        })
    }
}

/// Says how the box ended to whoever is to know.
fn conclude(supervisor: &mut Supervisor, end: End) {
    // A command can be faster than the creator of its box.
    supervisor.await_detachment();
    let by = match (end, supervisor.is_stopping()) {
        (End::Abandoned, _) => {
            if let Some(detached) = &mut supervisor.detached {
                detached.life.note(Happening::Abandoned);
            }
            return;
        }
        (End::Command(_), false) => EndedBy::Command,
        (End::Command(_), true) => EndedBy::Stop,
        (End::Limit(by), _) => by,
    };
    let wait_status = match end {
        End::Command(wait_status) => wait_status,
        End::Limit(_) | End::Abandoned => KILLED,
    };
    match (&supervisor.link, &mut supervisor.detached) {
        (Some(link), _) => link.report(&match by {
            EndedBy::Timeout | EndedBy::Lease => Report::TimedOut,
            EndedBy::Command | EndedBy::Stop | EndedBy::Output | EndedBy::Kill => {
                Report::Exited { wait_status }
            }
        }),
        (None, Some(detached)) => {
            detached.output.collect_last();
            detached.life.exited(wait_status, by);
            let happened = match (end, supervisor.command) {
                (End::Limit(by), _) => Some(Happening::Killed { by }),
                (End::Command(_), None) => None,
                (End::Command(_) | End::Abandoned, _) => {
                    Some(Happening::CommandEnded { wait_status })
                }
            };
            happened.into_iter().for_each(|one| detached.life.note(one));
        }
        (None, None) => {}
    }
}
