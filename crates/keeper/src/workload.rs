//! The command: from a fork of the keeper to a program that can do nothing but
//! what the plan says.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid, openat, openat2};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, umask};
use rustix::thread::{CapabilitySet, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tare_control::{Capabilities, Identity, LaunchStep, SetupStep, Workload};
use tare_kernel::launch::{self, Vector};
use tare_kernel::seccomp::Instruction;
use tare_kernel::{caps, fds, seccomp};

use crate::setup::{Failing, Failure};

/// When memory runs out, the kernel takes a process of the workload and not the
/// keeper, which would take the box.
const OOM_SCORE: &[u8] = b"500";

/// A command that was forked and has executed, or will say why not.
#[derive(Debug)]
pub struct Child {
    pub pid: Pid,
    /// Closed by the child's `execve`; a failure comes through it first.
    pub launch: OwnedFd,
}

type LaunchFailure = (LaunchStep, io::Error);

/// Starts the command on the keeper's own standard streams (or the terminal),
/// which the keeper then lets go of.
pub fn start(workload: &Workload, terminal: Option<OwnedFd>) -> Result<Child, Failure> {
    let (launch, mut failed) =
        pipe_with(PipeFlags::CLOEXEC).failing(SetupStep::Fork, "launch pipe")?;
    let terminal_fd = terminal.as_ref().map(AsFd::as_fd);
    let pid = launch::fork(|| {
        let (step, error) = become_command(workload, terminal_fd);
        report(&mut failed, step, &error);
        127
    })
    .failing(SetupStep::Fork, "command")?;
    drop(failed);
    let_go_of_streams().failing(SetupStep::Fork, "/dev/null")?;
    Ok(Child { pid, launch })
}

/// End of file must reach whoever reads the command's output when the command
/// closes it, not when the keeper ends.
fn let_go_of_streams() -> io::Result<()> {
    let null = openat(
        CWD,
        c"/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    (0..=2).try_for_each(|number| fds::place(null.as_fd(), number))
}

fn report(pipe: &mut OwnedFd, step: LaunchStep, error: &io::Error) {
    let mut message = [0; 5];
    message[0] = step as u8;
    message[1..].copy_from_slice(&error.raw_os_error().unwrap_or(0).to_le_bytes());
    rustix::io::write(pipe, &message).ok();
}

/// Reads what [`report`] wrote; `None` when the pipe closed by `execve`.
pub fn launch_failure(pipe: &OwnedFd) -> Option<(LaunchStep, i32)> {
    let mut message = [0; 5];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut message)).ok()?;
    if length < message.len() {
        return None;
    }
    let steps = [
        LaunchStep::Session,
        LaunchStep::Limits,
        LaunchStep::Credentials,
        LaunchStep::WorkingDirectory,
        LaunchStep::Seccomp,
        LaunchStep::Exec,
    ];
    let step = steps.into_iter().find(|step| *step as u8 == message[0])?;
    let errno = i32::from_le_bytes([message[1], message[2], message[3], message[4]]);
    Some((step, errno))
}

/// Returns only when something failed.
fn become_command(workload: &Workload, terminal: Option<BorrowedFd<'_>>) -> LaunchFailure {
    match prepare(workload, terminal) {
        Ok(()) => (LaunchStep::Exec, execute(workload)),
        Err(failure) => failure,
    }
}

fn prepare(workload: &Workload, terminal: Option<BorrowedFd<'_>>) -> Result<(), LaunchFailure> {
    new_session(terminal).map_err(|error| (LaunchStep::Session, error))?;
    set_limits(workload).map_err(|error| (LaunchStep::Limits, error))?;
    give_up_privileges(workload).map_err(|error| (LaunchStep::Credentials, error))?;
    enter_directory(workload).map_err(|error| (LaunchStep::WorkingDirectory, error))?;
    confine(workload).map_err(|error| (LaunchStep::Seccomp, error))
}

fn new_session(terminal: Option<BorrowedFd<'_>>) -> io::Result<()> {
    launch::reset_signals();
    rustix::process::setsid()?;
    if let Some(terminal) = terminal {
        launch::control_terminal(terminal)?;
        (0..=2).try_for_each(|number| fds::place(terminal, number))?;
    }
    fds::close_on_exec_from(3)?;
    umask(Mode::from_raw_mode(0o022));
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

fn confine(workload: &Workload) -> io::Result<()> {
    if workload.no_new_privs {
        rustix::thread::set_no_new_privs(true)?;
    }
    if workload.seccomp.is_empty() {
        return Ok(());
    }
    let program: Vec<Instruction> = workload
        .seccomp
        .iter()
        .map(|instruction| Instruction {
            code: instruction.code,
            jt: instruction.jump_true,
            jf: instruction.jump_false,
            k: instruction.k,
        })
        .collect();
    seccomp::install(&program)
}

/// Looks the command up in the box's own PATH; the error is the most telling
/// one: found but not executable before not found.
fn execute(workload: &Workload) -> io::Error {
    let (Some(argv), Some(env)) = (strings(&workload.argv), strings(&workload.env)) else {
        return Errno::INVAL.into();
    };
    let (argv_vector, env_vector) = (Vector::new(&argv), Vector::new(&env));
    let mut told = io::Error::from(Errno::NOENT);
    for candidate in candidates(&argv[0], &env) {
        let error = launch::execute(&candidate, &argv_vector, &env_vector);
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT | Errno::NOTDIR) => {}
            Some(Errno::ACCESS) => told = error,
            _ => return error,
        }
    }
    told
}

fn strings(bytes: &[Vec<u8>]) -> Option<Vec<CString>> {
    bytes
        .iter()
        .map(|one| CString::new(one.as_slice()).ok())
        .collect()
}

/// The paths to try, in order.
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
