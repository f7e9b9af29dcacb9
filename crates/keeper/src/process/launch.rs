//! The command: from a fork of the keeper to a program that can do nothing but
//! what the plan says.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid, openat, openat2};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tare_control::{Capabilities, Identity, LaunchStep, Report, SetupStep, Workload};
use tare_kernel::launch::{self, Strings};
use tare_kernel::seccomp::Instruction;
use tare_kernel::step::step;
use tare_kernel::{caps, fds, seccomp};

use crate::make::{Failing, Failure};

/// Why a process did not start.
pub type LaunchFailure = (LaunchStep, io::Error);

/// What becomes descriptors 0, 1 and 2 of a process.
#[derive(Debug)]
pub enum Streams {
    /// The keeper's own, as it was born with them.
    Keepers,
    /// A terminal, which also controls it.
    Terminal(OwnedFd),
    Given([OwnedFd; 3]),
}

/// Everything that a process is born with.
#[derive(Debug)]
pub struct Birth<'a> {
    pub workload: &'a Workload,
    pub streams: Streams,
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// What the child needs, made ready before it exists: it shares the keeper's
/// memory and would leave there whatever it allocates.
struct Command<'a> {
    birth: &'a Birth<'a>,
    argv: Strings,
    env: Strings,
    /// The paths to try, in order.
    candidates: Vec<CString>,
    workdir: CString,
    program: Vec<Instruction>,
}

/// Starts a program; returns once it has executed.
pub fn start(birth: &Birth<'_>) -> Result<Pid, Report> {
    let command = Command::prepare(birth)
        .ok_or_else(|| launch_failed((LaunchStep::Exec, Errno::INVAL.into())))?;
    let mut failure = None;
    let pid = launch::until_exec(birth.cgroup, || failure = Some(command.execute()))
        .failing(SetupStep::Fork, "command")
        .map_err(Failure::into_report)?;
    match failure {
        Some(failure) => Err(launch_failed(failure)),
        None => Ok(pid),
    }
}

/// Starts a part of tare itself, as the workload would be: it has nothing else
/// of the keeper's than a copy of its memory.
pub fn start_own(birth: &Birth<'_>, own: impl FnOnce() -> u8) -> Result<Pid, Report> {
    let program = instructions(birth.workload);
    let workdir = workdir(birth.workload)
        .ok_or_else(|| launch_failed((LaunchStep::WorkingDirectory, Errno::INVAL.into())))?;
    launch::forked(birth.cgroup, || {
        let confined = confine(birth, &workdir, &program)
            .and_then(|()| fds::close_from(3).map_err(|error| (LaunchStep::Session, error)));
        match confined {
            Ok(()) => own(),
            Err(_) => CANNOT_CONFINE,
        }
    })
    .failing(SetupStep::Fork, "copy")
    .map_err(Failure::into_report)
}

/// The exit code of a part of tare that must not run unconfined.
const CANNOT_CONFINE: u8 = 125;

/// What is said about it.
pub fn launch_failed((step, error): LaunchFailure) -> Report {
    let errno = error.raw_os_error().unwrap_or(0);
    Report::LaunchFailed { step, errno }
}

/// End of file must reach whoever reads the command's output when the command
/// closes it, not when the keeper ends.
pub fn let_go_of_streams() -> Result<(), Failure> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let let_go = || {
        let null = openat(CWD, c"/dev/null", flags, Mode::empty())?;
        fds::set_stdio([null.as_fd(); 3])
    };
    step("streams let go of", let_go).failing(SetupStep::Fork, "/dev/null")
}

impl<'a> Command<'a> {
    /// `None` for a string with a NUL, which the creator has refused before.
    fn prepare(birth: &'a Birth<'a>) -> Option<Self> {
        let argv = strings(&birth.workload.argv)?;
        let env = strings(&birth.workload.env)?;
        let candidates = candidates(argv.first()?, &env);
        Some(Self {
            birth,
            candidates,
            workdir: workdir(birth.workload)?,
            program: instructions(birth.workload),
            argv: Strings::new(argv),
            env: Strings::new(env),
        })
    }

    /// In the child; returns only when something failed.
    fn execute(&self) -> LaunchFailure {
        match confine(self.birth, &self.workdir, &self.program) {
            Ok(()) => (LaunchStep::Exec, self.become_program()),
            Err(failure) => failure,
        }
    }

    /// The error is the most telling one: found but not executable before not
    /// found.
    fn become_program(&self) -> io::Error {
        let mut told = io::Error::from(Errno::NOENT);
        for candidate in &self.candidates {
            let error = launch::execute(candidate, &self.argv, &self.env);
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT | Errno::NOTDIR) => {}
                Some(Errno::ACCESS) => told = error,
                _ => return error,
            }
        }
        told
    }
}

/// In the child: from here on it can do nothing but what the plan says.
fn confine(
    birth: &Birth<'_>,
    workdir: &CStr,
    program: &[Instruction],
) -> Result<(), LaunchFailure> {
    let at = |step: LaunchStep| move |error: io::Error| (step, error);
    new_session(&birth.streams).map_err(at(LaunchStep::Session))?;
    set_limits(birth.workload).map_err(at(LaunchStep::Limits))?;
    give_up_privileges(birth.workload).map_err(at(LaunchStep::Credentials))?;
    enter_directory(workdir).map_err(at(LaunchStep::WorkingDirectory))?;
    filter(birth.workload, program).map_err(at(LaunchStep::Seccomp))
}

fn filter(workload: &Workload, program: &[Instruction]) -> io::Result<()> {
    if workload.no_new_privs {
        rustix::thread::set_no_new_privs(true)?;
    }
    match program {
        [] => Ok(()),
        program => seccomp::install(program),
    }
}

fn instructions(workload: &Workload) -> Vec<Instruction> {
    let instruction = |one: &tare_control::BpfInstruction| Instruction {
        code: one.code,
        jt: one.jump_true,
        jf: one.jump_false,
        k: one.k,
    };
    workload.seccomp.iter().map(instruction).collect()
}

fn new_session(streams: &Streams) -> io::Result<()> {
    launch::reset_signals();
    rustix::process::setsid()?;
    match streams {
        Streams::Keepers => {}
        Streams::Terminal(terminal) => {
            launch::control_terminal(terminal.as_fd())?;
            fds::set_stdio([terminal.as_fd(); 3])?;
        }
        Streams::Given(given) => fds::set_stdio(given.each_ref().map(AsFd::as_fd))?,
    }
    fds::close_on_exec_from(3)?;
    Ok(())
}

fn set_limits(workload: &Workload) -> io::Result<()> {
    for limit in &workload.limits {
        launch::limit_resource(limit.resource, limit.soft, limit.hard)?;
    }
    Ok(())
}

fn give_up_privileges(workload: &Workload) -> io::Result<()> {
    let kept = match workload.capabilities {
        Capabilities::Untouched => return Ok(()),
        Capabilities::None => CapabilitySet::empty(),
        Capabilities::BoxRoot => caps::BOX_ROOT,
    };
    caps::bound_to(kept)?;
    if workload.capabilities == Capabilities::None {
        caps::lock_out_root()?;
    }
    if let Some(identity) = workload.identity {
        assume(identity)?;
    }
    caps::set_to(kept)
}

fn assume(identity: Identity) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    match set_thread_groups(&[]) {
        // A single-id map denies it; the groups left are unmapped there.
        Ok(()) | Err(Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// As the user that the command runs as; magic links would lead out of the box.
/// A C string: of anything else that is long a copy would be made, and a child
/// that is killed meanwhile would have the lock of the keeper's memory.
fn enter_directory(workdir: &CStr) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat2(CWD, workdir, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
    Ok(rustix::process::fchdir(directory)?)
}

/// `None` as above.
fn workdir(workload: &Workload) -> Option<CString> {
    CString::new(workload.workdir.as_slice()).ok()
}

/// As C strings.
fn strings(bytes: &[Vec<u8>]) -> Option<Vec<CString>> {
    bytes.iter().map(|one| CString::new(one.as_slice()).ok()).collect()
}

/// Where the box's own PATH says that the command may be.
fn candidates(name: &CStr, env: &[CString]) -> Vec<CString> {
    let name = name.to_bytes();
    if name.contains(&b'/') {
        return CString::new(name).into_iter().collect();
    }
    let path = env
        .iter()
        .find_map(|one| one.to_bytes().strip_prefix(b"PATH="))
        .unwrap_or(b"/usr/bin:/bin");
    path.split(|byte| *byte == b':')
        .filter(|directory| !directory.is_empty())
        .filter_map(|directory| CString::new([directory, b"/", name].concat()).ok())
        .collect()
}
