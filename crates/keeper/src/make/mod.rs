//! Makes the box from its plan: files, host name, network, Landlock. Starts nothing in it.

pub mod dev;
pub mod files;
pub mod landlock;
mod mount_point;
pub mod proc;
pub mod terminal;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::umask;
use tare_control::{Capabilities, Claim, Filesystem, Plan, ProcPlan, Profile, Report, SetupStep};
use tare_kernel::landlock::{Ruleset, Scope};
use tare_kernel::network::{self, Links, NamespaceBuilder};
use tare_kernel::step::{once, step};
use tare_kernel::{launch, mount};

use crate::inherited::InheritedFds;
use crate::make::files::{Built, RewritableFiles, Trees};

const UMASK: Mode = Mode::from_bits_retain(0o022);
/// When the host's memory runs out, the kernel kills processes of boxes first. In a box it kills
/// the largest process, which is never the keeper.
const OOM_SCORE: &[u8] = b"500";

/// Why the box could not be made.
#[derive(Debug)]
pub struct Failure {
    step: SetupStep,
    subject: String,
    errno: i32,
}

impl Failure {
    pub fn of(step: SetupStep, subject: &str, errno: Errno) -> Self {
        Self { step, subject: subject.to_owned(), errno: errno.raw_os_error() }
    }

    pub fn into_report(self) -> Report {
        Report::SetupFailed { step: self.step, subject: self.subject, errno: self.errno }
    }
}

/// Adds to an error the step that failed and its subject.
pub trait Failing<T> {
    fn failing(self, step: SetupStep, subject: &str) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Failing<T> for Result<T, E> {
    fn failing(self, step: SetupStep, subject: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            step,
            subject: subject.to_owned(),
            errno: error.into().raw_os_error().unwrap_or(0),
        })
    }
}

/// Whether a clone of a template was made with this process, and is in its namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Companion {
    None,
    Clone,
}

/// Makes the box. Afterwards this process is in it. Returns the rules of its Landlock domain, and the
/// files that the go may change.
pub fn make_box(
    plan: &Plan,
    inherited: &mut InheritedFds,
    companion: Companion,
) -> Result<(Option<Ruleset>, RewritableFiles), Failure> {
    // No process of the box may read or trace PID 1, or a child of PID 1 that has not executed yet.
    step("close the memory to others", || {
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
    })
    .failing(SetupStep::ReadPlan, "dumpable")?;
    // The process that a template makes has the score of the template.
    if companion == Companion::None {
        set_oom_score();
    }
    // A clone is in the network namespace already, and could not follow its keeper into another one.
    let network = if plan.own_network && companion == Companion::None {
        Some(NamespaceBuilder::start().failing(SetupStep::Network, "maker")?)
    } else {
        None
    };
    let mut built = match &plan.filesystem {
        Some(filesystem) => Some(isolate_files(plan, filesystem, inherited, companion)?),
        None => contain_files().map(|()| None)?,
    };
    if let Some(hostname) = &plan.hostname {
        name_host(hostname)?;
    }
    let rules = match &plan.landlock {
        Some(landlock) => {
            let volumes = built.iter().flat_map(|built| &built.volumes);
            let scope = match companion {
                Companion::None => Scope::Domain,
                Companion::Clone => Scope::Open,
            };
            let has_kvm = plan.filesystem.as_ref().is_some_and(|it| it.kvm);
            once("restrict files", || landlock::restrict(landlock, has_kvm, volumes, scope))
                .failing(SetupStep::Landlock, "")?
        }
        None => None,
    };
    if let (Companion::Clone, Some(built)) = (companion, &built) {
        share_fairly(built.settings.as_fd());
    }
    let rewritable = built.as_mut().map(|built| std::mem::take(&mut built.rewritable));
    let links = match plan.profile.capabilities {
        Capabilities::None => Links::Fixed,
        Capabilities::BoxRoot | Capabilities::Untouched => Links::Addable,
    };
    // Last, because making the network namespace takes longest.
    let entered = match (network, built) {
        (Some(network), Some(built)) => network.join(built.settings.as_fd(), links),
        (None, Some(built)) if plan.own_network => {
            network::set_up_own(built.settings.as_fd(), links)
        }
        _ => Ok(()),
    };
    entered.failing(SetupStep::Network, "lo")?;
    Ok((rules, rewritable.unwrap_or_default()))
}

fn name_host(hostname: &str) -> Result<(), Failure> {
    step("name the host", || rustix::system::sethostname(hostname.as_bytes()))
        .failing(SetupStep::Hostname, hostname)
}

/// Changes the box for the request that claims it.
pub fn claim(claim: Claim, profile: &mut Profile, files: RewritableFiles) -> Result<(), Failure> {
    (profile.env, profile.workdir) = (claim.env, claim.workdir);
    if let Some(hostname) = &claim.hostname {
        name_host(hostname)?;
    }
    for file in &claim.files {
        files.rewrite(file).failing(SetupStep::Hostname, &file.path)?;
    }
    Ok(())
}

/// All clones of a template count against the limits of one user of the host, who has 128 instances of
/// inotify by default. No box gets all of them. Best effort: these are limits of the kernel, not of tare.
fn share_fairly(settings: BorrowedFd<'_>) {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    for (name, most) in
        [(c"user/max_inotify_instances", &b"16"[..]), (c"user/max_inotify_watches", &b"8192"[..])]
    {
        let opened = openat(settings, name, flags, Mode::empty());
        opened.and_then(|file| rustix::io::write(file, most)).ok();
    }
}

/// Sets the score for this process and all that it starts. Called before the first child exists:
/// processes that share memory share the score, and the kernel would look at all processes of the
/// host to find them.
fn set_oom_score() {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let score = openat(CWD, c"/proc/self/oom_score_adj", flags, Mode::empty());
    // Fails if the caller's score is higher and the caller has no right to lower it.
    score.and_then(|file| rustix::io::write(file, OOM_SCORE)).ok();
}

fn isolate_files<'a>(
    plan: &Plan,
    filesystem: &'a Filesystem,
    inherited: &mut InheritedFds,
    companion: Companion,
) -> Result<Built<'a>, Failure> {
    // A template makes boxes in other cgroups. With the option `nsdelegate`, the kernel allows that only
    // to a process whose cgroup namespace has them. The first process of a machine makes the cgroup
    // namespace of a box that has the kernel for itself. A clone is in the cgroup namespace of its keeper
    // already, which was made before both.
    if filesystem.proc == ProcPlan::Masked && companion == Companion::None {
        launch::own_cgroup_namespace().failing(SetupStep::JoinCgroupNamespace, "")?;
    }
    // Every file of the box has exactly the mode that it is made with.
    umask(Mode::empty());
    let mut trees = Trees::new(inherited);
    let owner = plan.profile.identity;
    let built = files::build(filesystem, &mut trees, owner)?;
    files::enter(&built)?;
    // The files of the command must not depend on the caller's umask. A contained command keeps the
    // caller's.
    umask(UMASK);
    Ok(built)
}

/// Leaves the host's files as they are, except for `/proc`: a `/proc` of another PID namespace would
/// mislead every program that looks for itself in it. Cgroups keep their true names, so a launcher
/// makes its cgroups below those of the box.
fn contain_files() -> Result<(), Failure> {
    mount::make_everything_follow().failing(SetupStep::PrivateMounts, "/")?;
    let proc = proc::mount_plain().failing(SetupStep::Proc, "/proc")?;
    mount::attach(proc.as_fd(), CWD, c"/proc").failing(SetupStep::Proc, "/proc")
}
