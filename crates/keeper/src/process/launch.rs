//! Starts a program: from a fork of the keeper to a process that can do only what the plan allows.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid, openat2};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CapabilitySet, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tare_control::{Capabilities, Exec, Identity, LaunchStep, Profile, Report, SetupStep};
use tare_kernel::launch::{self, Strings};
use tare_kernel::seccomp::Instruction;
use tare_kernel::step::step;
use tare_kernel::{caps, fds, seccomp};

use crate::make::{Failing, Failure};
use crate::output::Streams;

/// Why a process did not start.
pub type LaunchFailure = (LaunchStep, io::Error);

/// Everything that a process is started with.
#[derive(Debug)]
pub struct Launch<'a> {
    pub profile: &'a Profile,
    pub exec: &'a Exec,
    pub streams: Streams,
    pub cgroup: Option<BorrowedFd<'a>>,
    /// The cgroup v1 `tasks` file that the process joins.
    pub tasks: Option<BorrowedFd<'a>>,
    /// Its descriptors after the standard streams. Their own numbers are above those.
    pub passed: &'a [BorrowedFd<'a>],
}

/// Everything that the child needs, prepared before it exists. The child shares the keeper's memory,
/// and memory that it allocated would never be freed.
struct Command<'a> {
    launch: &'a Launch<'a>,
    argv: Strings,
    env: Strings,
    /// The paths to try, in order.
    candidates: Vec<CString>,
    workdir: CString,
    filter: Vec<Instruction>,
}

/// Starts a program. Returns once it has executed.
pub fn start(launch: &Launch<'_>, argv: &[Vec<u8>]) -> Result<Pid, Report> {
    let command = Command::prepare(launch, argv)
        .ok_or_else(|| launch_failed((LaunchStep::Exec, Errno::INVAL.into())))?;
    let mut failure = None;
    let pid = launch::until_exec(launch.cgroup, || failure = Some(command.execute()))
        .failing(SetupStep::Fork, "command")
        .map_err(Failure::into_report)?;
    match failure {
        Some(failure) => Err(launch_failed(failure)),
        None => Ok(pid),
    }
}

/// Starts a program of tare itself, confined like the workload. It gets a copy of the keeper's
/// memory and none of its descriptors.
pub fn start_in_box_program(
    launch: &Launch<'_>,
    program: impl FnOnce() -> u8,
) -> Result<Pid, Report> {
    let filter = instructions(launch.profile);
    let workdir = workdir(launch)
        .ok_or_else(|| launch_failed((LaunchStep::WorkingDirectory, Errno::INVAL.into())))?;
    launch::forked(launch.cgroup, || {
        let confined = confine(launch, &workdir, &filter)
            .and_then(|()| fds::close_from(3).map_err(|error| (LaunchStep::Session, error)));
        match confined {
            Ok(()) => program(),
            Err(_) => CANNOT_CONFINE,
        }
    })
    .failing(SetupStep::Fork, "copy")
    .map_err(Failure::into_report)
}

/// The exit code of a program of tare that could not be confined, and did not run.
const CANNOT_CONFINE: u8 = 125;

/// Returns the report for a start that failed.
pub fn launch_failed((step, error): LaunchFailure) -> Report {
    let errno = error.raw_os_error().unwrap_or(0);
    Report::LaunchFailed { step, errno }
}

/// Closes the streams that the keeper inherited. Otherwise a reader of the command's output would see
/// end of file only when the keeper ends.
pub fn release_streams() -> Result<(), Failure> {
    let release = || fds::set_stdio([fds::open_null()?.as_fd(); 3]);
    step("release the streams", release).failing(SetupStep::Fork, "/dev/null")
}

/// Returns the user of a process. `None` in a contained box, where users do not change.
pub fn identity(profile: &Profile, exec: &Exec) -> Option<Identity> {
    let own = profile.identity?;
    Some(exec.identity.unwrap_or(own))
}

impl<'a> Command<'a> {
    /// Returns `None` for a string with a NUL. The engine has refused those.
    fn prepare(launch: &'a Launch<'a>, argv: &[Vec<u8>]) -> Option<Self> {
        let argv = strings(argv)?;
        let env = strings(environment(&launch.profile.env, &launch.exec.env))?;
        let candidates = candidates(argv.first()?, &env);
        Some(Self {
            launch,
            candidates,
            workdir: workdir(launch)?,
            filter: instructions(launch.profile),
            argv: Strings::new(argv),
            env: Strings::new(env),
        })
    }

    /// Runs in the child. Returns only if something failed.
    fn execute(&self) -> LaunchFailure {
        match confine(self.launch, &self.workdir, &self.filter) {
            Ok(()) => (LaunchStep::Exec, self.become_program()),
            Err(failure) => failure,
        }
    }

    /// Returns the most useful error: "not executable" rather than "not found".
    fn become_program(&self) -> io::Error {
        let mut reported = io::Error::from(Errno::NOENT);
        for candidate in &self.candidates {
            let error = launch::execute(candidate, &self.argv, &self.env);
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT | Errno::NOTDIR) => {}
                Some(Errno::ACCESS) => reported = error,
                _ => return error,
            }
        }
        reported
    }
}

/// Runs in the child. Afterwards the child can do only what the plan allows.
fn confine(
    launch: &Launch<'_>,
    workdir: &CStr,
    program: &[Instruction],
) -> Result<(), LaunchFailure> {
    let at = |step: LaunchStep| move |error: io::Error| (step, error);
    new_session(&launch.streams).map_err(at(LaunchStep::Session))?;
    fds::place_from(3, launch.passed).map_err(at(LaunchStep::Session))?;
    set_limits(launch.profile).map_err(at(LaunchStep::Limits))?;
    give_up_privileges(launch).map_err(at(LaunchStep::Credentials))?;
    enter_directory(workdir).map_err(at(LaunchStep::WorkingDirectory))?;
    filter(launch.profile, program).map_err(at(LaunchStep::Seccomp))?;
    // Last: from here on the process may have to wait for processor time, and the keeper waits for
    // it. The kernel checks the rights of the process that opened the file.
    if let Some(tasks) = launch.tasks {
        rustix::io::write(tasks, b"0").map_err(|errno| (LaunchStep::Limits, errno.into()))?;
    }
    Ok(())
}

fn filter(profile: &Profile, program: &[Instruction]) -> io::Result<()> {
    if profile.no_new_privs {
        rustix::thread::set_no_new_privs(true)?;
    }
    match program {
        [] => Ok(()),
        program => seccomp::install(program),
    }
}

fn instructions(profile: &Profile) -> Vec<Instruction> {
    let instruction = |one: &tare_control::BpfInstruction| Instruction {
        code: one.code,
        jt: one.jump_true,
        jf: one.jump_false,
        k: one.k,
    };
    profile.seccomp.iter().map(instruction).collect()
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

fn set_limits(profile: &Profile) -> io::Result<()> {
    for limit in &profile.limits {
        launch::limit_resource(limit.resource.into(), limit.value)?;
    }
    Ok(())
}

fn give_up_privileges(launch: &Launch<'_>) -> io::Result<()> {
    let capabilities = launch.profile.capabilities;
    let identity = identity(launch.profile, launch.exec);
    let kept = match capabilities {
        // The kernel takes the capabilities from a process that stops being root (capabilities(7)).
        Capabilities::Untouched => return identity.map_or(Ok(()), assume),
        Capabilities::None => CapabilitySet::empty(),
        Capabilities::BoxRoot => caps::BOX_ROOT,
    };
    caps::bound_to(kept)?;
    if capabilities == Capabilities::None {
        caps::lock_out_root()?;
    }
    if let Some(identity) = identity {
        assume(identity)?;
    }
    caps::set_to(kept)
}

fn assume(identity: Identity) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    match set_thread_groups(&[]) {
        // A map with one id denies this. The groups that stay are unmapped there.
        Ok(()) | Err(Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// Enters the working directory as the user of the command. Magic links could lead out of the box.
/// The path is a C string, because rustix would copy any other long path. A child that were killed
/// meanwhile would hold the lock of the keeper's allocator.
fn enter_directory(workdir: &CStr) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat2(CWD, workdir, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
    Ok(rustix::process::fchdir(directory)?)
}

/// Returns `None` for a path with a NUL.
pub fn workdir(launch: &Launch<'_>) -> Option<CString> {
    let workdir = launch.exec.workdir.as_ref().unwrap_or(&launch.profile.workdir);
    CString::new(workdir.as_slice()).ok()
}

/// Returns `None` if one of them has a NUL.
fn strings<'a>(bytes: impl IntoIterator<Item = &'a Vec<u8>>) -> Option<Vec<CString>> {
    bytes.into_iter().map(|one| CString::new(one.as_slice()).ok()).collect()
}

/// Returns the variables of the box and of the exec, as `KEY=VALUE`. Those of the exec win.
fn environment<'a>(
    first: &'a [Vec<u8>],
    second: &'a [Vec<u8>],
) -> impl Iterator<Item = &'a Vec<u8>> {
    let later: BTreeSet<&[u8]> = second.iter().map(|pair| key(pair)).collect();
    first.iter().filter(move |pair| !later.contains(key(pair))).chain(second)
}

fn key(pair: &[u8]) -> &[u8] {
    let end = pair.iter().position(|byte| *byte == b'=');
    &pair[..end.unwrap_or(pair.len())]
}

/// Returns the paths at which the command may be, by the PATH of the box.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_variable_replaces_an_earlier_one_of_its_name_only() {
        let pairs = |texts: &[&str]| -> Vec<Vec<u8>> {
            texts.iter().map(|text| text.as_bytes().to_vec()).collect()
        };
        let first = pairs(&["A=1", "AB=2", "C=x=y"]);
        let second = pairs(&["A=3", "D=4"]);
        let merged: Vec<_> = environment(&first, &second).cloned().collect();
        assert_eq!(merged, pairs(&["AB=2", "C=x=y", "A=3", "D=4"]));
    }
}
