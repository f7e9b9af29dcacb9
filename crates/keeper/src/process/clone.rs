//! The clone of a template: the second process of its box, made with the keeper.
//!
//! It runs the native part of its template (`template/native.rs` of `kernel`) until it has confined itself,
//! in the order of `launch::confine`, and has entered a Landlock domain of its own. Everything that it needs
//! for that is in one message of the keeper.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use tare_control::{LaunchStep, Profile, Refusal, Report};
use tare_kernel::clock::timespec;
use tare_kernel::fds;
use tare_kernel::landlock::Ruleset;
use tare_kernel::template::{ConfineHead, ResourceLimit};

use crate::output::Streams;
use crate::process::launch::{Launch, LaunchFailure, identity, launch_failed, workdir};

/// The first process that PID 1 of a namespace makes.
const PID: Pid = Pid::from_raw(2).expect("2 is not 0");
/// How long a clone may take to confine itself. A keeper that waits does not enforce its deadlines.
const CONFINED_WITHIN: Duration = Duration::from_secs(5);

/// A clone that is not confined yet.
#[derive(Debug)]
pub struct WaitingClone {
    socket: OwnedFd,
    /// For its own Landlock domain.
    rules: Option<Ruleset>,
}

impl WaitingClone {
    pub fn new(socket: OwnedFd, rules: Option<Ruleset>) -> Self {
        Self { socket, rules }
    }

    /// Lets the clone confine itself and take its streams. Returns when it has.
    pub fn start(self, launch: &Launch<'_>) -> Result<Pid, Report> {
        let Streams::Given(streams) = &launch.streams else {
            return Err(Report::Refused(Refusal::Malformed));
        };
        let mut passed: Vec<BorrowedFd<'_>> = streams.iter().map(AsFd::as_fd).collect();
        passed.extend(self.rules.as_ref().map(AsFd::as_fd));
        let confined = message(launch).and_then(|message| {
            if let Some(tasks) = launch.tasks {
                rustix::io::write(tasks, PID.as_raw_nonzero().to_string().as_bytes())?;
            }
            fds::send_with(self.socket.as_fd(), &message, &passed)?;
            self.await_answer()
        });
        confined
            .map(|()| PID)
            .map_err(|error| -> LaunchFailure { (LaunchStep::Credentials, error) })
            .map_err(launch_failed)
    }

    /// The answer is an error number, and 0 for success.
    fn await_answer(&self) -> io::Result<()> {
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut ready, Some(&timespec(CONFINED_WITHIN)))? == 0 {
            return Err(Errno::TIMEDOUT.into());
        }
        let mut answer = [0; 4];
        match fds::receive(self.socket.as_fd(), &mut answer)?.bytes {
            4 => match i32::from_ne_bytes(answer) {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            },
            _ => Err(Errno::PIPE.into()),
        }
    }
}

fn message(launch: &Launch<'_>) -> io::Result<Vec<u8>> {
    let Profile { limits, seccomp, .. } = launch.profile;
    let invalid = || io::Error::from(Errno::INVAL);
    let user = identity(launch.profile, launch.exec).ok_or_else(invalid)?;
    let head = ConfineHead {
        uid: user.uid,
        gid: user.gid,
        limits: limits.len() as u32,
        filter: seccomp.len() as u32,
    };
    let mut message = head.to_bytes();
    for limit in limits {
        let resource = rustix::process::Resource::from(limit.resource) as u64;
        message.extend(ResourceLimit { resource, value: limit.value }.to_bytes());
    }
    for one in seccomp {
        message.extend(one.code.to_ne_bytes());
        message.extend([one.jump_true, one.jump_false]);
        message.extend(one.k.to_ne_bytes());
    }
    message.extend(workdir(launch).ok_or_else(invalid)?.as_bytes_with_nul());
    Ok(message)
}
