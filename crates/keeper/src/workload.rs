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
use tare_kernel::launch::{self, Vector};
use tare_kernel::seccomp::Instruction;
use tare_kernel::{caps, fds, seccomp};

use crate::setup::{Failing, Failure};

/// When memory runs out, the kernel takes a process of the workload and not the
/// keeper, which would take the box.
const OOM_SCORE: &[u8] = b"500";

/// Why the command did not start.
pub type LaunchFailure = (LaunchStep, io::Error);

/// What the child needs, made ready before it exists: it shares the keeper's
/// memory and would leave there whatever it allocates.
struct Command<'a> {
    workload: &'a Workload,
    terminal: Option<BorrowedFd<'a>>,
    argv: Vec<CString>,
    env: Vec<CString>,
    /// The paths to try, in order.
    candidates: Vec<CString>,
    program: Vec<Instruction>,
}

/// Starts the command on the keeper's own standard streams (or the terminal),
/// which the keeper then lets go of. Returns once it has executed.
pub fn start(workload: &Workload, terminal: Option<OwnedFd>) -> Result<Pid, Report> {
    let terminal = terminal.as_ref().map(AsFd::as_fd);
    let command = Command::prepare(workload, terminal)
        .ok_or_else(|| launch_failed((LaunchStep::Exec, Errno::INVAL.into())))?;
    let mut failure = None;
    let pid = launch::until_exec(|| failure = Some(command.execute()))
        .failing(SetupStep::Fork, "command")
        .map_err(Failure::into_report)?;
    if let Some(failure) = failure {
        return Err(launch_failed(failure));
    }
    let_go_of_streams()
        .failing(SetupStep::Fork, "/dev/null")
        .map_err(Failure::into_report)?;
    Ok(pid)
}

fn launch_failed((step, error): LaunchFailure) -> Report {
    let errno = error.raw_os_error().unwrap_or(0);
    Report::LaunchFailed { step, errno }
}

/// End of file must reach whoever reads the command's output when the command
/// closes it, not when the keeper ends.
fn let_go_of_streams() -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let null = openat(CWD, c"/dev/null", flags, Mode::empty())?;
    (0..=2).try_for_each(|number| fds::place(null.as_fd(), number))
}

impl<'a> Command<'a> {
    /// `None` for a string with a NUL, which the creator has refused before.
    fn prepare(workload: &'a Workload, terminal: Option<BorrowedFd<'a>>) -> Option<Self> {
        let argv = strings(&workload.argv)?;
        let env = strings(&workload.env)?;
        let candidates = candidates(argv.first()?, &env);
        let program = workload.seccomp.iter().map(|instruction| Instruction {
            code: instruction.code,
            jt: instruction.jump_true,
            jf: instruction.jump_false,
            k: instruction.k,
        });
        Some(Self {
            workload,
            terminal,
            candidates,
            program: program.collect(),
            argv,
            env,
        })
    }

    /// In the child; returns only when something failed.
    fn execute(&self) -> LaunchFailure {
        match self.confine() {
            Ok(()) => (LaunchStep::Exec, self.become_program()),
            Err(failure) => failure,
        }
    }

    fn confine(&self) -> Result<(), LaunchFailure> {
        let at = |step: LaunchStep| move |error: io::Error| (step, error);
        new_session(self.terminal).map_err(at(LaunchStep::Session))?;
        set_limits(self.workload).map_err(at(LaunchStep::Limits))?;
        give_up_privileges(self.workload).map_err(at(LaunchStep::Credentials))?;
        enter_directory(self.workload).map_err(at(LaunchStep::WorkingDirectory))?;
        self.filter().map_err(at(LaunchStep::Seccomp))
    }

    fn filter(&self) -> io::Result<()> {
        if self.workload.no_new_privs {
            rustix::thread::set_no_new_privs(true)?;
        }
        match self.program.as_slice() {
            [] => Ok(()),
            program => seccomp::install(program),
        }
    }

    /// The error is the most telling one: found but not executable before not
    /// found.
    fn become_program(&self) -> io::Error {
        let (argv, env) = (Vector::new(&self.argv), Vector::new(&self.env));
        let mut told = io::Error::from(Errno::NOENT);
        for candidate in &self.candidates {
            let error = launch::execute(candidate, &argv, &env);
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT | Errno::NOTDIR) => {}
                Some(Errno::ACCESS) => told = error,
                _ => return error,
            }
        }
        told
    }
}

fn new_session(terminal: Option<BorrowedFd<'_>>) -> io::Result<()> {
    launch::reset_signals();
    rustix::process::setsid()?;
    if let Some(terminal) = terminal {
        launch::control_terminal(terminal)?;
        (0..=2).try_for_each(|number| fds::place(terminal, number))?;
    }
    fds::close_on_exec_from(3)?;
    Ok(())
}

fn set_limits(workload: &Workload) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(score) = openat(CWD, c"/proc/self/oom_score_adj", flags, Mode::empty()) {
        rustix::io::write(score, OOM_SCORE).ok();
    }
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
fn enter_directory(workload: &Workload) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat2(
        CWD,
        workload.workdir.as_slice(),
        flags,
        Mode::empty(),
        ResolveFlags::NO_MAGICLINKS,
    )?;
    Ok(rustix::process::fchdir(directory)?)
}

/// As C strings.
fn strings(bytes: &[Vec<u8>]) -> Option<Vec<CString>> {
    bytes
        .iter()
        .map(|one| CString::new(one.as_slice()).ok())
        .collect()
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
